"""What stands on the page, as texts, turned into a mechanism and the questions asked of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoal import _validate
from shoal._written import number
from shoal.errors import InvalidInput
from shoal.mechanisms import Mechanism, labelled

Found = Literal["users", "sigma", "rounds"]
FOUND: tuple[Found, ...] = ("users", "sigma", "rounds")
"""What can be solved for where epsilon is held."""

KINDS = labelled()
SHARED = ("rounds", "delta")
"""Parameters that every mechanism is asked about."""

DIMENSION_MAX = 10**12
_STEPS = tuple(
    f"{step:g}"
    for step in (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3, 3.2, 3.6, 4, 4.5, 5, 5.6, 6, 6.3, 7, 8, 9)
)


def _stops(first: int, last: int, steps: tuple[str, ...], *, whole: bool = False) -> list[str]:
    """Where a slider can stand, from 10^first to 10^last, as it is written."""
    stops = [f"{step}e{exponent}" for exponent in range(first, last) for step in steps] + [f"1e{last}"]
    if whole:
        return list(dict.fromkeys(f"{int(float(s)):,}" for s in stops if float(s) == int(float(s))))
    return [f"{float(s):g}".replace("e-0", "e-") for s in stops]


@dataclass(frozen=True, kw_only=True)
class Field:
    """A number on the page: what it is called, what it means, and where its slider can stand (nowhere: no slider)."""

    label: str
    help: str
    start: str
    stops: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        values = [float(stop.replace(",", "")) for stop in self.stops]
        return {**dataclasses.asdict(self), "values": values}


FIELDS = {
    "users": Field(
        label="Users", help="who follow the protocol", start="60,000", stops=tuple(_stops(0, 9, _STEPS, whole=True))
    ),
    "sample": Field(
        label="Sampled a round", help="of all users", start="6,000", stops=tuple(_stops(0, 8, _STEPS, whole=True))
    ),
    "rate": Field(
        label="Check-in rate", help="chance to take part in a round", start="0.1", stops=tuple(_stops(-4, 0, _STEPS))
    ),
    "bins": Field(
        label="Batches", help="of an epoch", start="1,000", stops=tuple(_stops(0, 6, _STEPS, whole=True))
    ),
    "sigma": Field(
        label="Noise σ", help="standard deviation / clipping norm", start="5", stops=tuple(_stops(-1, 3, _STEPS))
    ),
    "rounds": Field(
        label="Rounds", help="in which one user may report", start="5,540",
        stops=tuple(_stops(0, 6, _STEPS, whole=True)),
    ),
    "delta": Field(
        label="δ", help="what ε may leave out; choose it well below 1 / users", start="1e-5",
        stops=tuple(_stops(-12, -1, ("1", "2", "3", "5", "7"))),
    ),
    "epsilon": Field(
        label="Hold ε at", help="not to be exceeded", start="0.1", stops=tuple(_stops(-3, 2, _STEPS))
    ),
    "clip": Field(label="Clipping norm C", help="no vector is longer", start="1"),
    "dimension": Field(label="Dimension", help="numbers in a vector", start="100"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One state of the page. `mechanism` has the crowd that was chosen; `find` is what epsilon is solved for."""

    mechanism: Mechanism
    rounds: int
    delta: float
    clip: float
    dimension: int
    axis: str
    epsilon: float | None = None
    find: Found | None = None

    @property
    def crowded(self) -> bool:
        """Whether other users hide one."""
        return self.mechanism.crowd_matters

    def value(self, name: str) -> float:
        """A parameter by its name."""
        return float(getattr(self, name) if name in SHARED else getattr(self.mechanism, name))

    def moved(self, name: str, value: float) -> Setting:
        """The setting with one parameter changed."""
        if name in SHARED:
            return dataclasses.replace(self, **{name: int(value) if name == "rounds" else value})  # type: ignore[arg-type]
        whole = name in ("users", "sample", "bins")
        return dataclasses.replace(self, mechanism=self.mechanism.replace(**{name: int(value) if whole else value}))

    def with_crowd(self, crowd: str) -> Setting:
        return dataclasses.replace(self, mechanism=self.mechanism.replace(crowd=crowd))


def parameters(kind: str) -> tuple[str, ...]:
    """The parameters of a mechanism, the noise last, and those that every question has."""
    return (*(p.name for p in KINDS[kind].parameters() if p.name in FIELDS or p.is_required), *SHARED)


def read(state: Mapping[str, str]) -> Setting:
    """The setting that the texts of the page describe; what is wrong is said in one sentence that names its field."""
    kind = _validate.choice("mechanism", state.get("mechanism", "check-in"), tuple(KINDS))
    hold = state.get("hold", "")
    find: Any = _validate.choice("hold", hold, FOUND) if hold else None
    names = parameters(kind)
    if find is not None and find not in names:
        raise InvalidInput(f"hold must name a parameter of {kind}, got {find!r}")
    texts = {name: state.get(name, field.start) for name, field in FIELDS.items()}
    if find is not None and not state.get("solved"):
        # What is solved for has no value yet: any valid one will do.
        texts[find] = texts["sample"] if find == "users" and "sample" in names else FIELDS[find].start
    own: dict[str, Any] = {name: number(name, texts[name]) for name in names if name not in SHARED}
    if KINDS[kind].crowd_matters:
        own["crowd"] = state.get("crowd", "any")
    own["adjacency"] = state.get("adjacency", "zero-out")
    mechanism = KINDS[kind](**own)
    clip = _validate.real("clip", number("clip", texts["clip"]))
    if clip <= 0.0:
        raise InvalidInput(f"clip must be positive, got {clip}")
    axis = state.get("axis", "rounds")
    epsilon = None
    if find is not None:
        epsilon = _validate.epsilon(number("epsilon", texts["epsilon"]), positive=True)
    return Setting(
        mechanism=mechanism, rounds=_validate.rounds(number("rounds", texts["rounds"])),
        delta=_validate.delta(number("delta", texts["delta"])), clip=clip,
        dimension=_validate.integer("dimension", number("dimension", texts["dimension"]), minimum=1,
                                    maximum=DIMENSION_MAX),
        axis=axis if axis in names else "rounds", epsilon=epsilon, find=find,
    )  # fmt: skip


def field_of(message: str) -> str | None:
    """The field that an error's sentence is about: its first word names it."""
    first = re.match(r"[a-z_]+", message)
    name = {"at_least": "users"}.get(first[0], first[0]) if first else None
    return name if name in FIELDS or name == "adjacency" else None
