"""Sums in the logarithmic domain, and whole orders.

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
    """Return a whole Rényi order, checked: the paper's formulas hold for 2, 3, ...

    Args:
      value: The order, a whole number.
      maximum: The largest order allowed.

    Returns:
      The order as an `int`.
    """
    return _validate.integer("order", value, minimum=2, maximum=maximum)


def whole_orders(value: Any) -> list[int]:
    """Return one or more whole Rényi orders, checked."""
    return [whole_order(order) for order in _validate.each("orders", value)]


def log_of_excess(log_of_moment: npt.ArrayLike) -> FloatArray:
    """Return `log(m - 1)` for log m >= 0; minus infinity for m = 1."""
    value = np.asarray(log_of_moment, dtype=float)
    positive = value > 0.0
    safe = np.where(positive, value, 1.0)
    return np.where(positive, safe + np.log(-np.expm1(-safe)), -np.inf)


def log_sum(log_terms: npt.ArrayLike) -> float:
    """Return the logarithm of a sum; minus infinity if there are no terms or all are zero."""
    values = np.asarray(log_terms, dtype=float)
    if not values.size or float(values.max()) == -np.inf:
        return -np.inf
    return float(special.logsumexp(values))


def log_of_moment(log_excesses: npt.ArrayLike) -> float:
    """Return `log(1 + sum of the excesses)`."""
    return float(np.logaddexp(0.0, log_sum(log_excesses)))
