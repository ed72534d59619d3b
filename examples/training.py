"""Private training in twenty lines of PyTorch: clients clip and add noise, a shuffler permutes, the server averages.

python examples/training.py

For the real thing, with images, budgets, checkpoints and pictures, see `shoal train`.
"""

import math

import torch

import shoal


def main(users: int = 2_000, rounds: int = 60, seed: int = 1) -> float:
    m = shoal.ShuffledCheckIn(users=users, rate=0.3, sigma=2.0)  # whatever the other users hold
    draws = torch.Generator().manual_seed(seed)  # repeatable, so for study only: a seed is no secret
    truth = torch.tensor([1.0, -2.0, 0.5, 1.5])
    x = torch.randn(users, 4, generator=draws)
    y = (x @ truth + 0.3 * torch.randn(users, generator=draws) > 0).double()
    x, weights, clip = x.double(), torch.zeros(4, dtype=torch.double), 1.0

    for _ in range(rounds):
        present = torch.rand(users, generator=draws) < m.rate  # each user tosses a coin
        gradients = (torch.sigmoid(x[present] @ weights) - y[present])[:, None] * x[present]
        norms = gradients.norm(dim=1, keepdim=True).clamp(min=1e-12)
        reports = gradients * (clip / norms).clamp(max=1.0)
        reports += clip * m.sigma * torch.randn(reports.shape, generator=draws)
        reports = reports[torch.randperm(len(reports), generator=draws)]  # the shuffler
        weights -= reports.sum(dim=0) / (m.rate * users)  # the server sees nothing but the reports

    accuracy = float(((x @ weights > 0) == (y > 0.5)).double().mean())
    delta = 1 / (10 * users)
    epsilon = m.epsilon(delta=delta, rounds=rounds)
    local = shoal.LocalGaussian(sigma=m.sigma).epsilon(delta=delta, rounds=rounds)
    print(f"accuracy {accuracy:.1%} after {rounds} rounds; delta = {delta:g}, zero-out adjacency")
    print(f"epsilon, any crowd: {epsilon:.3f}; if the shuffler colludes: {local:.1f}")
    assert math.isfinite(accuracy)
    return accuracy


if __name__ == "__main__":
    main()
