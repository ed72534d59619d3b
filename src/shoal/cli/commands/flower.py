"""The commands `shoal flower …`."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import screen
from shoal.cli.commands import task_options
from shoal.errors import InvalidInput
from shoal.mechanisms import ShuffledCheckIn

# The deployment is an extra: the help of these commands does without it.
if TYPE_CHECKING:
    from shoal.deployment.analyst import Settings
    from shoal.deployment.local_machine import Machine

TRIAL_ROUNDS, SPARE_ROUNDS = 100, 5
"""Rounds for which a trial is set up, so that it can continue; and those that its budget has to spare."""

WEAK_EPSILON = 5.0
"""Above this epsilon a trial says that it protects nobody: e^5 = 148."""


def enrol_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The registrar's folder.", show_default=False)],
    node: Annotated[Path, typer.Option(metavar="FILE", help="The analyst's node.toml.")],
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of nodes that are enrolled in all.")],
    first: Annotated[int, typer.Option(metavar="ROUND", help="First round of the roster.")] = 1,
    last: Annotated[
        int | None, typer.Option(metavar="ROUND", help="Last round of the roster. [default: the last in node.toml]")
    ] = None,
    revoke: Annotated[
        list[int] | None,
        typer.Option(metavar="NUMBER", help="A node that the roster leaves out, by its secret's number; repeatable."),
    ] = None,
) -> None:
    """Registrar: make a secret for each node, and a roster for the analyst."""
    from shoal.deployment import tokens
    from shoal.deployment.node import Node

    settings = Node.read(node)
    end = settings.rounds if last is None else last
    roster, secrets = tokens.enrol_nodes(
        folder, task=settings.task, nodes=nodes, first=first, last=end, revoked=revoke or ()
    )
    print(f"Fingerprint of node.toml: {settings.fingerprint.hex()}")
    print(f"Fingerprint of the roster: {tokens.Roster.read(roster).fingerprint}")
    size = roster.stat().st_size / 2**20
    print(f"For the analyst: {roster} ({size:.1f} MiB). For nodes: {len(secrets)} new secrets.")
    print(f"Once they are handed out, delete {folder}/secrets, and the whole folder unless more nodes will follow.")


def join_command(
    node: Annotated[Path, typer.Argument(metavar="FILE", help="The node's own node.toml.", show_default=False)],
) -> None:
    """Node, first step: check the terms, derive the number of rounds, and take in the secret."""
    from shoal.deployment.node import Node
    from shoal.deployment.state import join_task

    settings = Node.read(node)
    state, task = join_task(settings), settings.task
    statement = task.mechanism(users=task.minimum).statement(delta=task.delta, rounds=state.rounds)
    print(f"Fingerprint of node.toml: {settings.fingerprint.hex()}")
    screen.print_text(
        f"This node answers rounds 1 to {state.rounds}, if at least {task.minimum} users take part. For all of them:"
    )
    screen.print_text(statement.sentence())
    print(f"Its secret is now in {settings.state} and nowhere else: without that folder the node cannot report.")


def node_command(
    node: Annotated[Path, typer.Argument(metavar="FILE", help="The node's own node.toml.", show_default=False)],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The proxy before the SuperLink.")],
    authority: Annotated[Path, typer.Option(metavar="FILE", help="The authority of its certificate (PEM).")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The node's private key (ssh-keygen -t ecdsa).")],
    trusted: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keys whose signature an app must carry. [default: any app may run]"),
    ] = None,
    part: Annotated[int, typer.Option(help="Which part of the data is this node's, for apps that ask.")] = 0,
    parts: Annotated[int, typer.Option(help="Number of parts.")] = 1,
) -> None:
    """Node: run a SuperNode, and start it again whenever it ends."""
    from shoal.deployment.supernode import keep_running, supernode_command

    def command() -> list[str]:
        return supernode_command(
            node, superlink=superlink, authority=authority, key=key, part=part, parts=parts, trusted=trusted
        )

    command()  # a file that is missing is an error now
    keep_running(command)


def sign_command(
    app: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder.", show_default=False)],
    key: Annotated[Path, typer.Option(metavar="FILE", help="A private key (ssh-keygen -t ed25519).")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("app.json"),
) -> None:
    """Sign an app, so that nodes whose owners trust the key run this app and no other."""
    from shoal.deployment import gate

    signature = gate.sign_app(app, key, signed_at=int(time.time()))
    out.write_text(signature.to_json())
    print(f"SHA-256 of the app: {signature.digest}")
    print(f"For the gate's folder 'signatures': {out}. For each node, in the file of --trusted:")
    print(signature.trust)


def gate_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with nodes/*.pub.", show_default=False)],
    authority: Annotated[
        Path, typer.Option(metavar="FILE", help="The authority of the SuperLink's certificate (PEM).")
    ],
    name: Annotated[str, typer.Option(help="A name in the SuperLink's certificate.")] = "localhost",
    port: Annotated[int, typer.Option(help="Port on loopback, which nginx asks.")] = 9001,
    superlink: Annotated[int, typer.Option(help="The SuperLink's port on loopback.")] = 9000,
    polls: Annotated[float, typer.Option(help="Polls per second that reach the SuperLink.")] = 40.0,
) -> None:
    """Shuffler: run the gate, which nginx asks whether a request comes from a known node."""
    from shoal.deployment.gate import serve_gate

    serve_gate(folder, port=port, superlink=superlink, authority=authority, name=name, polls=polls)


def proxy_command(
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
    gate: Annotated[int, typer.Option(help="The gate's port on loopback.")] = 9001,
    rate: Annotated[int, typer.Option(help="Requests per second from one address.")] = 100,
    connections: Annotated[int, typer.Option(help="Connections from one address.")] = 200,
) -> None:
    """Write nginx's configuration, by which nodes reach the SuperLink and strangers do not."""
    from shoal.deployment import link

    path = link.write_proxy(
        folder,
        host=host,
        port=port,
        superlink=superlink,
        gate=gate,
        name=name,
        certificate=certificate,
        key=key,
        authority=authority,
        rate=rate,
        connections=connections,
    )
    print(f"flower-superlink --host 127.0.0.1 --port {superlink} --enable-supernode-auth ...")
    print(f"shoal flower gate gate --port {gate} --superlink {superlink} --authority {authority}")
    print(f"nginx -e stderr -p {path.parent} -c {path}")


