"""The command `shoal demo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import parse, screen, view
from shoal.formatting import rounded
from shoal.mechanisms import LocalGaussian, Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.plots import Line, Panel, check, draw_panels
from shoal.query import Intervals

DEMO_USERS, DEMO_SIGMA = 60_000, 5.0
ROUNDS_IN_TABLE = (1, 100, 5_540)
"""The last is that of the paper's training."""

POINTS_IN_PICTURE = 12

PROTOCOLS_SHOWN: dict[str, Mechanism] = {
    "no shuffler": LocalGaussian(sigma=DEMO_SIGMA),
    "shuffle: all report": Shuffle(users=DEMO_USERS, sigma=DEMO_SIGMA),
    "subsampled: 6,000 are drawn": SubsampledShuffle(users=DEMO_USERS, sample=6_000, sigma=DEMO_SIGMA),
    "check-in: each with probability 0.1": ShuffledCheckIn(users=DEMO_USERS, rate=0.1, sigma=DEMO_SIGMA),
}
CHECK_IN = "check-in: each with probability 0.1"

Answers = Mapping[tuple[str, str | None], Intervals]
"""Epsilon against rounds, by protocol and crowd."""


def demo_command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the picture.")] = Path("out"),
) -> None:
    """Show how private 60,000 users are under four protocols with the same noise, with a picture."""
    picture = check(out / "epsilon_vs_rounds.png")
    x = parse.log_spaced(1, ROUNDS_IN_TABLE[-1], list(ROUNDS_IN_TABLE), POINTS_IN_PICTURE)
    answers: dict[tuple[str, str | None], Intervals] = {}
    for name, m in PROTOCOLS_SHOWN.items():
        for crowd in ("any", "identical") if m.crowd_matters else (None,):
            variant = m if crowd is None else m.replace(crowd=crowd)
            with screen.working(variant.label):
                answers[name, crowd] = variant.epsilon(delta=1 / DEMO_USERS, rounds=x)
    setting = f"{DEMO_USERS:,} users, σ = {DEMO_SIGMA:g}, δ = 1/{DEMO_USERS:,}, zero-out adjacency"
    # The table shows some of the points that the picture needs anyway.
    cells = [
        [
            name.split(":")[0],
            view.crowd_words(crowd),
            *(rounded(epsilons.upper[x.index(rounds)]) for rounds in ROUNDS_IN_TABLE),
        ]
        for (name, crowd), epsilons in answers.items()
    ]
    heads = ["protocol", "crowd", *(f"ε ≤, {view.rounds_words(rounds)}" for rounds in ROUNDS_IN_TABLE)]
    screen.print_table(setting, heads, cells)
    for name, m in PROTOCOLS_SHOWN.items():
        screen.print_text(f"{name.split(':')[0].capitalize()}: {m.settings}; {m.trust}.")
    screen.print_text(
        "Any crowd: nothing is assumed about the other users' vectors. Identical crowd: all other users are assumed "
        "to hold the same vector. All numbers are certified upper bounds for both directions."
    )
    statement = PROTOCOLS_SHOWN[CHECK_IN].statement(delta=1 / DEMO_USERS, rounds=ROUNDS_IN_TABLE[-1])
    screen.print_text(statement.plain())
    drawn = draw_panels(_panels(x, answers), picture, note=f"{setting}. Certified upper bounds.")
    screen.print_path("Picture", drawn)


def _panels(x: Sequence[int], answers: Answers) -> list[Panel]:
    """Two panels, as lines that differ by a tenth need an axis of their own: the gain, and the price of any crowd."""
    gains, prices = [], []
    for look, name in enumerate(PROTOCOLS_SHOWN):
        has_crowd = (name, None) not in answers
        upper = answers[name, "any" if has_crowd else None].upper
        gains.append(Line(label=name, x=x, upper=upper.tolist(), look=look))
        if has_crowd:
            ratio = upper / answers[name, "identical"].upper
            prices.append(Line(label=name, x=x, upper=ratio.tolist(), look=look))
    return [
        Panel(lines=gains, title=f"What a shuffler gains, any crowd\nσ = {DEMO_SIGMA:g}", xlabel="rounds", ylabel="ε"),
        Panel(
            lines=prices,
            title=f"What it costs to assume nothing\nσ = {DEMO_SIGMA:g}",
            xlabel="rounds",
            ylabel="ε of any crowd / ε of an identical one",
            logarithmic="x",
        ),
    ]
