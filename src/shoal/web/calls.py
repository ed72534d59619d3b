"""The calls that give the same numbers: in Python, and for the shell."""

from __future__ import annotations

import shlex
from typing import Any

from shoal.web.setting import Setting, parameters


def _values(setting: Setting) -> dict[str, Any]:
    """Return the mechanism's parameters, without special cases that are not used."""
    values = {name: getattr(setting.mechanism, name) for name in parameters(setting.kind)}
    return {name: value for name, value in values.items() if parameters(setting.kind)[name].is_written(value)}


def _choices(setting: Setting) -> dict[str, Any]:
    """Return what the question assumes: the adjacency, and the crowd where there is one."""
    m = setting.mechanism
    return {"adjacency": m.adjacency, **({"crowd": m.crowd} if setting.has_crowd else {})}


def _literal(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:_}" if is_number else repr(value)


def python(setting: Setting) -> str:
    """Return a program that prints the statement."""
    m = setting.mechanism
    arguments = ", ".join(
        f"{name}={_literal(value)}" for name, value in {**_values(setting), **_choices(setting)}.items()
    )
    lines = ["import shoal", "", f"m = shoal.{type(m).__name__}({arguments})"]
    delta, rounds = _literal(setting.delta), _literal(setting.rounds)
    if setting.unknown is not None:
        target = f"epsilon={_literal(setting.epsilon)}, delta={delta}"
        if setting.unknown == "rounds":
            lines.append(f"print(shoal.calibrate.rounds(m, {target}))")
        else:
            smallest = ", at_least=m.sample" if setting.unknown == "users" and m.sampling == "drawn" else ""
            lines += [
                f"make = lambda value: m.replace({setting.unknown}=value)",
                f"print(shoal.calibrate.{setting.unknown}(make, {target}, rounds={rounds}{smallest}))",
            ]
    lines.append(f"print(m.statement(delta={delta}, rounds={rounds}))")
    return "\n".join(lines) + "\n"


def shell(setting: Setting) -> str:
    """Return commands that print the same numbers."""
    question = ["--delta", str(setting.delta), "--rounds", str(setting.rounds)]
    commands = []
    if setting.unknown is not None:
        target = ["--epsilon", str(setting.epsilon), *(question if setting.unknown != "rounds" else question[:2])]
        options = _options(setting, without=setting.unknown)
        commands.append(["shoal", "calibrate", setting.unknown, setting.kind, *options, *target])
    commands.append(["shoal", "epsilon", setting.kind, *_options(setting), *question])
    return "\n".join(map(shlex.join, commands)) + "\n"


def _options(setting: Setting, without: str | None = None) -> list[str]:
    """Return the options that describe the mechanism, but for one of them; a flag is there or not."""
    words = []
    for name, value in {**_values(setting), **_choices(setting)}.items():
        flag = f"--{name.replace('_', '-')}"
        if name != without and value is not False:
            words += [flag] if value is True else [flag, str(value)]
    return words
