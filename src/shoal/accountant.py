"""Many different rounds together: a ledger, and the privacy of all that it lists.

*Many numbers of users.* A round among any crowd costs some tenths of a second to analyse, and in practice every round
has its own number of users. Fewer users are never more private: of n users' reports a server that is told one of
them holds n - 1 (of a sample of m among n users, told who was drawn, m or m - 1 among n - 1). Nor is a larger sample: m
reports, one of them thrown away, are a sample of m - 1. So where rounds differ in their users and samples only, and in
more than a few numbers of them, upper bounds count the users of each class of rounds *down* to the fewest in it, and
its samples up to the largest, or to all of these users. More users are never less private in a crowd of one place: a
server can add reports from there by itself (and throw as many of a sample away). So lower bounds count users *up* to
the most in their class, and samples down. The classes are those that add least to the sum of sample / users^2, about
what rounds cost (1 / users where there is no sample).
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from shoal import _validate, sampling  # noqa: F401 (sampling adds its mechanisms to those that can be restored)
from shoal._validate import Numbers
from shoal.bounds import certify
from shoal.bounds.numeric import FloatArray, Side
from shoal.interval import Interval
from shoal.mechanisms import Mechanism, bounds, from_dict, run
from shoal.query import (
    ADVANTAGE,
    DELTA,
    EPSILON,
    Bounds,
    How,
    Intervals,
    Method,
    Statement,
    ask_delta,
    ask_epsilon,
    ask_power,
    ask_rdp,
    which_asked,
)

STATE_VERSION = 1
"""Of saved ledgers; one of another version is refused, never guessed at."""

CLASSES, CLASSES_SAMPLED, CLASSES_DEAR = 6, 4, 2
"""The most different numbers of users for which otherwise equal rounds among any crowd are analysed.

A sample of fixed size takes longer to analyse, and little noise several times as long."""

_DEAR = 2.5
"""Below this sigma there is little noise."""

_STARTS = 512
"""The most places where a class is tried to start."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger: a mechanism and for how many rounds it ran."""

    mechanism: Mechanism
    rounds: int


