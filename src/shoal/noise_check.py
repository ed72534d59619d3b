"""The noise that other tools add, and the epsilon that it really gives.

Tools for federated learning take an epsilon and add noise by a formula. The formula may be loose, may hold for small
epsilon only, and relies on the sensitivity that its user enters. The guarantee depends on the noise alone, so it can
be computed exactly.

*Gaussian noise* of standard deviation s, added to a vector that was clipped to norm C, is `LocalGaussian` with
`sigma = s / C`. One vector moves by at most C (zero-out) or 2C (replace: any two vectors, as local DP promises).
T rounds are the Gaussian mechanism of width `r = move * sqrt(T) / s`, whose epsilon solves (Balle and Wang 2018,
theorem 8)

    delta = Phi(a) - e^eps Phi(-b),   a = r/2 - eps/r,   b = r/2 + eps/r.

*Very little noise.* For r >= 10^4 neither term is computed: e^eps Phi(-b) is
phi(a) times Mills' ratio of b, so it lies between 0 and phi(a) / b <= 0.8 / r. Hence eps lies between the values that
`Phi(a) = delta + 0.8 / r` and `Phi(a) = delta` give, `eps = r^2 / 2 - r a`. That holds for any r, also where sigma is
too small for the mechanisms of this package. Such an epsilon (5 * 10^7 at r = 10^4) protects nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy import special

from shoal import _validate
from shoal.errors import InvalidInput
from shoal.formatting import rounded, short
from shoal.interval import Interval
from shoal.literature.composition import optimal_composition
from shoal.mechanisms import MOVE, Adjacency, LocalGaussian, Shuffle

_WIDE = 1e4
"""Above this width epsilon is bracketed without computing delta."""

_SLACK = 1e-13
"""More than the relative rounding of widths, and of the inverse of Phi times a width."""

_POINTLESS = 20.0
"""Above this epsilon a guarantee is a number only: an attacker may be wrong once in e^20 = 5 * 10^8 times."""


@dataclass(frozen=True, kw_only=True)
class Protection:
    """The epsilon behind a shuffler of some users, or (users None) without any trust."""

    users: int | None
    adjacency: Adjacency
    epsilon: Interval


@dataclass(frozen=True, kw_only=True)
class Worth:
    """The noise of a tool, and the guarantees that follow from it.

    `deviation` is the standard deviation of the noise on each number that is sent, `sigma` that deviation in units of
    the clipping norm (None without such a norm), and `promised` the epsilon of each round that the tool claims.
    """

    tool: str
    noise: str
    deviation: float
    sigma: float | None
    promised: float | None
    delta: float
    rounds: int
    rows: tuple[Protection, ...]
    note: str = ""

    def sentence(self) -> str:
        """The noise and the guarantees in words, every bound rounded to the safe side."""
        duration = "one round" if self.rounds == 1 else f"{self.rounds:,} rounds together"
        parts = [f"{self.tool} adds {self._noise_in_words()}{self._promise_in_words()}."]
        for row in self.rows:
            trust = (
                "If nobody is trusted"
                if row.users is None
                else f"Behind a trusted shuffler, among {row.users:,} users who may hold anything"
            )
            claim = f"{_guarantee(row.epsilon)} at δ = {short(self.delta)} for {row.adjacency} adjacency"
            parts.append(f"{trust}, {duration} {'gives' if self.rounds == 1 else 'give'} {claim}.")
        return " ".join([*parts, *([self.note] if self.note else [])])

    def _noise_in_words(self) -> str:
        if self.deviation == 0.0:
            return "no noise"
        multiple = "" if self.sigma is None else f" (σ = {_shown(self.sigma)} times the clipping norm)"
        return f"{self.noise} of standard deviation {_shown(self.deviation)} to each number{multiple}"

    def _promise_in_words(self) -> str:
        return "" if self.promised is None else f"; it was set to ε = {short(self.promised)} per round"

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data; an infinite epsilon is None."""
        return {
            "tool": self.tool,
            "noise": self.noise,
            "deviation": self.deviation,
            "sigma": self.sigma,
            "promised": self.promised,
            "delta": self.delta,
            "rounds": self.rounds,
            "rows": [
                {
                    "users": row.users,
                    "adjacency": row.adjacency,
                    "epsilon": {
                        "lower": row.epsilon.lower,
                        "upper": None if math.isinf(row.epsilon.upper) else row.epsilon.upper,
                    },
                }
                for row in self.rows
            ],
            "note": self.note,
            "guarantee": self.sentence(),
        }

    def __str__(self) -> str:
        return self.sentence()


