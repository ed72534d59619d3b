"""The protocol on Flower: `shoal analyst` and `shoal flower`."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.app import Json, _clear_errors, app

if TYPE_CHECKING:
    from shoal.integrations.flower.analyst import Settings
    from shoal.integrations.flower.run import Machine

analyst_app = typer.Typer(
    no_args_is_help=True,
    help="The analyst of a shuffle protocol: it holds the key, adds up the sealed reports and keeps the ledger.",
)
flower_app = typer.Typer(no_args_is_help=True, help="The whole protocol on this machine, on the embedded digits.")
app.add_typer(analyst_app, name="analyst")
app.add_typer(flower_app, name="flower")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The analyst's folder.", show_default=False)]
Sigma = Annotated[float, typer.Option(metavar="X", help="Noise multiplier: standard deviation / clipping norm.")]
Rate = Annotated[float, typer.Option(metavar="P", help="Probability of checking in.")]
Clip = Annotated[float, typer.Option(metavar="C", help="l2 norm to which a node's update is clipped.")]
Rounds = Annotated[int, typer.Option(metavar="T", help="Rounds.")]
Epsilon = Annotated[float, typer.Option(metavar="E", help="The budget: no round is opened that could exceed it.")]
Delta = Annotated[float, typer.Option(metavar="D", help="Delta of the budget.")]
Crowd = Annotated[str, typer.Option(metavar="any|identical", help="Crowd of the budget: what the others hold.")]
Step = Annotated[float, typer.Option(help="What the mean update is multiplied with.")]
Nodes = Annotated[int, typer.Option(metavar="N", help="Nodes, each with an equal share of the images.")]
Minimum = Annotated[
    int | None, typer.Option(metavar="M", help="Fewest reports of a round. [default: 3/4 of the nodes]")
]
Home = Annotated[Path, typer.Option(metavar="DIR", help="Folder for keys, settings, state and logs.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Time that nodes have for a round.")]


def _flower_command(function: Callable[..., None]) -> Callable[..., None]:
    """Bad input and missing packages end in one sentence."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except ModuleNotFoundError as error:
            raise ValueError(str(error)) from None

    return _clear_errors(wrapped)


@analyst_app.command()
@_flower_command
def init(
    folder: Folder,
    task: Annotated[str, typer.Option(help="Name of the task.")],
    dimension: Annotated[int, typer.Option(metavar="N", help="Numbers in the model.")],
    clip: Clip,
    sigma: Sigma,
    rate: Rate,
    epsilon: Epsilon,
    delta: Delta,
    minimum: Annotated[int, typer.Option(metavar="M", help="Fewest reports of a batch.")],
    maximum: Annotated[int, typer.Option(metavar="M", help="Most reports of a batch.")] = 1_000_000,
    crowd: Crowd = "any",
    step: Step = 1.0,
    rounds: Annotated[int, typer.Option(metavar="T", help="Rounds that node.toml suggests to the nodes.")] = 1_000,
    model: Annotated[Path | None, typer.Option(metavar="FILE", help="Model to start from (.npy). [default: 0]")] = None,
) -> None:
    """Set up an analyst: keys, token, settings, and a node.toml to hand to the nodes' owners.

    Example:

    shoal analyst init home --task t --dimension 9 --clip 1 --sigma 2 --rate 0.5 --minimum 50 --epsilon 8 --delta 1e-5
    """
    import numpy as np

    from shoal.integrations.flower.analyst import Analyst
    from shoal.integrations.flower.client import Node

    settings = _settings(task, dimension, clip, sigma, rate, epsilon, delta, crowd, minimum, maximum, step)
    analyst = Analyst.create(folder, settings, model=None if model is None else np.load(model, allow_pickle=False))
    node = Node(task=settings.task, key=analyst.key.public_key(), rounds=rounds, state=Path("shoal-state"))
    (folder / "node.toml").write_text(node.to_toml())
    print(f"Public key: {analyst.public_key}")
    print(f"Private: {folder}/analyst.key. For the shuffler: {folder}/token. For the nodes: {folder}/node.toml.")
    analyst.close()


def _settings(
    task: str,
    dimension: int,
    clip: float,
    sigma: float,
    rate: float,
    epsilon: float,
    delta: float,
    crowd: Any,
    minimum: int,
    maximum: int,
    step: float,
) -> Settings:
    from shoal.integrations.flower.analyst import Budget, Settings
    from shoal.integrations.flower.report import Task

    return Settings(
        task=Task(name=task, dimension=dimension, clip=clip, sigma=sigma, rate=rate),
        budget=Budget(epsilon=epsilon, delta=delta, crowd=crowd),
        minimum=minimum,
        maximum=maximum,
        step=step,
    )


@analyst_app.command()
@_flower_command
def serve(
    folder: Folder,
    certificate: Annotated[Path, typer.Option(metavar="FILE", help="TLS certificate (PEM).")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="Its private key (PEM).")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8443,
) -> None:
    """Run the analyst; stopping it at any time loses nothing."""
    from shoal.integrations.flower.analyst import Analyst
    from shoal.integrations.flower.service import serve as run

    for file in (certificate, key):
        if not file.is_file():
            raise ValueError(f"{file} must be a file in PEM format")
    run(Analyst(folder), host=host, port=port, certificate=certificate, key=key)


