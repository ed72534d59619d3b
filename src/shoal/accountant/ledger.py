"""The ledger of many rounds: `Accountant` records them and answers questions about their total."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, overload

from shoal import _validate
from shoal._validate import Numbers
from shoal.accountant.merging import round_classes
from shoal.bounds import certify
from shoal.bounds.numeric import FloatArray
from shoal.errors import InvalidInput, InvalidType
from shoal.formatting import count_of, distinct, html_table, markdown_table
from shoal.interval import Interval
from shoal.mechanisms import Mechanism, bounds, from_dict
from shoal.query import (
    ADVANTAGE,
    DELTA,
    EPSILON,
    POWER,
    Bounds,
    Intervals,
    Method,
    Options,
    divergences,
    intervals,
    solve,
)
from shoal.statement import Statement, question_for

STATE_VERSION = 1
"""The version of saved ledgers; any other version is refused."""

_COLUMNS = ("rounds", "mechanism", "settings", "adjacency and crowd")
"""The columns of a ledger in a notebook."""

_FIXED_SETTINGS = "the settings of the rounds did not depend on what was published"
"""Under this condition rounds of different settings compose tightly; a `Filter` does without it."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger: a mechanism, and the number of rounds that it ran."""

    mechanism: Mechanism
    rounds: int


