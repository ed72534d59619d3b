"""The numbers for sequential shuffling against exact adaptive crowds of two to five records.

An attacker of these tests rounds every output to one of a few cells, which is post-processing, and so are functions
that read the cells only. All histories are then a finite tree, and the probability of each leaf in D and in D' is a sum
of products over all orders of the records: exact but for the last digits. No number may be below what these show.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special

from shoal.bounds.anycrowd.sequential import Sequential
from shoal.bounds.composition import Composition
from shoal.bounds.numeric import DIRECTIONS
from shoal.bounds.ratio import Lognormal

Array = npt.NDArray[np.float64]

CASES = 54
EPSILONS: Array = np.array([0.1, 0.25, 0.5, 0.9, 1.5, 2.5])
SIGMAS = (0.6, 1.0, 2.0, 4.0)
CELLS = {2: 24, 3: 9, 4: 6, 5: 4}
"""Cells of an output for each number of records."""


def cell_masses(cuts: Array, place: Array) -> Array:
    """Masses of all cells for outputs about these places, the last axis over cells; by the tail that is small."""
    at = cuts - place[..., None]
    low, high = special.ndtr(at), special.ndtr(-at)
    low = np.concatenate([np.zeros((*low.shape[:-1], 1)), low, np.ones((*low.shape[:-1], 1))], axis=-1)
    high = np.concatenate([np.ones((*high.shape[:-1], 1)), high, np.zeros((*high.shape[:-1], 1))], axis=-1)
    masses: Array = np.where(low[..., 1:] > 0.5, high[..., :-1] - high[..., 1:], low[..., 1:] - low[..., :-1])
    return masses


@dataclass(frozen=True, kw_only=True)
class Step:
    """Masses of the cells of one step over (case, history, cell): record 1 in D and in D', and each other record."""

    still: Array
    moved: Array
    others: list[Array]


def steps(rng: np.random.Generator, records: int, r: float) -> list[Step]:
    """What every record does after every history, for many cases.

    The first third of the cases are crowds that stand together and change sides when they are ahead at some ratio; the
    others choose places at random, some for good and some anew after each history.
    """
    cells = CELLS[records]
    cuts = np.sort(np.concatenate([r * np.linspace(-1.5, 2.0, cells - 1) * max(1.0, 1.3 / r)]))
    result, score = [], np.zeros((CASES, 1))
    moved_place = np.where(rng.random((CASES, 1)) < 0.7, 1.0, rng.uniform(-1.0, 1.0, (CASES, 1)))
    ratio = np.exp(rng.uniform(0.0, 1.5, (CASES, 1)))
    clever = (np.arange(CASES) < CASES // 3)[:, None]
    kept = rng.uniform(-1.0, 1.0, (CASES, records - 1, 1))
    for step in range(records):
        histories = cells**step
        change = rng.uniform(-1.0, 1.0, (CASES, histories))
        mine = np.where(clever | (rng.random((CASES, 1)) < 0.5), np.repeat(moved_place, histories, 1), change)
        still, moved = cell_masses(cuts, np.zeros((CASES, histories))), cell_masses(cuts, r * mine)
        together = np.where(score > 0.0, mine, -mine)
        others = []
        for record in range(records - 1):
            place = np.where(rng.random((CASES, 1)) < 0.4, kept[:, record], rng.uniform(-1.0, 1.0, (CASES, histories)))
            place = np.where(rng.random((CASES, histories)) < 0.3, -mine, place)
            others.append(cell_masses(cuts, r * np.where(clever, together, place)))
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = np.nan_to_num((moved - ratio[..., None] * still) / others[0], posinf=0.0, neginf=0.0)
        score = (score[..., None] + gain).reshape(CASES, -1)
        result.append(Step(still=still, moved=moved, others=others))
    return result


def leaves(tree: list[Step]) -> tuple[Array, Array]:
    """Probabilities of all histories in D and in D', summed over all orders of the records."""
    records = len(tree)
    # For each set of records that had their steps (record 1 is number 0): the sum over their orders.
    sums = {frozenset(): (np.ones((CASES, 1)), np.ones((CASES, 1)))}
    for done, step in enumerate(tree):
        after = {}
        for chosen in itertools.combinations(range(records), done + 1):
            total = [np.zeros((CASES, step.still.shape[1], step.still.shape[2])) for _ in range(2)]
            for last in chosen:
                before = sums[frozenset(chosen) - {last}]
                for world in range(2):
                    mass = (step.still, step.moved)[world] if last == 0 else step.others[last - 1]
                    total[world] += before[world][..., None] * mass
            after[frozenset(chosen)] = tuple(part.reshape(CASES, -1) for part in total)
        sums = after
    still, moved = sums[frozenset(range(records))]
    return still / math.factorial(records), moved / math.factorial(records)


def exact(rng: np.random.Generator, records: int, sigma: float) -> dict[str, Array]:
    """delta over (case, epsilon) in both directions."""
    still, moved = leaves(steps(rng, records, 1.0 / sigma))
    for law in (still, moved):
        assert np.allclose(law.sum(axis=1), 1.0, atol=1e-12)
    pairs = {"forward": (moved, still), "reverse": (still, moved)}
    return {
        direction: np.stack([np.maximum(p - math.exp(e) * q, 0.0).sum(axis=1) for e in EPSILONS], axis=1)
        for direction, (p, q) in pairs.items()
    }


def bounds(records: int, sigma: float) -> dict[str, Array]:
    """The numbers of the package."""
    part = Sequential(ratio=Lognormal(scale=sigma), users=records)
    composition = Composition(parts=((part, 1),), half=512, budget=1e-20)
    curves = {direction: composition.upper_curve(direction) for direction in DIRECTIONS}
    return {direction: np.array([curve.delta(e) for e in EPSILONS.tolist()]) for direction, curve in curves.items()}


@pytest.mark.parametrize("records", [2, 3, 4, 5])
def test_no_adaptive_crowd_is_above_the_numbers(records: int) -> None:
    rng, tightest, beaten = np.random.default_rng(records), 0.0, 0
    for sigma in SIGMAS:
        shown, number = exact(rng, records, sigma), bounds(records, sigma)
        fewer = bounds(2 * records, sigma)
        for direction in DIRECTIONS:
            assert (shown[direction] <= number[direction] + 1e-13).all()
            visible = number[direction] > 1e-9
            tightest = max(tightest, float((shown[direction] / number[direction])[:, visible].max()))
            beaten += int((shown[direction] > fewer[direction] + 1e-13).sum())
    # What they show is near enough for a wrong number to be seen: that of twice as many records is.
    assert tightest > 0.8
    assert beaten > 20


def test_there_are_enough_comparisons() -> None:
    assert 4 * len(SIGMAS) * CASES * len(EPSILONS) * len(DIRECTIONS) >= 10_000
