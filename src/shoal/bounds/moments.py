"""Moments of the mean ratio S of a round: `E[S^k]` and `E[S^-p]`, to nearly full precision.

Write `m_k = E[S^k]` and `l_k = log m_k`. With `A(x) = sum_i M_i x^i / i!` the formal moment series
of one ratio, a mean of n independent ones has `m_k = k! / n^k [x^k] A(x)^n`: a power of a power
series, where the paper enumerates the partitions of k. Four methods give the same numbers, each where
it is stable and fast. All of them add terms of one sign only and keep the *relative* accuracy
of l_k, even where m_k - 1 is 1e-15 or m_k is beyond the largest double:

- all orders up to K <= n: J.C.P. Miller's recurrence for powers of series (Knuth, The Art of
  Computer Programming 2, section 4.7), `m_k = sum_i a_{k,i} M_i m_{k-i}` with
  `a_{k,i} = (i(n+1) - k)/k C(k,i) n^-i >= 0` and `sum_i a_{k,i} = 1`: O(K^2), independent of n;
- all orders up to K > n, where those weights change sign: binary powering of means, O(K^2 log n);
- one large order k: Cauchy's integral on a circle by the trapezoidal rule, O(k);
- negative powers: `E[S^-p] - 1 = 1/Gamma(p) int t^(p-1) e^-t expm1(n K(t/n)) dt`, where
  `K(a) = log E exp(-a(V - 1))`, by trapezoidal rules in log t and in z.

Because the weights of the first two sum to one, `m_k - 1 = sum_i w_i expm1(x_i)` for the exponents
x_i >= 0, so nothing cancels.

Error: round-off only, bounded by `roundoff(k)` relative to l_k. `log_moments` and
`log_negative_moments` return the plain values; callers that publish a bound add the error.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from shoal.bounds.laplace import log_sum_exp
from shoal.bounds.numeric import UNIT, FloatArray, IntArray
from shoal.bounds.powering import power
from shoal.bounds.ratio import MeanRatio

ComplexArray = npt.NDArray[np.complex128]

_DROP = 50.0
"""Terms below exp(-50) of the sum are left out: together they are less than 1e-17 of it for k <= 10^4."""

_ROWS_AT_ONCE = 32
"""Rows of a product that are computed at once."""

SERIES_MAX = 16_384
"""Largest order for which all orders are computed together (memory and time grow as its square)."""

_SHIFT_ABOVE = 100.0
"""Sums of exponentials with a larger exponent are scaled by it: adding 1 would not change their last digit."""

_TABLE_MAX = 4096
"""Tables up to this order are made for powers of two, so that similar questions share one: that costs milliseconds."""

_CIRCLE_MAX = 600.0
"""Exponents on the circle stay far below 709, that of the largest double; beyond, the circle gives no bound."""


def roundoff(orders: FloatArray) -> FloatArray:
    """A bound on the relative error of the logarithmic moments of this file.

    Each step of a recurrence adds a few units of 2^-53 to the relative error and averages those
    before it, so the error grows at most linearly with the order. The constants are at least twice
    every error measured against high-precision values (tests/bounds/test_moments.py).
    """
    return UNIT * (512.0 + 8.0 * np.asarray(orders, dtype=float))


@functools.lru_cache(maxsize=4)
def _log_factorials(top: int) -> tuple[FloatArray, FloatArray]:
    """`log k!` for k = 0..top as an unevaluated sum high + low (twice the usual precision).

    Differences of the high parts of nearby entries are exact, so log C(k, i) has an error
    of one unit in *its* last place, not in that of log k!.
    """
    logs = np.log(np.arange(1, top + 1, dtype=float))
    high = np.zeros(top + 1)
    low = np.zeros(top + 1)
    total = carry = 0.0
    for k, term in enumerate(logs.tolist(), start=1):
        # Knuth's exact addition: `carry` collects the round-off of each sum.
        sum_ = total + term
        back = sum_ - total
        carry += (total - (sum_ - back)) + (term - back)
        total = sum_
        high[k], low[k] = total, carry
    return high, low


def _log_moment_excess(log_moment: float) -> float:
    """`log(m - 1)` from log m."""
    if log_moment <= 0.0:
        return -math.inf
    return log_moment + math.log(-math.expm1(-log_moment))


class _MomentProduct:
    """Rows `log(1 + sum_i C(k,i) exp(head_i + c_k) f_{k,i} expm1(left_i + right_{k-i}))`.

    This is a binomial convolution of two moment sequences given by their logarithms, for weights
    that sum to 1 in every row. `right` may grow while rows are computed (`extend`), as a recurrence
    needs. A coarse pass over logarithms finds the terms that matter; only those are computed to
    full precision.
    """

    def __init__(self, head: FloatArray, left: FloatArray, right: FloatArray) -> None:
        self.top = len(left) - 1
        self.high, self.low = _log_factorials(self.top)
        self.head, self.left, self.right = head, left, right.copy()
        self.front = head + left - self.high
        # Reversed, so that "entry k - i" is a forward slice; entries beyond i = k are -infinity.
        self.behind = np.concatenate([(right - self.high)[::-1], np.full(_ROWS_AT_ONCE, -np.inf)])

    def extend(self, k: int, log_moment: float) -> None:
        """Set entry k of `right`.

        Args:
            k: the order.
            log_moment: its log-moment.
        """
        self.right[k] = log_moment
        self.behind[self.top - k] = log_moment - self.high[k]

    def row(self, k: int, first: int, constant: float, floor: float, slope: FloatArray) -> float:
        """One row k, summed over i = first..k, with f = 1 - k * slope_i.

        Args:
            k: the row.
            first: the first index i.
            constant: c_k.
            floor: a lower bound on the logarithm of the sum.
            slope: the slopes, one for each i.

        Returns:
            The logarithm of 1 plus the sum.
        """
        start = self.top - k
        # In plain double precision, without the low parts of factorials: enough to see which terms count.
        coarse = self.front[first : k + 1] + self.behind[start + first : start + k + 1]
        bar = min(float(coarse.max()), floor - float(self.high[k]) - constant) - _DROP
        i = np.flatnonzero(coarse > bar) + first
        log_terms, exponents = self._terms(k, i, constant)
        shift = _overflow_shift(log_terms.max())
        # e^x (1 - e^-x) is expm1(x) where e^x alone would overflow.
        terms = np.exp(log_terms - shift) * -np.expm1(-exponents) * (1.0 - k * slope[i])
        return float(_log_one_plus(terms.sum(), shift))

    def rows(self, k: IntArray, constant: FloatArray, floor: float, *, symmetric: bool) -> FloatArray:
        """Rows for consecutive k, summed over i = 0..k, with f = 1.

        Args:
            k: the rows, at most `_ROWS_AT_ONCE`.
            constant: c_k of each row.
            floor: a lower bound on the logarithms of the sums.
            symmetric: whether i and k - i give the same term, so that half of them suffice.

        Returns:
            The logarithm of 1 plus the sum, for each row.
        """
        last = int(k[-1]) // 2 if symmetric else int(k[-1])
        windows = np.lib.stride_tricks.sliding_window_view(self.behind, last + 1)
        start = self.top - int(k[-1])
        coarse = windows[start : start + len(k)][::-1] + self.front[: last + 1]
        if symmetric:
            # Rows of one block end at different indices: those beyond half of a row's own k do not count.
            edge = int(k[0]) // 2 + 1
            coarse[:, edge:][np.arange(edge, last + 1) > k[:, None] // 2] = -np.inf
        bar = np.minimum(coarse.max(axis=1), floor - self.high[k] - constant) - _DROP
        row, i = np.nonzero(coarse > bar[:, None])
        log_terms, exponents = self._terms(k[row], i, constant[row])
        starts = np.searchsorted(row, np.arange(len(k)))
        shift = _overflow_shift(np.maximum.reduceat(log_terms, starts))
        terms = np.exp(log_terms - shift[row]) * -np.expm1(-exponents)
        if symmetric:
            terms[2 * i != k[row]] *= 2.0  # the middle one has no partner
        return _log_one_plus(np.add.reduceat(terms, starts), shift)

    def _terms(self, k: Any, i: IntArray, constant: Any) -> tuple[FloatArray, FloatArray]:
        """Logarithms of the terms with index i (before f and expm1), and the exponents."""
        j = k - i
        # The larger of the two factorials is subtracted first: that difference is exact.
        of_first, of_rest = self.high[i], self.high[j]
        log_choose = (self.high[k] - np.maximum(of_first, of_rest)) - np.minimum(of_first, of_rest)
        log_choose += self.low[k] - (self.low[i] + self.low[j])
        exponents = self.left[i] + self.right[j]
        return (log_choose + constant) + self.head[i] + exponents, exponents


def _overflow_shift(largest: Any) -> Any:
    """The exponent by which to scale sums of exponentials, given their largest: 0 unless they overflow."""
    return np.where(largest > _SHIFT_ABOVE, largest, 0.0)


def _log_one_plus(total: Any, shift: Any) -> Any:
    """`log(1 + total e^shift)`; after a shift the 1 is below exp(-100) of the sum."""
    return np.where(shift == 0.0, np.log1p(total), shift + np.log(total))


def _by_recurrence(log_m: FloatArray, users: int) -> FloatArray:
    """Miller's recurrence; needs `users >= len(log_m) - 1`. `log_m[i] = log M_i`."""
    top = len(log_m) - 1
    n = float(users)
    i = np.arange(top + 1, dtype=float)
    i[0] = 1.0  # entry 0 is never used
    # Factors that depend only on i stand in `head`, those of k in the constant, the rest in `slope`:
    # a_{k,i} = C(k,i) / k * [i n^(1-i) (1 + 1/n)] * (1 - k / (i(n+1)))
    head = np.log(i) - (i - 1.0) * math.log(n) + math.log1p(1.0 / n)
    slope = 1.0 / (i * (n + 1.0))
    product = _MomentProduct(head, log_m, np.zeros(top + 1))
    floor = -math.inf
    for k in range(2, top + 1):
        # Each row uses all before it, so rows come one by one; moments grow, so the last one is a floor.
        log_moment = product.row(k, 1, -math.log(k), floor, slope)
        product.extend(k, log_moment)
        floor = _log_moment_excess(log_moment)
    return product.right


