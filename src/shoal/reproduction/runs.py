"""The training run of Figure 1b: the packaged one, or any run folder of `shoal train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal import _validate, run_folder
from shoal.errors import DataError, InvalidInput
from shoal.mechanisms import ShuffledCheckIn, from_dict

PACKAGED_RUN = Path(__file__).parent / "mnist_run"
"""The packaged run: its configuration and metrics."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The accuracy on the test images after each evaluated round."""

    mechanism: ShuffledCheckIn
    delta: float
    rounds: tuple[int, ...]
    accuracy: tuple[float, ...]
    about: str


def read_run(folder: Path) -> TrainingRun:
    """Read config.json and metrics.jsonl from a folder that `shoal train` wrote."""
    for name in (run_folder.CONFIG, run_folder.METRICS):
        if not (folder / name).is_file():
            raise DataError(f"run must be a folder of shoal train that holds {name}, got {str(folder)!r}")
    try:
        config, rows = run_folder.config(folder), run_folder.metrics(folder)
        m = from_dict(config["mechanism"])
        delta = _validate.delta(config["delta"])
        rounds = tuple(_validate.rounds(row.get("spent", row["round"])) for row in rows)
        accuracy = tuple(float(row["accuracy"]) for row in rows)
        about = f"clipping norm {config['clip']:g}, data {config['data']}, {rounds[-1]:,} rounds"
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise DataError(f"run must be a readable folder of shoal train, got {str(folder)!r}: {error}") from None
    if not isinstance(m, ShuffledCheckIn):
        raise InvalidInput(f"run must be a training with check-in for Figure 1b, got {m.label}")
    return TrainingRun(mechanism=m, delta=delta, rounds=rounds, accuracy=accuracy, about=about)
