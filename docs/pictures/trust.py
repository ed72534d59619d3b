"""Draw what the same noise is worth under four kinds of trust.

python docs/pictures/trust.py writes docs/images/trust.png.
"""

from pathlib import Path

import numpy as np

import shoal
from shoal.literature.compare import deployments
from shoal.plots import Line, band, draw

USERS, SURVIVORS, DELTA, ROUNDS = 10_000, 8_000, 1e-6, 100
SIGMAS = np.geomspace(0.7, 20.0, 24).tolist()


def mechanisms(sigma: float) -> dict[str, shoal.Mechanism]:
    """The four mechanisms at one noise multiplier of a report, with whom they need to trust."""
    deployed = deployments(shoal.Shuffle(users=USERS, sigma=sigma))
    return {
        "local: trust nobody": deployed["no shuffler"],
        "shuffled: the shuffler": shoal.Shuffle(users=SURVIVORS, sigma=sigma),
        "secure sum: the aggregation": deployed["secure sum"].replace(survivors=SURVIVORS),
        "central: the server": deployed["central noise"],
    }


def main() -> None:
    lines: list[Line] = []
    for label in mechanisms(SIGMAS[0]):
        brackets = [mechanisms(sigma)[label].epsilon(delta=DELTA, rounds=ROUNDS) for sigma in SIGMAS]
        lines.append(band(label, SIGMAS, brackets))
        print(f"{label}: {brackets[0]:.4g} to {brackets[-1]:.4g}")
    draw(
        lines,
        Path(__file__).parents[1] / "images" / "trust.png",
        title=f"{ROUNDS} rounds, {USERS:,} users, {SURVIVORS:,} arrive; δ = {DELTA:g}",
        xlabel="noise multiplier σ of one report",
        ylabel="ε",
    )


if __name__ == "__main__":
    main()
