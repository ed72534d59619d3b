"""The command `shoal demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism
    from shoal.plots import Panel
    from shoal.query import Intervals

USERS, SIGMA = 60_000, 5.0
SHOWN = (1, 100, 5_540)
"""Numbers of rounds in the table; the last is that of the paper's training."""

POINTS = 12
"""Numbers of rounds in the picture."""


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the picture.")] = Path("out"),
) -> None:
    """How private the reports of 60,000 users are under three protocols with the same noise, with a picture."""
    from shoal import LocalGaussian, Shuffle, ShuffledCheckIn, SubsampledShuffle
    from shoal.cli import parse, show
    from shoal.plots import check, draw_panels

    picture = check(out / "epsilon_vs_rounds.png")
    x = parse.log_spaced(1, SHOWN[-1], list(SHOWN), POINTS)
    protocols: dict[str, Mechanism] = {
        "no shuffler": LocalGaussian(sigma=SIGMA),
        "shuffle: all report": Shuffle(users=USERS, sigma=SIGMA),
        "subsampled: 6,000 are drawn": SubsampledShuffle(users=USERS, sample=6_000, sigma=SIGMA),
        "check-in: each on a coin, 0.1": ShuffledCheckIn(users=USERS, rate=0.1, sigma=SIGMA),
    }
    found: dict[tuple[str, str | None], Intervals] = {}
    for name, m in protocols.items():
        for crowd in ("any", "identical") if m.crowd_matters else (None,):
            asked = m if crowd is None else m.replace(crowd=crowd)
            with show.busy(asked):
                found[name, crowd] = asked.epsilon(delta=1 / USERS, rounds=x)
    # Some of the points that the picture needs anyway: the table costs nothing more.
    cells = []
    for (name, crowd), answers in found.items():
        upper = (show.rounded(answers.upper[x.index(t)]) for t in SHOWN)
        cells.append([name.split(":")[0], show.crowd_name(crowd), *upper])
    heads = ["protocol", "crowd", *(f"ε ≤, {show.times(t)}" for t in SHOWN)]
    show.table(f"{USERS:,} users, σ = {SIGMA:g}, δ = 1/{USERS:,}, zero-out adjacency", heads, cells)
    for name, m in protocols.items():
        show.say(f"{name.split(':')[0].capitalize()}: {m.settings}; {m.trust}.")
    show.say(
        "Any crowd: nothing is assumed about what the other users hold. Identical crowd: all others hold the same "
        "vector, an assumption. All numbers are certified upper bounds for both directions."
    )
    check_in = protocols["check-in: each on a coin, 0.1"]
    show.say(check_in.statement(delta=1 / USERS, rounds=SHOWN[-1]).plain())
    note = f"{USERS:,} users, σ = {SIGMA:g}, δ = 1/{USERS:,}, zero-out adjacency. Upper bounds, certified."
    show.say_where(draw_panels(_panels(list(protocols), x, found), picture, note=note))


def _panels(names: list[str], x: list[int], found: dict[tuple[str, str | None], Intervals]) -> list[Panel]:
    """What the shuffler gains, and what is paid for assuming nothing: lines that differ by a tenth need an axis."""
    from shoal.plots import Line, Panel

    gains, costs = [], []
    for look, name in enumerate(names):
        alone = (name, None) in found
        upper = found[name, None if alone else "any"].upper
        gains.append(Line(label=name, x=x, upper=upper.tolist(), look=look))
        if not alone:
            ratio = upper / found[name, "identical"].upper
            costs.append(Line(label=name, x=x, upper=ratio.tolist(), look=look))
    return [
        Panel(lines=gains, title=f"What a shuffler gains, any crowd\nσ = {SIGMA:g}", xlabel="rounds", ylabel="ε"),
        Panel(
            lines=costs, title=f"What it costs to assume nothing\nσ = {SIGMA:g}", xlabel="rounds",
            ylabel="ε of any crowd / ε of an identical one", logarithmic="x",
        ),
    ]  # fmt: skip