def _log_moments_of_mixture(left: FloatArray, right: FloatArray, share: float) -> FloatArray:
    """Log-moments of `share * A + (1 - share) * B` for independent A, B of mean 1.

    `E[(share A + (1-share) B)^k] = sum_i Bin(k, share)(i) E[A^i] E[B^(k-i)]`.
    """
    top = len(left) - 1
    head = np.arange(top + 1, dtype=float) * (math.log(share) - math.log1p(-share))
    product = _MomentProduct(head, left, right)
    result = np.zeros(top + 1)
    is_symmetric = left is right and share == 0.5
    for start in range(2, top + 1, _ROWS_AT_ONCE):
        k = np.arange(start, min(start + _ROWS_AT_ONCE, top + 1))
        # Moments grow with the order, so the last one before the block is below all of the block.
        floor = _log_moment_excess(float(result[start - 1]))
        constant = k.astype(np.float64) * math.log1p(-share)
        result[k] = product.rows(k, constant, floor, symmetric=is_symmetric)
    return result


def _by_powering(log_m: FloatArray, users: int) -> FloatArray:
    """Log-moments of the mean of `users` ratios, by doubling; stable for every n."""

    def add(a: tuple[FloatArray, int], b: tuple[FloatArray, int]) -> tuple[FloatArray, int]:
        copies = a[1] + b[1]
        if a is b:
            return _log_moments_of_mixture(a[0], a[0], 0.5), copies
        return _log_moments_of_mixture(b[0], a[0], b[1] / copies), copies

    return power((log_m, 1), users, add)[0]


