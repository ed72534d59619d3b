"""A training on the screen: what was planned, how long it takes, how it goes, and what came of it."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli import show
from shoal.errors import MissingExtra

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism
    from shoal.query import Statement
    from shoal.training import Config, Dataset, Plan, Records, Row, Run
    from shoal.training.figures import Report


def say_plan(config: Config, found: Plan) -> None:
    """What was chosen for the budget, and why."""
    from shoal.training.plan import REPORTS

    m = config.mechanism
    crowd = f", {m.crowd} crowd" if m.crowd_matters else ""
    if found.weighed:
        cells = [
            [
                f"{p.rounds:,}",
                f"{p.mechanism.participation:.4g}",
                f"{p.mechanism.sigma:.4g}",
                f"{p.noise / p.floor:.2f}",
                "chosen" if p.rounds == found.rounds and _rate(p.mechanism) == _rate(m) else "",
            ]
            for p in found.weighed
        ]
        show.table("Weighed", ["rounds", "rate", "σ", "noise of the mean / trusted server's", ""], cells)
    if not found.weighed:
        why = "rounds and rate were given"
    elif found.gain is not None:
        why = f"four times the reports would lower that noise by only {found.gain:.0%}"
    elif found.rounds * _rate(m) >= REPORTS[-1]:
        why = f"more reports would lower it further, but the rule stops at {REPORTS[-1]} a user: --rounds sets more"
    else:
        why = "everybody reports in every round, and the rounds were given"
    show.say(
        f"For ε ≤ {config.epsilon:g} at δ = {show.plain(config.delta)} ({m.adjacency} adjacency{crowd}): "
        f"σ = {m.sigma:.5g} over {found.rounds:,} rounds, learning rate {config.learning_rate:.4g}. "
        "The mean of all reports then has "
        f"{found.noise / found.floor:.2f} times the noise that a trusted server would add once; {why}."
    )


def _rate(m: Any) -> float:
    return m.participation


def say_time(config: Config, data: Dataset | Records, found: Plan | None, as_json: bool) -> None:
    """How long the run would take, from a few rounds of it that are thrown away."""
    from shoal.training.run import Run

    run = Run(config, data)
    run.step()  # the first one is slow: memory, threads, compiled kernels
    began, rounds = time.perf_counter(), 0
    # Two seconds are enough to tell minutes from hours.
    while rounds < 20 and time.perf_counter() - began < 2.0:
        result = run.step()
        rounds += 1
    each = (time.perf_counter() - began) / rounds
    began = time.perf_counter()
    run.evaluate(result)
    evaluations = run.rounds / config.evaluate_every * (time.perf_counter() - began)
    seconds = run.rounds * each + evaluations
    if as_json:
        told = {"noise": found.noise, "trusted_server": found.floor} if found else None
        show.emit_json({**config.to_dict(), "seconds": seconds, "noise_of_the_mean": told})
        return
    show.say(
        f"{run.rounds:,} rounds of {run.expected:,.0f} reports on {run.device.type}, {each:.3g} s each: about "
        f"{_duration(seconds)}. Nothing was written."
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        count = max(1, round(seconds))
        return f"{count} second{'s' if count > 1 else ''}"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def load(name: str, data_dir: Path | None, offline: bool, quiet: bool) -> Dataset | Records:
    """The data of a run, with a bar if files are downloaded."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from shoal.training import load as load_images
    from shoal.training import read_records
    from shoal.training.data import holds_records

    if holds_records(name):
        return read_records(name)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), transient=True, disable=quiet
    ) as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        return load_images(name, data_dir=data_dir, download=not offline, progress=tell)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are noted, so that the round in progress ends and its checkpoint is written."""
    caught: list[int] = []

    def note(number: int, _: Any) -> None:
        if caught:  # a second time: at once
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        caught.append(number)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def watch(run: Run, folder: Path, quiet: bool) -> bool:
    """All rounds with a progress bar; False if the user stopped it."""
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    from shoal.training import accountants, train_run

    config = run.config
    if not quiet:
        show.say(_opening(run, folder))
    shown = [a for a in accountants(config.mechanism) if a.quick]
    bar = Progress(
        TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=30), TimeRemainingColumn(), console=show.console
    )
    task = bar.add_task("", total=run.rounds, completed=run.done)
    words = Text()

    def look(done: int, row: Row | None) -> bool:
        bar.update(task, completed=done)
        if row is not None and not quiet:
            spent = [(a.short, a.epsilons([row.spent], config.delta)[0]) for a in shown]
            privacy = ", ".join(f"{name} {show.rounded(value, digits=3)}" for name, value in spent)
            words.plain = f"accuracy {row.accuracy:.1%}, {row.reports:,} reports, ε: {privacy}"
        return not caught

    with _interrupts() as caught:
        if quiet:
            train_run(run, folder, watch=look)
        else:
            with Live(Group(bar, words), console=show.console, refresh_per_second=4):
                train_run(run, folder, watch=look)
    return run.finished


def _opening(run: Run, folder: Path) -> str:
    config, m = run.config, run.config.mechanism
    noise = (
        "noise from the operating system's generator"
        if config.private
        else f"seed {config.seed}: repeatable, NOT PRIVATE"
    )
    budget = ""
    if config.epsilon is not None:
        allowed = f", allows {run.rounds:,} rounds" if run.rounds < config.rounds else ""
        budget = f"; the budget is ε = {config.epsilon:g} at δ = {show.plain(config.delta)}{allowed}"
    twice = run.spent - run.done
    again = (
        f"; {show.times(twice)} may have been sent before the run stopped and {'is' if twice == 1 else 'are'} counted "
        "twice"
        if twice > 0
        else ""
    )
    return (
        f"{m.label} ({m.settings}, C = {config.clip:g}) on {config.data}, {run.clients.users:,} users; "
        f"{m.trust}; {noise}{budget}{again}. Run folder: {folder}"
    )


def finish(folder: Path, as_json: bool) -> None:
    """Epsilon by every accountant, the pictures, and the last word on the run."""
    from shoal.training import figures

    if as_json:
        found = figures.report(folder)
    else:
        with show.console.status("epsilon by every accountant"):
            found = figures.report(folder)
    privacy = figures.write_privacy(found, folder)
    pictures, missing = [], ""
    try:
        pictures = figures.draw_all(found, folder)
    except MissingExtra as error:
        missing = str(error)
    last, config = found.rows[-1], found.config
    at_end = {label: values[-1] for label, values in found.epsilons.items()}
    told = None
    if config.private:  # who knows a seed can subtract the noise: nothing is claimed then
        told = _stated(config.mechanism, config.delta, next(iter(at_end.values())), last.spent).sentence()
    if as_json:
        show.emit_json({**_as_data(found), "folder": str(folder), "guarantee": told, "plots": list(map(str, pictures))})
        return
    show.say(f"\nAfter round {last.round:,}: accuracy {last.accuracy:.2%} on test images.")
    title = f"δ = {show.plain(config.delta)}, {config.mechanism.adjacency} adjacency"
    cells = [[name, show.rounded(value)] for name, value in at_end.items()]
    show.table(title, ["accountant (crowd)", "ε ≤"], cells)
    if told is not None:
        show.say(told)
    if last.spent > last.round:
        show.say(
            f"Of {last.spent:,} rounds paid for, {last.spent - last.round:,} are counted twice: the run was stopped, "
            "and they may have been sent before."
        )
    if not config.private:
        show.say(
            "Seeded, so not private: who knows the seed can subtract the noise. ε is that of the same run unseeded."
        )
    show.say_path("Run folder", folder, f" (metrics.jsonl, {privacy.name}, model.pt)")
    for picture in pictures:
        show.say_where(picture)
    if missing:
        show.say(f"No pictures: {missing}")


def _stated(mechanism: Mechanism, delta: float, epsilon: float, rounds: int) -> Statement:
    """The first accountant's answer, which is the guarantee: it assumes nothing about other users."""
    from shoal.interval import Interval
    from shoal.query import EPSILON, Answer, Options

    m = mechanism.replace(crowd="any") if mechanism.crowd_matters else mechanism
    answer = Answer(
        question=EPSILON,
        value=delta,
        options=Options(),
        interval=Interval(lower=0.0, upper=epsilon),
        bounds=m.bounds(rounds),
    )
    return m.state(answer, rounds=rounds)


def _as_data(found: Report) -> dict[str, Any]:
    """A run's end for programs; an infinite epsilon is None."""
    last, config = found.rows[-1], found.config
    ends = (values[-1] for values in found.epsilons.values())
    return {
        "round": last.round,
        "rounds_paid_for": last.spent,
        "accuracy": last.accuracy,
        "delta": config.delta,
        "private": config.private,
        "mechanism": config.mechanism.to_dict(),
        "epsilon": {key: value if value < math.inf else None for key, value in zip(found.keys, ends, strict=True)},
    }
