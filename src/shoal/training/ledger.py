"""The ledger of a training: epsilon after any number of rounds by every accountant that knows the protocol.

Every accountant says which crowd it speaks of. Those of the paper are kept for comparison, with what
is known to be wrong about them in their own descriptions (`shoal.literature`); none of them is the guarantee.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal import literature
from shoal.bounds import certify
from shoal.literature.compare import PAPER_ORDERS, THEOREM, clones_epsilon, paper_rdp
from shoal.mechanisms import Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle, bounds
from shoal.query import EPSILON, How, Method

Epsilons = Callable[[Sequence[int], float], list[float]]


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One accountant: its name, the crowd it speaks of, and epsilon (from above) after some rounds at a delta.

    Where an accountant has no answer, epsilon is infinite.
    """

    key: str
    name: str
    crowd: str
    epsilons: Epsilons
    quick: bool = True
    """Whether an answer comes within a second or so, as a progress bar needs it."""

    @property
    def short(self) -> str:
        return self.key.replace("_", " ")

    @property
    def label(self) -> str:
        return f"{self.name} ({self.crowd})"


def guarantee(mechanism: Mechanism, *, delta: float, rounds: int, method: Method = "tight") -> float:
    """Epsilon from above, as `mechanism.epsilon` gives it; the other end is not computed.

    >>> m = Shuffle(users=100, sigma=3.0)
    >>> guarantee(m, delta=1e-5, rounds=3) == m.epsilon(delta=1e-5, rounds=3).upper
    True
    """
    how = How.checked(method, None, certify.ACCURACY, ends="upper")
    return how.answer(bounds([(mechanism, rounds)]), delta, EPSILON).upper


def accountants(mechanism: Mechanism) -> list[LedgerEntry]:
    """All that know the protocol, the guarantee first.

    >>> from shoal import ShuffledCheckIn
    >>> [a.key for a in accountants(ShuffledCheckIn(users=5_000, rate=0.1, sigma=2.0))]
    ['tight_any', 'tight_identical', 'rdp_identical', 'paper_theorem', 'paper_generic', 'paper_baseline']
    """
    m = mechanism
    if not isinstance(m, (Shuffle, SubsampledShuffle, ShuffledCheckIn)):
        return [
            LedgerEntry(key="tight", name="tight", crowd="no crowd needed", epsilons=_asked(m, "tight")),
            LedgerEntry(key="rdp", name="Rényi DP", crowd="no crowd needed", epsilons=_asked(m, "rdp")),
        ]
    ideal = m.replace(crowd="identical")
    known = [
        LedgerEntry(key="tight_any", name="tight", crowd="any crowd", epsilons=_asked(m.replace(crowd="any"), "tight")),
        LedgerEntry(key="tight_identical", name="tight", crowd="identical crowd", epsilons=_asked(ideal, "tight")),
        LedgerEntry(key="rdp_identical", name="exact Rényi DP", crowd="identical crowd", epsilons=_asked(ideal, "rdp")),
        LedgerEntry(
            key="paper_theorem",
            name=f"paper, {THEOREM[type(m)]}",
            crowd="identical crowd",
            epsilons=_converted(functools.partial(paper_rdp, m)),
        ),
    ]
    if isinstance(m, ShuffledCheckIn):
        known.append(
            LedgerEntry(
                key="paper_generic",
                name="paper, generic bound",
                crowd="any crowd",
                epsilons=_converted(functools.partial(_generic_rdp, m)),
                quick=False,
            )
        )
    if isinstance(m, (Shuffle, ShuffledCheckIn)):
        known.append(
            LedgerEntry(key="paper_baseline", name="paper, baseline", crowd="any crowd", epsilons=_baseline(m))
        )
    return known


def _asked(m: Mechanism, method: Method) -> Epsilons:
    """The package's own answers; those given before (to a progress bar, say) are remembered."""

    def epsilons(rounds: Sequence[int], delta: float) -> list[float]:
        key = (m, method, delta)
        known = _ANSWERS.setdefault(key, {})
        for count in sorted(set(rounds) - set(known)):
            known[count] = guarantee(m, delta=delta, rounds=count, method=method)
        return [known[count] for count in rounds]

    return epsilons


_ANSWERS: dict[tuple[Mechanism, Method, float], dict[int, float]] = {}


@functools.lru_cache(maxsize=256)
def _generic_rdp(m: ShuffledCheckIn, order: int) -> float:
    """The paper's bound for any mechanism with check-in, of which one order takes seconds."""
    return literature.generic_bound(users=m.users, rate=m.rate, sigma=m.sigma, order=order)


def _converted(rdp: Callable[[int], float]) -> Epsilons:
    """The best of the paper's orders, from below: beyond the order whose Rényi DP alone is too much none is better."""

    def one(count: int, delta: float) -> float:
        best = math.inf
        for order in PAPER_ORDERS:
            value = rdp(order)
            if count * value + math.log1p(-1.0 / order) >= best:
                break
            best = min(
                best,
                literature.epsilon_from_rdp(curve=lambda _, v=value: v, orders=[order], delta=delta, rounds=count),  # type: ignore[misc]
            )
        return best

    return lambda rounds, delta: [one(count, delta) for count in rounds]


def _baseline(m: Shuffle | ShuffledCheckIn) -> Epsilons:
    def one(count: int, delta: float) -> float:
        try:
            return clones_epsilon(m, delta, count)
        except ValueError:  # the bound's conditions do not hold here
            return math.inf

    return lambda rounds, delta: [one(count, delta) for count in rounds]