@analyst_app.command()
@_flower_command
def status(folder: Folder, as_json: Json = False) -> None:
    """The ledger: rounds, users, and epsilon for both crowds."""
    from shoal.cli import show
    from shoal.integrations.flower.analyst import Analyst

    analyst = Analyst(folder)
    budget, rows = analyst.settings.budget, analyst.rounds()
    spent = {c: analyst.accountant(c).epsilon(delta=budget.delta) for c in ("identical", "any")}
    trust = analyst.settings.task.mechanism(users=analyst.settings.minimum, crowd=budget.crowd).trust
    if as_json:
        show.emit_json(
            {
                "task": analyst.settings.task.name,
                "next_round": analyst.next_round,
                "delta": budget.delta,
                "budget": {"epsilon": budget.epsilon, "crowd": budget.crowd},
                "epsilon": {c: show.interval(e) for c, e in spent.items()},
                "rounds": rows,
                "ledger": analyst.accountant().state_dict(),
            }
        )
        return
    cells = [
        [str(r["round"]), f"{r['users']:,}", f"{sum(r['refused'].values()):,}", *show.bounds(r["answer"]["epsilon"])]
        for r in rows
    ]
    heads = ["round", "users", "refused", "ε ≥", "ε ≤"]
    show.table(
        f"{analyst.settings.task.name}: δ = {show.plain(budget.delta)}, {budget.crowd} crowd, so far", heads, cells
    )
    for crowd, epsilon in spent.items():
        show.say(
            f"{len(rows)} rounds are ({show.rounded(epsilon.upper)}, {show.plain(budget.delta)})-differentially "
            f"private for zero-out adjacency and {crowd} crowd; {trust}."
        )
    show.say(f"Budget: ε = {show.plain(budget.epsilon)} for {budget.crowd} crowd.")


@analyst_app.command("model")
@_flower_command
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it (.npy).")] = Path("model.npy"),
) -> None:
    """Write the present model, as one vector, to a file."""
    import numpy as np

    from shoal.integrations.flower.analyst import Analyst

    number, vector = Analyst(folder).present()
    np.save(out, vector)
    print(f"Model after {number - 1} rounds: {out}")


@flower_app.command()
@_flower_command
def simulate(
    nodes: Nodes = 100,
    rounds: Rounds = 10,
    clip: Clip = 1.0,
    sigma: Sigma = 0.5,
    rate: Rate = 0.5,
    epsilon: Epsilon = 1_000.0,
    delta: Delta = 1e-5,
    crowd: Crowd = "any",
    step: Step = 1.0,
    minimum: Minimum = None,
    timeout: Timeout = 600.0,
    folder: Home = Path("out/flower-simulation"),
) -> None:
    """Nodes in Flower's simulation engine, with noise that is fast and protects nobody; the rest is real."""
    from shoal.integrations.flower import run

    settings = _demo(nodes, clip, sigma, rate, epsilon, delta, crowd, step, minimum)
    machine = run.Machine(folder=folder, rounds=rounds, timeout=timeout)
    print("Simulation: the nodes' noise comes from numpy's generator and protects nobody.")
    with run.simulation(machine, settings):
        _watch(machine, ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"])


@flower_app.command()
@_flower_command
def deploy(
    nodes: Nodes = 4,
    rounds: Rounds = 5,
    clip: Clip = 1.0,
    sigma: Sigma = 0.5,
    rate: Rate = 0.75,
    epsilon: Epsilon = 1_000.0,
    delta: Delta = 1e-5,
    crowd: Crowd = "any",
    step: Step = 1.0,
    minimum: Minimum = None,
    timeout: Timeout = 60.0,
    folder: Home = Path("out/flower-deployment"),
) -> None:
    """SuperLink, SuperNodes and analyst as real processes with TLS on loopback, and secure noise."""
    from shoal.integrations.flower import run

    settings = _demo(nodes, clip, sigma, rate, epsilon, delta, crowd, step, minimum)
    machine = run.Machine(folder=folder, rounds=rounds, timeout=timeout)
    with run.deployment(machine, settings, nodes=nodes):
        _watch(machine, [])


def _demo(
    nodes: int,
    clip: float,
    sigma: float,
    rate: float,
    epsilon: float,
    delta: float,
    crowd: str,
    step: float,
    minimum: int | None,
) -> Settings:
    from shoal.integrations.flower import digits

    # A terminated command must take its processes with it, as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if not 2 <= nodes <= digits.data().users:
        raise ValueError(f"nodes must lie between 2 and the number of images ({digits.data().users}), got {nodes}")
    fewest = max(2, nodes * 3 // 4) if minimum is None else minimum
    if not 2 <= fewest <= nodes:
        raise ValueError(f"minimum must lie between 2 and the number of nodes ({nodes}), got {fewest}")
    size = digits.dimension()
    return _settings("digits", size, clip, sigma, rate, epsilon, delta, crowd, fewest, 1_000_000, step)


def _watch(machine: Machine, options: list[str]) -> None:
    """Submit the run, show each round as it closes, and what came of it."""
    from contextlib import closing

    from shoal.cli import show
    from shoal.integrations.flower import digits, run
    from shoal.integrations.flower.analyst import Analyst

    show.say(f"Everything is kept in {machine.folder}; logs in {machine.folder / 'logs'}.")
    run.follow(
        machine, machine.submit(*options), lambda row: show.say(f"round {row['round']}: {row['answer']['guarantee']}")
    )
    with closing(Analyst(machine.analyst_home)) as analyst:
        number, vector = analyst.present()
    show.say(
        f"Accuracy on {len(digits.data().test_labels)} test images after {number - 1} rounds: "
        f"{digits.accuracy(vector):.1%}."
    )
    status(machine.analyst_home)
