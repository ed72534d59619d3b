"""Train the runs of `shoal reproduce frontier` and keep what is small of them.

    python tools/frontier.py RESULTS [--data-dir DIR] [--epsilon E ...] [--seeds N] [--central] [--plain]

Each run is that of `shoal train --preset mnist --epsilon E --seed S --evaluate-every 50 --checkpoint-every 50`, whose
configuration and metrics are kept in RESULTS/epsilon-E/seed-S. What is there already is not trained again.
`--central` trains the same model on the same features by Opacus, as a trusted server would at the same epsilon, and
`--plain` without privacy; their test accuracy goes to RESULTS/opacus.jsonl and plain.json.
`--summary src/shoal/reproduction/frontier.json` writes what the package shows.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from pathlib import Path

import torch

from shoal import PoissonSampling, calibrate, training
from shoal.cli.training import recipes
from shoal.training import features
from shoal.training.plan import OUTPUT_NOISE

EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0)
CLIP, RATE, STEPS = 0.1, 0.2, 400
"""Of the central runs: 12,000 records a step on average. The noise of the mean is then within 2% of the least there is,
that of one release of everybody's sum; at a rate of 0.05 it would be 17% above at epsilon = 3."""


def shuffled(mnist: training.Dataset, epsilon: float, seed: int, folder: Path) -> None:
    if (folder / "config.json").exists():
        return
    config = None
    for other in sorted(folder.parent.glob("seed-*/config.json")):  # the plan does not depend on the seed
        known = training.read_config(other.parent)
        config = training.Config(**{**vars(known), "seed": seed})
    if config is None:
        chosen = recipes.choose("mnist", {"data": None}, str(epsilon))
        rest = {"seed": seed, "evaluate_every": 50, "checkpoint_every": 50}
        config, _ = recipes.configure(chosen, mnist, None, str(epsilon), "any", **rest)
    began = time.perf_counter()
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    rows = training.train_run(training.start(config, mnist, partial), partial)
    for name in ("checkpoint.pt", "model.pt"):
        (partial / name).unlink()
    partial.rename(folder)
    print(
        f"epsilon {epsilon:g}, seed {seed}: sigma {config.mechanism.sigma:.5g}, {config.rounds} rounds, learning rate "
        f"{config.learning_rate:.4g}: {rows[-1].accuracy:.2%} in {time.perf_counter() - began:.0f} s",
        flush=True,
    )


def tensors(mnist: training.Dataset) -> tuple[torch.Tensor, ...]:
    return (
        features.histograms(mnist.train_images),
        torch.from_numpy(mnist.train_labels.astype("int64")),
        features.histograms(mnist.test_images),
        torch.from_numpy(mnist.test_labels.astype("int64")),
    )


def right(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == y).double().mean())


def central(data: tuple[torch.Tensor, ...], epsilon: float, seed: int, delta: float) -> dict[str, float]:
    """DP-SGD with a trusted server by Opacus, with the least noise by the exact law of Poisson sampling."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    sigma = calibrate.sigma(lambda s: PoissonSampling(sigma=s, rate=RATE), epsilon=epsilon, delta=delta, rounds=STEPS)
    x, y, test_x, test_y = data
    expected = RATE * len(x)
    noise = sigma / (expected * math.sqrt(STEPS))
    first = OUTPUT_NOISE * math.sqrt(3.0) / (CLIP * noise * STEPS)
    generator = torch.Generator().manual_seed(seed)
    layer = torch.nn.Linear(x.shape[1], 10, bias=False)
    torch.nn.init.zeros_(layer.weight)
    model = GradSampleModuleFastGradientClipping(layer, max_grad_norm=CLIP, use_ghost_clipping=True)
    optimiser = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=first),
        noise_multiplier=sigma,
        max_grad_norm=CLIP,
        expected_batch_size=expected,
        generator=generator,
    )
    loss = DPLossFastGradientClipping(model, optimiser, torch.nn.CrossEntropyLoss())
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = first * (1.0 - step / STEPS)
        chosen = torch.rand(len(x), generator=generator) < RATE
        optimiser.zero_grad()
        loss(model(x[chosen]), y[chosen]).backward()
        optimiser.step()
    return {
        "epsilon": epsilon,
        "seed": seed,
        "sigma": sigma,
        "rate": RATE,
        "steps": STEPS,
        "delta": delta,
        "accuracy": right(model, test_x, test_y),
    }


def plain(mnist: training.Dataset) -> dict[str, float]:
    """The same model without clipping or noise."""
    x, y, test_x, test_y = tensors(mnist)
    layer = torch.nn.Linear(x.shape[1], 10, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=150, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(layer(x), y)
        value.backward()
        return value

    optimiser.step(loss)
    return {"accuracy": right(layer, test_x, test_y)}


def summary(results: Path) -> dict[str, object]:
    """What `shoal reproduce frontier` shows of the runs."""
    shuffle = []
    for path in sorted(results.glob("epsilon-*/seed-*/config.json")):
        config, last = training.read_config(path.parent), training.read_metrics(path.parent)[-1]
        assert last.round == config.rounds == last.spent
        shuffle.append(
            {
                "epsilon": config.epsilon,
                "delta": config.delta,
                "seed": config.seed,
                "mechanism": config.mechanism.to_dict(),
                "rounds": config.rounds,
                "clip": config.clip,
                "learning_rate": config.learning_rate,
                "accuracy": last.accuracy,
            }
        )
    known = results / "opacus.jsonl"
    opacus = [json.loads(line) for line in known.read_text().splitlines()] if known.exists() else []
    return {"shuffle": shuffle, "opacus": opacus, "plain": json.loads((results / "plain.json").read_text())}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("results", type=Path)
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--central", action="store_true")
    options.add_argument("--plain", action="store_true")
    options.add_argument(
        "--summary", type=Path, metavar="FILE", help="write what is known to this file, and train nothing"
    )
    asked = options.parse_args()
    if asked.summary:
        asked.summary.write_text(json.dumps(summary(asked.results), indent=1) + "\n")
        return
    torch.set_num_threads(1)
    mnist = training.load("mnist", data_dir=asked.data_dir)
    asked.results.mkdir(parents=True, exist_ok=True)
    if asked.plain:
        (asked.results / "plain.json").write_text(json.dumps(plain(mnist)) + "\n")
    if asked.central:
        data = tensors(mnist)
        with open(asked.results / "opacus.jsonl", "w") as file:
            for seed in range(1, asked.seeds + 1):
                for epsilon in asked.epsilon:
                    file.write(json.dumps(central(data, epsilon, seed, 1 / 60_000)) + "\n")
                    file.flush()
    if asked.plain or asked.central:
        return
    for seed in range(1, asked.seeds + 1):
        for epsilon in asked.epsilon:
            shuffled(mnist, epsilon, seed, asked.results / f"epsilon-{epsilon:g}" / f"seed-{seed}")


if __name__ == "__main__":
    main()
