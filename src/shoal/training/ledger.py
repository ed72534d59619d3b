"""Epsilon of a training after any number of rounds, by every accountant that covers the protocol.

Each accountant names the crowd that it assumes. Those of the paper are included for comparison; their known errors are
described in `shoal.literature`, and none of them is the guarantee.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal import literature, query
from shoal.accountant import Accountant, Odometer
from shoal.literature.compare import PAPER_ORDERS, THEOREM, clones_epsilon, paper_rdp
from shoal.mechanisms import Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.query import EPSILON, Method, Options

CLAIMS = 10
"""The number of claims that a run can make which may stop early, evenly over its rounds; each costs a part of delta."""

Epsilons = Callable[[Sequence[int], float], list[float]]


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One accountant: its name, the crowd it assumes, and epsilon (from above) by rounds and delta.

    Epsilon is infinite where an accountant has no answer.
    """

    key: str
    name: str
    crowd: str
    epsilons: Epsilons
    quick: bool = True
    """Whether an answer takes about a second at most, as a progress bar needs."""

    @property
    def short(self) -> str:
        return self.key.replace("_", " ")

    @property
    def label(self) -> str:
        return f"{self.name} ({self.crowd})"


def guarantee(mechanism: Mechanism, *, delta: float, rounds: int, method: Method = "tight") -> float:
    """The upper end of `mechanism.epsilon`; the lower end is not computed.

    Args:
        mechanism: What is run.
        delta: The delta of the guarantee.
        rounds: Number of rounds.
        method: How it is bounded.

    Returns:
        Epsilon.

    >>> m = Shuffle(users=100, sigma=3.0)
    >>> guarantee(m, delta=1e-5, rounds=3) == m.epsilon(delta=1e-5, rounds=3).upper
    True
    """
    return query.guarantee(EPSILON, mechanism.bounds(rounds), delta, Options(method=method))


def share_of_delta(delta: float) -> float:
    """The delta of each claim of a run that may stop early."""
    return delta / CLAIMS * (1.0 - 1e-12)


def stopping_accountants(mechanism: Mechanism, planned: int) -> list[LedgerEntry]:
    """The accountants of a run that stops when it likes: odometers, the guarantee first.

    Epsilon of a fixed number of rounds would not hold at a stop that was chosen from what was seen.

    Args:
        mechanism: What is run in each round.
        planned: The largest number of rounds.

    Returns:
        An odometer for each crowd; epsilon is infinite beyond the planned rounds.
    """
    crowds = ("any", "identical") if mechanism.crowd_matters else ("no crowd needed",)
    return [
        LedgerEntry(
            key="odometer" if crowd == "no crowd needed" else f"odometer_{crowd}",
            name="odometer",
            crowd=crowd if crowd == "no crowd needed" else f"{crowd} crowd",
            epsilons=_odometer(mechanism.replace(crowd=crowd) if mechanism.crowd_matters else mechanism, planned),
        )
        for crowd in crowds
    ]


def _odometer(m: Mechanism, planned: int) -> Epsilons:
    """The claims of an odometer that plans these rounds: the first that covers what was spent."""

    @functools.lru_cache(maxsize=4)
    def odometer(delta: float) -> Odometer:
        stops = sorted({-(-planned * step // CLAIMS) for step in range(1, CLAIMS + 1)})
        return Odometer(delta=delta, plan=Accountant().compose(m, rounds=planned), stops=stops, method="plan")

    def epsilon(spent: int, delta: float) -> float:
        claims = (rung.epsilon for rung in odometer(delta).rungs if rung.rounds >= spent)
        return next(claims, math.inf) if spent else 0.0

    return lambda rounds, delta: [epsilon(spent, delta) for spent in rounds]


def accountants(mechanism: Mechanism) -> list[LedgerEntry]:
    """The accountants that cover the protocol, the guarantee first.

    >>> from shoal import ShuffledCheckIn
    >>> [a.key for a in accountants(ShuffledCheckIn(users=5_000, rate=0.1, sigma=2.0))]
    ['tight_any', 'tight_identical', 'rdp_identical', 'paper_theorem', 'paper_generic', 'paper_baseline']
    """
    m = mechanism
    if not isinstance(m, (Shuffle, SubsampledShuffle, ShuffledCheckIn)):
        return [
            LedgerEntry(key="tight", name="tight", crowd="no crowd needed", epsilons=_certified(m, "tight")),
            LedgerEntry(key="rdp", name="Rényi DP", crowd="no crowd needed", epsilons=_certified(m, "rdp")),
        ]
    ideal = m.replace(crowd="identical")
    entries = [
        LedgerEntry(
            key="tight_any", name="tight", crowd="any crowd", epsilons=_certified(m.replace(crowd="any"), "tight")
        ),
        LedgerEntry(key="tight_identical", name="tight", crowd="identical crowd", epsilons=_certified(ideal, "tight")),
        LedgerEntry(
            key="rdp_identical", name="exact Rényi DP", crowd="identical crowd", epsilons=_certified(ideal, "rdp")
        ),
        LedgerEntry(
            key="paper_theorem",
            name=f"paper, {THEOREM[type(m)]}",
            crowd="identical crowd",
            epsilons=_paper_epsilons(functools.partial(paper_rdp, m)),
        ),
    ]
    if isinstance(m, ShuffledCheckIn):
        entries.append(
            LedgerEntry(
                key="paper_generic",
                name="paper, generic bound",
                crowd="any crowd",
                epsilons=_paper_epsilons(functools.partial(_generic_rdp, m)),
                quick=False,
            )
        )
    if isinstance(m, (Shuffle, ShuffledCheckIn)):
        entries.append(
            LedgerEntry(key="paper_baseline", name="paper, baseline", crowd="any crowd", epsilons=_baseline(m))
        )
    return entries


def _certified(m: Mechanism, method: Method) -> Epsilons:
    """The package's own answers, each computed once, as a progress bar asks again and again."""

    def epsilons(rounds: Sequence[int], delta: float) -> list[float]:
        answers = {count: _guarantee(m, delta, count, method) for count in sorted(set(rounds))}
        return [answers[count] for count in rounds]

    return epsilons


@functools.lru_cache(maxsize=2**16)
def _guarantee(m: Mechanism, delta: float, rounds: int, method: Method) -> float:
    return guarantee(m, delta=delta, rounds=rounds, method=method)


@functools.lru_cache(maxsize=256)
def _generic_rdp(m: ShuffledCheckIn, order: int) -> float:
    """Rényi DP of the paper's bound for any mechanism with check-in; an order takes seconds."""
    return literature.generic_bound(users=m.users, rate=m.rate, sigma=m.sigma, order=order)


def _paper_epsilons(rdp: Callable[[int], float]) -> Epsilons:
    """Epsilon at the best of the paper's orders."""

    def epsilon(count: int, delta: float) -> float:
        best = math.inf
        for order in PAPER_ORDERS:
            value = rdp(order)
            # Orders rise, and so does their Rényi DP: no later order can be better.
            if count * value + math.log1p(-1.0 / order) >= best:
                break
            best = min(
                best,
                literature.epsilon_from_rdp(
                    curve={order: value}.__getitem__, orders=[order], delta=delta, rounds=count
                ),
            )
        return best

    return lambda rounds, delta: [epsilon(count, delta) for count in rounds]


def _baseline(m: Shuffle | ShuffledCheckIn) -> Epsilons:
    def epsilon(count: int, delta: float) -> float:
        try:
            return clones_epsilon(m, delta, count)
        except ValueError:  # the bound's conditions do not hold here
            return math.inf

    return lambda rounds, delta: [epsilon(count, delta) for count in rounds]
