"""The rounds of a training on the screen, until the last one, or until the user stops it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from shoal.cli import screen, view
from shoal.formatting import rounded, short
from shoal.training import Row, Run, train_run
from shoal.training.figures import run_accountants


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Note Ctrl-C and SIGTERM, so that the round in progress ends and its checkpoint is written."""
    caught: list[int] = []

    def note(number: int, _: Any) -> None:
        if caught:  # a second time: at once
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        caught.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch_run(run: Run, folder: Path, *, quiet: bool) -> bool:
    """Run all rounds with a progress bar.

    Args:
      run: The run.
      folder: Its folder.
      quiet: Whether to show nothing.

    Returns:
      Whether it came to its end; False if the user stopped it.
    """
    config, console = run.config, screen.terminal()
    if not quiet:
        screen.print_text(opening_words(run, folder))
    shown = [accountant for accountant in run_accountants(config) if accountant.quick]
    bar = Progress(
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(bar_width=30),
        TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task("", total=run.rounds, completed=run.done)
    words = Text()

    def update(done: int, row: Row | None) -> bool:
        bar.update(task, completed=done)
        if row is not None and not quiet:
            epsilons = [
                f"{accountant.short} {rounded(accountant.epsilons([row.spent], config.delta)[0], digits=3)}"
                for accountant in shown
            ]
            words.plain = f"accuracy {row.accuracy:.1%}, {row.reports:,} reports, ε: {', '.join(epsilons)}"
        return not caught

    with _noted_signals() as caught:
        if quiet:
            train_run(run, folder, watch=update)
        else:
            with Live(Group(bar, words), console=console, refresh_per_second=4):
                train_run(run, folder, watch=update)
    return run.finished


def opening_words(run: Run, folder: Path) -> str:
    """Return what a run is, in a paragraph.

    Args:
      run: The run.
      folder: Its folder.
    """
    config, m = run.config, run.config.mechanism
    noise = (
        "noise from the operating system's generator"
        if config.private
        else f"seed {config.seed}: repeatable, NOT PRIVATE"
    )
    budget = ""
    if config.epsilon is not None:
        allowed = f", allows {run.rounds:,} rounds" if run.rounds < config.rounds else ""
        budget = f"; the budget is ε = {config.epsilon:g} at δ = {short(config.delta)}{allowed}"
    if config.stop_early is not None:
        budget += f"; it stops at an accuracy of {config.stop_early:.1%}"
    twice = run.spent - run.done
    verb = "is" if twice == 1 else "are"
    again = (
        f"; {view.rounds_words(twice)} may have been sent before the run stopped and {verb} counted twice"
        if twice > 0
        else ""
    )
    return (
        f"{m.label} ({m.settings}, C = {config.clip:g}) on {config.data}, {run.clients.users:,} users; "
        f"{m.trust}; {noise}{budget}{again}. Run folder: {folder}"
    )
