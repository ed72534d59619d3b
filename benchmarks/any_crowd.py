"""Bounds for any crowd side by side: epsilon of one round, zero-out adjacency, by every method known to us.

    python benchmarks/any_crowd.py [--markdown FILE]

User 1 holds 0 in D and x', |x'| = 1, in D'; the other n - 1 hold anything in the unit ball. In units of
sigma, r = 1 / sigma, p is the density of a report from 0, p_x that of one from x, w = p_x' / p,
t = e^epsilon. All baselines below have one form, so that one routine (`mean_price`) computes them.

**Privacy blanket** (Balle, Bell, Gascon and Nissim 2019, arXiv:1903.02837; "blanket divergence" in Takagi and
Liew 2026, arXiv:2601.19154, who compute it by FFT; Su, Cheng and Wang 2025, arXiv:2504.07414, show that no
other decomposition of that kind is better). Whatever user j holds, its density is at least
`b(y) = inf over |x| <= 1 of p_x(y) = p(y) e^(-r|y| - r^2/2)`, because the farthest point of the ball from y is
opposite to it; the mass of b is `gamma = E_p[e^(-r|y| - r^2/2)]`, which is 2 Phi(-r) for d = 1 and falls with the
dimension d about as e^(-r sqrt(d)). So with probability gamma a report of user j is drawn from b / gamma; the
others are revealed. Nothing is needed of user 1's own report, so the pair is the one of zero-out itself: z_1 from
p or from p_x' among M - 1 ~ Bin(n-1, gamma) draws of b / gamma. Under M draws of b / gamma the ratio of either is
a mean, and

    delta(D' || D) <= E[(1/M) (sum over i <= M of l(y_i))+],     l = gamma (p_x' - t p) / b,

the other direction with p - t p_x'. M - 1 is binomial, so 1/M is a change of measure (size bias), and the right-hand
side is `E[((1/n) sum over i <= n of V_i)+]` with n independent `V = (p_x' - t p) / b` of density b, 0 otherwise: a mean
of n i.i.d. terms with mean 1 - t. V depends on y through its part along x' and its norm. The largest over
|x'| <= 1 is what the guarantee needs; |x'| = 1 alone is taken here, which cannot make the baseline look worse than
it is (shorter moves that were tried gave less). Check-in at rate g: "not sent" is a letter of its own, with
V = 1 - t and mass 1 - g, and the rest has density g b.

**Gaussian clones** (shoal 0.1). For c = e^-e0, e0 >= r^2 and `tau = dG(e0) + dG(e0 - r^2)`, dG the delta of one report:
with K ~ Bin(n-1, c), delta(D' || D) is at most E_K of that of the identical crowd of K + 1 users, plus
`cost = tau (n-1)c / (1 + (n-1)c)`; the other direction has e^epsilon cost. As above, E_K is the mean of n terms
`V = (w - t) / c` with probability c, 0 otherwise; check-in thins as above and has g cost. e0 is optimised.

**Clones** of Feldman, McMillan and Talwar 2021 (Theorem 3.8, in closed form) with the exact (epsilon0, delta0) of a
Gaussian report that moves by 2 (others may be that far away), and delta0 optimised; for check-in the baseline of
`shoal.literature`, which takes the number of reports to be its mean (that flatters it).

No number is above the local guarantee: user 1's report in the clear.

Errors of `mean_price`. The law of V is a set of Gauss points (4 or 8 to a panel of 0.1 or less); they are
put on a lattice, and large ones on a geometric grid, by splits that keep the mean: that is upwards for convex
functions, and so are the charges for what is left out. Gauss points and round-off of the FFT are not
bounded: the baselines are numerical values, no certificates. With half the step and twice the points they
move by less than 1e-3 (a test holds them to that, and to certified values of the identical crowd).
"""

from __future__ import annotations

import argparse
import datetime
import functools
import math
import pathlib
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

