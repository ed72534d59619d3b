"""Many different rounds together: a ledger, and the privacy of all that it lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoal import _validate, pld
from shoal._validate import FloatArray
from shoal.mechanisms import Bounds, Mechanism, Method, Settings, ask_delta, ask_epsilon, ask_rdp, from_dict

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

    def _parts(self, times: int = 1) -> Bounds:
        return Bounds.of((m, r * times) for m, r in self._counts.items())

    def epsilon(
        self, *, delta: Any, method: Method = "tight", orders: Any = None, accuracy: float = pld.ACCURACY
    ) -> Any:
        """The epsilon of everything so far, as an `Interval` (0 if nothing was entered)."""
        return ask_epsilon(self._parts, delta, 1, Settings.checked(method, orders, accuracy))

    def delta(
        self, *, epsilon: Any, method: Method = "tight", orders: Any = None, accuracy: float = pld.ACCURACY
    ) -> Any:
        """The delta of everything so far, as an `Interval`."""
        return ask_delta(self._parts, epsilon, 1, Settings.checked(method, orders, accuracy))

    def rdp(self, orders: Any, *, direction: Literal["worse", "forward", "reverse"] = "worse") -> FloatArray:
        """Rényi DP of everything so far."""
        return ask_rdp(self._parts(), orders, direction)

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
