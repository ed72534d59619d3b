"""Rounds that differ in their numbers of users only are analysed as a few classes of rounds.

A round among any crowd takes some tenths of a second to analyse, and in practice every round has its own number of
users. So where a ledger has more than a few such numbers, its rounds are put into classes. Each class is bounded on
either side by one mechanism:

* *Upper bounds count users down* to the fewest in the class, because fewer users are never more private: of n users'
  reports, a server that learns that a certain user holds one of them is left with n - 1 (of a sample of m among n
  users, if it learns who was drawn, m or m - 1 among n - 1). They count samples *up* to the largest in the class, or to
  all of these users, because a larger sample is never more private: m reports, one of which is thrown away, are a
  sample of m - 1.
* *Lower bounds count users up* to the most in the class, because more users are never less private if the others hold
  one vector: a server can add such reports by itself (and throw as many of a sample away). They count samples down.

The classes are chosen to add least to the sum of sample / users^2 (1 / users where there is no sample), which is about
what rounds cost. Any other choice would be as sound.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal import _validate
from shoal.bounds.numeric import FloatArray, Side
from shoal.mechanisms import Mechanism

MAX_CLASSES = 6
"""The most classes in which otherwise equal rounds among any crowd are analysed."""

MAX_CLASSES_SAMPLED = 4
"""As `MAX_CLASSES` for a sample of fixed size, which takes longer to analyse."""

MAX_CLASSES_LOW_NOISE = 2
"""As `MAX_CLASSES` for little noise, which takes several times as long to analyse."""

LOW_NOISE_SIGMA = 2.5
"""Noise multipliers below this are little noise."""

CLASS_STARTS = 512
"""The most places at which a class is tried to start."""

_SIZE_FIELDS = ("users", "sample")
"""The fields of a mechanism in which rounds of one class differ."""

Size = tuple[int, int]
"""A number of users, and how many of them a sample takes (all of them where there is no sample)."""


@dataclass(frozen=True, kw_only=True)
class RoundClass:
    """Rounds analysed as one: `upper` is not more private than any of them, `lower` not less."""

    upper: Mechanism
    lower: Mechanism
    rounds: int


def round_classes(ledger: Mapping[Mechanism, int]) -> list[RoundClass]:
    """The rounds of a ledger, in few classes where they differ in users and samples only."""
    families: dict[Any, list[Mechanism]] = {}
    for m in ledger:
        fixed = tuple((k, v) for k, v in sorted(m.to_dict().items()) if k not in _SIZE_FIELDS)
        # The identical crowd is quick to analyse: its rounds are never merged.
        families.setdefault(fixed if m.crowd == "any" else m, []).append(m)
    merged = []
    for family in families.values():
        by_size = {_size(m): m for m in family} if len(family) > 1 else {}
        if len(family) == 1 or not _lower_size_is_allowed(by_size):
            merged += [RoundClass(upper=m, lower=m, rounds=ledger[m]) for m in family]
            continue
        counts = {size: ledger[m] for size, m in by_size.items()}
        for sizes in cheapest_classes(counts, max_classes(family[0])):
            upper, lower = (_resized(family[0], bounding_size(sizes, side)) for side in ("upper", "lower"))
            merged.append(RoundClass(upper=upper, lower=lower, rounds=sum(counts[size] for size in sizes)))
    return merged


def max_classes(mechanism: Mechanism) -> int:
    """The most classes for rounds like this one."""
    if mechanism.sigma < LOW_NOISE_SIGMA:
        return MAX_CLASSES_LOW_NOISE
    return MAX_CLASSES_SAMPLED if mechanism.sampling == "drawn" else MAX_CLASSES


def bounding_size(sizes: Iterable[Size], side: Side) -> Size:
    """A size that is not more private than any of these (`upper`), or not less (`lower`).

    Args:
        sizes: The users and samples of the rounds in one class.
        side: Which bound the size is for.
    """
    users, samples = zip(*sizes, strict=True)
    if side == "upper":
        return min(users), min(max(samples), *users)
    return max(users), min(samples)


def cheapest_classes(rounds: Mapping[Size, int], limit: int) -> list[list[Size]]:
    """Sizes in at most `limit` classes that cost least together, most expensive class first.

    Sorted by what a round costs, an optimal class is a run of neighbours. Of all ways to cut the sorted sizes, dynamic
    programming over the place where a class starts finds the one with the least sum of rounds times the cost of
    the upper end of their class.

    Args:
        rounds: The number of rounds of each size.
        limit: The most classes.
    """
    if len(rounds) <= limit:
        return [[size] for size in rounds]
    sizes = sorted(rounds, key=lambda size: (-size[1] / size[0] ** 2, size))
    # The table of costs is quadratic: with thousands of sizes, classes start at some places only.
    starts = np.unique(np.linspace(0, len(sizes) - 1, min(CLASS_STARTS, len(sizes))).round().astype(int))
    cuts = _best_cuts(_class_costs(sizes, rounds, starts), limit)
    edges = [*sorted({0, *(int(starts[i]) for i in cuts)}), len(sizes)]
    return [sizes[a:b] for a, b in itertools.pairwise(edges)]


def _class_costs(sizes: list[Size], rounds: Mapping[Size, int], starts: npt.NDArray[np.int64]) -> FloatArray:
    """Element (i, j) is the cost of one class from start i to the end of piece j; infinite where j < i."""
    users, samples = np.array(sizes, dtype=float).T
    rounds_before = np.cumsum([0, *(rounds[size] for size in sizes)])
    ends = np.append(starts[1:], len(sizes))
    fewest, largest = np.minimum.reduceat(users, starts), np.maximum.reduceat(samples, starts)
    costs = np.full((len(starts), len(starts)), np.inf)
    for i, start in enumerate(starts):
        n = np.minimum.accumulate(fewest[i:])
        m = np.minimum(np.maximum.accumulate(largest[i:]), n)
        costs[i, i:] = (rounds_before[ends[i:]] - rounds_before[start]) * m / n**2
    return costs


def _best_cuts(costs: FloatArray, limit: int) -> list[int]:
    """The pieces at which the second and later classes of the cheapest cut start."""
    best, choices = costs[0], []
    for _ in range(limit - 1):
        # Row i: a class starts at piece i, and the classes before it end with piece i - 1. Row 0: no further class.
        total = np.vstack([best, best[:-1, None] + costs[1:]])
        choices.append(np.argmin(total, axis=0))
        best = total.min(axis=0)
    # Back along the choices: where the last class starts, then the one before it.
    last, cuts = len(costs) - 1, []
    for choice in reversed(choices):
        start = int(choice[last])
        if start:
            cuts.append(start)
            last = start - 1
    return cuts


def _size(mechanism: Mechanism) -> Size:
    fields = mechanism.to_dict()
    return fields["users"], fields.get("sample", fields["users"])


def _resized(mechanism: Mechanism, size: Size) -> Mechanism:
    fields = dict(zip(_SIZE_FIELDS, size, strict=True))
    return mechanism.replace(**{name: value for name, value in fields.items() if name in mechanism.to_dict()})


def _lower_size_is_allowed(sizes: Iterable[Size]) -> bool:
    """Whether a mechanism may have the smallest sample of the most users."""
    users, sample = bounding_size(sizes, "lower")
    return sample >= _validate.RATE_MIN * users
