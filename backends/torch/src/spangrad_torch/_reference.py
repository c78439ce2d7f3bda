"""The frozen reference of the KL term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn


class FrozenReference:
    """Copies of the trained weights as they once were; untrained weights are the model's own.

    With adapters this costs a copy of the adapters only, and unlike switching them off it also serves as the reference for a
    policy whose adapters were trained before (a supervised warm start).

    Args:
        weights: the copies, by name.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = dict(weights)

    @classmethod
    def of(cls, trained: Mapping[str, nn.Parameter]) -> FrozenReference:
        """Copies the present weights."""
        return cls({name: weight.detach().clone() for name, weight in trained.items()})

    @contextmanager
    def in_place_of(self, trained: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Lets the model compute with the reference's weights inside the block.

        Nothing is copied; nobody else may use the model meanwhile.
        """
        present = {name: weight.data for name, weight in trained.items()}
        try:
            for name, weight in trained.items():
                weight.data = self.weights[name]
            yield
        finally:
            for name, weight in trained.items():
                weight.data = present[name]