def _shown(value: float) -> str:
    return f"{value:.4g}"


def _guarantee(epsilon: Interval) -> str:
    if math.isinf(epsilon.upper):
        return "no guarantee"
    return f"ε ≤ {rounded(epsilon.upper)}{', no useful guarantee,' if epsilon.upper > _POINTLESS else ''}"


def gaussian_epsilon(width: float, delta: float) -> Interval:
    """Epsilon of the Gaussian mechanism of any width; infinite without noise.

    >>> bracket = gaussian_epsilon(1e9, 1e-6)  # sigma = 1e-9
    >>> f"{bracket:.8e}"
    '[5.00000004e+17, 5.00000005e+17]'

    Args:
        width: The distance of the two means in standard deviations of the noise.
        delta: The delta.

    Returns:
        The interval in which epsilon lies.

    Raises:
        InvalidInput: If the width is negative or the delta not between 0 and 1.
    """
    small = _validate.delta(delta)
    if math.isnan(width) or width < 0.0:
        raise InvalidInput(f"width must be at least 0, got {width}")
    narrow, wide = width * (1.0 - _SLACK), width * (1.0 + _SLACK)
    if wide > _WIDE:
        # Phi at these places: below delta by rounding for the upper end, above it for the lower one.
        upper = wide * (0.5 * wide - float(special.ndtri(small * (1.0 - _SLACK)))) * (1.0 + _SLACK)
        # From below the second term of delta counts: e^eps Phi(-r/2 - eps/r) is less than 0.8 / r there.
        place = small + 0.8 / narrow
        lower = narrow * (0.5 * narrow - float(special.ndtri(place))) * (1.0 - _SLACK) if place < 1.0 else 0.0
        return Interval(lower=max(0.0, lower) if lower < math.inf else 0.0, upper=upper)
    low, high = _validate.SIGMA_RANGE
    # Noise outside the range of the mechanisms is moved to its edge, which is on the safe side for each end.
    ends = (LocalGaussian(sigma=min(max(1.0 / w, low), high) if w > 0.0 else high) for w in (narrow, wide))
    below, above = (m.epsilon(delta=small) for m in ends)
    return Interval(lower=below.lower if width * high > 1.0 else 0.0, upper=above.upper)


def gaussian(
    *,
    deviation: float,
    clipping_norm: float,
    delta: float,
    users: int | None = None,
    rounds: int = 1,
    tool: str = "This",
    promised: float | None = None,
    note: str = "",
) -> Worth:
    """The worth of Gaussian noise on vectors of bounded norm.

    >>> worth = gaussian(deviation=4.0, clipping_norm=2.0, delta=1e-5)
    >>> worth.sigma, [f"{row.epsilon:.2f}" for row in worth.rows]
    (2.0, ['[1.99, 2.00]', '[4.37, 4.38]'])

    Args:
        deviation: The standard deviation of the noise on each number.
        clipping_norm: The largest norm of a vector.
        delta: The delta.
        users: The number of users behind a shuffler, among any crowd; None leaves that guarantee out. Below
            sigma = 1e-4 shuffling gains nothing, and the local guarantee is given for both.
        rounds: The number of rounds.
        tool: The subject of the sentence.
        promised: The epsilon of each round that the tool claims.
        note: A sentence to add at the end.

    Returns:
        The noise and its guarantees for both adjacencies.

    Raises:
        InvalidInput: If an argument is out of its range.
    """
    std, norm = _validate.real("deviation", deviation), _validate.real("clipping_norm", clipping_norm)
    if std < 0.0:
        raise InvalidInput(f"deviation must be at least 0, got {std}")
    if norm <= 0.0:
        raise InvalidInput(f"clipping_norm must be positive, got {norm}")
    small, count = _validate.delta(delta), _validate.rounds(rounds)
    crowd = None if users is None else _validate.users("users", users)
    rows = []
    for adjacency, move in MOVE.items():
        width = move * math.sqrt(count) * (norm / std) if std > 0.0 else math.inf
        local = gaussian_epsilon(width, small)
        rows.append(Protection(users=None, adjacency=adjacency, epsilon=local))
        if crowd is not None:
            shuffled = _shuffled(std / norm, adjacency, crowd, small, count, local)
            rows.append(Protection(users=crowd, adjacency=adjacency, epsilon=shuffled))
    return Worth(
        tool=tool,
        noise="Gaussian noise" if std > 0.0 else "no noise",
        deviation=std,
        sigma=std / norm,
        promised=promised,
        delta=small,
        rounds=count,
        rows=tuple(rows),
        note=note,
    )


