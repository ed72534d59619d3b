"""The command `shoal train`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shoal import _extras, _validate
from shoal.cli import options as opt
from shoal.errors import InvalidInput
from shoal.mechanisms import Crowd
from shoal.run_folder import Optimiser, Schedule, Simulation

# PyTorch is an extra: what needs it is imported when a training begins, and the help does without.

PresetName = Literal["digits", "paper", "mnist"]
TrainingProtocol = Literal["check-in", "subsampled", "shuffle", "local", "central"]
NetworkName = Literal["small", "opacus", "histograms"]


def train_command(
    preset: Annotated[
        PresetName, typer.Option(help="Settings to start from; every other option overrides one.")
    ] = "digits",
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
    protocol: Annotated[TrainingProtocol | None, typer.Option(help="Who takes part, and who is trusted.")] = None,
    users: Annotated[
        str | None, typer.Option(metavar="N", help="Use the first N images only, one per user. [default: all]")
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
    rounds: Annotated[str | None, typer.Option(metavar="T", help="Number of rounds, or auto.")] = None,
    epsilon: Annotated[
        str | None,
        typer.Option(metavar="E", help="Budget: chooses the noise; with sigma, stops before it would be exceeded."),
    ] = None,
    stop_early: Annotated[
        float | None,
        typer.Option(
            metavar="A", help="Stop at this accuracy (0.8 is 80%); epsilon is then an odometer's, somewhat larger."
        ),
    ] = None,
    delta: Annotated[str | None, typer.Option(metavar="D", help="Delta, such as 1e-5 or 1/60000.")] = None,
    crowd: Annotated[Crowd, typer.Option(help="The crowd for which the budget must hold.")] = "any",
    network: Annotated[
        NetworkName | None,
        typer.Option(help="small: 8,890 parameters; opacus: 26,010; histograms: linear on fixed features, 3,920."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="M:F", help="Your own model: what the function F of the module M returns."),
    ] = None,
    optimiser: Annotated[Optimiser, typer.Option(help="SGD or Adam.")] = "sgd",
    learning_rate: Annotated[float | None, typer.Option(metavar="R", help="Learning rate of the first round.")] = None,
    momentum: Annotated[
        float, typer.Option(metavar="B", help="Momentum (Adam: the first beta, 0.9 unless given).")
    ] = 0.0,
    weight_decay: Annotated[float, typer.Option(metavar="L", help="Weight decay.")] = 0.0,
    schedule: Annotated[Schedule, typer.Option(help="How the learning rate falls to 0, if it does.")] = "linear",
    average: Annotated[
        float, typer.Option(metavar="A", help="Decay of the moving average of weights; 0 for none.")
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(metavar="S", help="Makes the run repeatable, so not private. [default: the system's generator]"),
    ] = None,
    path: Annotated[
        Simulation, typer.Option(help="Draw one sum with its noise, or send each report on its own.")
    ] = "fast",
    evaluate_every: Annotated[int, typer.Option(metavar="K", help="Rounds between evaluations.")] = 20,
    checkpoint_every: Annotated[int, typer.Option(metavar="K", help="Rounds between checkpoints.")] = 20,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan and how long it would take.")] = False,
    threads: Annotated[int, typer.Option(metavar="K", help="Threads of PyTorch; more are often slower.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder. [default: runs/<preset>-<time>]")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue the run of this folder.")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Only compute epsilon and draw the pictures of this run folder.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Train a model under a protocol, on images with one user each, or on your own records.

    It works at once and offline, on 6,000 bundled digits. A run folder gets the configuration, the metrics,
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

    With --preset mnist or paper the images are downloaded. The paper's 5,540 rounds take an hour or more.
    """
    _extras.need("train needs PyTorch", "train", "torch")
    import torch

    from shoal import training
    from shoal.cli.training import preview, result, session

    torch.set_num_threads(_validate.integer("threads", threads, minimum=1, maximum=1024))
    if report is not None:
        result.show_result(report, as_json=as_json)
        return
    typed = {
        "data": data,
        "protocol": protocol,
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
        _refuse_beside_resume(
            {**typed, "out": out, "seed": seed, "epsilon": epsilon, "stop_early": stop_early, "users": users}
        )
        run = session.resumed(resume, data_dir=data_dir, offline=offline, quiet=as_json)
        session.train_to_the_end(run, resume, as_json=as_json)
        return
    config, plan, records = session.prepared(
        preset,
        typed,
        users=users,
        epsilon=epsilon,
        stop_early=stop_early,
        crowd=crowd,
        data_dir=data_dir,
        offline=offline,
        quiet=as_json,
        optimiser=optimiser,
        momentum=momentum,
        weight_decay=weight_decay,
        schedule=schedule,
        average=average,
        seed=seed,
        path=path,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
    )
    if plan is not None and not as_json:
        preview.print_plan(config, plan)
    if dry_run:
        preview.print_time(config, records, plan, as_json=as_json)
        return
    folder = out or Path("runs") / f"{preset}-{time.strftime('%Y%m%d-%H%M%S')}"
    session.train_to_the_end(training.start(config, records, folder), folder, as_json=as_json)


def _network(network: str | None, model: str | None) -> str | None:
    """Return a network of this package, or a model of the user's own."""
    if model is None:
        return network
    if network is not None:
        raise InvalidInput("model and network cannot be given together: one makes the model that the other names")
    sys.path.insert(0, "")  # for a module beside the user
    return model if ":" in model else f"{model}:"


def _refuse_beside_resume(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is not None:
            raise InvalidInput(f"{name} cannot be given with resume: the run keeps its settings")
