"""The state of the page, as texts, turned into a mechanism and the questions about it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shoal import _validate
from shoal._written import number
from shoal.errors import InvalidInput
from shoal.mechanisms import Mechanism, Parameter, labelled
from shoal.mechanisms.parameter import NOISE, PROBABILITY, named

Solvable = Literal["users", "sigma", "rounds"]
SOLVABLE: tuple[Solvable, ...] = get_args(Solvable)
"""What can be solved for where epsilon is held."""

KINDS = labelled()
START = "check-in"
"""The mechanism that the page opens with."""

SHARED = ("rounds", "delta")
"""Parameters of a question about any mechanism."""

DIMENSION_MAX = 10**12
_STEPS = (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3, 3.2, 3.6, 4, 4.5, 5, 5.6, 6, 6.3, 7, 8, 9)
_DELTA_STEPS = (1, 2, 3, 5, 7)


def _stops(low: float, high: float, *, whole: bool = False, steps: tuple[float, ...] = _STEPS) -> tuple[str, ...]:
    """Return where a slider can stand between two numbers, as it is written there."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [float(f"{step:g}e{exponent}") for exponent in decades for step in steps]
    within = [value for value in values if low <= value <= high]
    if whole:
        return tuple(dict.fromkeys(f"{int(value):,}" for value in within if value == int(value)))
    return tuple(f"{value:g}".replace("e-0", "e-") for value in within)


@dataclass(frozen=True, kw_only=True)
class Field:
    """A value on the page: its name, what it means, and where its slider can stand (nowhere: no slider)."""

    label: str
    help: str
    start: str
    kind: str = "real"
    is_special: bool = False
    """Whether most people leave it as it is."""

    stops: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        values = [float(stop.replace(",", "")) for stop in self.stops]
        return {**dataclasses.asdict(self), "values": values}


FIELDS = {
    "rounds": Field(
        label="Rounds", help="in which one user may report", start="100", kind="whole", stops=_stops(1, 1e6, whole=True)
    ),
    "delta": Field(
        label="δ",
        help="what ε may leave out; choose it well below 1 / users",
        start="1e-5",
        stops=_stops(1e-12, 0.1, steps=_DELTA_STEPS),
    ),
    "epsilon": Field(label="Hold ε at", help="not to be exceeded", start="0.1", stops=_stops(1e-3, 1e2)),
    "clip": Field(label="Clipping norm C", help="no vector is longer", start="1"),
    "dimension": Field(label="Dimension", help="numbers in a vector", start="100", kind="whole"),
}
"""The fields that belong to no mechanism."""


def parameters(kind: str) -> dict[str, Parameter]:
    """Return the parameters of a mechanism by their names, the noise last."""
    return named(KINDS[kind].parameters())


def fields(kind: str) -> dict[str, Field]:
    """Return the fields of a mechanism's parameters, and of the question, by their names."""
    declared = {name: _field_of(parameter) for name, parameter in parameters(kind).items()}
    return {**declared, **{name: FIELDS[name] for name in SHARED}}


def _field_of(parameter: Parameter) -> Field:
    """Return the field of a parameter; all about it was declared with the parameter."""
    kind, whole = parameter.domain.kind, parameter.domain.kind == "whole"
    start = ""
    if parameter.example is not None:
        start = f"{int(parameter.example):,}" if whole else f"{parameter.example:g}"
    stops = () if parameter.slider is None else _stops(*parameter.slider, whole=whole)
    return Field(
        label=parameter.label,
        help=parameter.help.rstrip("."),
        start=start,
        kind=kind,
        is_special=parameter.is_silent,
        stops=stops,
    )


@dataclass(frozen=True, kw_only=True)
class Range:
    """Where a picture may look along an axis: within limits, and up to a factor to either side of the present value."""

    low: float
    high: float
    factor: float
    whole: bool = False


