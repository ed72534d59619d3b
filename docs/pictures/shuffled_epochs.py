"""Draw what `shuffle=True` gives beside what Poisson accounting claims, over the noise and over the steps.

python docs/pictures/shuffled_epochs.py writes docs/images/shuffled-epochs.png.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import shoal
from shoal.plots import Line, Panel, band, draw_panels

DELTA = 1e-6
SIGMAS = np.geomspace(0.4, 4.0, 15).tolist()
STEPS = np.unique(np.geomspace(10, 100_000, 13).round().astype(int)).tolist()


def panel(epochs: Sequence[shoal.ShuffledEpochs], x: Sequence[float], *, title: str, xlabel: str) -> Panel:
    """One report in the clear, our bracket, and the claim of Poisson accounting."""
    brackets = [m.epsilon(delta=DELTA) for m in epochs]
    claimed = [m.claimed(delta=DELTA).upper for m in epochs]
    clear = [shoal.LocalGaussian(sigma=m.sigma).epsilon(delta=DELTA).upper for m in epochs]
    for m, bracket, claim in zip(epochs, brackets, claimed, strict=True):
        print(f"{m.steps} steps, sigma {m.sigma:.3f}: {claim:.4g}, truth in {bracket:.4g}", flush=True)
    lines = [
        Line(label="no amplification", x=x, upper=clear),
        band("shuffled epoch: the truth", x, brackets),
        Line(label="claimed by Poisson accounting", x=x, upper=claimed),
    ]
    return Panel(lines=lines, title=title, xlabel=xlabel, ylabel="ε")


def main() -> None:
    over_noise = [shoal.ShuffledEpochs(steps=1_000, sigma=sigma) for sigma in SIGMAS]
    over_steps = [shoal.ShuffledEpochs(steps=steps, sigma=1.0) for steps in STEPS]
    panels = [
        panel(over_noise, SIGMAS, title="1,000 steps", xlabel="noise multiplier σ"),
        panel(over_steps, STEPS, title="σ = 1", xlabel="steps of an epoch"),
    ]
    draw_panels(
        panels,
        Path(__file__).parents[1] / "images" / "shuffled-epochs.png",
        note=f"One epoch of shuffle=True, zero-out, δ = {DELTA:g}.",
    )


if __name__ == "__main__":
    main()
