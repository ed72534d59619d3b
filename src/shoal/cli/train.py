"""The command `shoal train`."""

from __future__ import annotations

import enum
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.learning import Config, Dataset, Plan, Records, Row, Run

PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        "data": "digits",
        "protocol": "check-in",
        "rate": "0.5",
        "sigma": "2",
        "clip": 0.01,
        "rounds": "300",
        "delta": "1e-5",
        "learning_rate": 10.0,
        "network": "small",
    },
    "paper": {
        "data": "mnist",
        "protocol": "check-in",
        "rate": "0.1",
        "sigma": "5",
        "clip": 0.01,
        "rounds": "5540",
        "delta": "1/60000",
        "learning_rate": 3.0,
        "network": "small",
    },
    "mnist": {
        "data": "mnist",
        "protocol": "shuffle",
        "rounds": "auto",
        "delta": "1/60000",
        "network": "histograms",
    },
}
"""What is run unless an option says otherwise."""

RECIPES: dict[str, dict[str, Any]] = {"histograms": {"clip": 0.1, "learning_rate": None}}
"""What a network needs that is not the preset's; a learning rate of None is chosen by rule."""

AUTO = "auto"


class Preset(str, enum.Enum):
    digits = "digits"
    paper = "paper"
    mnist = "mnist"


class Protocol(str, enum.Enum):
    check_in = "check-in"
    subsampled = "subsampled"
    shuffle = "shuffle"
    local = "local"
    central = "central"


class Network(str, enum.Enum):
    small = "small"
    opacus = "opacus"
    histograms = "histograms"


class OptimiserChoice(str, enum.Enum):
    sgd = "sgd"
    adam = "adam"


class ScheduleChoice(str, enum.Enum):
    linear = "linear"
    cosine = "cosine"
    constant = "constant"


class PathChoice(str, enum.Enum):
    fast = "fast"
    faithful = "faithful"


class BudgetCrowd(str, enum.Enum):
    any = "any"
    identical = "identical"


