"""Packages that only some users need: each belongs to an extra, and whoever lacks one is told which.

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
"""The name on the package index, where shoal alone is another project's."""


def missing(sentence: str, extra: str, module: str | None, also: str = "") -> MissingExtra:
    """The error, in one sentence that names the extra."""
    return MissingExtra(
        f"{sentence} ({module} was not found{also}): pip install '{DISTRIBUTION}[{extra}]'", name=module
    )


def need(sentence: str, extra: str, *modules: str, also: str = "") -> None:
    """Refuse unless all modules can be imported; none of them is."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise missing(sentence, extra, name, also)


def integration(name: str) -> Any:
    """A module of `shoal.adapters`, loaded when it is asked for.

    The one way from the core to an integration. Nothing of the core is below it in the order of imports: without the
    library it belongs to the core works as before, and the integration itself says which extra is missing.
    """
    return importlib.import_module(f"shoal.adapters.{name}")
