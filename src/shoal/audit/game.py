"""The distinguishing game: two worlds that differ in user 1's vector, and a crowd of some shape.

In the world Q user 1 holds x, in P it holds x' (zero-out: x = 0 and |x'| = 1; replace: x = -x', |x'| = 1). Everybody
else's vector, of norm at most 1, is part of the *crowd* and known to the attacker, who sees the shuffled reports of all
rounds and must say which world holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal import _validate
from shoal.bounds.numeric import FloatArray
from shoal.errors import InvalidInput
from shoal.mechanisms import Shuffle, ShuffledCheckIn, SubsampledShuffle

SHAPES = ("identical", "opposite", "orthogonal", "clusters", "spread")
"""identical: all others at x. opposite: all at -x'. orthogonal: all at one unit vector orthogonal to x'.
clusters: one half at -x', the other at x'. spread: independent and uniform in the unit ball."""

DIMENSIONS = (1, 2, 8)

_COORDINATES_LARGEST = 10**7
"""All reports of one round must fit into memory together."""

_LONGEST_PASS = 20_000
"""Steps of the exact likelihood of one round, beyond which a trained test takes its place."""

_SMALLEST_DIMENSION = {"orthogonal": 2}
"""The smallest dimension of a shape, if it is not 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Game:
    """One crowd, in the fewest dimensions that show everything; user 1 moves along the first axis."""

    mechanism: Shuffle | SubsampledShuffle | ShuffledCheckIn
    rounds: int
    shape: str
    dimensions: tuple[int, ...]
    points: FloatArray
    """The distinct vectors of the other users (the classes), in rows."""

    counts: npt.NDArray[np.int64]
    """The number of users that hold each vector; the largest first."""

    @property
    def dimension(self) -> int:
        return int(self.points.shape[1])

    @property
    def own(self) -> FloatArray:
        """User 1's vector in Q and in P."""
        vectors = np.zeros((2, self.dimension))
        vectors[:, 0] = (0.0 if self.mechanism.adjacency == "zero-out" else -1.0), 1.0
        return vectors

    @property
    def reports(self) -> float:
        """The expected number of reports in a round."""
        m = self.mechanism
        if isinstance(m, ShuffledCheckIn):
            return m.users * m.rate
        return float(m.sample if isinstance(m, SubsampledShuffle) else m.users)

    @property
    def states(self) -> float:
        """The number of possible counts of reports in all classes but the first."""
        return math.exp(min(float(np.log1p(self.counts[1:]).sum()), 700.0))

    @property
    def steps(self) -> float:
        """The length of the exact likelihood's pass over a round."""
        return self.reports * len(self.points) * self.states

    @property
    def exact(self) -> bool:
        """Whether the likelihood can be computed in reasonable time."""
        return len(self.points) == 1 or self.steps <= _LONGEST_PASS

    @property
    def work(self) -> float:
        """The time of one trial, in units of about 10 ns."""
        users, dimension = self.mechanism.users, self.dimension
        if len(self.points) == 1:
            round_ = self.reports * (dimension + 3)
        else:
            round_ = self.steps if self.exact else self.reports * (2 * dimension + 15)
            round_ += 5.0 * users if self.reports < users else 0.0  # who takes part
        return self.rounds * (round_ + 20.0)

    @property
    def numbers(self) -> float:
        """The number of values that one round of one trial holds in memory at once."""
        classes = len(self.points)
        members = self.mechanism.users if classes > 1 else 0
        targets = classes + 2 if self.exact else 7
        return max(self.reports * (self.dimension + targets), 3 * self.states * self.exact, members)

    def draw(self, trials: int, rng: np.random.Generator) -> Reports:
        """The reports of one round of several trials, in both worlds.

        Args:
            trials: The number of trials.
            rng: The source of randomness.

        Returns:
            The reports.
        """
        m = self.mechanism
        if isinstance(m, ShuffledCheckIn):
            sizes = rng.binomial(m.users, m.rate, trials)
        else:
            sizes = np.full(trials, round(self.reports))
        # By symmetry user 1 is among those who report with probability sizes / users.
        taking_part = rng.random(trials) * m.users < sizes
        crowd_sizes = sizes - taking_part
        width = int(crowd_sizes.max())
        centres = self.points[0]
        if len(self.points) > 1:
            # Which of the others report matters only if their vectors differ and not all of them report.
            classes = np.repeat(np.arange(len(self.points)), self.counts)
            if crowd_sizes.min() < m.users - 1:
                centres = self.points[classes[_first_of_random_order(trials, m.users - 1, width, rng)]]
            else:
                centres = self.points[classes]
        crowd = centres + m.sigma * rng.standard_normal((trials, width, self.dimension))
        target = self.own[:, None, :] + m.sigma * rng.standard_normal((trials, self.dimension))
        return Reports(
            sizes=sizes,
            crowd=crowd,
            present=np.arange(width) < crowd_sizes[:, None],
            own=target,
            taking_part=taking_part,
        )