def new_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The app's folder and name.", show_default=False)],
) -> None:
    """Write a Flower app to start from; your model and your data go into one of its files.

    Example:

    \b
    shoal flower new my-app
    """
    from shoal.deployment import template

    template.write_app(folder)
    package = folder.resolve().name.replace("-", "_")
    print(f"Your model and data: {folder / package / 'model.py'}. Try it: shoal flower simulate --app {folder}")


def simulate_command(
    nodes: task_options.TrialNodes = 100,
    rounds: task_options.TrialRounds = 10,
    clip: task_options.Clip = 1.0,
    sigma: task_options.Sigma = 0.5,
    rate: task_options.Rate = 0.5,
    epsilon: task_options.TrialEpsilon = None,
    delta: task_options.BudgetDelta = 1e-5,
    crowd: task_options.BudgetCrowd = "any",
    step: task_options.Step = 1.0,
    minimum: task_options.TrialMinimum = None,
    timeout: task_options.TrialTimeout = 600.0,
    app: task_options.TrialApp = None,
    folder: task_options.TrialFolder = Path("out/flower-simulation"),
) -> None:
    """Run nodes in Flower's simulation engine, with fast noise that protects nobody; all else is real."""
    from shoal.deployment import local_machine

    terms = {"clip": clip, "sigma": sigma, "rate": rate, "epsilon": epsilon, "delta": delta, "crowd": crowd}
    settings = _trial_settings(app, nodes, rounds, minimum, step, noise="simulation", **terms)
    machine = local_machine.Machine(folder=folder, rounds=rounds, timeout=timeout, app=app)
    print("Simulation: the nodes' noise comes from numpy's generator and protects nobody.")
    with local_machine.simulation(machine, settings, nodes=nodes):
        _follow_run(machine, ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"])


def deploy_command(
    nodes: task_options.TrialNodes = 4,
    rounds: task_options.TrialRounds = 5,
    clip: task_options.Clip = 1.0,
    sigma: task_options.Sigma = 0.5,
    rate: task_options.Rate = 0.75,
    epsilon: task_options.TrialEpsilon = None,
    delta: task_options.BudgetDelta = 1e-5,
    crowd: task_options.BudgetCrowd = "any",
    step: task_options.Step = 1.0,
    minimum: task_options.TrialMinimum = None,
    timeout: task_options.TrialTimeout = 60.0,
    app: task_options.TrialApp = None,
    folder: task_options.TrialFolder = Path("out/flower-deployment"),
) -> None:
    """Run SuperLink, proxy, SuperNodes and analyst as real processes, with TLS on loopback and secure noise."""
    from shoal.deployment import local_machine

    terms = {"clip": clip, "sigma": sigma, "rate": rate, "epsilon": epsilon, "delta": delta, "crowd": crowd}
    settings = _trial_settings(app, nodes, rounds, minimum, step, **terms)
    machine = local_machine.Machine(folder=folder, rounds=rounds, timeout=timeout, app=app)
    if local_machine.nginx() is None:
        print("nginx was not found: the nodes reach the SuperLink directly, as anybody on this machine could.")
    with local_machine.deployment(machine, settings, nodes=nodes):
        _follow_run(machine, [])


def _trial_settings(
    app: Path | None, nodes: int, rounds: int, minimum: int | None, step: float, **terms: Any
) -> Settings:
    """Return the settings of a trial on this machine, with a budget for its rounds unless one is given."""
    from shoal.deployment import digits, template
    from shoal.deployment.task import Task

    # A terminated command must take its processes with it, as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if nodes < 2:
        raise InvalidInput(f"nodes must be at least 2, got {nodes}")
    if app is None and nodes > digits.data().users:
        raise InvalidInput(f"nodes must lie between 2 and the number of images ({digits.data().users}), got {nodes}")
    smallest = max(2, nodes * 3 // 4) if minimum is None else minimum
    if not 2 <= smallest <= nodes:
        raise InvalidInput(f"minimum must lie between 2 and the number of nodes ({nodes}), got {smallest}")
    if terms["epsilon"] is None:
        terms["epsilon"] = trial_budget(smallest, rounds, terms)
    print(protection_words(terms))
    if app is None:
        name, dimension = "digits", digits.dimension()
    else:
        arrays = template.read_starting_arrays(app)
        name, dimension = app.resolve().name, sum(array.size for array in arrays.values())
    task = Task(name=name, dimension=dimension, minimum=smallest, **terms)
    return task_options.analyst_settings(task, rounds=max(rounds, TRIAL_ROUNDS), step=step)


def trial_budget(users: int, rounds: int, terms: Mapping[str, Any]) -> float:
    """Return an epsilon for the rounds of a trial with its smallest crowd, and for some that are repeated.

    Args:
      users: The smallest number of users in a round.
      rounds: The number of rounds.
      terms: The terms of the task.
    """
    from shoal.deployment.task import counted_users

    m = ShuffledCheckIn(users=counted_users(users), rate=terms["rate"], sigma=terms["sigma"], crowd=terms["crowd"])
    cost = m.epsilon(delta=terms["delta"], rounds=rounds + SPARE_ROUNDS, accuracy=0.01).upper
    return float(math.ceil(cost)) if cost > 1.0 else float(f"{1.05 * cost:.2g}")


def protection_words(terms: Mapping[str, Any]) -> str:
    """Return a trial's budget in words, and a warning if it protects nobody."""
    budget = terms["epsilon"]
    words = f"The budget is epsilon = {budget:g} at delta = {terms['delta']:g}."
    if budget > WEAK_EPSILON:
        words += " Nobody should accept that as protection: a trial shows how it works. Raise --sigma, or --nodes."
    return words


def _follow_run(machine: Machine, options: list[str]) -> None:
    """Submit the run, show each round as it closes, and its result."""
    from shoal.cli.ledger_view import ledger_view
    from shoal.deployment import digits, local_machine
    from shoal.deployment.analyst import Analyst

    screen.print_text(f"Everything is kept in {machine.folder}; logs are in {machine.folder / 'logs'}.")
    local_machine.follow(
        machine,
        machine.submit(*options),
        lambda row: screen.print_text(f"round {row['round']}: {row['answer']['guarantee']}"),
    )
    with closing(Analyst.read(machine.analyst_home)) as analyst:
        number, vector = analyst.present()
        ledger = ledger_view(analyst)
    if machine.app is None:
        screen.print_text(
            f"Accuracy on {len(digits.data().test_labels)} test images after {number - 1} rounds: "
            f"{digits.digits_accuracy(vector):.1%}."
        )
    ledger.print()