import shoal
from shoal import literature
from shoal.bounds.anycrowd.exchange import Exchange

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One question: zero-out epsilon of one round; a rate below 1 is a check-in."""

    users: int
    sigma: float
    delta: float
    rate: float = 1.0

    def mechanism(self) -> Any:
        if self.rate < 1.0:
            return shoal.ShuffledCheckIn(users=self.users, rate=self.rate, sigma=self.sigma)
        return shoal.Shuffle(users=self.users, sigma=self.sigma)

    @property
    def local(self) -> float:
        # A check-in in the clear: with probability 1 - rate there is nothing to see.
        return float(shoal.LocalGaussian(sigma=self.sigma).epsilon(delta=min(0.5, self.delta / self.rate)).upper)


POINTS = [
    Point(users=60_000, sigma=9.48, delta=1 / 60_000),
    Point(users=1_000, sigma=2.0, delta=1e-6),
    Point(users=10_000, sigma=1.0, delta=1e-6),
    Point(users=100_000, sigma=2.0, delta=1e-8),
    Point(users=100, sigma=5.0, delta=1e-5),
    Point(users=10**6, sigma=2.0, delta=1e-9),
    Point(users=60_000, sigma=5.0, delta=1e-6),
    Point(users=60_000, sigma=5.0, delta=1e-6, rate=0.1),
]


# A mean of n independent terms --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Term:
    """The law of one term: values with masses; what is missing to 1 is at 0."""

    values: Array
    masses: Array


def _split(values: Array, masses: Array, nodes: Array) -> Array:
    """Masses on ascending nodes that span the values, every mean kept."""
    right = np.clip(np.searchsorted(nodes, values, side="right"), 1, len(nodes) - 1)
    share = (values - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
    size = len(nodes)
    left: Array = np.bincount(right - 1, masses * (1.0 - share), size).astype(np.float64)
    return left + np.bincount(right, masses * share, size)


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sums of many terms, none above `cap`, on a lattice that begins at `start`; from the FFT of one term."""

    log: npt.NDArray[np.complex128]
    start: int
    size: int
    step: float

    @classmethod
    def of(cls, term: Term, users: int, *, cap: float, others: float, fine: float) -> Sums:
        """`others` is the mass of terms above the cap, which are left out."""
        mean, deviation = float(term.values @ term.masses), math.sqrt(float(term.values**2 @ term.masses))
        # What is far below is lifted to a floor, which is upwards; one such term still makes the sum negative.
        floor = max(cap, 8.0 * deviation * math.sqrt(users))
        values, masses = np.maximum(term.values, -floor), term.masses
        spread = math.sqrt(float(values**2 @ masses) * users)
        half = max(10.0 * spread, users * abs(mean) + 8.0 * spread) + 4.0 * cap
        # Sums below the window would come in again from above, so it is deep enough for several terms at the floor.
        depth = half + (4.0 * floor if users * float(masses[values < -0.5 * floor].sum()) > 1e-15 else 0.0)
        step = min(spread / math.sqrt(users) / 32.0, half / 2**17) / fine
        size = 2 ** math.ceil(math.log2((half + depth) / step))
        place = np.floor(values / step).astype(np.int64)
        share = values / step - place
        lattice = np.bincount(place % size, masses * (1.0 - share), size)
        lattice += np.bincount((place + 1) % size, masses * share, size)
        lattice[0] += max(0.0, 1.0 - float(masses.sum()) - others)
        log = np.log(np.fft.rfft(lattice) + 1e-300)  # no logarithm of 0
        start = round(users * float(values @ masses) / step) - round(depth / step)
        return cls(log=log, start=start, size=size, step=step)

    def prices(self, count: int, strikes: Array) -> Array:
        """E[(sum of `count` terms + strike)+] for each strike."""
        live = count * self.log.real > -60.0  # most frequencies are gone
        spectrum = np.zeros(len(self.log), dtype=np.complex128)
        spectrum[live] = np.exp(count * self.log[live])
        law = np.roll(np.fft.irfft(spectrum, self.size), -self.start)
        sums = (self.start + np.arange(self.size)) * self.step
        mass, moment = np.cumsum(law[::-1])[::-1], np.cumsum((law * sums)[::-1])[::-1]
        first = np.searchsorted(sums, -strikes)
        inside = np.minimum(first, self.size - 1)
        return np.where(first < self.size, moment[inside] + strikes * mass[inside], 0.0)


