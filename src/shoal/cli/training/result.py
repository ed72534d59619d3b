"""The result of a training: epsilon by every accountant, the pictures, and the guarantee."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

from shoal.cli import screen
from shoal.errors import MissingExtra
from shoal.formatting import rounded, short
from shoal.interval import Interval
from shoal.query import EPSILON, Answer, Options
from shoal.training import figures
from shoal.training.figures import Report

STOPPED_WORDS = "epsilon is an odometer's, which holds although the accuracy decided when to stop"


def show_result(folder: Path, *, as_json: bool) -> None:
    """Print the result of a run, and write its epsilons and pictures to its folder.

    Args:
      folder: The run folder.
      as_json: Whether to print JSON.
    """
    waiting = contextlib.nullcontext() if as_json else screen.working("epsilon by every accountant")
    with waiting:
        report = figures.report(folder)
    privacy = figures.write_privacy(report, folder)
    pictures, missing = [], ""
    try:
        pictures = figures.draw_all(report, folder)
    except MissingExtra as error:
        missing = str(error)
    guarantee = _guarantee(report)
    if as_json:
        plots = [str(picture) for picture in pictures]
        screen.print_json({**_result_data(report), "folder": str(folder), "guarantee": guarantee, "plots": plots})
        return
    _print(report, guarantee)
    screen.print_path("Run folder", folder, f" (metrics.jsonl, {privacy.name}, model.pt)")
    for picture in pictures:
        screen.print_path("Picture", picture)
    if missing:
        screen.print_text(f"No pictures: {missing}")


def _print(report: Report, guarantee: str | None) -> None:
    """Print the accuracy, the table of epsilons, and what they rest on."""
    last, config = report.rows[-1], report.config
    screen.print_text(f"\nAfter round {last.round:,}: accuracy {last.accuracy:.2%} on test images.")
    title = f"δ = {short(config.delta)}, {config.mechanism.adjacency} adjacency"
    cells = [[label, rounded(values[-1])] for label, values in report.epsilons.items()]
    screen.print_table(title, ["accountant (crowd)", "ε ≤"], cells)
    if guarantee is not None:
        screen.print_text(guarantee)
    if last.spent > last.round:
        screen.print_text(
            f"Of {last.spent:,} rounds paid for, {last.spent - last.round:,} are counted twice: the run was stopped, "
            "and they may have been sent before."
        )
    if not config.private:
        screen.print_text(
            "This run was seeded, so it is not private: anyone who knows the seed can subtract the noise. ε is that "
            "of the same run without a seed."
        )


def _guarantee(report: Report) -> str | None:
    """Return the first accountant's answer in words, which assumes nothing about other users; None for a seeded run.

    Who knows a seed can subtract the noise, so nothing is claimed then.
    """
    last, config = report.rows[-1], report.config
    if not config.private:
        return None
    m = config.mechanism.replace(crowd="any") if config.mechanism.crowd_matters else config.mechanism
    answer = Answer(
        question=EPSILON,
        value=config.delta,
        options=Options(),
        interval=Interval(lower=0.0, upper=next(iter(report.epsilons.values()))[-1]),
        bounds=m.bounds(last.spent),
    )
    note = "" if config.stop_early is None else STOPPED_WORDS
    return m.state(answer, rounds=last.spent, note=note).sentence()


def _result_data(report: Report) -> dict[str, Any]:
    """Return a run's end for programs; an infinite epsilon is None."""
    last, config = report.rows[-1], report.config
    ends = (values[-1] for values in report.epsilons.values())
    return {
        "round": last.round,
        "rounds_paid_for": last.spent,
        "accuracy": last.accuracy,
        "delta": config.delta,
        "private": config.private,
        "mechanism": config.mechanism.to_dict(),
        "epsilon": {key: value if value < math.inf else None for key, value in zip(report.keys, ends, strict=True)},
    }
