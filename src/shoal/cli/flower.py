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
    from shoal.integrations.flower.analyst import Analyst, Settings
    from shoal.integrations.flower.report import Task
    from shoal.integrations.flower.run import Machine

EPOCHS = 100
"""Keys that an analyst makes, if its rounds are not fewer."""
TRIAL_ROUNDS = 100
"""Rounds for which a trial run is set up, so that it can go on."""

analyst_app = typer.Typer(
    no_args_is_help=True,
    help="The analyst of a shuffle protocol: it holds the key, adds up the sealed reports and keeps the ledger.",
)
flower_app = typer.Typer(
    no_args_is_help=True,
    help="The shuffle protocol on Flower: what registrar, nodes and shuffler need, and a trial run.",
)
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
Minimum = Annotated[int | None, typer.Option(metavar="M", help="Fewest users of a round. [default: 3/4 of the nodes]")]
Corrupt = Annotated[
    int,
    typer.Option(metavar="K", help="Enrolled nodes that may be the shuffler's: the ledger does not count them."),
]
App = Annotated[
    Path | None, typer.Option(metavar="DIR", help="An app made with 'shoal flower new'. [default: the embedded digits]")
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
    minimum: Annotated[int, typer.Option(metavar="M", help="Fewest users of a round.")],
    maximum: Annotated[int, typer.Option(metavar="M", help="Most reports of a batch.")] = 1_000_000,
    crowd: Crowd = "any",
    corrupt: Corrupt = 0,
    step: Step = 1.0,
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

    shoal analyst init home --task t --dimension 9 --clip 1 --sigma 2 --rate 0.5 --minimum 50 --epsilon 8 --delta 1e-5
    """
    import numpy as np

    from shoal.integrations.flower.analyst import Analyst
    from shoal.integrations.flower.report import Task

    terms = Task(
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
    settings = _settings(terms, rounds=rounds, epoch=epoch, maximum=maximum, step=step, keep=keep)
    analyst = Analyst.create(folder, settings, model=None if model is None else np.load(model, allow_pickle=False))
    node = analyst.node()
    (folder / "node.toml").write_text(node.to_toml())
    print(f"Rounds: {settings.rounds} at most, with {settings.epochs} keys. Signing key: {_public(analyst)}")
    print(f"For the shuffler: {folder}/password. For registrar and nodes: {folder}/node.toml. The rest is for nobody.")
    analyst.close()


def _public(analyst: Analyst) -> str:
    from shoal.integrations.flower import keys

    return keys.public_text(analyst.signer.public_key())


def _settings(task: Task, *, rounds: int | None = None, epoch: int | None = None, **more: Any) -> Settings:
    """Settings with as many rounds as the budget allows, and no more than are asked for."""
    from shoal.integrations.flower.analyst import Settings

    allowed = task.rounds(rounds)
    return Settings(task=task, rounds=allowed, epoch=epoch or -(-allowed // EPOCHS), **more)


@analyst_app.command()
@_flower_command
def admit(
    folder: Folder,
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", help="A file from the registrar.", show_default=False)],
) -> None:
    """Take in a roster: from then on its nodes can be counted. The analyst must not be running."""
    from contextlib import closing

    from shoal.integrations.flower.analyst import Analyst

    with closing(Analyst(folder)) as analyst:
        found = analyst.admit(roster)
    print(f"{found.nodes} nodes may report in rounds {found.first} to {found.last}.")


@analyst_app.command()
@_flower_command
def restore(
    folder: Folder,
    after: Annotated[int, typer.Option(metavar="ROUND", help="The round after which the model was right.")],
) -> None:
    """Go back to an earlier model; the ledger stays. The analyst must not be running."""
    from contextlib import closing

    from shoal.integrations.flower.analyst import Analyst

    with closing(Analyst(folder)) as analyst:
        analyst.restore(after)
        print(f"Round {analyst.next_round} starts from the model as it was after round {after}.")


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

    analyst = Analyst(folder, reading=True)
    budget, rows = analyst.settings.task, analyst.rounds()
    spent = {c: analyst.accountant(c).epsilon(delta=budget.delta) for c in ("identical", "any")}
    trust = budget.mechanism(users=budget.minimum).trust
    if as_json:
        show.emit_json(
            {
                "task": budget.name,
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
    show.table(f"{budget.name}: δ = {show.plain(budget.delta)}, {budget.crowd} crowd, so far", heads, cells)
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

    number, vector = Analyst(folder, reading=True).present()
    np.save(out, vector)
    print(f"Model after {number - 1} rounds: {out}")


@flower_app.command()
@_flower_command
def enrol(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The registrar's folder.", show_default=False)],
    node: Annotated[Path, typer.Option(metavar="FILE", help="The analyst's node.toml.")],
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes that are enrolled in all.")],
    first: Annotated[int, typer.Option(metavar="ROUND", help="First round of the roster.")] = 1,
    last: Annotated[
        int | None, typer.Option(metavar="ROUND", help="Last round of the roster. [default: the last in node.toml]")
    ] = None,
) -> None:
    """The registrar's work: a secret for every node, and a roster for the analyst."""
    from shoal.integrations.flower import tokens
    from shoal.integrations.flower.node import Node

    terms = Node.read(node)
    end = terms.rounds if last is None else last
    roster, new = tokens.enrol(folder, task=terms.task, nodes=nodes, first=first, last=end)
    print(f"For the analyst: {roster} ({roster.stat().st_size / 2**20:.1f} MiB). For nodes: {len(new)} new secrets.")
    print(f"Once they are handed out, forget {folder}/secrets and, unless more nodes are to follow, the whole folder.")


@flower_app.command("join")
@_flower_command
def join_node(
    node: Annotated[Path, typer.Argument(metavar="FILE", help="The node's own node.toml.", show_default=False)],
) -> None:
    """The node's first step: check the terms, derive the number of rounds, take in the secret."""
    from shoal.integrations.flower.node import Node, join

    settings = Node.read(node)
    state, task = join(settings), settings.task
    print(
        f"This node answers rounds 1 to {state.rounds}: with at least {task.minimum} users in each they cost "
        f"epsilon <= {task.epsilon:g} at delta = {task.delta:g} ({task.crowd} crowd, zero-out adjacency)."
    )
    print(f"Its secret is in {settings.state} now and nowhere else: without that folder the node cannot report.")


@flower_app.command()
@_flower_command
def proxy(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for nginx's files.", show_default=False)],
    certificate: Annotated[Path, typer.Option(metavar="FILE", help="TLS certificate (PEM).")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="Its private key (PEM).")],
    authority: Annotated[
        Path, typer.Option(metavar="FILE", help="The authority of the SuperLink's certificate (PEM).")
    ],
    name: Annotated[str, typer.Option(help="A name in the SuperLink's certificate.")] = "localhost",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    superlink: Annotated[int, typer.Option(help="The SuperLink's port on loopback.")] = 9000,
    rate: Annotated[int, typer.Option(help="Requests a second from one address.")] = 100,
    connections: Annotated[int, typer.Option(help="Connections from one address.")] = 200,
) -> None:
    """Write nginx's configuration: nodes reach the SuperLink, strangers do not."""
    from shoal.integrations.flower import link

    path = link.write(
        folder,
        host=host,
        port=port,
        superlink=superlink,
        name=name,
        certificate=certificate,
        key=key,
        authority=authority,
        rate=rate,
        connections=connections,
    )
    print(f"flower-superlink --host 127.0.0.1 --port {superlink} --enable-supernode-auth ...")
    print(f"nginx -e stderr -p {path.parent} -c {path}")