def mean_price(term: Term, users: int, *, fine: float = 1.0, most_jumps: int = 12) -> float:
    """E[(mean of `users` independent terms)+].

    Terms above a cap are *jumps*, 0.1 of them in all users together, or fewer. The sum of all others is the power of an
    FFT; that of k jumps is found pair by pair; both meet in the expectation of the positive part.
    """
    order = np.argsort(term.values)
    values, masses = term.values[order], term.masses[order]
    often = int(np.searchsorted(-np.cumsum(masses[::-1])[::-1], -0.1 / users))
    cap = max(float(values[min(often, len(values) - 1)]), 3.0 * math.sqrt(float(values**2 @ masses)))
    cut = int(np.searchsorted(values, cap, side="right"))
    jumps, weights = values[cut:], masses[cut:]
    chance, gain = float(weights.sum()), float(jumps @ weights)
    sums = Sums.of(Term(values=values[:cut], masses=masses[:cut]), users, cap=cap, others=chance, fine=fine)
    total = float(sums.prices(users, np.zeros(1))[0])
    if chance == 0.0:
        return total / users
    positive = float(np.maximum(values, 0.0) @ masses)
    nodes = np.geomspace(cap, jumps[-1] * most_jumps, round(600 * fine))
    one = many = _split(jumps, weights, nodes)
    busy = np.flatnonzero(one)
    k = 1
    while True:
        ways = math.exp(special.gammaln(users + 1) - special.gammaln(k + 1) - special.gammaln(users - k + 1))
        total += ways * float(many @ sums.prices(users - k, nodes))
        # With more jumps than k the sum is at most that of its positive terms.
        body, jump = stats.binom.sf([k, k - 1], users - 1, chance).tolist()
        rest = users * (positive * body + gain * jump)
        if rest <= 1e-5 * total or k == min(most_jumps, users):
            return float(total + rest) / users
        held = np.flatnonzero(many)
        pairs = (nodes[held][:, None] + nodes[busy][None, :]).ravel()
        many = _split(pairs, np.outer(many[held], one[busy]).ravel(), nodes)
        k += 1


# The baselines ------------------------------------------------------------------------------------


