"""The folder of a training run as plain data: what every reader of it reads, with PyTorch or without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from shoal.errors import DataError

CONFIG = "config.json"
METRICS = "metrics.jsonl"

Optimiser = Literal["sgd", "adam"]
Schedule = Literal["constant", "linear", "cosine"]
Simulation = Literal["fast", "faithful"]
"""Whether a round is one sum and one draw of noise, or sends each report through the shuffler."""


def config(folder: Path) -> dict[str, Any]:
    """How the run was set up."""
    path = folder / CONFIG
    try:
        settings = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder} is not a run folder: it has no {CONFIG}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a configuration of a run: {error}") from None
    if not isinstance(settings, dict):
        raise DataError(f"{path} is not a configuration of a run: it is not an object")
    return settings


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of its metrics; a last one that was cut short is left out."""
    path = folder / METRICS
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except (json.JSONDecodeError, UnicodeDecodeError):
            row = "damaged"
        if isinstance(row, dict):
            rows.append(row)
        # Only the last line can have been cut short by a crash; damage before it means that something else happened.
        elif row is not None and number < len(lines):
            raise DataError(f"line {number} of {path} is damaged")
    return rows
