"""Draw what Poisson accounting claims against the truth of `shuffle=True`.

python docs/pictures/shuffled_epochs.py writes docs/images/shuffled-epochs.png.
"""

from pathlib import Path

import numpy as np

import shoal
from shoal.plots import Line, draw

STEPS, DELTA = 1_000, 1e-6
SIGMAS = np.geomspace(0.4, 4.0, 24).tolist()


def main() -> None:
    lower, upper, claimed = [], [], []
    for sigma in SIGMAS:
        m = shoal.ShuffledEpochs(steps=STEPS, sigma=sigma)
        bracket = m.epsilon(delta=DELTA)
        lower.append(bracket.lower)
        upper.append(bracket.upper)
        claimed.append(m.claimed(delta=DELTA).upper)
        print(f"sigma {sigma:.3f}: {claimed[-1]:.4g}, truth between {lower[-1]:.4g} and {upper[-1]:.4g}")
    draw(
        [
            Line(label="shuffled epochs: at most", x=SIGMAS, upper=upper),
            Line(label="shuffled epochs: at least (attack)", x=SIGMAS, upper=lower),
            Line(label="claimed by Poisson accounting", x=SIGMAS, upper=claimed),
        ],
        Path(__file__).parents[1] / "images" / "shuffled-epochs.png",
        title=f"One epoch of {STEPS:,} steps, zero-out, δ = {DELTA:g}",
        xlabel="noise multiplier σ",
        ylabel="ε",
    )


if __name__ == "__main__":
    main()
