"""Draw epsilon against sigma for every crowd: python docs/pictures/guarantee.py writes docs/images/guarantee.png."""

from pathlib import Path

import numpy as np

import shoal
from shoal.plots import Line, draw

USERS, DELTA = 1_000, 1e-6
SIGMAS = np.geomspace(0.5, 10.0, 25).tolist()


def main() -> None:
    local, anyone, opposite, identical = [], [], [], []
    for sigma in SIGMAS:
        m = shoal.Shuffle(users=USERS, sigma=sigma)
        bracket = m.epsilon(delta=DELTA)
        local.append(shoal.LocalGaussian(sigma=sigma).epsilon(delta=DELTA).upper)
        anyone.append(bracket.upper)
        opposite.append(bracket.lower)
        identical.append(m.replace(crowd="identical").epsilon(delta=DELTA).upper)
        print(f"sigma {sigma:.3f}: {local[-1]:.5g} {anyone[-1]:.5g} {opposite[-1]:.5g} {identical[-1]:.5g}")
    draw(
        [
            Line(label="no shuffler (local)", x=SIGMAS, upper=local),
            Line(label="any crowd: the guarantee", x=SIGMAS, upper=anyone),
            Line(label="all others opposite: at least this much", x=SIGMAS, upper=opposite),
            Line(label="all others identical", x=SIGMAS, upper=identical),
        ],
        Path(__file__).parents[1] / "images" / "guarantee.png",
        title=f"One round of {USERS:,} users, zero-out, δ = {DELTA:g}",
        xlabel="noise multiplier σ",
        ylabel="ε",
    )


if __name__ == "__main__":
    main()