def _first_of_random_order(trials: int, users: int, width: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The first `width` users of a random order, drawn anew for each trial, (trials, width)."""
    # Ties have probability 0, and both worlds share the order.
    keys = rng.random((trials, users))
    if width == users:
        return keys.argsort(axis=1)
    chosen = keys.argpartition(width, axis=1)[:, :width]
    order = np.take_along_axis(keys, chosen, axis=1).argsort(axis=1)
    return np.take_along_axis(chosen, order, axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reports:
    """The reports of one round of several trials, in both worlds."""

    sizes: npt.NDArray[np.int64]
    """The number of reports that the server sees, (trials,)."""

    crowd: FloatArray
    """The reports of the crowd, (trials, width, dimension), of which those in `present` are real."""

    present: npt.NDArray[np.bool_]
    own: FloatArray
    """User 1's report in Q and in P, (2, trials, dimension), sent where `taking_part`."""

    taking_part: npt.NDArray[np.bool_]


def games_of(mechanism: Any, rounds: int, shapes: Any, dimensions: Any, seed: int) -> list[Game]:
    """The games of an audit, checked.

    Args:
        mechanism: The mechanism under attack.
        rounds: The number of rounds of each game.
        shapes: The shapes of crowds; None stands for all that fit.
        dimensions: The dimensions of the vectors.
        seed: The seed of the crowds.

    Returns:
        One game for each crowd that differs from the others.

    Raises:
        InvalidInput: If an argument is out of its range, or a shape does not fit the mechanism.
    """
    # For replace adjacency -x' is x, so that the opposite crowd is the identical one.
    possible = tuple(s for s in SHAPES if not (s == "opposite" and mechanism.adjacency == "replace"))
    if mechanism.crowd == "identical":
        possible = ("identical",)
    selected = [
        _validate.choice("shapes", s, SHAPES) for s in _validate.each("shapes", possible if shapes is None else shapes)
    ]
    sizes = [
        _validate.integer("dimensions", d, minimum=1, maximum=_COORDINATES_LARGEST)
        for d in _validate.each("dimensions", dimensions)
    ]
    for name, values in (("shapes", selected), ("dimensions", sizes)):
        if len(set(values)) < len(values):
            raise InvalidInput(f"{name} must all be different, got {', '.join(map(str, values))}")
    for shape in selected:
        if shape not in possible and mechanism.crowd == "identical":
            raise InvalidInput(f"shapes must be identical for a mechanism of the identical crowd, got {shape!r}")
        if shape not in possible:
            raise InvalidInput(f"shapes must not have {shape} for replace adjacency: it is the identical crowd there")
    games = []
    for shape in selected:
        fitting = tuple(d for d in sorted(sizes) if d >= _SMALLEST_DIMENSION.get(shape, 1))
        if not fitting and shapes is not None:
            raise InvalidInput(f"dimensions must have one of at least 2 for the shape {shape}, got {sizes[0]}")
        # Only a spread crowd fills its dimensions; the other shapes lie on a line or in a plane.
        groups = [(d,) for d in fitting] if shape == "spread" else [fitting] if fitting else []
        for group in groups:
            _check_size(mechanism, rounds, group[0] if shape == "spread" else 2)
            # Each game has its own stream, so that its row does not depend on the other games.
            rng = np.random.default_rng([seed, SHAPES.index(shape), group[0]])
            points, counts = crowd(shape, mechanism, group[0], rng)
            games.append(
                Game(mechanism=mechanism, rounds=rounds, shape=shape, dimensions=group, points=points, counts=counts)
            )
    return games


def _check_size(mechanism: Any, rounds: int, dimension: int) -> None:
    limit = _COORDINATES_LARGEST // dimension
    if mechanism.users > limit:
        raise InvalidInput(
            f"users must be at most {limit} for an audit, which plays every report, got {mechanism.users}"
        )
    if rounds * mechanism.users > 10 * _COORDINATES_LARGEST:
        raise InvalidInput(
            f"rounds must be at most {10 * _COORDINATES_LARGEST // mechanism.users} for an audit of {mechanism.users} "
            f"users, which plays every report, got {rounds}"
        )


def crowd(
    shape: str, mechanism: Any, dimension: int, rng: np.random.Generator
) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """The distinct vectors of a crowd, and the number of users that hold each.

    Args:
        shape: One of `SHAPES`.
        mechanism: The mechanism, for its users and its adjacency.
        dimension: The dimension of the vectors.
        rng: The source of the random vectors.

    Returns:
        The vectors in rows, and the numbers of users.
    """
    size = mechanism.users - 1
    whole = np.array([size])
    if shape == "identical":
        return np.array([[0.0 if mechanism.adjacency == "zero-out" else -1.0]]), whole
    if shape == "opposite":
        return np.array([[-1.0]]), whole
    if shape == "orthogonal":
        return np.array([[0.0, 1.0]]), whole
    if shape == "clusters":
        return np.array([[-1.0], [1.0]]), np.array([size - size // 2, size // 2])
    directions = rng.standard_normal((max(size, 1), dimension))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Uniform in the ball: the radius has the density of r^(d-1).
    points = directions * rng.random((len(directions), 1)) ** (1.0 / dimension)
    if len(points) < dimension - 1:
        # Rotate all axes but the first, so that the vectors need only as many axes as there are vectors.
        points = np.hstack([points[:, :1], np.linalg.qr(points[:, 1:].T)[1].T])
    return points, np.full(len(points), min(size, 1))