def _shuffled(sigma: float, adjacency: Adjacency, users: int, delta: float, rounds: int, local: Interval) -> Interval:
    """Epsilon behind a shuffler, never above the local one: shuffling is post-processing."""
    low, high = _validate.SIGMA_RANGE
    # With so little noise a crowd hides nothing: only the local guarantee is left.
    if sigma < MOVE[adjacency] * low:
        return Interval(lower=0.0, upper=local.upper)
    # Less noise is never more private: sigma is rounded down.
    counted = min(sigma * (1.0 - _SLACK), high)
    mechanism = Shuffle(users=users, sigma=max(counted, MOVE[adjacency] * low), adjacency=adjacency)
    epsilon = mechanism.epsilon(delta=delta, rounds=rounds)
    lower = epsilon.lower * (1.0 - 1e-9) if sigma <= high else 0.0
    return Interval(lower=min(lower, epsilon.upper, local.upper), upper=min(epsilon.upper, local.upper))


def flower(
    *,
    clipping_norm: float,
    sensitivity: float,
    epsilon: float,
    delta: float,
    users: int | None = None,
    rounds: int = 1,
    at_delta: float | None = None,
) -> Worth:
    """The worth of Flower's `LocalDpMod(clipping_norm, sensitivity, epsilon, delta)`.

    It clips each update to `clipping_norm` and adds Gaussian noise of standard deviation
    `sensitivity * sqrt(2 log(1.25 / delta)) / epsilon` to each number (flwr 1.41, `localdp_mod.py`). That formula is
    proved for epsilon below 1, and for the true sensitivity: two clipped vectors can be `2 * clipping_norm` apart.
    The worth is computed from the noise alone.

    >>> worth = flower(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    >>> f"{worth.deviation:.4f}", [f"{row.adjacency} {row.epsilon.upper:.4f}" for row in worth.rows]
    ('4.8448', ['zero-out 0.7510', 'replace 1.6103'])

    Args:
        clipping_norm: The mod's clipping norm.
        sensitivity: The mod's sensitivity.
        epsilon: The mod's epsilon.
        delta: The mod's delta.
        users: The number of users behind a shuffler; None leaves that guarantee out.
        rounds: The number of rounds.
        at_delta: The delta of the guarantees; None is the mod's own.

    Returns:
        The noise and its guarantees.

    Raises:
        InvalidInput: If an argument is out of its range.
    """
    promised = _validate.epsilon(epsilon, positive=True)
    norm, reach = _validate.real("clipping_norm", clipping_norm), _validate.real("sensitivity", sensitivity)
    if reach < 0.0:
        raise InvalidInput(f"sensitivity must be at least 0, got {reach}")
    small = _validate.delta(delta)
    deviation = reach * math.sqrt(2.0 * math.log(1.25 / small)) / promised
    note = ""
    if norm > 0.0 and reach < 2.0 * norm:
        note = f"Two clipped vectors can be {short(2.0 * norm)} apart; the sensitivity was set to {short(reach)}."
    return gaussian(
        deviation=deviation,
        clipping_norm=norm,
        delta=small if at_delta is None else at_delta,
        users=users,
        rounds=rounds,
        tool="Flower's LocalDpMod",
        promised=promised,
        note=note,
    )


