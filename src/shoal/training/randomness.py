"""Where coins, noise and permutations come from: the operating system, or a seed.

Noise that protects people must be unpredictable, so by default every bit comes from the operating
system's generator. A seed makes a run repeatable and therefore *not private*: who knows the seed can
subtract the noise. Seeded streams are keyed by (seed, round, purpose), so any round can be repeated
on its own and no state of a generator has to be kept.

Normal deviates are made by Box and Muller's method from 53-bit uniforms in double precision. They are
floating-point numbers: nothing here defends against attacks on the last bits of noise (Mironov 2012).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal import _validate
from shoal.bounds.numeric import FloatArray, IntArray


class Randomness(Protocol):
    """A source of independent draws."""

    private: bool
    """Whether nobody can predict the draws."""

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Uniform 64-bit words."""
        ...

    def normals(self, count: int) -> FloatArray:
        """Standard normal deviates."""
        ...


class SystemRandomness:
    """The operating system's cryptographic generator."""

    private = True

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)

    def normals(self, count: int) -> FloatArray:
        half = (count + 1) // 2
        u = uniforms(self, 2 * half)
        # 1 - u lies in (0, 1], so the logarithm is finite; the radius reaches 8.57.
        radius = np.sqrt(-2.0 * np.log1p(-u[:half]))
        angle = 2.0 * math.pi * u[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


class SeededRandomness:
    """A repeatable stream. Not private."""

    private = False

    def __init__(self, *key: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(list(key))))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        return self._generator.integers(0, 2**64, size=count, dtype=np.uint64)

    def normals(self, count: int) -> FloatArray:
        return self._generator.standard_normal(count)


PURPOSES = ("weights", "coins", "noise", "shuffle", "model")
"""The order must not change, as a stream depends on the place of its purpose. Dropout draws from `model`."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Random streams of a round: from the operating system, or repeatable from a seed.

    >>> Source(seed=1, round=7).stream("coins").words(1) == Source(seed=1, round=7).stream("coins").words(1)
    array([ True])
    """

    seed: int | None
    round: int = 0

    def __post_init__(self) -> None:
        if self.seed is not None:
            _validate.integer("seed", self.seed, minimum=0, maximum=2**63 - 1)

    def stream(self, purpose: str) -> Randomness:
        key = PURPOSES.index(purpose)
        return SystemRandomness() if self.seed is None else SeededRandomness(self.seed, self.round, key)


def uniforms(randomness: Randomness, count: int) -> FloatArray:
    """Uniform numbers in [0, 1) with 53 bits.

    Args:
        randomness: Where they come from.
        count: How many to draw.

    Returns:
        The numbers.
    """
    return (randomness.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(randomness: Randomness, count: int) -> IntArray:
    """A uniformly random permutation.

    Args:
        randomness: Where it comes from.
        count: Number of items to permute.

    Returns:
        The numbers 0 to count - 1 in random order.
    """
    while True:
        # Random 64-bit keys are sorted; in the rare case of a tie they are drawn again.
        keys = randomness.words(count)
        order = np.argsort(keys, kind="stable")
        if count < 2 or (np.diff(keys[order]) > 0).all():
            return order.astype(np.int64)
