"""The command `shoal demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism
    from shoal.plots import Line

USERS = 60_000
SHOWN = (1, 7, 5_540)
"""Rounds of the paper's table and of its training."""


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the picture.")] = Path("out"),
) -> None:
    """The privacy of the paper's three protocols at the paper's parameters, with a picture."""
    from shoal import Shuffle, ShuffledCheckIn, SubsampledShuffle
    from shoal.cli import show
    from shoal.plots import check, draw

    picture = check(out / "epsilon_vs_rounds.png")
    protocols: list[Mechanism] = [
        Shuffle(users=USERS, sigma=9.48),
        SubsampledShuffle(users=USERS, sample=6_000, sigma=5.0),
        ShuffledCheckIn(users=USERS, rate=0.1, sigma=5.0),
    ]
    found = [_curve(m, crowd) for m in protocols for crowd in ("identical", "any")]
    cells, lines = [cells for cells, _ in found], [line for _, line in found]
    heads = ["protocol", "crowd", *(f"ε ≤ at T = {t:,}" for t in SHOWN)]
    show.table(f"The paper's three protocols after T rounds: δ = 1/{USERS:,}, zero-out adjacency", heads, cells)
    for m in protocols:
        show.say(f"{m.label}: {m.settings}; {m.trust}")
    show.say(
        "Identical crowd: all other users hold the same vector, as the paper assumes without proof. Any crowd: "
        "nothing is assumed. Method: certified upper bounds, both directions; for the identical crowd within "
        "0.1% of the truth."
    )
    title = f"Privacy of {USERS:,} users' reports after T rounds\nzero-out adjacency, δ = 1/{USERS:,}"
    show.say_where(draw(lines, picture, title=title, xlabel="rounds T", ylabel="ε (upper bound)"))


def _curve(m: Mechanism, crowd: str) -> tuple[list[str], Line]:
    """A row of the table, and the same as a curve."""
    from shoal.cli import parse, show
    from shoal.plots import Line

    x = parse.log_spaced(1, SHOWN[-1], list(SHOWN), 60 if crowd == "identical" else 4)
    answers = m.replace(crowd=crowd).epsilon(delta=1 / USERS, rounds=x)
    upper = {t: answer.upper for t, answer in zip(x, answers, strict=True)}
    name = show.crowd_name(crowd)
    line = Line(label=f"{m.label}, {name} crowd", x=x, upper=list(upper.values()))
    return [m.label, name, *(show.rounded(upper[t]) for t in SHOWN)], line