def axis_range(kind: str, name: str) -> Range:
    """Return the range of a picture's axis.

    Args:
      kind: The mechanism.
      name: A parameter that has a slider, or one of `SHARED`.
    """
    if name == "rounds":
        return Range(low=1, high=1e8, factor=30.0, whole=True)
    if name == "delta":
        return Range(low=1e-15, high=0.3, factor=1e4)
    parameter = parameters(kind)[name]
    low, high = parameter.slider or (1.0, 1.0)
    if parameter.domain is PROBABILITY:
        return Range(low=low / 100.0, high=1.0, factor=10.0)
    if parameter.domain is NOISE:
        return Range(low=low / 2.0, high=10.0 * high, factor=6.0)
    return Range(low=low, high=high, factor=30.0, whole=parameter.domain.kind == "whole")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One state of the page.

    `mechanism` has the crowd that was chosen; `unknown` is what epsilon is solved for, and None where nothing is.
    """

    mechanism: Mechanism
    rounds: int
    delta: float
    clip: float
    dimension: int
    axis: str
    epsilon: float | None = None
    unknown: Solvable | None = None

    @property
    def kind(self) -> str:
        """The name of the mechanism."""
        return self.mechanism.label

    @property
    def has_crowd(self) -> bool:
        """Whether other users hide one."""
        return self.mechanism.crowd_matters

    def value(self, name: str) -> float:
        """Return a parameter by its name."""
        return float(getattr(self, name) if name in SHARED else getattr(self.mechanism, name))

    def moved(self, name: str, value: float) -> Setting:
        """Return the setting with one parameter changed."""
        changed = int(value) if axis_range(self.kind, name).whole else value
        if name in SHARED:
            return dataclasses.replace(self, **{name: changed})  # type: ignore[arg-type]
        return dataclasses.replace(self, mechanism=self.mechanism.replace(**{name: changed}))

    def with_crowd(self, crowd: str) -> Setting:
        return dataclasses.replace(self, mechanism=self.mechanism.replace(crowd=crowd))


def _value_of(parameter: Parameter, text: str) -> Any:
    """Return a parameter's value from its text; of a flag "yes" is true, and an empty text is the default."""
    if not text.strip() and not parameter.is_required:
        return parameter.default
    if parameter.domain.kind == "flag":
        return text == "yes"
    return text if parameter.domain.kind == "choice" else number(parameter.name, text)


def read(state: Mapping[str, str]) -> Setting:
    """Return the setting that the texts of the page describe.

    Raises:
      InvalidInput: In one sentence that begins with the name of its field.
    """
    kind = _validate.choice("mechanism", state.get("mechanism", START), tuple(KINDS))
    declared = parameters(kind)
    names = (*declared, *SHARED)
    hold = state.get("hold", "")
    unknown: Any = _validate.choice("hold", hold, SOLVABLE) if hold else None
    if unknown is not None and unknown not in names:
        raise InvalidInput(f"hold must name a parameter of {kind}, got {unknown!r}")
    starts = {name: field.start for name, field in {**FIELDS, **fields(kind)}.items()}
    texts = {name: state.get(name, start) for name, start in starts.items()}
    if unknown is not None and not state.get("solved"):
        # What is solved for has no value yet: any valid one will do.
        texts[unknown] = texts["sample"] if unknown == "users" and "sample" in declared else starts[unknown]
    values: dict[str, Any] = {name: _value_of(parameter, texts[name]) for name, parameter in declared.items()}
    if KINDS[kind].crowd_matters:
        values["crowd"] = state.get("crowd", "any")
    values["adjacency"] = state.get("adjacency", "zero-out")
    mechanism = KINDS[kind](**values)
    clip = _validate.real("clip", number("clip", texts["clip"]))
    if clip <= 0.0:
        raise InvalidInput(f"clip must be positive, got {clip}")
    dimension = number("dimension", texts["dimension"])
    axis = state.get("axis", "rounds")
    epsilon = None
    if unknown is not None:
        epsilon = _validate.epsilon(number("epsilon", texts["epsilon"]), positive=True)
    return Setting(
        mechanism=mechanism,
        rounds=_validate.rounds(number("rounds", texts["rounds"])),
        delta=_validate.delta(number("delta", texts["delta"])),
        clip=clip,
        dimension=_validate.integer("dimension", dimension, minimum=1, maximum=DIMENSION_MAX),
        axis=axis if axis in SHARED or (axis in declared and declared[axis].slider) else "rounds",
        epsilon=epsilon,
        unknown=unknown,
    )


def field_in(message: str) -> str | None:
    """Return the field that an error's sentence is about: its first word names it."""
    first = re.match(r"[a-z_]+", message)
    name = {"at_least": "users"}.get(first[0], first[0]) if first else None
    is_field = name in FIELDS or name == "adjacency" or any(name in parameters(kind) for kind in KINDS)
    return name if is_field else None
