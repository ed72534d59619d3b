"""Many different rounds together: a ledger, and the privacy of all that it lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

from shoal import _validate, pld, sampling  # noqa: F401 (sampling adds its mechanisms to those that can be restored)
from shoal._validate import FloatArray, Numbers
from shoal.answers import (
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
from shoal.interval import Interval
from shoal.mechanisms import Mechanism, bounds, from_dict, run

STATE_VERSION = 1


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
        for known in self._counts:
            if known.adjacency != mechanism.adjacency:
                raise ValueError(
                    f"adjacency must be {known.adjacency!r} as in the rounds before, got {mechanism.adjacency!r}"
                )
            break
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

    def _bounds(self, times: int = 1) -> Bounds:
        return bounds((m, r * times) for m, r in self._counts.items())

    @overload
    def epsilon(self, *, delta: float, method: Method = ..., orders: Any = ..., accuracy: float = ...) -> Interval: ...
    @overload
    def epsilon(
        self, *, delta: Numbers, method: Method = ..., orders: Any = ..., accuracy: float = ...
    ) -> Intervals: ...
    def epsilon(
        self, *, delta: Any, method: Method = "tight", orders: Any = None, accuracy: float = pld.ACCURACY
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
        self, *, epsilon: Any, method: Method = "tight", orders: Any = None, accuracy: float = pld.ACCURACY
    ) -> Any:
        """The delta of everything so far, as an `Interval`."""
        return ask_delta(self._bounds, epsilon, 1, How.checked(method, orders, accuracy))

    @overload
    def tradeoff(self, fpr: float, *, accuracy: float = ...) -> Interval: ...
    @overload
    def tradeoff(self, fpr: Numbers, *, accuracy: float = ...) -> Intervals: ...
    def tradeoff(self, fpr: Any, *, accuracy: float = pld.ACCURACY) -> Any:
        """The largest true positive rate at each false positive rate, of an attacker who saw all rounds."""
        return ask_power(self._bounds(), fpr, accuracy)

    def advantage(self, *, accuracy: float = pld.ACCURACY) -> Interval:
        """The largest true positive rate minus false positive rate that any attack on all rounds reaches."""
        return How.checked("tight", None, accuracy).answer(self._bounds(), 0.0, ADVANTAGE)

    def statement(
        self,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        method: Method = "tight",
        orders: Any = None,
        accuracy: float = pld.ACCURACY,
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
            asked=asked, given=float(given), answer=answer, accuracy=accuracy, numerical=part,
        )  # fmt: skip

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


def _each(texts: Iterable[str]) -> str:
    """Different texts, each once."""
    return "; ".join(dict.fromkeys(texts))
