"""Packages that only some users need; the error for a missing one names its extra.

>>> need("plot needs matplotlib", "plot", "json")
>>> need("plot needs matplotlib", "plot", "no_such_module")
Traceback (most recent call last):
    ...
shoal.errors.MissingExtra: plot needs matplotlib (no_such_module was not found): pip install 'shoal-dp[plot]'
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from shoal.errors import MissingExtra

DISTRIBUTION = "shoal-dp"
"""The name on the package index, where `shoal` is another project."""


def missing(sentence: str, extra: str, module: str | None, also: str = "") -> MissingExtra:
    """The error for a missing package, in one sentence that names its extra.

    Args:
        sentence: What needs the package, such as "plot needs matplotlib".
        extra: The extra that installs it.
        module: The module that was not found.
        also: Further words in the brackets.

    Returns:
        The error, to be raised.
    """
    return MissingExtra(
        f"{sentence} ({module} was not found{also}): pip install '{DISTRIBUTION}[{extra}]'", name=module
    )


def need(sentence: str, extra: str, *modules: str, also: str = "") -> None:
    """Refuse unless all modules can be imported; none is imported here.

    Args:
        sentence: What needs them.
        extra: The extra that installs them.
        modules: Their names.
        also: Further words in the brackets of the message.

    Raises:
        MissingExtra: If one is missing.
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise missing(sentence, extra, name, also)


def integration(name: str) -> Any:
    """A module of `shoal.adapters`, loaded on demand.

    This is the only path from the core to an adapter. The core imports none of them, so it works without their
    libraries; an adapter itself says which extra is missing.
    """
    return importlib.import_module(f"shoal.adapters.{name}")
