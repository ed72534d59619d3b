"""The rounds of one epoch in a secret order, whoever adds the noise: one bound from above, and attacks."""

from __future__ import annotations

from shoal.bounds.anycrowd.opposite import Opposite
from shoal.bounds.anycrowd.replace import Replace
from shoal.bounds.anycrowd.sequential import Sequential
from shoal.bounds.central.attacks import Maximum
from shoal.bounds.central.switching import Switching
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round
from shoal.mechanisms.base import MOVE, Adjacency


def sequential_round(*, sigma: float, steps: int, adjacency: Adjacency) -> Round:
    """One epoch from above, whatever the other records hold.

    Args:
        sigma: Noise multiplier of each step.
        steps: Number of steps.
        adjacency: Which data sets are compared.

    Returns:
        The round.
    """
    step = Sequential(ratio=Lognormal(scale=sigma), users=steps)
    return step if adjacency == "zero-out" else Replace(step=step)


def sequential_attacks(*, sigma: float, steps: int, adjacency: Adjacency) -> tuple[Round, ...]:
    """Attacks on one epoch that can really happen.

    Args:
        sigma: Noise multiplier of each step.
        steps: Number of steps.
        adjacency: Which data sets are compared.

    Returns:
        The rounds; the first is quick to evaluate.
    """
    largest = Maximum(scale=sigma, steps=steps)
    switching = Switching(scale=sigma, steps=steps)
    # The likelihood ratio of a crowd that stays opposite, where there are not too many steps and not too little noise.
    opposite = Opposite(mean=Identical(ratio=Lognormal(scale=sigma), users=steps))
    attacks: list[Round] = [largest]
    if adjacency == "replace":
        # All others hold what the record is replaced by. From zero, or to it, is one of the moves of "replace" as well.
        attacks.insert(0, Identical(ratio=Lognormal(scale=sigma / MOVE[adjacency]), users=steps))
    if opposite.is_worth_computing:
        attacks.append(opposite)
    if switching.is_felt:
        attacks.append(switching)
    return tuple(attacks)
