"""One setting by all applicable methods: the paper's bounds, clones, exact Rényi DP, certified brackets.

python examples/comparing_peers.py

If they are installed, random_allocation and PLD_accounting are compared for balls and bins; dp_accounting always is.
"""

import importlib.util

import dp_accounting

import shoal
from shoal.literature.compare import compare


def main(users: int = 10_000, sigma: float = 4.0, rounds: int = 3) -> None:
    delta = 1 / users
    print(f"shuffle of {users:,} users, sigma = {sigma:g}, {rounds} rounds, delta = {delta:g}, zero-out adjacency")
    for row in compare(shoal.Shuffle(users=users, sigma=sigma), delta=delta, rounds=rounds):
        value = "does not apply" if row.epsilon is None else f"{row.epsilon:.5f}"
        print(f"  {row.method:20} {row.crowd:10} {value:>15}  {row.note}")

    # No shuffler: dp_accounting has the Gaussian mechanism itself, and both must agree.
    theirs = dp_accounting.pld.PLDAccountant()
    theirs.compose(dp_accounting.GaussianDpEvent(sigma), rounds)
    ours = shoal.LocalGaussian(sigma=sigma).epsilon(delta=delta, rounds=rounds)
    print(f"no shuffler: dp_accounting {theirs.get_epsilon(delta):.5f}, shoal {ours:.5f}")
    assert abs(theirs.get_epsilon(delta) - float(ours)) < 1e-3 * float(ours)

    if importlib.util.find_spec("random_allocation"):
        from random_allocation.random_allocation_scheme.direct import allocation_RDP_remove

        exact = shoal.BallsAndBins(bins=100, sigma=2.0).rdp([8], direction="forward")[0]
        print(f"balls and bins, order 8: random_allocation {allocation_RDP_remove(8, 2.0, 100):.8f}, shoal {exact:.8f}")


if __name__ == "__main__":
    main()
