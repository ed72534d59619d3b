"""The commands `shoal analyst …`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer

from shoal.cli import options as opt
from shoal.cli.commands import task_options
from shoal.errors import InvalidInput

# The deployment is an extra: the help of these commands does without it.
if TYPE_CHECKING:
    from shoal.deployment.analyst import Analyst


@contextmanager
def _analyst(folder: Path, mode: Literal["open", "recover", "read"]) -> Iterator[Analyst]:
    """Yield the analyst of a folder, and close it."""
    from shoal.deployment.analyst import Analyst

    enter = {"open": Analyst.open, "recover": Analyst.recover, "read": Analyst.read}[mode]
    with closing(enter(folder)) as analyst:
        yield analyst


def init_command(
    folder: task_options.Folder,
    task: Annotated[str, typer.Option(help="Name of the task.")],
    dimension: Annotated[int, typer.Option(metavar="N", help="Number of parameters of the model.")],
    clip: task_options.Clip,
    sigma: task_options.Sigma,
    rate: task_options.Rate,
    epsilon: task_options.BudgetEpsilon,
    delta: task_options.BudgetDelta,
    minimum: Annotated[int, typer.Option(metavar="M", help="Smallest number of users in a round.")],
    maximum: Annotated[int, typer.Option(metavar="M", help="Largest number of reports in a batch.")] = 1_000_000,
    crowd: task_options.BudgetCrowd = "any",
    corrupt: task_options.Corrupt = 0,
    step: task_options.Step = 1.0,
    rounds: Annotated[
        int | None,
        typer.Option(metavar="T", help="Largest number of rounds. [default: what the budget allows with M users]"),
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(metavar="T", help="Number of rounds that share a key. [default: a hundredth of all]")
    ] = None,
    keep: Annotated[int, typer.Option(metavar="K", help="Number of earlier models to keep, to go back to.")] = 5,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Model to start from (.npy). [default: all zeros]")
    ] = None,
) -> None:
    """Set up an analyst: keys, password, settings, and a node.toml for registrar and nodes.

    Example:

    \b
    shoal analyst init home --task t --dimension 9 --clip 1 --sigma 2 \\
        --rate 0.5 --minimum 50 --epsilon 8 --delta 1e-5
    """
    from shoal.deployment import keys
    from shoal.deployment.analyst import Analyst
    from shoal.deployment.task import Task

    agreed = Task(
        name=task,
        dimension=dimension,
        clip=clip,
        sigma=sigma,
        rate=rate,
        minimum=minimum,
        epsilon=epsilon,
        delta=delta,
        crowd=crowd,
        corrupt=corrupt,
    )
    settings = task_options.analyst_settings(agreed, rounds=rounds, epoch=epoch, maximum=maximum, step=step, keep=keep)
    start = None if model is None else np.load(model, allow_pickle=False)
    with closing(Analyst.create(folder, settings, model=start)) as analyst:
        node = analyst.node()
        (folder / "node.toml").write_text(node.to_toml())
        signing_key = keys.public_text(analyst.signer.public_key())
        fingerprint = analyst.fingerprint.hex()
    print(f"Rounds: {settings.rounds} at most, with {settings.epochs} keys. Signing key: {signing_key}")
    print(f"Fingerprint of node.toml: {fingerprint}")
    print(f"For the shuffler: {folder}/password. For registrar and nodes: {folder}/node.toml. Keep the rest secret.")


def admit_command(
    folder: task_options.Folder,
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", help="A file from the registrar.", show_default=False)],
) -> None:
    """Add a roster, so that its nodes are counted. The analyst must not be running."""
    with _analyst(folder, "open") as analyst:
        admitted = analyst.admit(roster)
    print(f"Fingerprint of the roster: {admitted.fingerprint}")
    print(f"{admitted.nodes} nodes may report in rounds {admitted.first} to {admitted.last}.")


def restore_command(
    folder: task_options.Folder,
    after: Annotated[int, typer.Option(metavar="ROUND", help="The last round whose model was right.")],
) -> None:
    """Go back to an earlier model; the ledger stays. The analyst must not be running."""
    with _analyst(folder, "open") as analyst:
        analyst.restore(after)
        print(f"Round {analyst.next_round} starts from the model as it was after round {after}.")


def skip_command(
    folder: task_options.Folder,
    to: Annotated[int, typer.Option(metavar="ROUND", help="The round to continue with.")],
) -> None:
    """After restoring a backup, charge the ledger for the rounds closed since, at their worst-case cost."""
    with _analyst(folder, "recover") as analyst:
        before = analyst.next_round
        analyst.skip(to)
    print(f"{to - before} rounds were charged with the smallest crowd. The next round is {to}.")


def backup_command(
    folder: task_options.Folder,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder for the backup.", show_default=False)],
    keys: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the keys of this and later epochs. [default: not backed up]"),
    ] = None,
) -> None:
    """Back up the folder, without keys that open reports; these go elsewhere."""
    from shoal.deployment.analyst.backup import back_up

    with _analyst(folder, "read") as analyst:
        back_up(analyst, target, key_folder=keys)
        print(f"Backup after {analyst.next_round - 1} rounds: {target}. Keys: {keys or 'not backed up'}.")


def serve_command(
    folder: task_options.Folder,
    certificate: Annotated[Path, typer.Option(metavar="FILE", help="TLS certificate (PEM).")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="Its private key (PEM).")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8443,
) -> None:
    """Run the analyst. Stopping it at any time loses nothing."""
    from shoal.deployment.analyst.service import serve_analyst

    for file in (certificate, key):
        if not file.is_file():
            raise InvalidInput(f"{file} must be a file in PEM format")
    with _analyst(folder, "open") as analyst:
        serve_analyst(analyst, host=host, port=port, certificate=certificate, key=key)


def status_command(folder: task_options.Folder, as_json: opt.Json = False) -> None:
    """Show the ledger: rounds, users, and epsilon for both crowds."""
    from shoal.cli.ledger_view import ledger_view

    with _analyst(folder, "read") as analyst:
        ledger = ledger_view(analyst)
    ledger.show(as_json=as_json)


def export_command(
    folder: task_options.Folder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write (.npy).")] = Path("model.npy"),
) -> None:
    """Write the current model, as one vector, to a file."""
    with _analyst(folder, "read") as analyst:
        number, vector = analyst.present()
    np.save(out, vector)
    print(f"Model after {number - 1} rounds: {out}")
