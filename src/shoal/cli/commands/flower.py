"""The commands `shoal flower …`."""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands import terms
from shoal.cli.commands.analyst import status
from shoal.errors import InvalidInput

if TYPE_CHECKING:
    from shoal.deployment.analyst import Settings
    from shoal.deployment.local_machine import Machine

TRIAL_ROUNDS, TRIAL_SPARE = 100, 5
"""Rounds for which a trial run is set up, so that it can go on; and those that its budget has to spare."""

WEAK = 5.0
"""Above this epsilon a trial says that it protects nobody: e^5 = 148."""


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
    from shoal.deployment import tokens
    from shoal.deployment.node import Node

    agreed = Node.read(node)
    end = agreed.rounds if last is None else last
    roster, new = tokens.enrol_nodes(folder, task=agreed.task, nodes=nodes, first=first, last=end)
    print(f"Fingerprint of node.toml: {agreed.fingerprint.hex()}")
    print(f"Fingerprint of the roster: {tokens.Roster.read(roster).fingerprint}")
    print(f"For the analyst: {roster} ({roster.stat().st_size / 2**20:.1f} MiB). For nodes: {len(new)} new secrets.")
    print(f"Once they are handed out, forget {folder}/secrets and, unless more nodes are to follow, the whole folder.")


def join(
    node: Annotated[Path, typer.Argument(metavar="FILE", help="The node's own node.toml.", show_default=False)],
) -> None:
    """The node's first step: check the terms, derive the number of rounds, take in the secret."""
    from shoal.cli import show
    from shoal.deployment.node import Node
    from shoal.deployment.state import join_task

    settings = Node.read(node)
    state, task = join_task(settings), settings.task
    print(f"Fingerprint of node.toml: {settings.fingerprint.hex()}")
    show.say(f"This node answers rounds 1 to {state.rounds}, if at least {task.minimum} users take part. All of them:")
    show.say(task.mechanism(users=task.minimum).statement(delta=task.delta, rounds=state.rounds).sentence())
    print(f"Its secret is in {settings.state} now and nowhere else: without that folder the node cannot report.")


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
    from shoal.deployment import link

    path = link.write_proxy(
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


def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The app's folder and name.", show_default=False)],
) -> None:
    """A Flower app to begin with: your model and your data go into one file of it.

    Example:

    \b
    shoal flower new my-app
    """
    from shoal.deployment import template

    template.write_app(folder)
    package = folder.resolve().name.replace("-", "_")
    print(f"Your model and data: {folder / package / 'model.py'}. Try it: shoal flower simulate --app {folder}")