class Accountant:
    """Adds up the privacy of rounds of different mechanisms.

    All rounds must concern the same people and have the same adjacency. Vectors may depend on everything published;
    settings and number of rounds may not: what is chosen along the way is counted by a `Filter` or an `Odometer`.
    Questions never change the accountant.
    `compose` checks everything before it changes anything, and returns the accountant.

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
        """Enter `rounds` rounds of a mechanism.

        Args:
            mechanism: The mechanism that was run.
            rounds: The number of rounds.

        Returns:
            This accountant, so that calls can be chained.

        Raises:
            InvalidInput: If an argument is not allowed, or the adjacency differs from earlier rounds.
        """
        if not isinstance(mechanism, Mechanism):
            raise InvalidType(f"mechanism must be a shoal mechanism, got {mechanism!r}")
        count = _validate.rounds(rounds)
        # All earlier rounds have one adjacency, so the first of them will do.
        first = next(iter(self._counts), mechanism)
        if first.adjacency != mechanism.adjacency:
            raise InvalidInput(
                f"adjacency must be {first.adjacency!r} as in the rounds before, got {mechanism.adjacency!r}"
            )
        # The sum is limited as well, and is checked before anything changes.
        self._counts[mechanism] = _validate.rounds(self._counts.get(mechanism, 0) + count)
        return self

    @property
    def ledger(self) -> tuple[Entry, ...]:
        """The entries: each mechanism once, in the order of first use."""
        return tuple(Entry(mechanism=m, rounds=r) for m, r in self._counts.items())

    def __len__(self) -> int:
        """The number of rounds."""
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.ledger)

    def __repr__(self) -> str:
        return f"<Accountant: {count_of(len(self), 'round')}, {len(self._counts)} different>"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """The ledger in words."""
        return [
            (f"{rounds:,}", m.label, m.settings, f"{m.adjacency}, {m.crowd or 'no'} crowd")
            for m, rounds in self._counts.items()
        ]

    def _repr_markdown_(self) -> str:
        return f"**Accountant**: {count_of(len(self), 'round')}\n\n{markdown_table(_COLUMNS, self._rows())}"

    def _repr_html_(self) -> str:
        return html_table(_COLUMNS, self._rows(), caption=f"Accountant: {count_of(len(self), 'round')}")

    def bounds(self, rounds: int = 1) -> Bounds:
        """The bounds of several repetitions of this ledger."""
        # A class of rounds has a mechanism for each side: one that is not more private, and one that is not less.
        classes = round_classes(self._counts)
        lower = bounds((c.lower, c.rounds * rounds) for c in classes)
        upper = bounds((c.upper, c.rounds * rounds) for c in classes)
        return Bounds(upper=upper.upper, attacks=lower.attacks)

    @overload
    def epsilon(self, *, delta: float, method: Method = ..., orders: Any = ..., accuracy: float = ...) -> Interval: ...
    @overload
    def epsilon(
        self, *, delta: Numbers, method: Method = ..., orders: Any = ..., accuracy: float = ...
    ) -> Intervals: ...
    def epsilon(
        self, *, delta: Any, method: Method = "tight", orders: Any = None, accuracy: float = certify.ACCURACY
    ) -> Any:
        """The epsilon of all rounds so far, as an `Interval` (0 if nothing was entered).

        Args:
            delta: One delta, or several; several give an array of intervals.
            method: "tight", or "rdp" for an upper bound by Rényi DP.
            orders: The Rényi orders for "rdp"; all by default.
            accuracy: The relative width that an interval should have.
        """
        options = Options(method=method, orders=orders, accuracy=accuracy)
        return intervals(EPSILON, self.bounds, delta, 1, options)

    @overload
    def delta(self, *, epsilon: float, method: Method = ..., orders: Any = ..., accuracy: float = ...) -> Interval: ...
    @overload
    def delta(
        self, *, epsilon: Numbers, method: Method = ..., orders: Any = ..., accuracy: float = ...
    ) -> Intervals: ...
    def delta(
        self, *, epsilon: Any, method: Method = "tight", orders: Any = None, accuracy: float = certify.ACCURACY
    ) -> Any:
        """The delta of all rounds so far, as an `Interval`.

        Args:
            epsilon: One epsilon, or several; several give an array of intervals.
            method: "tight", or "rdp" for an upper bound by Rényi DP.
            orders: The Rényi orders for "rdp"; all by default.
            accuracy: The relative width that an epsilon should have; delta is bracketed to match.
        """
        options = Options(method=method, orders=orders, accuracy=accuracy)
        return intervals(DELTA, self.bounds, epsilon, 1, options)

    @overload
    def tradeoff(self, fpr: float, *, accuracy: float = ...) -> Interval: ...
    @overload
    def tradeoff(self, fpr: Numbers, *, accuracy: float = ...) -> Intervals: ...
    def tradeoff(self, fpr: Any, *, accuracy: float = certify.ACCURACY) -> Any:
        """The largest true positive rate of an attacker who saw all rounds.

        Args:
            fpr: One false positive rate, or several; several give an array of intervals.
            accuracy: The relative width that an interval should have.
        """
        return intervals(POWER, self.bounds, fpr, 1, Options(accuracy=accuracy))

    def advantage(self, *, accuracy: float = certify.ACCURACY) -> Interval:
        """The largest true positive rate minus false positive rate that any attack on all rounds reaches."""
        return solve(ADVANTAGE, self.bounds(), 0.0, Options(accuracy=accuracy)).interval

    def statement(
        self,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        method: Method = "tight",
        orders: Any = None,
        accuracy: float = certify.ACCURACY,
    ) -> Statement:
        """The whole answer for all rounds so far: epsilon at `delta`, or delta at `epsilon`.

        Args:
            delta: The delta at which epsilon is computed; exactly one of `delta` and `epsilon` must be set.
            epsilon: The epsilon at which delta is computed.
            method: "tight", or "rdp" for an upper bound by Rényi DP.
            orders: The Rényi orders for "rdp"; all by default.
            accuracy: The relative width that epsilon should have.

        Raises:
            InvalidInput: If an argument is not allowed, or the ledger is empty.
        """
        if not self._counts:
            raise InvalidInput("an empty accountant has nothing to state: compose a round first")
        question, value = question_for(epsilon=epsilon, delta=delta)
        options = Options(method=method, orders=orders, accuracy=accuracy)
        answer = solve(question, self.bounds(), question.check(value), options)
        mechanisms = list(self._counts)
        crowds = {m.crowd for m in mechanisms if m.crowd is not None}
        return Statement.of(
            answer,
            runs=tuple(m.run(rounds) for m, rounds in self._counts.items()),
            adjacency=mechanisms[0].adjacency,
            person=_person(mechanisms),
            crowd="mixed" if len(crowds) > 1 else next(iter(crowds), None),
            assumption=distinct(m.assumption for m in mechanisms),
            protocol=distinct(m.protocol for m in mechanisms),
            trust=distinct(m.trust for m in mechanisms),
            note=distinct(part for part in (self.merging_note(), self.settings_note()) if part),
        )

    def merging_note(self) -> str:
        """A clause on rounds that are analysed together; empty if there are none."""
        classes = round_classes(self._counts)
        if len(classes) == len(self._counts):
            return ""
        is_sampled = any(c.upper.to_dict().get("sample") != c.lower.to_dict().get("sample") for c in classes)
        return (
            f"{len(self._counts):,} different rounds are analysed as {len(classes):,}, with users counted down"
            f"{' and samples up' if is_sampled else ''}, which is never better"
        )

    def settings_note(self) -> str:
        """The condition under which rounds of different settings compose tightly; empty if all are equal."""
        return _FIXED_SETTINGS if len(self._counts) > 1 else ""

    def rdp(self, orders: Any, *, direction: certify.DirectionChoice = "worse") -> FloatArray:
        """The Rényi DP of all rounds so far, at each order.

        Args:
            orders: One Rényi order or several, above 1.
            direction: "forward" for D(P||Q), "reverse" for D(Q||P), or the worse of the two.

        Returns:
            The divergences, one for each order.
        """
        return divergences(self.bounds(), orders, direction)

    def state_dict(self) -> dict[str, Any]:
        """The ledger as plain data (JSON will do), to be restored by `load_state_dict`."""
        return {
            "version": STATE_VERSION,
            "ledger": [{**e.mechanism.to_dict(), "rounds": e.rounds} for e in self.ledger],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Accountant:
        """Replace the ledger by a saved one; a corrupt state is refused and changes nothing."""
        if not isinstance(state, Mapping):
            raise InvalidType(f"state must be a mapping, got {type(state).__name__}")
        if set(state) != {"version", "ledger"}:
            raise InvalidInput(f"state must have the keys version and ledger, got {', '.join(sorted(map(str, state)))}")
        if type(state["version"]) is not int or state["version"] != STATE_VERSION:
            raise InvalidInput(f"state version must be {STATE_VERSION}, got {state['version']!r}")
        if not isinstance(state["ledger"], list):
            raise InvalidType(f"ledger must be a list, got {type(state['ledger']).__name__}")
        # Into a new accountant first: an entry that is refused leaves this one as it was.
        restored = Accountant()
        for number, line in enumerate(state["ledger"]):
            try:
                if not isinstance(line, Mapping) or "rounds" not in line:
                    raise InvalidInput(f"an entry must be a mapping with rounds, got {line!r}")
                mechanism = from_dict({k: v for k, v in line.items() if k != "rounds"})
                restored.compose(mechanism, rounds=line["rounds"])
            except (TypeError, ValueError) as error:
                raise type(error)(f"ledger entry {number}: {error}") from None
        self._counts = restored._counts
        return self


def _person(mechanisms: Iterable[Mechanism]) -> str:
    """The person who is protected, in words; empty where that is one vector in all rounds."""
    persons = dict.fromkeys(m.person for m in mechanisms)
    return " and ".join(person or "one vector" for person in persons) if any(persons) else ""
