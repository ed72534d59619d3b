"""Train with Opacus' PrivacyEngine, and compute the privacy of the distributed protocol that it simulates.

    python examples/opacus_training.py [--steps 100] [--sigma 1] [--rate 0.2]

Opacus sums clipped gradients and adds noise once. In the shuffled check-in each user adds noise of multiplier
sigma to its own report, so the sum of B reports carries noise of multiplier sqrt(B) sigma. Opacus gets this
multiplier here, and shoal's accountant converts it back and answers for the protocol. Runs on the digits that come
with shoal, in about a minute.
"""

import argparse
import itertools
import warnings

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from shoal.adapters.opacus import noise_multiplier, register
from shoal.training import load, networks
from shoal.training.randomness import Source

CLIP, DELTA = 0.01, 1e-5


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=100, help="rounds")
    options.add_argument("--sigma", type=float, default=1.0, help="noise multiplier of one report")
    options.add_argument("--rate", type=float, default=0.2, help="probability of checking in")
    asked = options.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Secure RNG turned off")
    warnings.filterwarnings("ignore", "Full backward hook is firing")

    digits = load("digits")
    users = digits.users
    register("check-in", users=users)  # whatever the other users hold
    register("check-in-identical", users=users, crowd="identical")
    noise = noise_multiplier(sigma=asked.sigma, users=users, sample_rate=asked.rate)
    print(f"noise multiplier of a report: {asked.sigma:g}; given to Opacus, times sqrt(B): {noise:.1f}")

    inputs, labels = networks.standardised(digits.train_images), torch.from_numpy(digits.train_labels).long()
    network = networks.build("small", side=28, classes=10, randomness=Source(seed=None).stream("weights"))
    engine = PrivacyEngine(accountant="check-in")
    network, optimiser, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=20.0),
        data_loader=DataLoader(TensorDataset(inputs, labels), batch_size=round(asked.rate * users)),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
    )
    decay = torch.optim.lr_scheduler.LambdaLR(optimiser.original_optimizer, lambda t: 1.0 - t / asked.steps)
    rounds = itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), asked.steps)
    for x, y in rounds:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()
        decay.step()

    network.eval()
    test = networks.standardised(digits.test_images), torch.from_numpy(digits.test_labels).long()
    print(f"accuracy on test digits after {asked.steps} rounds: {networks.model_accuracy(network, *test):.1%}")
    print(f"epsilon of the protocol at delta = {DELTA:g}, zero-out adjacency:")
    print(f"  any crowd:                     {engine.get_epsilon(DELTA):.4f}")
    identical = PrivacyEngine(accountant="check-in-identical")
    identical.accountant.history = engine.accountant.history
    print(f"  if all others held one vector: {identical.get_epsilon(DELTA):.4f}")


if __name__ == "__main__":
    main()
