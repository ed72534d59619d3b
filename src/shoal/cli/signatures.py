"""Functions that state their parameters, as PEP 362 lets them, for typer to read.

Options with a few allowed words are annotated with a `Literal`. Not every version of typer that this package runs
with knows those, and all know enumerations: `with_choices` makes one of each `Literal`, and gives the function words.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Optional, get_args, get_origin, get_type_hints


def resolved_parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    """Return a function's parameters with their annotations as objects."""
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    return [
        parameter.replace(annotation=_without_optional(hints.get(parameter.name, parameter.annotation)))
        for parameter in inspect.signature(function).parameters.values()
    ]


def _without_optional(hint: Any) -> Any:
    """Python 3.10 wraps what has the default None once more, `Optional[Annotated[...]]`: typer would see no option."""
    inner = [item for item in get_args(hint) if get_origin(item) is Annotated]
    return inner[0] if get_origin(hint) is not Annotated and inner else hint


def with_signature(
    function: Callable[..., None], parameters: Sequence[inspect.Parameter], call: Callable[..., None]
) -> Callable[..., None]:
    """Return a function that states these parameters, and has the name and text of another one.

    Args:
      function: Where name and text come from.
      parameters: The parameters.
      call: What is called with their values; a function made for this, which is changed.
    """
    # Not `functools.wraps`: typer would look at the function behind.
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def with_choices(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with an enumeration in the place of each `Literal`; it still gets words."""
    parameters = [_with_choice(parameter) for parameter in resolved_parameters(function)]

    def call(**values: Any) -> None:
        function(**{name: value.value if isinstance(value, enum.Enum) else value for name, value in values.items()})

    return with_signature(function, parameters, call)


def _with_choice(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter whose `Literal`, if it has one, is an enumeration."""
    if get_origin(parameter.annotation) is not Annotated:
        return parameter
    hint, *notes = get_args(parameter.annotation)
    literals = [item for item in (hint, *get_args(hint)) if get_origin(item) is Literal]
    if not literals:
        return parameter
    words = get_args(literals[0])
    make_enum: Any = enum.Enum  # mypy wants the members of an enumeration literally
    choice = make_enum("Choice", [(word.replace("-", "_"), word) for word in words], type=str)
    kind: Any = choice if hint is literals[0] else Optional[choice]  # noqa: UP045  # made at run time
    default = choice(parameter.default) if parameter.default in words else parameter.default
    return parameter.replace(annotation=Annotated[(kind, *notes)], default=default)
