"""Figures of whole actions, given to each of their tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def sum_over_actions(values: Tensor, actions: Tensor) -> Tensor:
    """(M,) for each token, the sum of the values over its action.

    Args:
        values: (M,)
        actions: (M,) a number per action, the same for all its tokens; not negative.
    """
    _, place = torch.unique(actions, return_inverse=True)
    sums = values.new_zeros(int(place.max()) + 1 if len(place) else 0)
    return sums.index_add(0, place, values)[place]


def mean_over_actions(values: Tensor, actions: Tensor) -> Tensor:
    """(M,) for each token, the mean of the values over its action; arguments as in `sum_over_actions`."""
    return sum_over_actions(values, actions) / sum_over_actions(torch.ones_like(values), actions)