@functools.lru_cache(maxsize=32)
def _moment_table(mean: MeanRatio, top: int) -> FloatArray:
    """`log E[S^k]` for k = 0, 1, ..., top, by the method that suits the number of users."""
    log_m = mean.ratio.log_moments(np.arange(top + 1, dtype=float))
    if mean.users == 1:
        result = log_m
    elif mean.users >= top:
        result = _by_recurrence(log_m, mean.users)
    else:
        result = _by_powering(log_m, mean.users)
    if mean.weight < 1.0:
        # A user who is not sampled contributes exactly 1.
        result = _log_moments_of_mixture(result, np.zeros(top + 1), mean.weight)
    result.flags.writeable = False  # the cache hands out this very array
    return result


def log_moments(mean: MeanRatio, top: int) -> FloatArray:
    """`log E[S^k]` for k = 0, 1, ..., top.

    Args:
        mean: the mean ratio S.
        top: the largest order.

    Returns:
        The logarithms without a margin for `roundoff`.
    """
    size = top if top > _TABLE_MAX else max(64, 1 << (top - 1).bit_length())
    return _moment_table(mean, size)[: top + 1]


@functools.lru_cache(maxsize=4096)
def log_moment_bound(mean: MeanRatio, order: int) -> float:
    """An upper bound on `log E[S^k]` for one large order k, close wherever it is useful.

    With `g_i = E[V^i] - 1` and `y = weight x / n`, `m_k = k! [x^k] e^(x(1-weight)) A(y)^n` and
    `A(y) = e^y + sum_{i>=2} g_i y^i / i!`. A product of two terms with i > k/2 has a degree above k,
    so at most one such *jump* counts:

    - none: `k! [x^k] e^x expm1(B(x))`, `B(x) = n log1p(e^-y sum_{2<=i<=k/2} g_i y^i / i!)`. The
      trapezoidal rule with N points on the circle |x| = k returns `sum_j c_{k+jN} k^{jN}` in place
      of the coefficient c_k; all coefficients are >= 0, so this can only be too large;
    - one: `n sum_{i>k/2} C(k,i) g_i (weight/n)^i E[rest^(k-i)]`, where the rest, the round without
      the jumping user, is at most S, so that its moments are at most `m_{k/2}`.

    The split helps where jumps dominate (many users); without it the first part alone is the
    bound. The smaller of the two counts.

    Args:
        mean: the mean ratio S.
        order: k.

    Returns:
        The bound; infinity (no bound) where neither form is finite.
    """
    k, n = order, mean.users
    half = k // 2
    i = np.arange(2, k + 1, dtype=float)
    # Moments of one report that round to 1 are raised: the logarithm of their excess must exist.
    log_v = np.maximum(mean.ratio.log_moments(i), 1e-300)
    log_g = log_v + np.log(-np.expm1(-log_v)) - special.gammaln(i + 1.0)
    # With at least k users the split is nearly exact, so the unsplit form is not computed.
    unsplit = math.inf if n >= k else _log_without_jump(log_g, mean, k)
    without_jump = _log_without_jump(log_g[: half - 1], mean, k)
    if math.isinf(without_jump):
        return unsplit
    # The moment of half the order: from a table where that is quick, else by the same split.
    log_half = float(log_moments(mean, half)[half]) if half <= 256 else log_moment_bound(mean, half)
    j = k - i[half - 1 :]
    log_jump = log_g[half - 1 :] + (k - j) * math.log(mean.weight / n) - special.gammaln(j + 1.0)
    with_jump = math.log(n) + float(special.gammaln(k + 1.0)) + float(log_sum_exp(log_jump[None, :])[0]) + log_half
    # The factorials have logarithms near k log k, and round-off in proportion.
    with_jump += UNIT * 16.0 * k * math.log(k)
    # log(m_without_jump + with_jump), where both may be far beyond the largest double.
    return min(unsplit, without_jump + float(np.logaddexp(0.0, with_jump - without_jump)))


