"""The parameters of mechanisms, as data: each is declared once, where its mechanism declares its field.

From a `Parameter` follow the check of its value, the option of every command, the field on the page, the words in
sentences, and what `from_dict` accepts. A mechanism declares it as a field of a dataclass:

    users: int = Parameter(
        domain=COUNT, words="users", metavar="N", help="Number of users.", example=60_000, slider=(1, 1e9)
    ).field()

Options and page fields need no further line. What two parameters must obey together is checked in `__post_init__`.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shoal import _validate
from shoal.errors import InvalidInput, InvalidType
from shoal.formatting import short

Kind = Literal["whole", "real", "flag", "choice"]
"""A whole number, a real number, True or False, or one of a few words."""


UNSET: Any = object()
"""Stands for a default that there is not."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The values that a parameter may have."""

    kind: Kind
    allowed: str
    """The values in words, for a reader of a reference page."""

    check: Callable[[str, Any], Any]
    """Takes the parameter's name and a value; returns the value, or says in one sentence what is wrong with it."""

    choices: tuple[str, ...] = ()
    """The words of a choice."""


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidType(f"{name} must be True or False, got {value!r}")
    return value


def choice_of(*words: str) -> Domain:
    """The domain of one of a few words."""

    def check(name: str, value: Any) -> str:
        return _validate.choice(name, value, words)

    return Domain(kind="choice", allowed=f"one of {', '.join(words)}", check=check, choices=words)


def count_up_to(largest: int) -> Domain:
    """The domain of whole numbers from 1 to a largest one."""

    def check(name: str, value: Any) -> int:
        return _validate.integer(name, value, minimum=1, maximum=largest)

    return Domain(kind="whole", allowed=f"a whole number from 1 to {largest:,}", check=check)


COUNT = Domain(kind="whole", allowed="a whole number from 1 to 10^15", check=_validate.users)
ROUND_COUNT = Domain(
    kind="whole",
    allowed="a whole number from 1 to 10^12",
    check=lambda name, value: _validate.rounds(value, name),
)
COUNT_FROM_0 = Domain(
    kind="whole",
    allowed="a whole number from 0 to 10^15",
    check=lambda name, value: _validate.integer(name, value, minimum=0, maximum=_validate.USERS_MAX),
)
PROBABILITY = Domain(
    kind="real", allowed="a number above 0 and at most 1", check=lambda name, value: _validate.rate(value, name)
)
NOISE = Domain(kind="real", allowed="a number from 1e-4 to 1e9", check=lambda name, value: _validate.sigma(value, name))
FLAG = Domain(kind="flag", allowed="True or False", check=_flag)


def optional(domain: Domain) -> Domain:
    """The domain with None added, which stands for no value."""

    def check(name: str, value: Any) -> Any:
        return None if value is None else domain.check(name, value)

    return dataclasses.replace(domain, allowed=f"{domain.allowed}, or None", check=check)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a mechanism.

    A parameter without `words` is a choice about the question (adjacency, crowd), not about what is run: it is
    checked as every other, but is no part of `settings`, and commands and the page have an option of their own for it.
    """

    domain: Domain
    words: str = ""
    """Its name in sentences: "check-in rate = 0.1"."""

    metavar: str = ""
    """The placeholder of its value in the help of the command."""

    help: str = ""
    """One sentence: what it is."""

    title: str = ""
    """Its name on the page, if that is not `words`."""

    example: float | None = None
    """A usual value: where the page starts."""

    slider: tuple[float, float] | None = None
    """The ends of its slider on the page, powers of ten; None for no slider."""

    default: Any = UNSET
    is_silent: bool = False
    """Whether sentences leave it out where it has its default."""

    absent: Any = UNSET
    """The value in ledgers that were saved before the parameter existed; it must never change."""

    name: str = ""
    """The name of the field that declares it; `parameters_of` fills it in."""

    @property
    def is_required(self) -> bool:
        """Whether a value must be given."""
        return self.default is UNSET

    @property
    def label(self) -> str:
        """The name of the parameter on the page."""
        return self.title or f"{self.words[:1].upper()}{self.words[1:]}"

    def field(self) -> Any:
        """The dataclass field that declares the parameter."""
        default = dataclasses.MISSING if self.is_required else self.default
        return dataclasses.field(default=default, metadata={"parameter": self})

    def is_written(self, value: Any) -> bool:
        """Whether a sentence about the mechanism has this value of the parameter."""
        return not (self.is_silent and value == self.default)

    def written(self, value: Any) -> str:
        """A value of the parameter in a sentence."""
        if self.domain.kind == "flag":
            return "yes" if value else "no"
        if value is None:
            return "all"
        # More noise is more private, so sigma may be rounded up; a larger rate is less private: it is written in full.
        return repr(value) if self.domain is PROBABILITY else short(value, 10)


USERS = Parameter(domain=COUNT, words="users", metavar="N", help="Number of users.", example=60_000, slider=(1, 1e9))
CORRUPT = Parameter(
    domain=COUNT_FROM_0,
    words="corrupt users",
    metavar="C",
    help="Users among them who add no noise and tell the server what they hold.",
    default=0,
    is_silent=True,
    absent=0,
    example=0,
)


def check_corrupt(corrupt: int, users: int) -> None:
    """Nothing, unless all users are corrupt.

    Args:
        corrupt: The number of corrupt users.
        users: The number of all users, the corrupt among them.

    Raises:
        InvalidInput: If no user is honest.
    """
    if corrupt >= users:
        raise InvalidInput(f"corrupt must be below users ({users}), got {corrupt}")


def parameters_of(cls: type[Any]) -> tuple[Parameter, ...]:
    """The parameters that a class declares, also the choices, in the order of its fields."""
    return tuple(
        dataclasses.replace(field.metadata["parameter"], name=field.name)
        for field in dataclasses.fields(cls)
        if "parameter" in field.metadata
    )


def named(parameters: Sequence[Parameter]) -> dict[str, Parameter]:
    """Parameters by their names."""
    return {parameter.name: parameter for parameter in parameters}


def meant_by(word: str, parameters: Sequence[Parameter]) -> Parameter | None:
    """The parameter that a wrong name means, if one is near.

    Args:
        word: The name, such as `noise`, `n` or `num_users`.
        parameters: The parameters that can be meant.

    Returns:
        The one whose help begins with the word (`noise`: "Noise multiplier ..."), whose placeholder it is, or whose
        name is closest; None if there is none.
    """
    prose = re.sub(r"[-_]+", " ", word.lower()).strip()
    for parameter in parameters:
        texts = (parameter.help, parameter.words)
        if (
            any(re.match(rf"{re.escape(prose)}\b", text.lower()) for text in texts)
            or prose == parameter.metavar.lower()
        ):
            return parameter
    closest = difflib.get_close_matches(word.lower(), [parameter.name for parameter in parameters], n=1)
    return named(parameters)[closest[0]] if closest else None
