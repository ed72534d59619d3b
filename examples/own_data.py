"""Your own data and model: scikit-learn's handwritten digits, one image for each user, at a chosen epsilon.

    pip install scikit-learn
    python examples/own_data.py [--epsilon 1]

1,797 images of 8 x 8 pixels (Alpaydin and Kaynak 1998): 1,438 users hold one each, and the others are for the test. No
statistic of the data costs privacy: each user centres its own image and scales it to length 1. The noise is the
smallest that keeps all rounds within epsilon, whatever the other users hold.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import shoal
from shoal import training
from shoal.training.plan import linear_rate

DELTA, ROUNDS, CLIP = 1e-5, 400, 0.1


def records() -> training.Records:
    x, y = load_digits(return_X_y=True)
    x = x - x.mean(axis=1, keepdims=True)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    test = np.arange(len(y)) % 5 == 4
    return training.Records(
        name="digits of 8 x 8",
        train_inputs=x[~test].astype(np.float32),
        train_labels=y[~test],
        test_inputs=x[test].astype(np.float32),
        test_labels=y[test],
    )


def main(epsilon: float = 1.0, seed: int | None = None) -> float:
    data = records()
    model = torch.nn.Linear(64, 10, bias=False)
    torch.nn.init.zeros_(model.weight)
    everybody = shoal.Shuffle(users=data.users, sigma=1.0)  # any crowd; sigma is what the plan chooses
    chosen = training.plan(everybody, users=data.users, epsilon=epsilon, delta=DELTA, rounds=ROUNDS)
    rate = linear_rate(chosen.mechanism, users=data.users, rounds=ROUNDS, clip=CLIP)  # features have length 1
    config = training.Config(
        mechanism=chosen.mechanism,
        rounds=ROUNDS,
        delta=DELTA,
        epsilon=epsilon,
        clip=CLIP,
        learning_rate=rate,
        evaluate_every=ROUNDS,
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        last = training.train(model, data, config=config, folder=Path(folder) / "run")[-1]
    print(f"{data.users:,} users, {ROUNDS} rounds, sigma = {chosen.mechanism.sigma:.3f}: within epsilon = {epsilon:g}")
    print(f"accuracy on {len(data.test_labels)} other images: {last.accuracy:.1%}")
    return last.accuracy


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--epsilon", type=float, default=1.0)
    main(options.parse_args().epsilon)
