"""The options that commands share.

Those that describe a mechanism are not written down: they come from the registry of mechanisms. A command has one
parameter `described`, annotated with what it offers (`Offer`), in whose place the options stand: one for each field
of a mechanism that was made with `shoal.mechanisms.parameter`. What the user gives arrives as a `Description`, of
which mechanisms are made. So a new mechanism in `shoal.mechanisms.MECHANISMS` is known to all commands.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from shoal._written import number
from shoal.errors import InvalidInput

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism, Parameter


class CrowdChoice(str, enum.Enum):
    identical = "identical"
    any = "any"
    both = "both"


class AdjacencyChoice(str, enum.Enum):
    zero_out = "zero-out"
    replacement = "replace"


class MethodChoice(str, enum.Enum):
    tight = "tight"
    rdp = "rdp"


Delta = Annotated[str, typer.Option(metavar="D", help="Delta, such as 1e-5 or 1/60000.", show_default=False)]
Deltas = Annotated[
    str, typer.Option(metavar="D[,D…]", help="One delta or more, such as 1e-5 or 1e-5,1/60000.", show_default=False)
]
Epsilon = Annotated[str, typer.Option(metavar="E", help="The epsilon to meet.", show_default=False)]
ManyEpsilons = Annotated[str, typer.Option(metavar="E[,E…]", help="One epsilon or more.", show_default=False)]
ManyRounds = Annotated[
    str,
    typer.Option(
        metavar="T[,T…]",
        help="Numbers of rounds: 1,100,5540, a range 1-7, 100-1000:100 (steps), 1-5540@50 (50 values).",
    ),
]
RoundsOption = Annotated[str, typer.Option(metavar="T", help="Number of rounds.")]
CrowdOption = Annotated[
    CrowdChoice | None,
    typer.Option(help="What the others hold: one vector (an assumption), anything, or both. [default: both]"),
]
AdjacencyOption = Annotated[
    AdjacencyChoice, typer.Option(help="What may change: one user's vector becomes zero, or any other vector.")
]
MethodOption = Annotated[
    MethodChoice, typer.Option(help="A certified bracket around the truth, or an upper bound through Rényi DP.")
]
Accuracy = Annotated[
    float, typer.Option(metavar="A", help="Relative width that the bracket should have (method tight).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw a picture (.png, .svg or .pdf).")]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The fields for which a command has options: those of all mechanisms that have `of`, but for one it looks for."""

    of: str = "sigma"
    but: str = ""
    needed: bool = True
    """Whether a mechanism must be named."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a command line says about a mechanism: its name, and the text of each option (True of a flag)."""

    kind: str
    """Empty if the command can do without and none was named."""
    given: Mapping[str, str | bool | None]

    @property
    def fields(self) -> dict[str, bool]:
        """Of the mechanism named: field by field, whether it must be given."""
        return fields(kinds()[self.kind])

    @property
    def crowded(self) -> bool:
        """Whether it matters what the other users hold."""
        return kinds()[self.kind].crowd_matters

    def mechanism(self, adjacency: AdjacencyChoice, **known: Any) -> Mechanism:
        """The mechanism; `known` sets the field that the command looks for."""
        found: dict[str, Any] = {"adjacency": adjacency.value}
        for name, text in self.given.items():
            if name not in self.fields and text is not None:
                raise InvalidInput(f"{name} is not a parameter of {self.kind}, which has {', '.join(self.fields)}")
            if self.fields.get(name) and text is None:
                raise InvalidInput(f"{name} must be given for {self.kind}: add --{name.replace('_', '-')}")
            if text is not None:
                found[name] = text if isinstance(text, bool) else number(name, text)
        return kinds()[self.kind](**{**found, **known})

    def variants(
        self, crowd: CrowdChoice | None, adjacency: AdjacencyChoice, **known: Any
    ) -> list[tuple[str | None, Mechanism]]:
        """The mechanism under each crowd asked for; the crowd is None where none matters."""
        if not self.crowded:
            if crowd is not None:
                raise InvalidInput(f"crowd is not a parameter of {self.kind}: no other user matters")
            return [(None, self.mechanism(adjacency, **known))]
        m = self.mechanism(adjacency, **known)
        asked = ("identical", "any") if crowd in (None, CrowdChoice.both) else (crowd.value,)
        return [(c, m.replace(crowd=c)) for c in asked]


Described = Annotated[Description, Offer()]


def kinds() -> dict[str, type[Mechanism]]:
    """All mechanisms by their name in the command line."""
    from shoal.mechanisms import labelled

    return labelled()


def has(cls: type[Mechanism], name: str) -> bool:
    return any(f.name == name for f in dataclasses.fields(cls))


def fields(cls: type[Mechanism]) -> dict[str, bool]:
    """The fields of a mechanism that have options, its noise last, and whether each must be given."""
    return {parameter.name: parameter.is_required for parameter in cls.parameters()}