def nvflare_svt(
    *,
    parameters: int,
    delta: float,
    fraction: float = 0.1,
    epsilon: float = 0.1,
    noise_var: float = 0.1,
    gamma: float = 1e-5,
    rounds: int = 1,
) -> Worth:
    """The worth of NVFLARE's `SVTPrivacy(fraction, epsilon, noise_var, gamma)`.

    It chooses `c = ceil(fraction * parameters)` numbers by the sparse vector technique, clips them to `gamma` and adds
    Laplace noise of scale `2 gamma / noise_var` to each (nvflare 2.9.0, `svt_privacy.py`). One number can move by
    2 gamma, so each chosen one costs `noise_var`, and all of them c times that, or less at a delta
    (Kairouz, Oh and Viswanath 2015). The choice is taken to cost `epsilon`, as the filter claims. The filter continues
    after its first c positive answers, which the proof of that technique does not cover. Not analysed behind a
    shuffler.

    >>> worth = nvflare_svt(parameters=1_000, delta=1e-6)
    >>> f"{worth.rows[0].epsilon.upper:.2f}"  # not 0.1
    '4.90'

    Args:
        parameters: The number of parameters of the model.
        delta: The delta.
        fraction: The part of the parameters that is sent.
        epsilon: The filter's epsilon, for the choice of numbers.
        noise_var: The filter's epsilon for each number.
        gamma: The clipping bound of each number.
        rounds: The number of rounds.

    Returns:
        The noise and its guarantee.

    Raises:
        InvalidInput: If an argument is out of its range.
    """
    size = _validate.integer("parameters", parameters, minimum=1, maximum=10**12)
    part = _validate.real("fraction", fraction)
    if not 0.0 < part <= 1.0:
        raise InvalidInput(f"fraction must be above 0 and at most 1, got {part}")
    choice, single = _validate.epsilon(epsilon), _validate.epsilon(noise_var, "noise_var")
    bound, small, count = _validate.real("gamma", gamma), _validate.delta(delta), _validate.rounds(rounds)
    for name, value in (("noise_var", single), ("gamma", bound)):
        if value <= 0.0:
            raise InvalidInput(f"{name} must be positive, got {value}")
    sent = math.ceil(part * size) * count
    # The sum always holds. The optimal composition is smaller, but too slow for millions.
    released = sent * single
    if sent <= 10**6:
        released = min(released, optimal_composition(epsilon=single, delta=0, rounds=sent, delta_total=small))
    row = Protection(
        users=None,
        adjacency="replace",
        epsilon=Interval(lower=0.0, upper=math.nextafter(released + count * choice, math.inf)),
    )
    return Worth(
        tool="NVFLARE's SVTPrivacy",
        noise="Laplace noise",
        deviation=math.sqrt(2.0) * 2.0 * bound / single,
        sigma=None,
        promised=choice,
        delta=small,
        rounds=count,
        rows=(row,),
        note=f"Of this, {rounded(released)} is for the {sent:,} numbers that are sent. Choosing them is taken to cost "
        "what the filter claims, which is not proved here. Scalar parameters are sent without noise.",
    )


def nvflare_percentile() -> Worth:
    """The worth of NVFLARE's `PercentilePrivacy`: it adds no noise, so there is no epsilon.

    >>> nvflare_percentile().rows[0].epsilon.upper
    inf
    """
    row = Protection(users=None, adjacency="replace", epsilon=Interval(lower=0.0, upper=math.inf))
    return Worth(
        tool="NVFLARE's PercentilePrivacy",
        noise="no noise",
        deviation=0.0,
        sigma=None,
        promised=None,
        delta=1e-5,
        rounds=1,
        rows=(row,),
        note="It drops small numbers and clips large ones, which protects nobody.",
    )