@flower_app.command()
@_flower_command
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The app's folder and name.", show_default=False)],
) -> None:
    """A Flower app to begin with: your model and your data go into one file of it.

    Example:

    shoal flower new my-app
    """
    from shoal.integrations.flower import template

    template.write(folder)
    package = folder.resolve().name.replace("-", "_")
    print(f"Your model and data: {folder / package / 'model.py'}. Try it: shoal flower simulate --app {folder}")


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
    app: App = None,
    folder: Home = Path("out/flower-simulation"),
) -> None:
    """Nodes in Flower's simulation engine, with noise that is fast and protects nobody; the rest is real."""
    from shoal.integrations.flower import run

    terms = {"clip": clip, "sigma": sigma, "rate": rate, "epsilon": epsilon, "delta": delta, "crowd": crowd}
    settings = _demo(app, nodes, rounds, minimum, step, noise="simulation", **terms)
    machine = run.Machine(folder=folder, rounds=rounds, timeout=timeout, app=app)
    print("Simulation: the nodes' noise comes from numpy's generator and protects nobody.")
    with run.simulation(machine, settings, nodes=nodes):
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
    app: App = None,
    folder: Home = Path("out/flower-deployment"),
) -> None:
    """SuperLink, proxy, SuperNodes and analyst as real processes with TLS on loopback, and secure noise."""
    from shoal.integrations.flower import run

    terms = {"clip": clip, "sigma": sigma, "rate": rate, "epsilon": epsilon, "delta": delta, "crowd": crowd}
    settings = _demo(app, nodes, rounds, minimum, step, **terms)
    machine = run.Machine(folder=folder, rounds=rounds, timeout=timeout, app=app)
    if run.nginx() is None:
        print("nginx was not found: the nodes reach the SuperLink directly, and so would anybody on this machine.")
    with run.deployment(machine, settings, nodes=nodes):
        _watch(machine, [])


def _demo(app: Path | None, nodes: int, rounds: int, minimum: int | None, step: float, **terms: Any) -> Settings:
    from shoal.integrations.flower import digits, template
    from shoal.integrations.flower.report import Task

    # A terminated command must take its processes with it, as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if nodes < 2:
        raise ValueError(f"nodes must be at least 2, got {nodes}")
    if app is None and nodes > digits.data().users:
        raise ValueError(f"nodes must lie between 2 and the number of images ({digits.data().users}), got {nodes}")
    fewest = max(2, nodes * 3 // 4) if minimum is None else minimum
    if not 2 <= fewest <= nodes:
        raise ValueError(f"minimum must lie between 2 and the number of nodes ({nodes}), got {fewest}")
    size = digits.dimension() if app is None else sum(a.size for a in template.starting_arrays(app).values())
    name = "digits" if app is None else app.resolve().name
    task = Task(name=name, dimension=size, minimum=fewest, **terms)
    return _settings(task, rounds=max(rounds, TRIAL_ROUNDS), step=step)


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
    with closing(Analyst(machine.analyst_home, reading=True)) as analyst:
        number, vector = analyst.present()
    if machine.app is None:
        show.say(
            f"Accuracy on {len(digits.data().test_labels)} test images after {number - 1} rounds: "
            f"{digits.accuracy(vector):.1%}."
        )
    status(machine.analyst_home)
