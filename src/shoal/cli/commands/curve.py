"""The command `shoal curve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal import _validate, curves
from shoal._written import number
from shoal.cli import options as opt
from shoal.cli import screen
from shoal.cli.mechanism_options import Described, describes_mechanism
from shoal.errors import InvalidInput
from shoal.formatting import rounded, short

SUFFIXES = (".csv", ".json")


def _checked_file(value: Path | None) -> Path | None:
    if value is not None and value.suffix not in SUFFIXES:
        raise InvalidInput(f"out must end in {' or '.join(SUFFIXES)}, got {str(value)!r}")
    return value


@describes_mechanism
def curve_command(
    *,
    described: Described,
    rounds: opt.RoundsOption = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to this file (.csv or .json). [default: print CSV]")
    ] = None,
    reveal: Annotated[
        str, typer.Option(metavar="D", help="Probability of revealing that the Gaussian may have, beside the curve.")
    ] = "1e-9",
) -> None:
    """The whole privacy curve as a file: delta by epsilon, and TPR by FPR, both ends of each.

    Examples:

    \b
    shoal curve shuffle --users 1000 --sigma 2 --crowd identical --out curve.csv

    \b
    shoal curve poisson --rate 0.01 --sigma 1 --rounds 1000 --out curve.json
    """
    file, count = _checked_file(out), _validate.rounds(number("rounds", rounds))
    if crowd == "both":
        raise InvalidInput("crowd must be any or identical for a curve, got 'both'")
    # Without a crowd, of both the one that assumes nothing.
    m = described.variants(crowd, adjacency)[-1]
    with screen.working(m.label):
        curve = curves.privacy_curve(m, rounds=count)
        fit = curves.gaussian_fit(m, rounds=count, reveal=number("reveal", reveal))
    if file is None:
        print(curve.to_csv(), end="")
        return
    if file.suffix == ".csv":
        text = curve.to_csv()
    else:
        facts = {"mechanism": m.to_dict(), "rounds": count, "assumption": m.assumption, "protocol": m.protocol}
        gaussian = {"mu": fit.mu, "reveal": fit.reveal, "regret": fit.regret}
        text = json.dumps({**facts, "trust": m.trust, "gaussian": gaussian, **curve.to_dict()}, indent=2) + "\n"
    file.write_text(text, encoding="utf-8")
    screen.print_text(
        f"Every test is at most as powerful as against Gaussian DP with μ = {rounded(fit.mu)} that reveals everything "
        f"with probability {short(fit.reveal)}; this overstates by at most {rounded(fit.regret, digits=2)} in both "
        f"rates. Assuming that {m.protocol}, and {m.assumption}; {m.trust}."
    )
    screen.print_path("Curve", file)
