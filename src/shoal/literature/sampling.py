"""Sampling a fixed number of users without replacement, then shuffling: Theorem 2.

Error: round-off only.
"""

from __future__ import annotations

import math

import numpy as np

from shoal import _validate
from shoal.errors import InvalidInput
from shoal.literature import _logspace
from shoal.literature.partitions import ShuffleRdp, log_binomials, shuffle_rdp


def log_moment_theorem2(*, reports: int, rate: float, sigma: float, order: int, shuffle: ShuffleRdp) -> float:
    """Return `(L - 1)` times the right-hand side of Theorem 2.

    The theorem as stated has rate = reports / users; Theorem 3 and the sum before it use another rate.

    Args:
      reports: The number of shuffled reports.
      rate: The sampling rate.
      sigma: The noise multiplier of a report.
      order: The Rényi order L, a whole number.
      shuffle: The Rényi DP of the shuffle.

    Returns:
      The logarithm of the moment.
    """
    j = np.arange(2, order + 1, dtype=float)
    inner = np.array([(i - 1) * shuffle(users=reports, order=i, sigma=sigma) for i in range(2, order + 1)])
    bounds = math.log(2.0) + inner
    # min{4 (e^eps(2) - 1), 2 e^eps(2)} at j = 2
    bounds[0] = min(math.log(4.0) + float(_logspace.log_of_excess(inner[0])), bounds[0])
    return _logspace.log_of_moment(j * math.log(rate) + log_binomials(order)[2:] + bounds)


def theorem2(*, users: int, sample: int, sigma: float, order: int, shuffle: ShuffleRdp = shuffle_rdp) -> float:
    """Return the Rényi DP of a shuffle of a sample drawn without replacement.

    Source: Liew and Takahashi (2022), Theorem 2, which is Wang, Balle and Kasiviswanathan (2019),
    Theorem 9, with eps(infinity) unbounded. With g = sample / users and eps the shuffle's own RDP,

        (L - 1) D_L <= log(1 + g^2 C(L,2) min{4 (e^eps(2) - 1), 2 e^eps(2)}
                             + sum_{j=3..L} 2 g^j C(L,j) e^((j-1) eps(j))).

    What is wrong with it: nothing in the inequality (the appendix misprints `e^(eps(infinity) - 1)`
    for `e^eps(infinity) - 1`), but it inherits the crowd of Theorem 1, and it is loose, because it holds for any base
    mechanism: the term j = 2 is four times its exact value, and the terms j > 2 do not shrink with the crowd, while
    the exact ones vanish. `SubsampledShuffle` is exact.

    Args:
      users: The number of users.
      sample: The number of users drawn.
      sigma: The noise multiplier of a report.
      order: The Rényi order L, a whole number.
      shuffle: The shuffle's own Rényi DP: `shuffle_rdp`, or `algorithm1` for the same numbers.

    Returns:
      The bound on the Rényi divergence.

    Raises:
      InvalidInput: If the sample is larger than the number of users, or an argument is out of its range.

    >>> from shoal import SubsampledShuffle
    >>> exact = SubsampledShuffle(users=1_000, sample=100, sigma=2.0, crowd="identical")
    >>> bound = theorem2(users=1_000, sample=100, sigma=2.0, order=8)
    >>> f"{bound:.4g} for {exact.rdp(8, direction='forward')[0]:.4g}"
    '0.01766 for 0.0001138'
    """
    n = _validate.users("users", users)
    m = _validate.users("sample", sample)
    if m > n:
        raise InvalidInput(f"sample must be at most users ({n}), got {m}")
    top = _logspace.whole_order(order)
    rate = _validate.rate(m / n, name="sample / users")
    return log_moment_theorem2(reports=m, rate=rate, sigma=_validate.sigma(sigma), order=top, shuffle=shuffle) / (
        top - 1
    )
