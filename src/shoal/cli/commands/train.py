"""The command `shoal train`."""

from __future__ import annotations

import enum
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.errors import InvalidInput

if TYPE_CHECKING:
    from shoal.training import Run


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


class NetworkChoice(str, enum.Enum):
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
        NetworkChoice | None,
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

    \b
    shoal train

    \b
    shoal train --users 500 --epsilon 1 --network histograms --rounds auto \\
        --rate auto --dry-run

    \b
    shoal train --users 500 --epsilon 1 --network histograms --rounds 20 \\
        --out runs/small

    \b
    shoal train --resume runs/small

    With --preset mnist or --preset paper the images are downloaded, and the paper's 5,540 rounds take an hour or more.
    """
    from shoal import training
    from shoal.cli import live, recipes

    _threads(threads)
    if report is not None:
        live.finish(report, as_json)
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
        "network": _network(network, model),
    }
    # A run that goes on keeps its settings: other ones would make its ledger wrong.
    if resume is not None:
        _refuse_beside_resume({**given, "out": out, "seed": seed, "epsilon": epsilon, "users": users})
        _run(_resumed(resume, data_dir, offline, as_json), resume, as_json)
        return
    chosen = recipes.choose(preset.value, given, epsilon)
    images = live.load(chosen["data"], data_dir, offline, as_json)
    config, plan = recipes.configure(
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
    if plan is not None and not as_json:
        live.say_plan(config, plan)
    if dry_run:
        live.say_time(config, images, plan, as_json)
        return
    folder = out or Path("runs") / f"{preset.value}-{time.strftime('%Y%m%d-%H%M%S')}"
    _run(training.start(config, images, folder), folder, as_json)


def _threads(count: int) -> None:
    import torch

    from shoal import _validate

    torch.set_num_threads(_validate.integer("threads", count, minimum=1, maximum=1024))


def _network(network: NetworkChoice | None, model: str | None) -> str | None:
    """A network of ours, or a model of the user's own."""
    if model is None:
        return network and network.value
    if network is not None:
        raise InvalidInput("model and network cannot be given together: one makes the model that the other names")
    sys.path.insert(0, "")  # a module beside the user
    return model if ":" in model else f"{model}:"


def _refuse_beside_resume(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidInput(f"{name} cannot be given with resume: the run keeps its settings")


def _resumed(folder: Path, data_dir: Path | None, offline: bool, quiet: bool) -> Run:
    from shoal import training
    from shoal.cli import live

    sys.path.insert(0, "")
    return training.resume(live.load(training.read_config(folder).data, data_dir, offline, quiet), folder)


def _run(run: Run, folder: Path, as_json: bool) -> None:
    """All rounds, then epsilon and pictures; exit code 130 if the user stopped it."""
    from shoal.cli import live

    try:
        ended = live.watch(run, folder, as_json)
    # Numbers that ran away are the user's learning rate, no bug.
    except FloatingPointError as error:
        raise InvalidInput(str(error)) from None
    if not ended:
        print(f"shoal: stopped after round {run.done:,}; continue with: shoal train --resume {folder}", file=sys.stderr)
        raise typer.Exit(code=130)
    live.finish(folder, as_json)
