"""How private is a training run, round by round, and for which crowd?

python examples/accounting.py
"""

import shoal


def main(users: int = 2_000, rounds: int = 50) -> None:
    m = shoal.ShuffledCheckIn(users=users, rate=0.2, sigma=3.0)
    delta = 1 / (10 * users)
    for crowd in ("identical", "any"):
        epsilon = m.replace(crowd=crowd).epsilon(delta=delta, rounds=rounds)
        print(f"{rounds} rounds, {crowd} crowd, zero-out: epsilon in {epsilon:.3f} at delta = {delta:g}")

    # Rounds differ: the first ones had more users, one was repeated after a failure.
    ledger = shoal.Accountant().compose(m, rounds=rounds).compose(m.replace(users=users // 2), rounds=2)
    print(f"with two rounds of half the users (any crowd): {ledger.epsilon(delta=delta):.3f}")

    # What it means to an attacker who accepts one false alarm in a hundred.
    power = m.tradeoff(0.01, rounds=rounds)
    print(f"the best attack finds the user with probability {power:.4f} at a false positive rate of 0.01")


if __name__ == "__main__":
    main()