def train(
    preset: Annotated[
        Preset, typer.Option(help="Settings to start from; every other option overrides one.")
    ] = Preset.digits,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="digits (embedded), mnist, fashion-mnist, or a folder of IDX files or of train.npz and test.npz.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the files of mnist or fashion-mnist are kept. [default: cache]"),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never download.")] = False,
    protocol: Annotated[Protocol | None, typer.Option(help="Who takes part, and who is trusted.")] = None,
    users: Annotated[
        str | None, typer.Option(metavar="N", help="The first N images only, one a user. [default: all]")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="P", help="Probability of taking part (check-in, central), or auto.")
    ] = None,
    sample: Annotated[str | None, typer.Option(metavar="M", help="Users sampled each round (subsampled).")] = None,
    sigma: Annotated[
        str | None,
        typer.Option(metavar="X", help="Noise multiplier of a report. [with epsilon: the least that meets it]"),
    ] = None,
    clip: Annotated[float | None, typer.Option(metavar="C", help="Clipping norm of a user's gradient.")] = None,
    rounds: Annotated[str | None, typer.Option(metavar="T", help="Rounds, or auto.")] = None,
    epsilon: Annotated[
        str | None,
        typer.Option(metavar="E", help="Budget: chooses the noise; with sigma, stops before it would be exceeded."),
    ] = None,
    delta: Annotated[str | None, typer.Option(metavar="D", help="Delta, such as 1e-5 or 1/60000.")] = None,
    crowd: Annotated[BudgetCrowd, typer.Option(help="The crowd for which the budget must hold.")] = BudgetCrowd.any,
    network: Annotated[
        Network | None,
        typer.Option(help="small: 8,890 parameters; opacus: 26,010; histograms: linear on fixed features, 3,920."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="M:F", help="Your own model: what the function F of the module M returns."),
    ] = None,
    optimiser: Annotated[OptimiserChoice, typer.Option(help="SGD or Adam.")] = OptimiserChoice.sgd,
    learning_rate: Annotated[float | None, typer.Option(metavar="R", help="Learning rate of the first round.")] = None,
    momentum: Annotated[
        float, typer.Option(metavar="B", help="Momentum (Adam: the first beta, 0.9 unless given).")
    ] = 0.0,
    weight_decay: Annotated[float, typer.Option(metavar="L", help="Weight decay.")] = 0.0,
    schedule: Annotated[
        ScheduleChoice, typer.Option(help="Learning rate down to 0, or constant.")
    ] = ScheduleChoice.linear,
    average: Annotated[
        float, typer.Option(metavar="A", help="Decay of the moving average of weights; 0 for none.")
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(metavar="S", help="Repeatable, and therefore not private. [default: the system's generator]"),
    ] = None,
    path: Annotated[
        PathChoice, typer.Option(help="One sum and one draw of noise, or every report on its own.")
    ] = PathChoice.fast,
    evaluate_every: Annotated[int, typer.Option(metavar="K", help="Rounds between evaluations.")] = 20,
    checkpoint_every: Annotated[int, typer.Option(metavar="K", help="Rounds between checkpoints.")] = 20,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan and how long it would take.")] = False,
    threads: Annotated[int, typer.Option(metavar="K", help="Threads of PyTorch; more are often slower.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder. [default: runs/<preset>-<time>]")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue the run of this folder.")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Only compute epsilon and draw the pictures of this run folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable result.")] = False,
) -> None:
    """Train a model under a protocol, on images, one a user, or on your own records.

    Works at once and offline, on 6,000 embedded digits. A run folder gets the configuration, the metrics,
    epsilon by every accountant, checkpoints, the model, and pictures. Choose epsilon, and the noise follows.

    Examples:

    shoal train

    shoal train --epsilon 1 --network histograms --rounds auto --rate auto --dry-run

    shoal train --preset mnist --epsilon 0.1 --out runs/budget

    shoal train --resume runs/budget

    shoal train --preset paper --seed 1 --out runs/paper
    """
    try:
        from shoal import learning
        from shoal.learning import figures
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from None
    import torch

    from shoal import _validate

    torch.set_num_threads(_validate.integer("threads", threads, minimum=1, maximum=1024))
    if report is not None:
        _finish(report, figures, as_json)
        return
    given = {
        "data": data,
        "protocol": protocol and protocol.value,
        "rate": rate,
        "sigma": sigma,
        "sample": sample,
        "clip": clip,
        "rounds": rounds,
        "delta": delta,
        "learning_rate": learning_rate,
        "network": network and network.value,
    }
    if model is not None:
        if network is not None:
            raise ValueError("model and network cannot be given together: one makes the model that the other names")
        sys.path.insert(0, "")  # a module beside the user
        given["network"] = model if ":" in model else f"{model}:"
    if resume is not None:
        clash = [
            k
            for k, v in {**given, "out": out, "seed": seed, "epsilon": epsilon, "users": users}.items()
            if v is not None
        ]
        if clash:
            raise ValueError(f"{clash[0]} cannot be given with resume: the run keeps its settings")
        folder = resume
        sys.path.insert(0, "")
        run = learning.resume(_data(learning.read_config(folder).data, data_dir, offline, as_json), folder)
    else:
        chosen = _chosen(preset.value, given, epsilon)
        images = _data(chosen["data"], data_dir, offline, as_json)
        config, found = _config(
            chosen,
            images,
            users,
            epsilon,
            crowd.value,
            optimiser=optimiser.value,
            momentum=momentum,
            weight_decay=weight_decay,
            schedule=schedule.value,
            average=average,
            seed=seed,
            path=path.value,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
        )
        if not as_json and found is not None:
            _say_plan(config, found)
        if dry_run:
            _say_time(config, images, found, as_json)
            return
        folder = out or Path("runs") / f"{preset.value}-{time.strftime('%Y%m%d-%H%M%S')}"
        run = learning.start(config, images, folder)
    try:
        ended = _train(run, folder, as_json)
    except FloatingPointError as error:
        raise ValueError(str(error)) from None
    if not ended:
        print(f"shoal: stopped after round {run.done:,}; continue with: shoal train --resume {folder}", file=sys.stderr)
        raise typer.Exit(code=130)
    _finish(folder, figures, as_json)


def _chosen(preset: str, given: dict[str, Any], epsilon: str | None) -> dict[str, Any]:
    """The preset's settings, those of the network, and what was given, the later before the earlier."""
    told = {k: v for k, v in given.items() if v is not None}
    chosen = {"sigma": None, "rate": None, **PRESETS[preset], **told}
    recipe = RECIPES.get(chosen["network"], {})
    chosen.update({k: v for k, v in recipe.items() if k not in told})
    for name in ("clip", "learning_rate"):
        if name not in chosen:
            raise ValueError(
                f"{name} must be given for the network {chosen['network']}: add --{name.replace('_', '-')}"
            )
    if epsilon is None:
        if AUTO in (chosen["rate"], chosen["rounds"]):
            raise ValueError("epsilon must be given for rounds or rate to be chosen: add --epsilon")
        if chosen["sigma"] is None:
            raise ValueError("epsilon or sigma must be given: add --epsilon")
    elif "sigma" not in told:
        chosen["sigma"] = None
    return chosen


