"""The list of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.commands.analyst import admit, export, init, restore, serve, skip, status
from shoal.cli.commands.audit import audit
from shoal.cli.commands.calibrate import rounds, sigma, users
from shoal.cli.commands.compare import compare
from shoal.cli.commands.delta import delta
from shoal.cli.commands.demo import demo
from shoal.cli.commands.epsilon import epsilon
from shoal.cli.commands.explore import explore
from shoal.cli.commands.flower import deploy, enrol, join, new, proxy, simulate
from shoal.cli.commands.rdp import rdp
from shoal.cli.commands.reproduce import reproduce
from shoal.cli.commands.tradeoff import tradeoff
from shoal.cli.commands.train import train
from shoal.cli.commands.worth import worth
from shoal.cli.registry import add, group

app = group(
    name="shoal",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="How private are shuffled Gaussian reports?\n\n"
    "Each user adds Gaussian noise to a vector and sends it to a shuffler, which hands the reports, "
    "permuted, to a server that nobody trusts.\n\n"
    "Mechanisms: local (no shuffler), shuffle, subsampled (m of n users a round), check-in (each user "
    "takes part on its own coin), balls-and-bins (central noise, one random batch per epoch); "
    "DP-SGD with a trusted server: poisson, fixed-batch, allocation, shuffled-epochs.\n\n"
    "Start with:\n\n"
    "\b\nshoal epsilon check-in --users 60000 --rate 0.1 --sigma 5 \\\n"
    "    --delta 1e-5 --rounds 1,100,5540\n\n"
    "\b\nshoal compare shuffle --users 60000 --sigma 9.48 --delta 1/60000 --rounds 7",
)
calibrate = group(help="The least noise, the most rounds or the fewest users for a target.")
analyst = group(
    help="The analyst of a shuffle protocol: it holds the key, adds up the sealed reports and keeps the ledger."
)
flower = group(help="The shuffle protocol on Flower: what registrar, nodes and shuffler need, and a trial run.")


def _version(wanted: bool) -> None:
    if wanted:
        from shoal import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


add(app, epsilon, delta, rdp, tradeoff, compare, explore, worth, demo, audit, train, reproduce)
add(calibrate, sigma, rounds, users)
add(analyst, init, admit, restore, skip, serve, status)
add(analyst, export, name="model")
add(flower, enrol, join, proxy, new, simulate, deploy)
app.add_typer(calibrate, name="calibrate")
app.add_typer(analyst, name="analyst")
app.add_typer(flower, name="flower")
