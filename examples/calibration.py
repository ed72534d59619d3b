"""The smallest noise, the largest number of rounds and the smallest number of users for a budget.

python examples/calibration.py
"""

import shoal


def main(epsilon: float = 0.5, delta: float = 1e-6, rounds: int = 100) -> None:
    m = shoal.ShuffledCheckIn(users=5_000, rate=0.2, sigma=2.0)  # whatever the other users hold
    target = {"epsilon": epsilon, "delta": delta, "accuracy": 0.02}  # quick: the default is finer

    sigma = shoal.calibrate.sigma(lambda s: m.replace(sigma=s), rounds=rounds, tolerance=0.02, **target)
    reached = m.replace(sigma=sigma).epsilon(delta=delta, rounds=rounds, accuracy=target["accuracy"])
    print(f"sigma = {sigma:.4f} for {rounds} rounds: epsilon in {reached:.4f} (zero-out, any crowd)")
    assert reached.upper <= epsilon

    allowed = shoal.calibrate.rounds(m, **target)
    print(f"{allowed:,} rounds with sigma = {m.sigma:g}")

    needed = shoal.calibrate.users(lambda n: m.replace(users=n), rounds=rounds, **target)
    print(f"{needed:,} users for {rounds} rounds with sigma = {m.sigma:g}")


if __name__ == "__main__":
    main()