def _config(
    chosen: dict[str, Any], images: Dataset | Records, users: str | None, epsilon: str | None, crowd: str, **rest: Any
) -> tuple[Config, Plan | None]:
    """The configuration, and the plan if one was needed to choose its noise."""
    from shoal import _validate, calibrate
    from shoal.cli import parse, show
    from shoal.learning import Config, plan
    from shoal.learning.plan import linear_rate
    from shoal.learning.protocol import PROTOCOLS

    count = images.users if users is None else _validate.users("users", parse.number("users", users))
    if count > images.users:
        raise ValueError(f"users must be at most {images.users} (the images of {images.name}), got {count}")
    kind = chosen["protocol"]
    auto_rate, auto_rounds = chosen["rate"] == AUTO, chosen["rounds"] == AUTO
    noise = None if chosen["sigma"] is None else parse.number("sigma", chosen["sigma"])
    fields: dict[str, Any] = {"sigma": 1.0 if noise is None else noise}
    if kind in ("shuffle", "subsampled", "check-in"):
        fields.update(users=count, crowd=crowd)
    if kind in ("check-in", "central"):
        if chosen["rate"] is None:
            raise ValueError(f"rate must be given for {kind}: add --rate")
        fields["rate"] = 1.0 if auto_rate else parse.number("rate", chosen["rate"])
    elif auto_rate:
        raise ValueError(f"rate must not be auto for {kind}, which has no rate")
    if kind == "subsampled":
        if chosen.get("sample") is None:
            raise ValueError("sample must be given for subsampled: add --sample")
        fields["sample"] = _validate.users("sample", parse.number("sample", chosen["sample"]))
    elif chosen.get("sample") is not None:
        raise ValueError(f"sample is not a parameter of {kind}")
    if noise is not None and auto_rate:
        raise ValueError("rate must be a number where sigma is given, got 'auto'")
    m = PROTOCOLS[kind](**fields)
    rounds = None if auto_rounds else _validate.rounds(parse.number("rounds", chosen["rounds"]))
    delta = _validate.delta(parse.number("delta", chosen["delta"]))
    budget = None if epsilon is None else _validate.epsilon(parse.number("epsilon", epsilon))
    found = None
    if budget is not None and noise is None:
        with show.busy(m):
            found = plan(m, users=count, epsilon=budget, delta=delta, rounds=rounds, auto_rate=auto_rate)
        m, rounds = found.mechanism, found.rounds
    elif budget is not None and rounds is None:
        rounds = calibrate.rounds(m, epsilon=budget, delta=delta)
    assert rounds is not None  # without a budget auto was refused before
    learning_rate = chosen["learning_rate"]
    if learning_rate is None:
        learning_rate = float(f"{linear_rate(m, users=count, rounds=rounds, clip=chosen['clip']):.4g}")
    config = Config(
        mechanism=m,
        data=chosen["data"],
        users=count,
        rounds=rounds,
        delta=delta,
        epsilon=budget,
        clip=chosen["clip"],
        learning_rate=learning_rate,
        network=chosen["network"],
        **rest,
    )
    return config, found


def _say_plan(config: Config, found: Plan) -> None:
    """What was chosen for the budget, and why."""
    from shoal.cli import show

    m = config.mechanism
    crowd = f", {m.crowd} crowd" if hasattr(m, "crowd") else ""
    if found.weighed:
        cells = [
            [
                f"{p.rounds:,}",
                f"{getattr(p.mechanism, 'rate', 1.0):.4g}",
                f"{p.mechanism.sigma:.4g}",
                f"{p.noise / p.floor:.2f}",
                "chosen" if p.rounds == found.rounds and _rate(p.mechanism) == _rate(m) else "",
            ]
            for p in found.weighed
        ]
        show.table("Weighed", ["rounds", "rate", "σ", "noise of the mean / trusted server's", ""], cells)
    why = "four times the reports would not fit into the rule's limit"
    if found.gain is not None:
        why = f"four times the reports would lower that noise by only {found.gain:.0%}"
    elif not found.weighed:
        why = "rounds and rate were given"
    show.say(
        f"For ε ≤ {config.epsilon:g} at δ = {show.plain(config.delta)} ({m.adjacency} adjacency{crowd}): "
        f"σ = {m.sigma:.5g} over {found.rounds:,} rounds, learning rate {config.learning_rate:.4g}. "
        "The mean of all reports then has "
        f"{found.noise / found.floor:.2f} times the noise that a trusted server would add once; {why}."
    )