class Accountant:
    """Adds up the privacy of rounds of different mechanisms.

    All rounds concern the same people and must have the same adjacency. Questions never change the
    accountant; `compose` checks everything before it changes anything, and returns the accountant.

    >>> from shoal import Shuffle, ShuffledCheckIn
    >>> a = Accountant()
    >>> m = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
    >>> _ = a.compose(m, rounds=100).compose(Shuffle(users=1_000, sigma=3.0, crowd="identical"))
    >>> a.epsilon(delta=1e-5).upper < 0.1
    True
    """

    def __init__(self) -> None:
        self._counts: dict[Mechanism, int] = {}

    def compose(self, mechanism: Mechanism, *, rounds: int = 1) -> Accountant:
        """Enter `rounds` rounds of a mechanism."""
        if not isinstance(mechanism, Mechanism):
            raise TypeError(f"mechanism must be a shoal mechanism, got {mechanism!r}")
        count = _validate.rounds(rounds)
        # All earlier ones have the same: the first will do.
        for known in self._counts:
            if known.adjacency != mechanism.adjacency:
                raise ValueError(
                    f"adjacency must be {known.adjacency!r} as in the rounds before, got {mechanism.adjacency!r}"
                )
            break
        # The sum has the limit, too, and is checked before anything changes.
        total = _validate.rounds(self._counts.get(mechanism, 0) + count)
        self._counts[mechanism] = total
        return self

    @property
    def ledger(self) -> tuple[Entry, ...]:
        """What has been entered: each different mechanism once, in the order of first use."""
        return tuple(Entry(mechanism=m, rounds=r) for m, r in self._counts.items())

    def __len__(self) -> int:
        """The number of rounds."""
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.ledger)

    def __repr__(self) -> str:
        return f"<Accountant: {_rounds(len(self))}, {len(self._counts)} different>"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """The ledger in words, and what the rounds have in common."""
        return [
            (f"{r:,}", m.label, m.settings, f"{m.adjacency}, {getattr(m, 'crowd', 'no')} crowd")
            for m, r in self._counts.items()
        ]

    def _repr_markdown_(self) -> str:
        rows = "".join(f"| {' | '.join(row)} |\n" for row in self._rows())
        return f"**Accountant**: {_rounds(len(self))}\n\n| {' | '.join(_HEADS)} |\n|---|---|---|---|\n{rows}"

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{name}</th>" for name in _HEADS)
        cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self._rows())
        rows = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<p><b>Accountant</b>: {_rounds(len(self))}</p><table><tr>{heads}</tr>{rows}</table>"

    def _bounds(self, times: int = 1) -> Bounds:
        # Each side has mechanisms of its own: not more private for the upper end, not less for the lower.
        counted = _counted(self._counts)
        below = bounds((line.below, line.rounds * times) for line in counted)
        above = bounds((line.above, line.rounds * times) for line in counted)
        return Bounds(upper=above.upper, identical=below.identical, opposite=below.opposite)

    @overload
    def epsilon(self, *, delta: float, method: Method = ..., orders: Any = ..., accuracy: float = ...) -> Interval: ...
    @overload
    def epsilon(
        self, *, delta: Numbers, method: Method = ..., orders: Any = ..., accuracy: float = ...
    ) -> Intervals: ...
    def epsilon(
        self, *, delta: Any, method: Method = "tight", orders: Any = None, accuracy: float = certify.ACCURACY
    ) -> Any:
        """The epsilon of everything so far, as an `Interval` (0 if nothing was entered)."""
        return ask_epsilon(self._bounds, delta, 1, How.checked(method, orders, accuracy))

    @overload
    def delta(self, *, epsilon: float, method: Method = ..., orders: Any = ..., accuracy: float = ...) -> Interval: ...
    @overload
    def delta(
        self, *, epsilon: Numbers, method: Method = ..., orders: Any = ..., accuracy: float = ...
    ) -> Intervals: ...
    def delta(
        self, *, epsilon: Any, method: Method = "tight", orders: Any = None, accuracy: float = certify.ACCURACY
    ) -> Any:
        """The delta of everything so far, as an `Interval`."""
        return ask_delta(self._bounds, epsilon, 1, How.checked(method, orders, accuracy))

    @overload
    def tradeoff(self, fpr: float, *, accuracy: float = ...) -> Interval: ...
    @overload
    def tradeoff(self, fpr: Numbers, *, accuracy: float = ...) -> Intervals: ...
    def tradeoff(self, fpr: Any, *, accuracy: float = certify.ACCURACY) -> Any:
        """The largest true positive rate at each false positive rate, of an attacker who saw all rounds."""
        return ask_power(self._bounds(), fpr, accuracy)

    def advantage(self, *, accuracy: float = certify.ACCURACY) -> Interval:
        """The largest true positive rate minus false positive rate that any attack on all rounds reaches."""
        return How.checked("tight", None, accuracy).answer(self._bounds(), 0.0, ADVANTAGE)

    def statement(
        self,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        method: Method = "tight",
        orders: Any = None,
        accuracy: float = certify.ACCURACY,
    ) -> Statement:
        """The whole answer for everything so far: epsilon at `delta`, or delta at `epsilon`."""
        if not self._counts:
            raise ValueError("an empty accountant has nothing to state: compose a round first")
        asked, how = which_asked(epsilon, delta), {"method": method, "orders": orders, "accuracy": accuracy}
        given: Any = delta if asked == "epsilon" else epsilon
        answer = self.epsilon(delta=given, **how) if asked == "epsilon" else self.delta(epsilon=given, **how)
        every, question = list(self._counts), EPSILON if asked == "epsilon" else DELTA
        part = How.checked(method, None, accuracy).numerical(self._bounds(), float(given), question, answer.upper)
        crowds = {getattr(m, "crowd", None) for m in every} - {None}
        return Statement(
            runs=tuple(run(m, r) for m, r in self._counts.items()), adjacency=every[0].adjacency,
            crowd=crowds.pop() if len(crowds) == 1 else "mixed" if crowds else None,
            assumption=_each(m.assumption for m in every), trust=_each(m.trust for m in every), method=method,
            asked=asked, given=float(given), answer=answer, accuracy=accuracy, numerical=part, note=self._note(),
        )  # fmt: skip

    def _note(self) -> str:
        """What was done to stay quick, if anything."""
        counted = _counted(self._counts)
        if len(counted) == len(self._counts):
            return ""
        sampled = any(line.above.to_dict().get("sample") != line.below.to_dict().get("sample") for line in counted)
        return (
            f"{len(self._counts):,} different rounds are analysed as {len(counted):,}, their users counted down"
            f"{' and samples up' if sampled else ''}, which is never better"
        )

    def rdp(self, orders: Any, *, direction: Literal["worse", "forward", "reverse"] = "worse") -> FloatArray:
        """Rényi DP of everything so far."""
        return ask_rdp(self._bounds(), orders, direction)

    def state_dict(self) -> dict[str, Any]:
        """The ledger as plain data (JSON will do), to be restored by `load_state_dict`."""
        return {
            "version": STATE_VERSION,
            "ledger": [{**e.mechanism.to_dict(), "rounds": e.rounds} for e in self.ledger],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Accountant:
        """Replace the ledger by a saved one; a corrupt state is refused and changes nothing."""
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be a mapping, got {type(state).__name__}")
        if set(state) != {"version", "ledger"}:
            raise ValueError(f"state must have the keys version and ledger, got {', '.join(sorted(map(str, state)))}")
        if type(state["version"]) is not int or state["version"] != STATE_VERSION:
            raise ValueError(f"state version must be {STATE_VERSION}, got {state['version']!r}")
        if not isinstance(state["ledger"], list):
            raise TypeError(f"ledger must be a list, got {type(state['ledger']).__name__}")
        # Into a fresh one: an entry that is refused leaves this one as it was.
        fresh = Accountant()
        for number, line in enumerate(state["ledger"]):
            try:
                if not isinstance(line, Mapping) or "rounds" not in line:
                    raise ValueError(f"an entry must be a mapping with rounds, got {line!r}")
                mechanism = from_dict({k: v for k, v in line.items() if k != "rounds"})
                fresh.compose(mechanism, rounds=line["rounds"])
            except (TypeError, ValueError) as error:
                raise type(error)(f"ledger entry {number}: {error}") from None
        self._counts = fresh._counts
        return self


_HEADS = ("rounds", "mechanism", "settings", "adjacency and crowd")


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"{count:,} rounds"


@dataclass(frozen=True, kw_only=True)
class _Class:
    """Rounds that are equal but for users and samples: one that is not more private than any, one that is not less."""

    above: Mechanism
    below: Mechanism
    rounds: int


_Numbers = tuple[int, int]
"""Users, and how many of them a sample takes."""


def _counted(counts: Mapping[Mechanism, int]) -> list[_Class]:
    """The rounds, in few classes where they differ in their users and samples only."""
    alike: dict[Any, list[Any]] = {}
    for m in counts:
        # The identical crowd is quick to analyse: nothing is put together there.
        any_crowd = getattr(m, "crowd", None) == "any"
        rest = tuple((k, v) for k, v in sorted(m.to_dict().items()) if k not in ("users", "sample"))
        alike.setdefault(rest if any_crowd else m, []).append(m)
    found = []
    for group in alike.values():
        of_numbers = {(m.users, getattr(m, "sample", m.users)): m for m in group} if len(group) > 1 else {}
        if len(group) == 1 or not _has_room(of_numbers):
            found += [_Class(above=m, below=m, rounds=counts[m]) for m in group]
            continue
        for one in _classes({pair: counts[m] for pair, m in of_numbers.items()}, _most(group[0])):
            above, below = (_with(group[0], _end(one, side)) for side in ("upper", "lower"))
            found.append(_Class(above=above, below=below, rounds=sum(counts[of_numbers[pair]] for pair in one)))
    return found


def _most(m: Any) -> int:
    """In how many classes rounds like this one are put at most."""
    if m.sigma < _DEAR:
        return CLASSES_DEAR
    return CLASSES_SAMPLED if hasattr(m, "sample") else CLASSES


def _with(m: Any, numbers: _Numbers) -> Mechanism:
    users, sample = numbers
    changed: Mechanism = m.replace(users=users, sample=sample) if hasattr(m, "sample") else m.replace(users=users)
    return changed


def _end(numbers: Iterable[_Numbers], side: Side) -> _Numbers:
    """Users and sample that are not more private than any of these, or not less."""
    users, samples = zip(*numbers, strict=True)
    if side == "upper":
        return min(users), min(max(samples), *users)
    return max(users), min(samples)


def _has_room(numbers: Iterable[_Numbers]) -> bool:
    """Whether the smallest sample of the most users is one that can be described."""
    users, sample = _end(numbers, "lower")
    return sample >= _validate.RATE_MIN * users


def _classes(numbers: Mapping[_Numbers, int], most: int) -> list[list[_Numbers]]:
    """The numbers (with how many rounds have them) in so many classes at most, from the dearest down.

    Of all ways to cut them, sorted by what a round costs, the one with the least sum of rounds times the cost of the
    upper end of their class, by dynamic programming over where a class starts.
    """
    if len(numbers) <= most:
        return [[pair] for pair in numbers]
    # In the order of cost an optimal class is a run of neighbours, so that cuts are all there is to choose.
    every = sorted(numbers, key=lambda pair: (-pair[1] / pair[0] ** 2, pair))
    users, samples = np.array(every, dtype=float).T
    rounds = np.cumsum([0, *(numbers[pair] for pair in every)])
    # The table of prices has the square of their number: thousands of numbers of users start at some places only.
    starts = np.unique(np.linspace(0, len(every) - 1, min(_STARTS, len(every))).round().astype(int))
    ends = np.append(starts[1:], len(every))
    # price[i, j]: one class from start i to the end of the piece j
    fewest, largest = np.minimum.reduceat(users, starts), np.maximum.reduceat(samples, starts)
    price = np.full((len(starts), len(starts)), np.inf)
    for i, start in enumerate(starts):
        n = np.minimum.accumulate(fewest[i:])
        m = np.minimum(np.maximum.accumulate(largest[i:]), n)
        price[i, i:] = (rounds[ends[i:]] - rounds[start]) * m / n**2
    best, cuts = price[0], []
    for _ in range(most - 1):
        # the classes before end with the piece i - 1
        total = np.vstack([best, best[:-1, None] + price[1:]])
        cuts.append(np.argmin(total, axis=0))
        best = total.min(axis=0)
    # Back along the choices: where the last class starts, then the one before it.
    last, edges = len(starts) - 1, [len(every)]
    for cut in reversed(cuts):
        start = int(cut[last])
        if start:
            edges.append(int(starts[start]))
            last = start - 1
    edges = sorted({0, *edges})
    return [every[a:b] for a, b in itertools.pairwise(edges)]


def _each(texts: Iterable[str]) -> str:
    """Different texts, each once."""
    return "; ".join(dict.fromkeys(texts))
