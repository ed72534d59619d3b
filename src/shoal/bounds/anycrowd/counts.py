"""How many users are hidden, and drawn: laws of counts, and blocks of counts that are taken together."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.bounds.anycrowd.policy import BLOCK_WIDTHS, BLOCKS
from shoal.bounds.numeric import FloatArray


@dataclass(frozen=True, kw_only=True)
class Case:
    """A number of hidden users with its chance: `terms` terms and user 1's own, divided by `denominator`.

    The denominator is K + 1, or g + q (n - m) for a fixed size. User 1 is there with probability `present`; if it is
    not, there are `extra` more terms.
    """

    terms: int
    denominator: float
    chance: float
    present: float
    extra: int = 0


def _masses(
    low: int,
    high: int,
    mode: int,
    *,
    mean: float,
    variance: float,
    spare: float,
    ratio: Callable[[FloatArray], FloatArray],
) -> tuple[int, FloatArray]:
    """A law of counts from `low` to `high` by the ratios of neighbouring masses: the smallest count, and masses.

    Counts outside have a probability below `spare` (Bernstein's inequality). Masses follow from that of the mode, some
    roundings a step, and are scaled to sum 1.
    """
    log = math.log(2.0 / spare)
    reach = log / 3.0 + math.sqrt(log**2 / 9.0 + 2.0 * log * variance)
    first, last = max(low, math.floor(mean - reach)), min(high, math.ceil(mean + reach))
    mode = min(max(first, mode), last)
    # From the most probable count outwards all ratios are at most 1: nothing overflows, small masses become 0.
    rising = np.cumprod(ratio(np.arange(mode, last, dtype=np.float64)))
    falling = np.cumprod(1.0 / ratio(np.arange(mode - 1, first - 1, -1, dtype=np.float64)))[::-1]
    masses = np.concatenate([falling, [1.0], rising])
    return first, masses / masses.sum()


def binomial(trials: int, chance: float, spare: float) -> tuple[int, FloatArray]:
    """Bin(trials, chance): the smallest count, and the masses from there on.

    Args:
        trials: Number of trials.
        chance: Probability of success.
        spare: Probability of counts that may be left out.

    Returns:
        The smallest count and the masses.
    """
    if chance == 1.0:
        return trials, np.ones(1)
    odds, mean = chance / (1.0 - chance), trials * chance
    return _masses(
        0,
        trials,
        math.floor((trials + 1) * chance),
        mean=mean,
        variance=mean * (1.0 - chance),
        spare=spare,
        ratio=lambda count: (trials - count) / (count + 1.0) * odds,
    )


def hypergeometric(hidden: int, users: int, sample: int, spare: float) -> tuple[int, FloatArray]:
    """The number of hidden users among `sample` of `users`, as in `binomial`.

    Args:
        hidden: Number of hidden users.
        users: Number of all users.
        sample: Number of users drawn.
        spare: Probability of counts that may be left out.

    Returns:
        The smallest count and the masses.
    """
    mean = hidden * sample / users
    # Sums of draws without replacement concentrate at least as well as with it (Hoeffding 1963, theorem 4)
    variance = min(mean, sample * (1.0 - sample / users), hidden)
    return _masses(
        max(0, hidden + sample - users),
        min(hidden, sample),
        (hidden + 1) * (sample + 1) // (users + 2),
        mean=mean,
        variance=variance,
        spare=spare,
        ratio=lambda g: (hidden - g) * (sample - g) / ((g + 1.0) * (users - hidden - sample + g + 1.0)),
    )


def hidden_in_sample(users: int, sample: int, q: float, spare: float) -> tuple[int, FloatArray]:
    """The number of drawn users that are user 1 or hidden.

    It is Bin(m, q) if user 1 is not drawn, else 1 + Bin(m - 1, q).

    Args:
        users: Number of all users.
        sample: Number of users drawn, m.
        q: Probability that a user is hidden.
        spare: Probability of counts that may be left out.

    Returns:
        The smallest count and the masses.
    """
    # 1 + Bin(m - 1, q) is at most 1 + Bin(m, q), and a step of 1 is within the reach of a smaller `spare`.
    first, masses = binomial(sample, q, 1e-3 * spare)
    masses = masses * (first + np.arange(len(masses)) + q * (users - sample))
    if masses[0] == 0.0:  # everybody is drawn, and so is user 1
        first, masses = first + 1, masses[1:]
    return first, masses / masses.sum()


def blocks(first: int, masses: FloatArray, finer: float = 1.0, *, parts: int = BLOCKS) -> list[tuple[int, int, float]]:
    """Smallest and largest count of each block, and its mass: finely within three deviations.

    Blocks start at multiples of their width, which is a power of two, so that those of other laws share sums.

    Args:
        first: The smallest count.
        masses: Masses from there on.
        finer: Factor on the number of blocks.
        parts: Number of blocks within three deviations, where they are not too narrow or too wide.

    Returns:
        The blocks, from the lowest on.
    """
    # Nothing to mix: the count is known.
    if len(masses) == 1:
        return [(first, first, float(masses[0]))]
    counts = first + np.arange(len(masses))
    mean = float(masses @ counts)
    deviation = math.sqrt(max(0.0, float(masses @ (counts - mean) ** 2)))
    narrowest, widest = BLOCK_WIDTHS
    wide = max(narrowest * mean, min(6.0 * deviation / parts, widest * mean)) / finer
    width = 2 ** max(0, round(math.log2(max(1.0, wide))))
    low, high = (math.floor((mean + x * deviation) / width) * width for x in (-3.0, 3.0))
    starts, end = list(range(low, high + width, width)), first + len(masses)
    # Each step outwards may be twice the last one: tails weigh little, and a sum of 2 w terms is there already.
    step = width
    while starts[0] > first:
        step = _tail_step(starts[0], step, width)
        starts.insert(0, starts[0] - step)
    step = width
    while starts[-1] < end:
        step = _tail_step(starts[-1], step, width)
        starts.append(starts[-1] + step)
    # The first block may start below all counts (a smaller one is above), but not at 0 where that cannot be.
    starts = sorted({max(start, min(first, 1)) for start in starts if start < end})
    starts = starts[max(0, bisect.bisect_right(starts, first) - 1) :]
    bounds = [max(start - first, 0) for start in (*starts, end)]
    return [
        (start, first + after - 1, float(masses[before:after].sum()))
        for start, (before, after) in zip(starts, itertools.pairwise(bounds), strict=True)
    ]


def _tail_step(start: int, step: int, width: int) -> int:
    """In the tails blocks get wider, up to a quarter of the count: powers of two, so that sums are shared."""
    return 2 * step if 8 * step <= start else max(width, step // 2) if 4 * step > start else step
