"""What is counted over the tokens of a batch while its gradient is added up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Sums:
    """What is added up over the tokens of a batch."""

    loss: float = 0.0
    tokens: int = 0
    by_name: dict[str, float] = field(default_factory=dict)
    """Plain sums over tokens."""
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, values: Tensor) -> None:
        """Adds (M,) values to the sum of that name."""
        self.by_name[name] = self.by_name.get(name, 0.0) + float(values.detach().double().sum())

    def rise(self, name: str, values: Tensor) -> None:
        """Raises the maximum of that name to the largest of (M,) values."""
        self.maxima[name] = max(self.maxima.get(name, -math.inf), float(values.detach().max()))

    def metrics(self) -> Mapping[str, float]:
        """Maxima, and means over tokens; `mismatch_kl` over those whose recorded log-probabilities can be compared."""
        comparable = self.by_name.get("mismatch_tokens", 0.0)
        counts = {"mismatch_kl": comparable, "mismatch_tokens": 1.0}
        means = {name: total / max(counts.get(name, self.tokens), 1.0) for name, total in self.by_name.items()}
        return dict(sorted({**means, **self.maxima}.items()))
