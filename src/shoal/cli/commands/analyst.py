"""The commands `shoal analyst …`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import options as opt
from shoal.cli.commands import terms
from shoal.errors import InvalidInput

if TYPE_CHECKING:
    from shoal.deployment.analyst import Analyst
    from shoal.mechanisms import Crowd

CROWDS: tuple[Crowd, ...] = ("identical", "any")


def init(
    folder: terms.Folder,
    task: Annotated[str, typer.Option(help="Name of the task.")],
    dimension: Annotated[int, typer.Option(metavar="N", help="Numbers in the model.")],
    clip: terms.Clip,
    sigma: terms.Sigma,
    rate: terms.Rate,
    epsilon: terms.AgreedEpsilon,
    delta: terms.AgreedDelta,
    minimum: Annotated[int, typer.Option(metavar="M", help="Fewest users of a round.")],
    maximum: Annotated[int, typer.Option(metavar="M", help="Most reports of a batch.")] = 1_000_000,
    crowd: terms.AgreedCrowd = "any",
    corrupt: terms.Corrupt = 0,
    step: terms.Step = 1.0,
    rounds: Annotated[
        int | None, typer.Option(metavar="T", help="Rounds at most. [default: what the budget allows with M users]")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(metavar="T", help="Rounds that share a key. [default: a hundredth of all]")
    ] = None,
    keep: Annotated[int, typer.Option(metavar="K", help="Models that are kept, to go back to.")] = 5,
    model: Annotated[Path | None, typer.Option(metavar="FILE", help="Model to start from (.npy). [default: 0]")] = None,
) -> None:
    """Set up an analyst: keys, password, settings, and a node.toml to hand to registrar and nodes.

    Example:

    \b
    shoal analyst init home --task t --dimension 9 --clip 1 --sigma 2 \\
        --rate 0.5 --minimum 50 --epsilon 8 --delta 1e-5
    """
    import numpy as np

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
    settings = terms.settings(agreed, rounds=rounds, epoch=epoch, maximum=maximum, step=step, keep=keep)
    analyst = Analyst.create(folder, settings, model=None if model is None else np.load(model, allow_pickle=False))
    node = analyst.node()
    (folder / "node.toml").write_text(node.to_toml())
    print(f"Rounds: {settings.rounds} at most, with {settings.epochs} keys. Signing key: {_public(analyst)}")
    print(f"Fingerprint of node.toml: {analyst.fingerprint.hex()}")
    print(f"For the shuffler: {folder}/password. For registrar and nodes: {folder}/node.toml. The rest is for nobody.")
    analyst.close()


def _public(analyst: Analyst) -> str:
    from shoal.deployment import keys

    return keys.public_text(analyst.signer.public_key())


def admit(
    folder: terms.Folder,
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", help="A file from the registrar.", show_default=False)],
) -> None:
    """Take in a roster: from then on its nodes can be counted. The analyst must not be running."""
    from contextlib import closing

    from shoal.deployment.analyst import Analyst

    with closing(Analyst.open(folder)) as analyst:
        found = analyst.admit(roster)
    print(f"Fingerprint of the roster: {found.fingerprint}")
    print(f"{found.nodes} nodes may report in rounds {found.first} to {found.last}.")


def restore(
    folder: terms.Folder,
    after: Annotated[int, typer.Option(metavar="ROUND", help="The round after which the model was right.")],
) -> None:
    """Go back to an earlier model; the ledger stays. The analyst must not be running."""
    from contextlib import closing

    from shoal.deployment.analyst import Analyst

    with closing(Analyst.open(folder)) as analyst:
        analyst.restore(after)
        print(f"Round {analyst.next_round} starts from the model as it was after round {after}.")


def skip(
    folder: terms.Folder,
    to: Annotated[int, typer.Option(metavar="ROUND", help="The round to go on with.")],
) -> None:
    """After a backup was restored: enter the rounds closed since then in the ledger, as dear as they can have been."""
    from contextlib import closing

    from shoal.deployment.analyst import Analyst

    with closing(Analyst.recover(folder)) as analyst:
        before = analyst.next_round
        analyst.skip(to)
    print(f"{to - before} rounds were entered with the smallest crowd. Round {to} comes next.")


def serve(
    folder: terms.Folder,
    certificate: Annotated[Path, typer.Option(metavar="FILE", help="TLS certificate (PEM).")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="Its private key (PEM).")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8443,
) -> None:
    """Run the analyst; stopping it at any time loses nothing."""
    from contextlib import closing

    from shoal.deployment.analyst import Analyst
    from shoal.deployment.analyst.service import serve_analyst

    for file in (certificate, key):
        if not file.is_file():
            raise InvalidInput(f"{file} must be a file in PEM format")
    with closing(Analyst.open(folder)) as analyst:
        serve_analyst(analyst, host=host, port=port, certificate=certificate, key=key)


def status(folder: terms.Folder, as_json: opt.Json = False) -> None:
    """The ledger: rounds, users, and epsilon for both crowds."""
    from contextlib import closing

    from shoal.cli import show
    from shoal.deployment.analyst import Analyst

    # Of one state: an analyst that serves may close a round meanwhile.
    with closing(Analyst.read(folder)) as analyst, analyst.database.snapshot():
        budget, rows, waiting = analyst.settings.task, analyst.rounds(), analyst.next_round
        ledgers, own = {c: analyst.accountant(c) for c in CROWDS}, analyst.accountant()
    if as_json:
        show.emit_json(
            {
                "task": budget.name,
                "next_round": waiting,
                "delta": budget.delta,
                "budget": {"epsilon": budget.epsilon, "crowd": budget.crowd},
                "epsilon": {c: show.interval(a.epsilon(delta=budget.delta)) for c, a in ledgers.items()},
                "rounds": rows,
                "ledger": own.state_dict(),
            }
        )
        return
    cells = [
        [str(r["round"]), f"{r['users']:,}", f"{sum(r['refused'].values()):,}", *show.bounds(r["answer"]["epsilon"])]
        for r in rows
    ]
    heads = ["round", "users", "refused", "ε ≥", "ε ≤"]
    show.table(f"{budget.name}: δ = {show.plain(budget.delta)}, {budget.crowd} crowd, so far", heads, cells)
    for crowd, ledger in ledgers.items():
        told = ledger.statement(delta=budget.delta).sentence() if rows else "nothing is spent yet."
        show.say(f"{crowd.capitalize()} crowd: {told}")
    show.say(f"Budget: ε = {show.plain(budget.epsilon)} for {budget.crowd} crowd.")


def export(
    folder: terms.Folder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it (.npy).")] = Path("model.npy"),
) -> None:
    """Write the present model, as one vector, to a file."""
    from contextlib import closing

    import numpy as np

    from shoal.deployment.analyst import Analyst

    with closing(Analyst.read(folder)) as analyst:
        number, vector = analyst.present()
    np.save(out, vector)
    print(f"Model after {number - 1} rounds: {out}")
