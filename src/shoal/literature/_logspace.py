"""Sums of numbers given by their logarithms, and whole orders: what the other files share.

A moment m >= 1 near 1 is carried as the logarithm of its *excess* m - 1, because a sum of
probabilities times moments is 1 plus the same sum of excesses: nothing cancels, and the relative
accuracy of log m survives where m - 1 is 1e-15.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from shoal import _validate
from shoal.bounds import moments
from shoal.bounds.numeric import FloatArray


def whole_order(value: Any, *, maximum: int = moments.SERIES_MAX) -> int:
    """A Rényi order for which the paper's formulas are stated: 2, 3, ..."""
    return _validate.integer("order", value, minimum=2, maximum=maximum)


def whole_orders(value: Any) -> list[int]:
    """One or more such orders."""
    return [whole_order(k) for k in _validate.each("orders", value)]


def log_excess(log_moment: npt.ArrayLike) -> FloatArray:
    """`log(m - 1)` from log m >= 0; minus infinity at m = 1."""
    value = np.asarray(log_moment, dtype=float)
    positive = value > 0.0
    safe = np.where(positive, value, 1.0)
    return np.where(positive, safe + np.log(-np.expm1(-safe)), -np.inf)


def log_sum(log_terms: npt.ArrayLike) -> float:
    """The logarithm of a sum; minus infinity for no terms, or zeros only."""
    values = np.asarray(log_terms, dtype=float)
    if not values.size or float(values.max()) == -np.inf:
        return -np.inf
    return float(special.logsumexp(values))


def log_moment(log_excess_terms: npt.ArrayLike) -> float:
    """`log(1 + sum of the terms)`."""
    return float(np.logaddexp(0.0, log_sum(log_excess_terms)))