def _rate(m: Any) -> float:
    return float(getattr(m, "rate", 1.0))


def _say_time(config: Config, images: Dataset | Records, found: Plan | None, as_json: bool) -> None:
    """How long the run would take, from a few rounds of it that are thrown away."""
    from shoal.cli import show
    from shoal.learning.training import Run

    run = Run(config, images)
    run.step()
    began, rounds = time.perf_counter(), 0
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
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _data(name: str, data_dir: Path | None, offline: bool, quiet: bool) -> Dataset | Records:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from shoal.learning import load, read_records
    from shoal.learning.data import holds_records

    if holds_records(name):
        return read_records(name)

    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), transient=True, disable=quiet
    ) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        return load(name, data_dir=data_dir, download=not offline, progress=show)


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


def _train(run: Run, folder: Path, quiet: bool) -> bool:
    """All rounds with a progress bar; False if the user stopped it."""
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    from shoal.cli import show
    from shoal.learning import accountants, train

    config = run.config
    if not quiet:
        show.say(_opening(run, folder))
    shown = [a for a in accountants(config.mechanism) if a.quick]
    bar = Progress(
        TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=30), TimeRemainingColumn(), console=show.console
    )
    task = bar.add_task("", total=run.rounds, completed=run.done)
    words = Text()

    def watch(done: int, row: Row | None) -> bool:
        bar.update(task, completed=done)
        if row is not None and not quiet:
            spent = [(a.short, a.epsilons([row.spent], config.delta)[0]) for a in shown]
            privacy = ", ".join(f"{name} {show.rounded(value, digits=3)}" for name, value in spent)
            words.plain = f"accuracy {row.accuracy:.1%}, {row.reports:,} reports, ε: {privacy}"
        return not caught

    with _interrupts() as caught:
        if quiet:
            train(run, folder, watch=watch)
        else:
            with Live(Group(bar, words), console=show.console, refresh_per_second=4):
                train(run, folder, watch=watch)
    return run.finished


def _opening(run: Run, folder: Path) -> str:
    from shoal.cli import show

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
    return (
        f"{m.label} ({m.settings}, C = {config.clip:g}) on {config.data}, {run.clients.users:,} users; "
        f"{m.trust}; {noise}{budget}. Run folder: {folder}"
    )


def _finish(folder: Path, figures: Any, as_json: bool) -> None:
    """Epsilon by every accountant, the pictures, and the last word on the run."""
    from shoal.cli import show

    if as_json:
        found = figures.report(folder)
    else:
        with show.console.status("epsilon by every accountant"):
            found = figures.report(folder)
    privacy = figures.write_privacy(found, folder)
    pictures, missing = [], ""
    try:
        pictures = figures.draw_all(found, folder)
    except ValueError as error:  # matplotlib is an extra
        missing = str(error)
    last, config = found.rows[-1], found.config
    at_end = {label: values[-1] for label, values in found.epsilons.items()}
    if as_json:
        epsilon = {k: (v if v != float("inf") else None) for k, v in zip(found.keys, at_end.values(), strict=True)}
        show.emit_json(
            {
                "folder": str(folder),
                "round": last.round,
                "rounds_paid_for": last.spent,
                "accuracy": last.accuracy,
                "delta": config.delta,
                "private": config.private,
                "mechanism": config.mechanism.to_dict(),
                "epsilon": epsilon,
                "plots": [str(p) for p in pictures],
            }
        )
        return
    show.say(f"\nAfter round {last.round:,}: accuracy {last.accuracy:.2%} on test images.")
    title = f"δ = {show.plain(config.delta)}, {config.mechanism.adjacency} adjacency"
    cells = [[name, show.rounded(value)] for name, value in at_end.items()]
    show.table(title, ["accountant (crowd)", "ε ≤"], cells)
    if not config.private:
        show.say(
            "Seeded, so not private: who knows the seed can subtract the noise. ε is that of the same run unseeded."
        )
    show.say(f"Run folder: {folder} (metrics.jsonl, {privacy.name}, model.pt)")
    for picture in pictures:
        show.say(f"Picture: {picture}")
    if missing:
        show.say(f"No pictures: {missing}")
