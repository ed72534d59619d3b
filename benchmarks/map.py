"""A map of upper over lower ends of ε among any crowd, over users, σ, rate, rounds and δ.

    python benchmarks/map.py [--seconds N] [--markdown FILE]

Points are taken in a fixed order that visits all parts of the map first; those for which no time is left are not in the
table. What remains above 1.2 is explained by what limits it.
"""

import argparse
import datetime
import itertools
import pathlib
import time
import warnings
from typing import Literal

from shoal.mechanisms import Mechanism, Shuffle, ShuffledCheckIn

Adjacency = Literal["zero-out", "replace"]

USERS, SIGMAS, DELTAS = (10, 100, 1_000, 10**5, 10**8), (1.0, 2.0, 5.0), (1e-5, 1e-9)
RATES, ROUNDS = (1.0, 0.01), (1, 100)
WIDE = 1.2
"""Ratios above this are explained."""


def points() -> list[tuple[int, float, float, int, float, Adjacency]]:
    """Users, σ, rate, rounds, δ and adjacency, in an order that spreads over the map."""
    one_round = itertools.product(USERS, SIGMAS, (1.0,), (1,), DELTAS, ("zero-out",))
    replaced = itertools.product(USERS, SIGMAS, (1.0,), (1,), (1e-6,), ("replace",))
    others = itertools.product(USERS[1:4], SIGMAS[1:], RATES, ROUNDS, DELTAS[:1], ("zero-out",))
    return list(dict.fromkeys([*one_round, *replaced, *others]))


def mechanism(users: int, sigma: float, rate: float, adjacency: Adjacency) -> Mechanism:
    """All users in each round, or each on its own coin."""
    if rate == 1.0:
        return Shuffle(users=users, sigma=sigma, adjacency=adjacency)
    return ShuffledCheckIn(users=users, sigma=sigma, rate=rate, adjacency=adjacency)


def reason(users: int, sigma: float, rate: float, rounds: int, adjacency: Adjacency) -> str:
    """Why the ends are far apart."""
    if adjacency == "replace":
        return "from above the worst user stands at both ends of the move; from below only the identical crowd is tried"
    if rounds > 1:
        return "from below one test serves all rounds; from above large terms of each round are charged"
    if users * rate <= 100.0:
        return "few senders: one large term of the worst user decides from above"
    return "round-off of the attack" if users > 10**7 else "little noise: one large term decides"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--markdown", type=pathlib.Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    start, rows, wide, left = time.monotonic(), [], 0, 0
    for users, sigma, rate, rounds, delta, adjacency in points():
        if time.monotonic() - start > options.seconds:
            left += 1
            continue
        found = mechanism(users, sigma, rate, adjacency).epsilon(delta=delta, rounds=rounds)
        ratio = 1.0 if found.upper == 0.0 else found.upper / found.lower if found.lower > 0.0 else float("inf")
        wide += ratio > WIDE
        why = reason(users, sigma, rate, rounds, adjacency) if ratio > WIDE else ""
        rows.append(
            f"| {users:,} | {sigma:g} | {rate:g} | {rounds:,} | {delta:.0e} | {adjacency} "
            f"| {found.lower:.4g} | {found.upper:.4g} | {ratio:.3f} | {why} |"
        )
        print(rows[-1], flush=True)
    text = "\n".join(
        [
            f"Measured on {datetime.date.today()} by `benchmarks/map.py`: {len(rows)} points, of which {wide} are "
            f"above {WIDE}; {left} further points were left out for lack of time.",
            "",
            "| users | σ | rate | rounds | δ | adjacency | lower | upper | upper/lower | why above 1.2 |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
    if options.markdown:
        options.markdown.write_text(text)


if __name__ == "__main__":
    main()
