"""The data of a training, with a bar while files are downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from shoal import training
from shoal.training import Dataset, Records
from shoal.training.data import holds_records


def load_data(name: str, folder: Path | None, *, offline: bool, quiet: bool) -> Dataset | Records:
    """Return the data of a run.

    Args:
      name: The name of a data set, or a folder.
      folder: Where downloaded files are kept, or None for the cache.
      offline: Whether nothing may be downloaded.
      quiet: Whether to show no bar.

    Returns:
      The data.

    Raises:
      DataError: If it is missing or damaged.
    """
    if holds_records(name):
        return training.read_records(name)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, transient=True, disable=quiet) as bar:
        tasks: dict[str, Any] = {}

        def update(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        return training.load(name, data_dir=folder, download=not offline, progress=update)
