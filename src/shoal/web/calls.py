"""The calls that give the same numbers: in Python, and for the shell."""

from __future__ import annotations

import shlex

from shoal.web.setting import SHARED, Setting, parameters

_CHOICES = ["adjacency", "crowd"]


def _written(value: object) -> str:
    return f"{value:_}" if isinstance(value, int) else repr(value)


def python(setting: Setting) -> str:
    """A program that prints the statement."""
    m = setting.mechanism
    names = [name for name in parameters(m.label) if name not in SHARED] + _CHOICES
    words = ", ".join(f"{name}={_written(getattr(m, name))}" for name in names if name != "crowd" or m.crowd_matters)
    lines = ["import shoal", "", f"m = shoal.{type(m).__name__}({words})"]
    small, rounds = _written(setting.delta), _written(setting.rounds)
    if setting.find is not None:
        target = f"epsilon={_written(setting.epsilon)}, delta={small}"
        if setting.find == "rounds":
            lines.append(f"print(shoal.calibrate.rounds(m, {target}))")
        else:
            least = ", at_least=m.sample" if setting.find == "users" and m.sampling == "drawn" else ""
            lines += [
                f"make = lambda value: m.replace({setting.find}=value)",
                f"print(shoal.calibrate.{setting.find}(make, {target}, rounds={rounds}{least}))",
            ]
    lines.append(f"print(m.statement(delta={small}, rounds={rounds}))")
    return "\n".join(lines) + "\n"


def shell(setting: Setting) -> str:
    """Commands that print the same numbers."""
    m = setting.mechanism
    asked = ["--delta", str(setting.delta), "--rounds", str(setting.rounds)]
    commands = []
    if setting.find is not None:
        words = ["shoal", "calibrate", setting.find, m.label]
        rest = asked if setting.find != "rounds" else asked[:2]
        commands.append([*words, *_options(setting, setting.find), "--epsilon", str(setting.epsilon), *rest])
    commands.append(["shoal", "epsilon", m.label, *_options(setting), *asked])
    return "\n".join(map(shlex.join, commands)) + "\n"


def _options(setting: Setting, without: str | None = None) -> list[str]:
    m = setting.mechanism
    names = [name for name in parameters(m.label) if name not in (*SHARED, without)] + _CHOICES
    return [
        word for name in names if name != "crowd" or m.crowd_matters for word in (f"--{name}", str(getattr(m, name)))
    ]
