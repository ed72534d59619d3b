"""A training from its first round to its result, for `shoal train` and `shoal reproduce`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from shoal import training
from shoal.cli.training import loading, recipes, result, watching
from shoal.errors import InvalidInput
from shoal.training import Config, Plan, Run
from shoal.training.data import Dataset, Records


def prepared(
    preset: str,
    options: Mapping[str, Any],
    *,
    users: str | None = None,
    epsilon: str | None = None,
    crowd: str = "any",
    data_dir: Path | None = None,
    offline: bool = False,
    quiet: bool = False,
    **unchanged: Any,
) -> tuple[Config, Plan | None, Dataset | Records]:
    """Return the configuration of a run, the plan behind it, and its data.

    Args:
      preset: The preset's name.
      options: Settings that replace the preset's; None for those that do not.
      users: The number of users, if not all.
      epsilon: The budget, if there is one.
      crowd: The crowd for which the budget must hold.
      data_dir: Where downloaded files are kept, or None for the cache.
      offline: Whether nothing may be downloaded.
      quiet: Whether to show no bar.
      unchanged: Settings that pass into the configuration as they are.

    Returns:
      The configuration; the plan, or None; the data.

    Raises:
      InvalidInput: If a setting is missing, or has a value that is not allowed.
      DataError: If the data is missing or damaged.
    """
    settings = recipes.choose(preset, options, epsilon)
    data = loading.load_data(settings["data"], data_dir, offline=offline, quiet=quiet)
    config, plan = recipes.configure(settings, data, users, epsilon, crowd, **unchanged)
    return config, plan, data


def resumed(folder: Path, *, data_dir: Path | None = None, offline: bool = False, quiet: bool = False) -> Run:
    """Return the run of a folder, at its last checkpoint.

    Args:
      folder: The run folder.
      data_dir: Where downloaded files are kept, or None for the cache.
      offline: Whether nothing may be downloaded.
      quiet: Whether to show no bar.

    Returns:
      The run.

    Raises:
      DataError: If the folder or the data cannot be used.
    """
    sys.path.insert(0, "")  # for a model of the user's own
    name = training.read_config(folder).data
    return training.resume(loading.load_data(name, data_dir, offline=offline, quiet=quiet), folder)


def train_to_the_end(run: Run, folder: Path, *, as_json: bool = False) -> None:
    """Run all rounds, then show epsilon and pictures; end with exit code 130 if the user stops it.

    Args:
      run: The run.
      folder: Its folder.
      as_json: Whether to print JSON.

    Raises:
      InvalidInput: If the weights grow beyond all bounds.
    """
    try:
        is_finished = watching.watch_run(run, folder, quiet=as_json)
    # Numbers that ran away are due to the user's learning rate: no bug.
    except FloatingPointError as error:
        raise InvalidInput(str(error)) from None
    if not is_finished:
        print(f"shoal: stopped after round {run.done:,}; continue with: shoal train --resume {folder}", file=sys.stderr)
        raise typer.Exit(code=130)
    result.show_result(folder, as_json=as_json)
