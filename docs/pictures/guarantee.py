"""Draw epsilon against sigma for every crowd: python docs/pictures/guarantee.py writes docs/images/guarantee*.png."""

from pathlib import Path
from unittest import mock

import numpy as np

import shoal
from shoal.bounds.anycrowd import groups
from shoal.plots import Line, draw

USERS, DELTA = 1_000, 1e-6
SIGMAS = np.geomspace(0.5, 10.0, 25).tolist()
IMAGES = Path(__file__).parents[1] / "images"


def without_groups(m: shoal.Shuffle) -> float:
    """What the theorem says without its refinements; a sigma of its own, as laws are kept."""
    with mock.patch.object(groups, "plan", return_value=None):
        return float(m.replace(sigma=m.sigma * (1.0 - 1e-12)).epsilon(delta=DELTA).upper)


def epsilons() -> None:
    local, plain, anyone, opposite, identical = [], [], [], [], []
    for sigma in SIGMAS:
        m = shoal.Shuffle(users=USERS, sigma=sigma)
        bracket = m.epsilon(delta=DELTA)
        local.append(shoal.LocalGaussian(sigma=sigma).epsilon(delta=DELTA).upper)
        plain.append(without_groups(m))
        anyone.append(bracket.upper)
        opposite.append(bracket.lower)
        identical.append(m.replace(crowd="identical").epsilon(delta=DELTA).upper)
    draw(
        [
            Line(label="no shuffler (local)", x=SIGMAS, upper=local),
            Line(label="any crowd, the theorem alone", x=SIGMAS, upper=plain),
            Line(label="any crowd, with groups: the guarantee", x=SIGMAS, upper=anyone, lower=opposite),
            Line(label="all others identical", x=SIGMAS, upper=identical),
        ],
        IMAGES / "guarantee.png",
        title=f"One round of {USERS:,} users, zero-out, δ = {DELTA:g}",
        xlabel="noise multiplier σ",
        ylabel="ε",
        note="The lower edge of the band: all others opposite.",
    )


def ratios() -> None:
    """Both bounds over the lower end, for few users and for many."""
    sigmas = [sigma for sigma in SIGMAS if sigma >= 1.0]
    lines = []
    for users in (USERS, 60_000):
        alone, together = [], []
        for sigma in sigmas:
            m = shoal.Shuffle(users=users, sigma=sigma)
            bracket = m.epsilon(delta=DELTA)
            alone.append(without_groups(m) / bracket.lower)
            together.append(bracket.upper / bracket.lower)
        lines.append(Line(label=f"{users:,} users, theorem alone", x=sigmas, upper=alone))
        lines.append(Line(label=f"{users:,} users, with groups", x=sigmas, upper=together))
    lines.append(Line(label="all others opposite", x=sigmas, upper=[1.0] * len(sigmas)))
    draw(
        lines,
        IMAGES / "guarantee_ratio.png",
        title=f"ε of any crowd over that of the opposite one, δ = {DELTA:g}",
        xlabel="noise multiplier σ",
        ylabel="ratio",
        logarithmic="x",
    )


if __name__ == "__main__":
    epsilons()
    ratios()
