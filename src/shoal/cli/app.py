"""The list of commands: where each is, and the first sentence of its help."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.lazy import PLAIN, Table, group_class

CALIBRATE: Table = {
    "sigma": ("calibrate:sigma_command", "The least noise multiplier that meets a target."),
    "rounds": ("calibrate:rounds_command", "The largest number of rounds that meets a target."),
    "users": ("calibrate:users_command", "The smallest number of users that meets a target."),
}

ANALYST: Table = {
    "init": (
        "analyst:init_command",
        "Set up an analyst: keys, password, settings, and a node.toml for registrar and nodes.",
    ),
    "admit": (
        "analyst:admit_command",
        "Add a roster, so that its nodes are counted. The analyst must not be running.",
    ),
    "restore": (
        "analyst:restore_command",
        "Go back to an earlier model; the ledger stays. The analyst must not be running.",
    ),
    "skip": (
        "analyst:skip_command",
        "After restoring a backup, charge the ledger for the rounds closed since, at their worst-case cost.",
    ),
    "backup": ("analyst:backup_command", "Back up the folder, without keys that open reports; these go elsewhere."),
    "serve": ("analyst:serve_command", "Run the analyst. Stopping it at any time loses nothing."),
    "status": ("analyst:status_command", "Show the ledger: rounds, users, and epsilon for both crowds."),
    "model": ("analyst:export_command", "Write the current model, as one vector, to a file."),
}

FLOWER: Table = {
    "enrol": ("flower:enrol_command", "Registrar: make a secret for each node, and a roster for the analyst."),
    "join": (
        "flower:join_command",
        "Node, first step: check the terms, derive the number of rounds, and take in the secret.",
    ),
    "node": ("flower:node_command", "Node: run a SuperNode, and start it again whenever it ends."),
    "sign": ("flower:sign_command", "Sign an app, so that nodes whose owners trust the key run this app and no other."),
    "gate": (
        "flower:gate_command",
        "Shuffler: run the gate, which nginx asks whether a request comes from a known node.",
    ),
    "proxy": (
        "flower:proxy_command",
        "Write nginx's configuration, by which nodes reach the SuperLink and strangers do not.",
    ),
    "new": (
        "flower:new_command",
        "Write a Flower app to start from; your model and your data go into one of its files.",
    ),
    "simulate": (
        "flower:simulate_command",
        "Run nodes in Flower's simulation engine, with fast noise that protects nobody; all else is real.",
    ),
    "deploy": (
        "flower:deploy_command",
        "Run SuperLink, proxy, SuperNodes and analyst as real processes, with TLS on loopback and secure noise.",
    ),
}

COMMANDS: Table = {
    "epsilon": ("epsilon:epsilon_command", "Epsilon after a number of rounds."),
    "delta": ("delta:delta_command", "Delta at a given epsilon."),
    "rdp": ("rdp:rdp_command", "The Rényi DP curve in both directions, and the worse of the two."),
    "tradeoff": (
        "tradeoff:tradeoff_command",
        "The highest true positive rate of any attack at a given false positive rate.",
    ),
    "curve": (
        "curve:curve_command",
        "The whole privacy curve as a file: delta by epsilon, and TPR by FPR, both ends of each.",
    ),
    "compare": (
        "compare:compare_command",
        "All methods side by side for one setting, each with its ratio to the least epsilon.",
    ),
    "explore": (
        "explore:explore_command",
        "Open a page with sliders, pictures and sentences, and the calls that give the same numbers.",
    ),
    "record": (
        "record:record_command",
        "Write a guarantee as a record that others can check.",
    ),
    "worth": (
        "worth:worth_command",
        "The noise that another tool really adds, and the epsilon that it really gives.",
    ),
    "demo": (
        "demo:demo_command",
        "Show how private 60,000 users are under four protocols with the same noise, with a picture.",
    ),
    "audit": ("audit:audit_command", "Attack simulated rounds, and report the epsilon that the attacks prove."),
    "train": (
        "train:train_command",
        "Train a model under a protocol, on images with one user each, or on your own records.",
    ),
    "reproduce": (
        "reproduce:reproduce_command",
        "Recompute the paper's table and figures, and check them against the printed numbers.",
    ),
    "calibrate": (CALIBRATE, "The least noise, the most rounds or the fewest users for a target."),
    "analyst": (
        ANALYST,
        "The analyst of a shuffle protocol: it holds the key, adds up the sealed reports and keeps the ledger.",
    ),
    "flower": (
        FLOWER,
        "The shuffle protocol on Flower: what registrar, nodes and shuffler need, and trial runs.",
    ),
}

app = typer.Typer(
    name="shoal",
    cls=group_class(COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    **PLAIN,
    help="How private are shuffled Gaussian reports?\n\n"
    "Each user adds Gaussian noise to a vector and sends it to a shuffler. The shuffler permutes the reports and "
    "passes them on to a server that nobody needs to trust.\n\n"
    "Mechanisms: local (no shuffler), shuffle, sequential (one user after the other, in a secret order), subsampled "
    "(m of n users per round), check-in (each user takes part with some probability), secure-sum (the server sees "
    "the sum alone). DP-SGD with a trusted server: shuffled-epochs (a loader with shuffle=True), poisson, fixed-batch, "
    "balls-and-bins (each record in one batch of an epoch by itself), allocation.\n\n"
    "Start with:\n\n"
    "\b\nshoal epsilon check-in --users 60000 --rate 0.1 --sigma 5 \\\n"
    "    --delta 1e-5 --rounds 1,100,5540\n\n"
    "\b\nshoal compare shuffle --users 60000 --sigma 9.48 --delta 1/60000 --rounds 7",
)


def _print_version(is_given: bool) -> None:
    if is_given:
        from shoal import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass
