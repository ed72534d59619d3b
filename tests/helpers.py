"""What several files of tests need: the project's folder, reference values, short descriptions, and the command."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
from typer.testing import CliRunner

from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical
from shoal.cli.app import app

Array = npt.NDArray[np.float64]
ROOT = pathlib.Path(__file__).parents[1]


def reference(name: str) -> list[dict[str, Any]]:
    """The values of `reference/<name>.json`."""
    found: list[dict[str, Any]] = json.loads((ROOT / "tests" / "reference" / f"{name}.json").read_text())
    return found


def described(users: int, scale: float, rate: float = 1.0, weight: float = 1.0) -> Identical:
    """A round of the identical crowd."""
    return Identical(ratio=Lognormal(scale=scale, rate=rate), users=users, weight=weight)


def run(*words: object) -> Any:
    """The command with these words, on a wide screen."""
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