# ---------------------------------------------------------------------------------------------
# The parameter `described`, and the options that stand in its place


def is_described(function: Callable[..., None]) -> bool:
    return "described" in inspect.signature(function).parameters


def without_description(function: Callable[..., None]) -> Callable[..., None]:
    """The function with those options only that need no mechanism: enough to list it."""
    plain = [p for p in _parameters(function) if p.name != "described"]
    return _with_parameters(function, plain, function)


def with_description(function: Callable[..., None]) -> Callable[..., None]:
    """The function with the options for a mechanism in the place of its parameter `described`."""
    before = _parameters(function)
    place = next(i for i, p in enumerate(before) if p.name == "described")
    offer = next(a for a in get_args(before[place].annotation) if isinstance(a, Offer))
    made = _options(offer)

    def call(*, mechanism: enum.Enum | None, **rest: Any) -> None:
        told = {p.name: rest.pop(p.name) for p in made}
        given = {k: None if v is False else v for k, v in told.items()}  # a flag that is not there says nothing
        kind = "" if mechanism is None else mechanism.value
        function(described=Description(kind=kind, given=given), **rest)

    return _with_parameters(function, [_argument(offer), *before[:place], *made, *before[place + 1 :]], call)


def _parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    """The parameters with their annotations as objects, in any order of defaults."""
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    return [
        p.replace(annotation=_unwrapped(hints[p.name]), kind=inspect.Parameter.KEYWORD_ONLY)
        for p in inspect.signature(function).parameters.values()
    ]


def _unwrapped(hint: Any) -> Any:
    """Python 3.10 wraps what has the default None once more, `Optional[Annotated[...]]`, and typer sees no option."""
    inner = [one for one in get_args(hint) if get_origin(one) is Annotated]
    return inner[0] if get_origin(hint) is not Annotated and inner else hint


def _with_parameters(
    function: Callable[..., None], parameters: list[inspect.Parameter], call: Callable[..., None]
) -> Callable[..., None]:
    """A function that typer takes to have these parameters."""

    def wrapped(**given: Any) -> None:
        call(**given)

    # Its name and its text, but not the function itself: typer would look there.
    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def explained(function: Callable[..., None]) -> str:
    """Which mechanisms a command takes, in words."""
    annotation = next(p.annotation for p in _parameters(function) if p.name == "described")
    return _listed(next(a for a in get_args(annotation) if isinstance(a, Offer)))


def _listed(offer: Offer) -> str:
    """Where a command offers the fields of some mechanisms only, it is about those."""
    known = [label for label, cls in kinds().items() if has(cls, offer.of)]
    return f"One of {', '.join(known[:-1])} or {known[-1]}."


def _argument(offer: Offer) -> inspect.Parameter:
    names = [(label.replace("-", "_"), label) for label in kinds()]
    choice: Any = enum.Enum("Kind", names, type=str)  # type: ignore[misc]
    return _parameter(
        "mechanism",
        Annotated[
            choice if offer.needed else choice | None,
            typer.Argument(
                metavar="MECHANISM" if offer.needed else "[MECHANISM]", help=_listed(offer), show_default=False
            ),
        ],
        inspect.Parameter.empty if offer.needed else None,
    )


def _options(offer: Offer) -> list[inspect.Parameter]:
    """One option for each field that is offered, the noise last; a field that is True or False is a flag."""
    offered = {name for cls in kinds().values() if has(cls, offer.of) for name in fields(cls)} - {offer.but}
    every: dict[str, dict[str, Parameter]] = {}
    for label, cls in kinds().items():
        for parameter in cls.parameters():
            every.setdefault(parameter.name, {})[label] = parameter
    # What a mechanism is about comes first, the noise that all share last.
    order = sorted(every, key=lambda name: name == "sigma")
    return [_option(name, every[name]) for name in order if name in offered]


def _option(name: str, owners: dict[str, Parameter]) -> inspect.Parameter:
    """The option of a field; its help names the mechanisms that have the field, unless all do."""
    # The same name may mean two things: a rate of checking in, and one of sampling. Each meaning names its mechanisms.
    meanings: dict[str, list[str]] = {}
    for label, parameter in owners.items():
        meanings.setdefault(parameter.help.removesuffix("."), []).append(label)
    if len(owners) == len(kinds()) and len(meanings) == 1:
        words = next(iter(meanings))
    else:
        words = "; ".join(f"{text} ({', '.join(labels)})" for text, labels in meanings.items())
    first = next(iter(owners.values()))
    if first.domain.kind == "flag":
        flag = f"--{name.replace('_', '-')}"
        return _parameter(name, Annotated[bool, typer.Option(flag, help=f"{words}.")], False)
    return _parameter(name, Annotated[str | None, typer.Option(metavar=first.metavar, help=f"{words}.")], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
