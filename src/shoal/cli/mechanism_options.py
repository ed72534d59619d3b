"""The options that describe a mechanism, made from the parameters that the mechanisms declare.

A command that takes a mechanism has one parameter `described`, annotated with a `MechanismOffer`, and is decorated
with `describes_mechanism`. The decorator replaces `described` by the argument MECHANISM and by one option for each
parameter. What the user types arrives as a `Description`, which makes mechanisms. So a new mechanism is known to all
commands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import typer

from shoal._written import number
from shoal.cli.options import CrowdChoice
from shoal.cli.signatures import resolved_parameters, with_signature
from shoal.errors import InvalidInput
from shoal.mechanisms import Adjacency, Mechanism, Parameter, labelled
from shoal.mechanisms.parameter import named


def offered_types(having: str) -> dict[str, type[Mechanism]]:
    """Return the mechanisms that have a field, by their names in the command line."""
    return {label: cls for label, cls in labelled().items() if having in cls.__dataclass_fields__}


@dataclass(frozen=True, kw_only=True)
class MechanismOffer:
    """Which options a command has: those of the mechanisms with the field `having`, without `solved_for`."""

    having: str = "sigma"
    solved_for: str = ""
    needed: bool = True
    """Whether a mechanism must be named."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a command line says about a mechanism: its name, and the text of each option (True of a flag)."""

    label: str
    """Empty if the command can do without a mechanism and none was named."""
    texts: Mapping[str, str | bool | None]

    @property
    def cls(self) -> type[Mechanism]:
        """The type of the mechanism."""
        return labelled()[self.label]

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters of the mechanism by their names, the noise last."""
        return named(self.cls.parameters())

    def mechanism(self, adjacency: Adjacency, **values: Any) -> Mechanism:
        """Return the mechanism.

        Args:
          adjacency: What may change.
          values: Parameters that the command sets itself.

        Returns:
          The mechanism, for any crowd where one matters.

        Raises:
          InvalidInput: If an option is missing, or belongs to another mechanism.
        """
        texts = {name: text for name, text in self.texts.items() if text is not None}
        for name in texts:
            if name not in self.parameters:
                names = ", ".join(self.parameters)
                raise InvalidInput(f"{name} is not a parameter of {self.label}, which has {names}")
        for name, parameter in self.parameters.items():
            if parameter.is_required and name not in {*texts, *values}:
                raise InvalidInput(f"{name} must be given for {self.label}: add {flag_of(name)}")
        numbers = {name: text if isinstance(text, bool) else number(name, text) for name, text in texts.items()}
        return self.cls(**{**numbers, **values}, adjacency=adjacency)

    def variants(self, crowd: CrowdChoice | None, adjacency: Adjacency, **values: Any) -> list[Mechanism]:
        """Return the mechanism under each crowd of the request; once, where no crowd matters.

        Args:
          crowd: The crowd, or None for both.
          adjacency: What may change.
          values: Parameters that the command sets itself.

        Returns:
          The mechanisms, that of the identical crowd first.

        Raises:
          InvalidInput: If an option is missing, or belongs to another mechanism.
        """
        if crowd is not None and not self.cls.crowd_matters:
            raise InvalidInput(
                f"crowd is not a parameter of {self.label}: its guarantee holds whatever the others hold"
            )
        m = self.mechanism(adjacency, **values)
        if not self.cls.crowd_matters:
            return [m]
        crowds = ("identical", "any") if crowd in (None, "both") else (crowd,)
        return [m.replace(crowd=name) for name in crowds]


Described = Annotated[Description, MechanismOffer()]


def flag_of(name: str) -> str:
    """Return the flag of a parameter."""
    return f"--{name.replace('_', '-')}"


def describes_mechanism(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command in which options for a mechanism stand in the place of its parameter `described`."""
    parameters = resolved_parameters(function)
    place = next(i for i, parameter in enumerate(parameters) if parameter.name == "described")
    offer = next(item for item in get_args(parameters[place].annotation) if isinstance(item, MechanismOffer))
    options = _options(offer)

    def command(*, mechanism: str | None, **values: Any) -> None:
        texts = {option.name: values.pop(option.name) for option in options}
        # A flag that is not there says nothing.
        texts = {name: None if text is False else text for name, text in texts.items()}
        function(described=Description(label=mechanism or "", texts=texts), **values)

    return with_signature(
        function, [_argument(offer), *parameters[:place], *options, *parameters[place + 1 :]], command
    )


def _argument(offer: MechanismOffer) -> inspect.Parameter:
    """Return the argument MECHANISM."""
    names = list(offered_types(offer.having))
    argument = typer.Argument(
        metavar="MECHANISM" if offer.needed else "[MECHANISM]",
        help=f"One of {', '.join(names[:-1])} or {names[-1]}.",
        show_default=False,
    )
    # All of them can be typed: the others are refused with a reason.
    labels: Any = Literal[tuple(labelled())]
    annotation: Any = Annotated[labels if offer.needed else labels | None, argument]
    return _keyword("mechanism", annotation, inspect.Parameter.empty if offer.needed else None)


def _options(offer: MechanismOffer) -> list[inspect.Parameter]:
    """Return one option for each parameter that is offered, the noise last."""
    owners: dict[str, dict[str, Parameter]] = {}
    for label, cls in labelled().items():
        for parameter in cls.parameters():
            owners.setdefault(parameter.name, {})[label] = parameter
    names = {parameter.name for cls in offered_types(offer.having).values() for parameter in cls.parameters()}
    order = sorted(owners, key=lambda name: name == "sigma")
    return [_option(name, owners[name]) for name in order if name in names - {offer.solved_for}]


def _option(name: str, owners: Mapping[str, Parameter]) -> inspect.Parameter:
    """Return the option of a parameter; its help names the mechanisms that have it, unless all do."""
    # One name may have two meanings: a rate of checking in, and one of sampling. Each names its mechanisms.
    labels: dict[str, list[str]] = {}
    for label, parameter in owners.items():
        labels.setdefault(parameter.help.removesuffix("."), []).append(label)
    if len(owners) == len(labelled()) and len(labels) == 1:
        words = next(iter(labels))
    else:
        meanings = [f"{text} ({', '.join(names)})" for text, names in labels.items()]
        words = "; ".join([meanings[0], *(f"{text[0].lower()}{text[1:]}" for text in meanings[1:])])
    parameter = next(iter(owners.values()))
    if parameter.domain.kind == "flag":
        return _keyword(name, Annotated[bool, typer.Option(flag_of(name), help=f"{words}.")], False)
    return _keyword(name, Annotated[str | None, typer.Option(metavar=parameter.metavar, help=f"{words}.")], None)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
