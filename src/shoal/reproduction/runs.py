"""The training run of Figure 1b: read from a folder of `shoal train`, or the one that comes with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal import _validate, run_folder
from shoal.errors import InvalidInput
from shoal.mechanisms import ShuffledCheckIn, from_dict

PACKAGED_RUN = Path(__file__).parent / "mnist_run"
"""Configuration and metrics of the full run of Figure 1b."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Accuracy on the test images after some rounds of a mechanism."""

    mechanism: ShuffledCheckIn
    delta: float
    rounds: tuple[int, ...]
    accuracy: tuple[float, ...]
    about: str


def read_run(folder: Path) -> TrainingRun:
    """The training run of a folder that `shoal train` wrote: config.json and metrics.jsonl."""
    for name in (run_folder.CONFIG, run_folder.METRICS):
        if not (folder / name).is_file():
            raise InvalidInput(f"run must be a folder of shoal train, with {name}, got {str(folder)!r}")
    try:
        config, rows = run_folder.config(folder), run_folder.metrics(folder)
        m = from_dict(config["mechanism"])
        delta = _validate.delta(config["delta"])
        rounds = tuple(_validate.rounds(row.get("spent", row["round"])) for row in rows)
        accuracy = tuple(float(row["accuracy"]) for row in rows)
        about = f"clipping norm {config['clip']:g}, data {config['data']}, {rounds[-1]:,} rounds"
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise InvalidInput(
            f"run must be a folder of shoal train that can be read, got {str(folder)!r}: {error}"
        ) from None
    if not isinstance(m, ShuffledCheckIn):
        raise InvalidInput(f"run must be of check-in for Figure 1b, got {m.label}")
    return TrainingRun(mechanism=m, delta=delta, rounds=rounds, accuracy=accuracy, about=about)