def _log_without_jump(log_g: FloatArray, mean: MeanRatio, k: int) -> float:
    """`log(1 + k! [x^k] e^x expm1(B(x)))` for the given `log(g_i / i!)`, i = 2, 3, ..."""
    n = mean.users
    radius = mean.weight * k / n
    # On the circle |x| = k the integrand is a bump of width 1/sqrt(k): about five points for it, an even number in all.
    points = 2 * (int(16.0 * math.sqrt(k)) + 32)
    i = np.arange(2, 2 + len(log_g))
    log_terms = log_g + i * math.log(radius) - radius
    if float(log_terms.max()) > 0.5 * _CIRCLE_MAX:
        return math.inf
    # At N points powers whose exponents differ by N agree, so the series is folded before its FFT.
    folded = np.bincount(i % points, weights=np.exp(log_terms), minlength=points)
    angles = 2.0 * math.pi * np.arange(points // 2 + 1) / points
    cos_m1, sine = -2.0 * np.sin(0.5 * angles) ** 2, np.sin(angles)
    # On the circle: unit = e^(y - |y|), and the rest of A(y) e^-|y|.
    unit = np.exp(radius * (cos_m1 + 1j * sine))
    rest = np.conj(np.fft.rfft(folded))
    peak = n * math.log1p(float(rest[0].real))
    if peak > _CIRCLE_MAX:
        return math.inf
    base = k * (cos_m1 + 1j * (sine - angles))
    # Near the real axis n log1p(rest / unit) is exact to its last digit; elsewhere the sum is small and is powered.
    is_near_axis = (np.abs(rest) < 0.5 * np.abs(unit)) & (np.abs(unit) > 1e-250)
    relative = np.zeros(len(unit), dtype=np.complex128)
    relative[is_near_axis] = rest[is_near_axis] / unit[is_near_axis]
    bend = n * _complex_log1p(relative)
    whole = np.where(is_near_axis | (unit + rest == 0.0), 1e-300, unit + rest)
    powered = np.exp(
        n * np.log(whole) + 1j * k * ((1.0 - mean.weight) * sine - angles) + k * (1.0 - mean.weight) * cos_m1
    )
    # expm1 only where it is needed and cannot overflow; elsewhere the two exponentials differ enough.
    is_small = is_near_axis & (np.abs(bend) < 1.0)
    difference = np.where(is_near_axis, np.exp(base + np.where(is_near_axis, bend, 0.0)), powered) - np.exp(base)
    kernel = np.where(is_small, np.exp(base) * np.expm1(np.where(is_small, bend, 0.0)), difference)
    # The other half of the circle is the conjugate.
    weights = np.full(points // 2 + 1, 2.0)
    weights[0] = weights[-1] = 1.0
    mean_value = float(np.dot(weights, kernel.real)) / points
    # k! e^k / k^k, by Stirling's series (an upper bound when cut after a positive term).
    stirling = math.sqrt(2.0 * math.pi * k) * math.exp(1 / (12 * k) - 1 / (360 * k**3) + 1 / (1260 * k**5))
    # Round-off: k * u in the exponents, and the cancellation of the oscillating sum.
    slack = UNIT * (64.0 * math.sqrt(k) * math.log(k) + 8.0 * k) * math.expm1(peak)
    return math.log1p(stirling * (max(mean_value, 0.0) + slack))


def _complex_log1p(z: ComplexArray) -> ComplexArray:
    """log(1 + z), where numpy's own function would lose all digits near 0."""
    a, b = z.real, z.imag
    return 0.5 * np.log1p(a * (2.0 + a) + b * b) + 1j * np.arctan2(b, 1.0 + a)


_INTEGRAND_DEPTH = 45.0
"""Integrands are computed until they fall below exp(-45) of their peak."""

_INTEGRAND_CELLS_MAX = 4_000_000
"""The largest grid for one block of powers; beyond it the bound by geometric means serves."""


def geometric_bound(mean: MeanRatio, powers: FloatArray) -> FloatArray:
    """An upper bound on `log E[S^-p]`: `n log E[V^(-weight p / n)]`.

    By the inequality of arithmetic and geometric means `S >= prod_i V_i^(weight/n)`. Exact for one
    user and weight 1, and close where p is far above n.

    Args:
        mean: the mean ratio S.
        powers: the powers p > 0.

    Returns:
        The bounds, one for each power.
    """
    return mean.users * mean.ratio.log_moments(-mean.weight * powers / mean.users)


def _negative_block(mean: MeanRatio, powers: FloatArray) -> FloatArray:
    """`log E[S^-p]` for powers within a factor of two of each other."""
    bound = geometric_bound(mean, powers)
    transform, n = mean.ratio.transform, mean.users
    low, high = float(powers.min()), float(powers.max())
    if mean.is_single or transform is None:
        return bound
    # The range in which the gamma density t^(p-1) e^-t is above e^-45 of its peak, for the smallest S.
    fall = _INTEGRAND_DEPTH / low
    left = math.log(low) - fall - math.sqrt(2.0 * fall)
    # t is about p / S
    reach = transform.reach(high, n)
    if mean.weight < 1.0:
        reach = min(reach, -math.log1p(-mean.weight))
    right = math.log(high) + reach + min(math.sqrt(2.0 * fall), math.log(2.0 + 2.0 * fall))
    # In log t the density has width 1/sqrt(p): two points for each deviation.
    step = min(0.2, 0.5 / math.sqrt(high))
    if right > 700.0:  # t would overflow
        return bound
    largest = math.exp(right) * mean.weight / n
    nodes = transform.nodes(largest)
    if (right - left) / step * max(nodes, len(powers)) > _INTEGRAND_CELLS_MAX:
        return bound
    log_t = np.arange(left, right + step, step)
    t = np.exp(log_t)
    # For large t K(a) - a would cancel; for small t log E[e^(-aV)] would.
    is_inner = t <= 50.0 * high
    inner, outer = t[is_inner], t[~is_inner]
    bend = n * transform.log(inner * (mean.weight / n))
    # Gamma weights relative to their own sum: the normalisation then needs no log-gamma.
    v = log_t - np.log(powers)[:, None]
    p = powers[:, None]
    log_gamma = p * (v - np.expm1(v))
    # log of (t/p)^p e^p (E[e^(-tS)] - e^-t), in the form that does not cancel
    log_terms = log_gamma[:, is_inner] + (bend + np.log(-np.expm1(-bend)))
    if outer.size:
        log_laplace = n * transform.log_at_zero(outer * (mean.weight / n)) - (1.0 - mean.weight) * outer
        rest = np.log(-np.expm1(-np.maximum(log_laplace + outer, 1e-300)))
        log_terms = np.concatenate([log_terms, p * (v[:, ~is_inner] + 1.0) + (log_laplace + rest)], axis=1)
    total = log_sum_exp(log_terms) - log_sum_exp(log_gamma)
    # An integrand that has not vanished at both ends was cut off: then only the bound is safe.
    ends = np.maximum(log_terms[:, 0], log_terms[:, -1])
    # The ends were chosen for this depth; a tenth of it is left for the error of their estimate.
    is_whole = ends < log_terms.max(axis=1) - 0.9 * _INTEGRAND_DEPTH
    return np.where(is_whole, np.minimum(np.logaddexp(0.0, total), bound), bound)


@functools.lru_cache(maxsize=256)
def _negative_table(mean: MeanRatio, first: int) -> FloatArray:
    """`log E[S^-p]` for p = first .. 2 first - 1."""
    return _negative_block(mean, np.arange(first, 2 * first, dtype=float))


def log_negative_moments(mean: MeanRatio, powers: FloatArray) -> FloatArray:
    """`log E[S^-p]` for whole powers p >= 1, or an upper bound where the integral is out of reach.

    Args:
        mean: the mean ratio S.
        powers: the powers p.

    Returns:
        The logarithms without a margin for `roundoff`.
    """
    result = np.empty(len(powers))
    block = np.floor(np.log2(powers)).astype(int)
    for b in np.unique(block):
        chosen = block == b
        # A block of powers shares its nodes: up to 1,024 powers make a cached table if several are needed.
        if b <= 10 and chosen.sum() > 4:
            table = _negative_table(mean, 1 << int(b))
            result[chosen] = table[powers[chosen].astype(int) - (1 << int(b))]
        else:  # too large a block to compute for a few of its powers
            for part in np.array_split(np.flatnonzero(chosen), chosen.sum() // 1024 + 1):
                result[part] = _negative_block(mean, powers[part])
    return result
