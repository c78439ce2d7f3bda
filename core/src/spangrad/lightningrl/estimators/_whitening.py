"""Normalising advantages over the whole batch."""

from __future__ import annotations

import numpy as np

from spangrad.lightningrl._comparison import Comparison
from spangrad.transitions import BoolArray, FloatArray


def whitened(comparison: Comparison, values: FloatArray, eps: float, *, alone: BoolArray) -> FloatArray:
    """(T,) values less their mean over the batch, over their unbiased standard deviation, every unit weighing the same.

    Args:
        comparison: says what a unit is.
        values: (T,)
        eps: added to the standard deviation.
        alone: (T,) has no other to be compared with; stays out of the statistics and gets 0.
    """
    compared = ~alone
    units = np.zeros(len(comparison.unit_groups), dtype=np.bool_)
    units[comparison.unit_index[compared]] = True
    if not units.any():
        return np.zeros(len(values), dtype=np.float64)
    mean = float(comparison.unit_means(values)[units].mean())
    squares = comparison.unit_means((values - mean) ** 2)[units]
    std = float(np.sqrt(squares.sum() / max(len(squares) - 1, 1)))
    return np.where(compared, (values - mean) / (std + eps), 0.0)
