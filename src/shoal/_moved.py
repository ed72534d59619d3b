"""Import paths and names of earlier versions still work for one release.

Each gives a `DeprecationWarning` that names the new path.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MOVED = {
    "shoal.answers": "shoal.query",
    "shoal.integrations.dp_accounting": "shoal.adapters.dp_accounting",
    "shoal.integrations.flower": "shoal.deployment",
    "shoal.integrations.flower.run": "shoal.deployment.local_machine",
    "shoal.integrations.flower.service": "shoal.deployment.analyst.service",
    "shoal.integrations.opacus": "shoal.adapters.opacus",
    "shoal.learning": "shoal.training",
    "shoal.learning.model": "shoal.training.networks",
    "shoal.learning.training": "shoal.training.run",
    # `from shoal.paper import reproduce` looks for the submodule below the new name of its package.
    "shoal.literature.reproduce": "shoal.reproduction",
    "shoal.paper": "shoal.literature",
    "shoal.paper.reproduce": "shoal.reproduction",
    "shoal.sampling": "shoal.mechanisms",
    "shoal.worth": "shoal.noise_check",
}
"""The old path of each module or package, and the new one; what is below a package moved with it."""

EMPTIED = "shoal.integrations"
"""A package that held only what has moved: it is empty, so that the paths below it can still be imported."""


RENAMED = {
    "shoal.UnreachableError": "shoal.errors.Unreachable",
    "shoal.query.UnreachableError": "shoal.errors.Unreachable",
    "shoal.query.Statement": "shoal.statement.Statement",
    "shoal.query.Rounds": "shoal.statement.Rounds",
    "shoal.mechanisms.ADVANTAGE": "shoal.query.ADVANTAGE",
    "shoal.mechanisms.DELTA": "shoal.query.DELTA",
    "shoal.mechanisms.EPSILON": "shoal.query.EPSILON",
    "shoal.mechanisms.POWER": "shoal.query.POWER",
    "shoal.mechanisms.AccuracyWarning": "shoal.query.AccuracyWarning",
    "shoal.mechanisms.Answer": "shoal.query.Answer",
    "shoal.mechanisms.Bounds": "shoal.query.Bounds",
    "shoal.mechanisms.Method": "shoal.query.Method",
    "shoal.mechanisms.Question": "shoal.query.Question",
    "shoal.mechanisms.Settings": "shoal.query.Options",
    "shoal.interval.rounded": "shoal.formatting.rounded",
    "shoal.interval.short": "shoal.formatting.short",
}
"""The old name of each object that was renamed or moved by itself, and the new one."""


def renamed(name: str, *, stacklevel: int = 3) -> Any:
    """The object that an old name stands for; warns and names the new one.

    Args:
        name: The old name, with its module.
        stacklevel: The distance to the line that used it.

    Returns:
        The object.
    """
    new = RENAMED[name]
    module, _, attribute = new.rpartition(".")
    warnings.warn(f"{name} has a new name: use {new}", DeprecationWarning, stacklevel=stacklevel)
    return getattr(importlib.import_module(module), attribute)


def old_attribute(module: str, name: str) -> Any:
    """An attribute of a module under its old name, for the module's `__getattr__`.

    Args:
        module: The module's name.
        name: The attribute.

    Returns:
        The object that the name stands for.

    Raises:
        AttributeError: If it is no old name.
    """
    if f"{module}.{name}" not in RENAMED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return renamed(f"{module}.{name}", stacklevel=4)


def warn_of_call(old: str, new: str) -> None:
    """Warn of a call that has another form now.

    Args:
        old: The call that was made.
        new: The call to make.
    """
    warnings.warn(f"{old} will go: use {new}", DeprecationWarning, stacklevel=3)


def new_path(name: str) -> str | None:
    """The new path of a module that has moved, or None.

    >>> new_path("shoal.learning.data"), new_path("shoal.mechanisms")
    ('shoal.training.data', None)
    """
    parts = name.split(".")
    for depth in range(len(parts), 1, -1):
        target = MOVED.get(".".join(parts[:depth]))
        if target is not None:
            return ".".join([target, *parts[depth:]])
    return None


class OldPackage(ModuleType):
    """A package under its old name, with the attributes of the package at its new path.

    The import system writes a submodule into its package. Under an old name that must not reach the new package, where
    a function may have the name of the submodule (`shoal.training.plan`).
    """

    def __init__(self, package: ModuleType) -> None:
        super().__init__(package.__name__, package.__doc__)
        # Without a path Python looks for submodules by `Finder` only: a file loaded twice would be two modules.
        self.__dict__.update(package=package, __path__=[], __spec__=package.__spec__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["package"], name)

    def __setattr__(self, name: str, value: object) -> None:
        # A submodule that the new package has already stays what it is there.
        if not isinstance(value, ModuleType):
            setattr(self.__dict__["package"], name, value)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["package"])


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of earlier versions at their new paths."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == EMPTIED:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if new_path(fullname) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        new = new_path(module.__name__)
        if new is None:
            return  # the emptied package itself
        warnings.warn(f"{module.__name__} has moved: import {new}", DeprecationWarning, stacklevel=2)
        moved = importlib.import_module(new)
        # The import system returns what stands in `sys.modules` once this is done: the module itself, not a copy.
        sys.modules[module.__name__] = OldPackage(moved) if hasattr(moved, "__path__") else moved


def install() -> None:
    """Let old paths be imported; after all other finders, so that what exists comes first."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