def gauss(low: float, high: float, width: float, points: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on panels at most `width` wide."""
    edges = np.linspace(low, high, math.ceil((high - low) / width) + 1)
    nodes, weights = np.polynomial.legendre.leggauss(points)
    half = 0.5 * np.diff(edges)[:, None]
    return (edges[:-1, None] + half * (1.0 + nodes)).ravel(), (half * weights).ravel()


@functools.lru_cache(maxsize=8)
def reports(dimension: int, fine: float = 1.0) -> tuple[Array, Array, Array]:
    """A report from 0, in units of sigma: its part along x', its norm, masses."""
    if dimension == 1:
        # The norm has a kink at 0: panels end there.
        norm, weights = gauss(0.0, 11.0, 0.05 / fine, 8)
        masses = weights * stats.norm.pdf(norm)
        return np.concatenate([-norm, norm]), np.concatenate([norm, norm]), np.concatenate([masses, masses])
    along, weights = gauss(-11.0, 11.0, 0.1 / fine, 4)
    middle = math.sqrt(dimension - 1.0)
    across, more = gauss(max(0.0, middle - 8.0), middle + 8.0, 0.1 / fine, 4)
    masses = np.outer(weights * stats.norm.pdf(along), more * stats.chi.pdf(across, dimension - 1))
    norm = np.hypot(along[:, None], across[None, :])
    kept = masses > 1e-45
    return np.broadcast_to(along[:, None], masses.shape)[kept], norm[kept], masses[kept]


def blanket_mass(sigma: float, dimension: int) -> float:
    """gamma: how much of a report does not depend on what its user holds."""
    _, norm, masses = reports(dimension)
    return float(masses @ np.exp(-norm / sigma - 0.5 / sigma**2))


def difference(log_ratio: Array, epsilon: float, forward: bool) -> Array:
    """(p_x' - t p) / p, or (p - t p_x') / p, without cancellation near epsilon = 0."""
    gap, lead = np.expm1(log_ratio), math.expm1(epsilon)
    return gap - lead if forward else -gap - lead * np.exp(log_ratio)


def with_coin(values: Array, masses: Array, rate: float, silent: float, kept: float = 1.0) -> Term:
    """The term of a check-in: "not sent", which is kept with some probability, has the value `silent`."""
    if rate == 1.0:
        return Term(values=values, masses=masses)
    return Term(values=np.append(values, silent), masses=np.append(rate * masses, (1.0 - rate) * kept))


def blanket_delta(
    point: Point, epsilon: float, forward: bool, *, dimension: int, move: float = 1.0, fine: float = 1.0
) -> float:
    r = 1.0 / point.sigma
    along, norm, masses = reports(dimension, fine)
    thickness = np.exp(-r * norm - 0.5 * r**2)
    values = difference(move * r * along - 0.5 * (move * r) ** 2, epsilon, forward) / thickness
    return mean_price(with_coin(values, masses * thickness, point.rate, -math.expm1(epsilon)), point.users, fine=fine)


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """The delta of one report that moves by 1 (Balle and Wang 2018, Theorem 8)."""
    r = 1.0 / sigma
    return float(special.ndtr(r / 2 - epsilon / r) - math.exp(epsilon) * special.ndtr(-r / 2 - epsilon / r))


def gaussian_clones_delta(point: Point, epsilon: float, forward: bool, *, exponent: float, fine: float = 1.0) -> float:
    r, chance = 1.0 / point.sigma, math.exp(-exponent)
    along, _, masses = reports(1, fine)
    values = difference(r * along - 0.5 * r**2, epsilon, forward) / chance
    term = with_coin(values, masses * chance, point.rate, -math.expm1(epsilon) / chance, chance)
    cost = clones_cost(point, exponent)
    return mean_price(term, point.users, fine=fine) + cost * (1.0 if forward else math.exp(epsilon))


def rough_epsilon(point: Point, kept: float = 1.0) -> float:
    """About the epsilon of the identical crowd of a part of the users, by the central limit theorem."""
    deviation = math.sqrt(point.rate * math.expm1(point.sigma**-2) / (kept * point.users))

    def excess(x: float) -> float:
        return deviation * float(stats.norm.pdf(x) - x * special.ndtr(-x)) - point.delta

    return deviation * float(optimize.brentq(excess, 0.0, 30.0)) if excess(0.0) > 0.0 else 1e-3 * deviation


def smallest_epsilon(
    delta_of: Callable[[float, bool], float],
    point: Point,
    *,
    ways: tuple[bool, ...] = (True, False),
    close: float = 1e-4,
) -> float:
    """The epsilon at which the worse direction (forward is True) has the delta, or the local one if none is smaller.

    `close` is the relative error of the search.
    """

    @functools.cache
    def excess(log_epsilon: float, forward: bool) -> float:
        return math.log(max(delta_of(math.exp(log_epsilon), forward), 1e-300) / point.delta)

    top, found = math.log(point.local), -math.inf
    for forward in ways:
        low = high = min(top, max(found, math.log(rough_epsilon(point))))
        if found == low and excess(low, forward) <= 0.0:
            continue
        while excess(high, forward) > 0.0:
            if high == top:
                return point.local
            low, high = high, min(top, high + 0.25)
        while low == high or excess(low, forward) <= 0.0:
            if low < -30.0:
                return 0.0
            low, high = low - 0.25, low
        found = float(optimize.brentq(excess, low, high, (forward,), xtol=close))
    return min(point.local, math.exp(found))


def blanket(point: Point, dimension: int) -> float:
    return smallest_epsilon(lambda e, f: blanket_delta(point, e, f, dimension=dimension), point)


def clones_cost(point: Point, exponent: float) -> float:
    """How far D' is moved in total variation."""
    tau = gaussian_delta(exponent, point.sigma) + gaussian_delta(exponent - point.sigma**-2, point.sigma)
    others = (point.users - 1) * math.exp(-exponent)
    return point.rate * tau * others / (1.0 + others)


def gaussian_clones(point: Point) -> float:
    """The clone probability is guessed by the central limit theorem, and then chosen for each direction."""
    r = 1.0 / point.sigma
    guesses: dict[float, float] = {}
    for exponent in (r**2 + r * np.linspace(0.0, 8.0, 161)).tolist():
        left = point.delta - clones_cost(point, exponent)
        if left > 0.0:
            guesses[exponent] = rough_epsilon(replace(point, delta=left), math.exp(-exponent))
    guess = min(guesses, key=guesses.__getitem__)

    def best(epsilon: float, forward: bool, low: float, high: float) -> tuple[float, float]:
        """The exponent with the smallest delta, and that delta."""
        found = optimize.minimize_scalar(
            lambda x: math.log(gaussian_clones_delta(point, epsilon, forward, exponent=x)),
            bounds=(max(r**2, low), high),
            method="bounded",
            options={"xatol": 0.03 * r},
        )
        return float(found.x), math.exp(found.fun)

    def epsilon_at(exponent: float, forward: bool, close: float) -> float:
        return smallest_epsilon(
            lambda e, f: gaussian_clones_delta(point, e, f, exponent=exponent), point, ways=(forward,), close=close
        )

    exponent = guess
    for close in (1e-2, 1e-2, 1e-4):
        exponent, _ = best(epsilon_at(exponent, True, close), True, exponent - 2.0 * r, exponent + 2.0 * r)
    epsilon = epsilon_at(exponent, True, 1e-4)
    # Back, the cost weighs e^epsilon times as much: there have to be fewer clones.
    exponent, delta = best(epsilon, False, exponent - r, exponent + 4.0 * r)
    return epsilon if delta <= point.delta else epsilon_at(exponent, False, 1e-4)


def fmt_clones(point: Point) -> float:
    """Clones of Feldman, McMillan and Talwar with the best split of delta, or the local guarantee."""
    if point.rate < 1.0:
        return min(
            point.local,
            literature.checkin_baseline(users=point.users, rate=point.rate, sigma=point.sigma, delta=point.delta),
        )
    return min(point.local, *(fmt_epsilon(point, share) for share in np.geomspace(1e-12, 0.5, 241).tolist()))


def fmt_epsilon(point: Point, share: float) -> float:
    """Their epsilon if n delta0 takes about that share of delta; infinite where the theorem does not apply."""
    delta0 = share * point.delta / point.users
    epsilon0 = shoal.LocalGaussian(sigma=point.sigma, adjacency="replace").epsilon(delta=delta0).upper

    def at(delta: float) -> literature.Guarantee:
        return literature.clones(users=point.users, epsilon0=epsilon0, delta=delta, delta0=delta0)

    # The total is their delta and a part for delta0 that depends on epsilon a little: all of delta is used.
    low, high = 0.0, point.delta
    try:
        for _ in range(30):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if at(middle).delta <= point.delta else (low, middle)
        return at(low).epsilon if low > 0.0 else math.inf
    except ValueError:  # epsilon0 is above what the theorem allows
        return math.inf


# The table ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Column:
    """A method: its name, whether it holds in every dimension, and the epsilon that it proves."""

    name: str
    epsilon: Callable[[Point], float]
    every_dimension: bool = True
    only: tuple[int, ...] | None = None
    """The points, by their number, at which it is asked (all if None)."""


def ours(point: Point) -> float:
    return float(answer(point).upper)


@functools.cache
def answer(point: Point) -> Any:
    return point.mechanism().epsilon(delta=point.delta)


def without_groups(point: Point) -> float:
    """The exchange theorem as it stands, without groups and users aside; a sigma of its own, as laws are kept."""
    near = replace(point, sigma=point.sigma * (1.0 - 1e-12))
    with mock.patch.object(Exchange, "division", return_value=None):
        return float(near.mechanism().epsilon(delta=point.delta).upper)


COLUMNS = [
    Column(name="ours", epsilon=ours),
    Column(name="ours, no groups", epsilon=without_groups),
    Column(name="Gaussian clones", epsilon=gaussian_clones),
    Column(name="clones 2021", epsilon=fmt_clones),
    *(
        Column(
            name=f"blanket, d = {d:,}",
            epsilon=functools.partial(blanket, dimension=d),
            every_dimension=False,
            only=only,
        )
        for d, only in ((1, None), (10, None), (100, None), (1_000, (0,)))
    ),
]


def described(point: Point) -> str:
    delta = "1/n" if point.delta * point.users == 1.0 else f"{point.delta:.0e}".replace("e-0", "e-")
    return f"{point.users:,}; {point.sigma:g}; {delta}" + (f"; check-in {point.rate:g}" if point.rate < 1.0 else "")


def cells(point: Point, values: dict[str, float]) -> list[str]:
    return [
        "–" if c.name not in values else f"{values[c.name]:.4g}" + (" (local)" if values[c.name] == point.local else "")
        for c in COLUMNS
    ]


def ahead(values: dict[str, float]) -> str:
    """Who is smallest in every dimension, and who in one dimension alone."""
    anywhere = {c.name: values[c.name] for c in COLUMNS if c.every_dimension}
    best, smallest = min(anywhere, key=anywhere.__getitem__), min(values, key=values.__getitem__)
    if values[smallest] >= values[best]:
        return best
    return f"{best}; for its dimension {smallest}, {1.0 - values[smallest] / values[best]:.1%} below"


def table(points: list[Point]) -> list[str]:
    heads = ["users; σ; δ", "opposite crowd (below)", *(c.name for c in COLUMNS), "no shuffling", "ahead"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    smaller: dict[str, list[str]] = {c.name: [] for c in COLUMNS if not c.every_dimension}
    for number, point in enumerate(points):
        values = {c.name: c.epsilon(point) for c in COLUMNS if c.only is None or number in c.only}
        row = [
            described(point),
            f"{answer(point).lower:.4g}",
            *cells(point, values),
            f"{point.local:.4g}",
            ahead(values),
        ]
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
        for name, found in smaller.items():
            if values.get(name, math.inf) < values["ours"]:
                part = 1.0 - values[name] / values["ours"]
                found.append(f"({described(point)}), {values[name]:.4g} against {values['ours']:.4g}, {part:.1%} less")
    return [*lines, "", "Where a blanket is smaller than ours, in its own dimension:", *map(_said, smaller.items())]


def _said(found: tuple[str, list[str]]) -> str:
    name, points = found
    return f"- {name}: {'; '.join(points) or 'nowhere'}."


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    target = options.parse_args().markdown
    lines = [
        f"Computed on {datetime.date.today()} by `benchmarks/any_crowd.py` with shoal {shoal.__version__}, Python "
        f'{platform.python_version()}: ε of one round, zero-out, whatever the others hold. "Ours" and both kinds of '
        "clones hold in every dimension, a blanket in its own only. Ours is certified; clones 2021 is a closed form; "
        "Gaussian clones and blankets are numerical values, good to about 1e-3. No guarantee can be below the opposite "
        "crowd. "
        '"(local)": the method proves no more than user 1\'s report in the clear.',
        "",
        *table(POINTS),
    ]
    print(*lines[-len(COLUMNS) :], sep="\n")
    if target:
        target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
