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
    valued: int = 0
    """Tokens whose value has a target."""
    moments: dict[str, float] = field(default_factory=dict)
    """Sums over those, of targets and errors and their squares."""

    def add(self, name: str, values: Tensor) -> None:
        """Adds (M,) values to the sum of that name."""
        self.by_name[name] = self.by_name.get(name, 0.0) + float(values.detach().double().sum())

    def rise(self, name: str, values: Tensor) -> None:
        """Raises the maximum of that name to the largest of (M,) values."""
        self.maxima[name] = max(self.maxima.get(name, -math.inf), float(values.detach().max()))

    def values(self, targets: Tensor, values: Tensor, losses: Tensor, held: Tensor | None) -> None:
        """Adds (V,) learnt values, what they should have been, their losses, and where a bound held, if there is one."""
        self.valued += len(targets)
        self.add("value_loss", losses)
        if held is not None:
            self.add("value_clip_fraction", held)
        wanted = targets.detach().double()
        error = wanted - values.detach().double()
        for name, part in (("target", wanted), ("error", error)):
            for power in (1, 2):
                key = f"{name}^{power}"
                self.moments[key] = self.moments.get(key, 0.0) + float((part**power).sum())

    def explained_variance(self) -> float | None:
        """1 - Var(target - value) / Var(target): 1 is perfect, 0 no better than a constant. None where the targets are equal."""
        if not self.valued:
            return None
        variance = {
            name: self.moments[f"{name}^2"] / self.valued - (self.moments[f"{name}^1"] / self.valued) ** 2
            for name in ("target", "error")
        }
        if variance["target"] <= 1e-12 * max(1.0, self.moments["target^2"] / self.valued):
            return None
        return 1.0 - max(variance["error"], 0.0) / variance["target"]

    def metrics(self) -> Mapping[str, float]:
        """Maxima, and means over tokens: `mismatch_kl` over those whose recorded log-probabilities can be compared, figures of
        values over those with a target.
        """
        comparable = self.by_name.get("mismatch_tokens", 0.0)
        valued = float(self.valued)
        counts = {
            "mismatch_kl": comparable,
            "mismatch_tokens": 1.0,
            "value_loss": valued,
            "value_clip_fraction": valued,
        }
        means = {name: total / max(counts.get(name, self.tokens), 1.0) for name, total in self.by_name.items()}
        explained = self.explained_variance()
        told = {} if explained is None else {"explained_variance": explained}
        return dict(sorted({**means, **self.maxima, **told}.items()))