def simulate(
    nodes: terms.TrialNodes = 100,
    rounds: terms.TrialRounds = 10,
    clip: terms.Clip = 1.0,
    sigma: terms.Sigma = 0.5,
    rate: terms.Rate = 0.5,
    epsilon: terms.TrialEpsilon = None,
    delta: terms.AgreedDelta = 1e-5,
    crowd: terms.AgreedCrowd = "any",
    step: terms.Step = 1.0,
    minimum: terms.Minimum = None,
    timeout: terms.Timeout = 600.0,
    app: terms.TrialApp = None,
    folder: terms.Home = Path("out/flower-simulation"),
) -> None:
    """Nodes in Flower's simulation engine, with noise that is fast and protects nobody; the rest is real."""
    from shoal.deployment import local_machine

    agreed = {"clip": clip, "sigma": sigma, "rate": rate, "epsilon": epsilon, "delta": delta, "crowd": crowd}
    settings = _trial(app, nodes, rounds, minimum, step, noise="simulation", **agreed)
    machine = local_machine.Machine(folder=folder, rounds=rounds, timeout=timeout, app=app)
    print("Simulation: the nodes' noise comes from numpy's generator and protects nobody.")
    with local_machine.simulation(machine, settings, nodes=nodes):
        _watch(machine, ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"])


def deploy(
    nodes: terms.TrialNodes = 4,
    rounds: terms.TrialRounds = 5,
    clip: terms.Clip = 1.0,
    sigma: terms.Sigma = 0.5,
    rate: terms.Rate = 0.75,
    epsilon: terms.TrialEpsilon = None,
    delta: terms.AgreedDelta = 1e-5,
    crowd: terms.AgreedCrowd = "any",
    step: terms.Step = 1.0,
    minimum: terms.Minimum = None,
    timeout: terms.Timeout = 60.0,
    app: terms.TrialApp = None,
    folder: terms.Home = Path("out/flower-deployment"),
) -> None:
    """SuperLink, proxy, SuperNodes and analyst as real processes with TLS on loopback, and secure noise."""
    from shoal.deployment import local_machine

    agreed = {"clip": clip, "sigma": sigma, "rate": rate, "epsilon": epsilon, "delta": delta, "crowd": crowd}
    settings = _trial(app, nodes, rounds, minimum, step, **agreed)
    machine = local_machine.Machine(folder=folder, rounds=rounds, timeout=timeout, app=app)
    if local_machine.nginx() is None:
        print("nginx was not found: the nodes reach the SuperLink directly, and so would anybody on this machine.")
    with local_machine.deployment(machine, settings, nodes=nodes):
        _watch(machine, [])


def _trial(app: Path | None, nodes: int, rounds: int, minimum: int | None, step: float, **agreed: Any) -> Settings:
    from shoal.deployment import digits, template
    from shoal.deployment.task import Task

    # A terminated command must take its processes with it, as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if nodes < 2:
        raise InvalidInput(f"nodes must be at least 2, got {nodes}")
    if app is None and nodes > digits.data().users:
        raise InvalidInput(f"nodes must lie between 2 and the number of images ({digits.data().users}), got {nodes}")
    fewest = max(2, nodes * 3 // 4) if minimum is None else minimum
    if not 2 <= fewest <= nodes:
        raise InvalidInput(f"minimum must lie between 2 and the number of nodes ({nodes}), got {fewest}")
    if agreed["epsilon"] is None:
        agreed["epsilon"] = _cost(fewest, rounds, agreed)
    _say_what_it_protects(agreed)
    size = digits.dimension() if app is None else sum(a.size for a in template.read_starting_arrays(app).values())
    name = "digits" if app is None else app.resolve().name
    task = Task(name=name, dimension=size, minimum=fewest, **agreed)
    return terms.settings(task, rounds=max(rounds, TRIAL_ROUNDS), step=step)


def _cost(users: int, rounds: int, agreed: dict[str, Any]) -> float:
    """A budget for the rounds of a trial with its smallest crowd, and for some that are tried again."""
    from shoal import ShuffledCheckIn
    from shoal.deployment.task import counted_users

    m = ShuffledCheckIn(users=counted_users(users), rate=agreed["rate"], sigma=agreed["sigma"], crowd=agreed["crowd"])
    spent = m.epsilon(delta=agreed["delta"], rounds=rounds + TRIAL_SPARE, accuracy=0.01).upper
    return float(math.ceil(spent)) if spent > 1.0 else float(f"{1.05 * spent:.2g}")


def _say_what_it_protects(agreed: dict[str, Any]) -> None:
    budget = agreed["epsilon"]
    words = f"The budget is epsilon = {budget:g} at delta = {agreed['delta']:g}."
    if budget > WEAK:
        words += " Nobody should accept that as protection: a trial shows how it works. Raise --sigma, or nodes."
    print(words)


def _watch(machine: Machine, options: list[str]) -> None:
    """Submit the run, show each round as it closes, and what came of it."""
    from contextlib import closing

    from shoal.cli import show
    from shoal.deployment import digits, local_machine
    from shoal.deployment.analyst import Analyst

    show.say(f"Everything is kept in {machine.folder}; logs in {machine.folder / 'logs'}.")
    local_machine.follow(
        machine, machine.submit(*options), lambda row: show.say(f"round {row['round']}: {row['answer']['guarantee']}")
    )
    with closing(Analyst.read(machine.analyst_home)) as analyst:
        number, vector = analyst.present()
    if machine.app is None:
        show.say(
            f"Accuracy on {len(digits.data().test_labels)} test images after {number - 1} rounds: "
            f"{digits.digits_accuracy(vector):.1%}."
        )
    status(machine.analyst_home)
