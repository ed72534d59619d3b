"""Filters against exact trees: small mechanisms chosen from everything seen, no code of the filters' own in the way.

Each node of a tree runs a mechanism with three outcomes that costs a random part of what is left, and the last level
spends all of it. Which part, and which mechanism, depends on all outcomes before. Leaves then have exact probabilities
under P and Q, and so has every hockey-stick divergence. The suite runs some thousands of trees of each kind;
`python tests/soundness/test_filters.py 100000` runs more.
"""

import sys

import numpy as np
import pytest
from scipy import special

from shoal.bounds.dominating import CurveTests, width_within

TREES = 3_000
OUTCOMES, DEPTH = 3, 3
EPSILONS = np.concatenate([-np.geomspace(3.0, 0.01, 8), [0.0], np.geomspace(0.01, 5.0, 16)])


def gaussian_power(fpr, width):
    return special.ndtr(special.ndtri(fpr) + width)


def revealing_power(fpr, reveal, width):
    """The power of the best test of a revealing Gaussian pair."""
    inside = np.minimum(fpr / (1.0 - reveal), 1.0)
    return reveal + (1.0 - reveal) * gaussian_power(inside, width)


def revealing_delta(epsilon, reveal, width):
    """The curve of a revealing Gaussian pair, at any real epsilon."""
    with np.errstate(divide="ignore", invalid="ignore"):
        gaussian = special.ndtr(width / 2 - epsilon / width) - np.exp(epsilon) * special.ndtr(
            -width / 2 - epsilon / width
        )
    return reveal + (1.0 - reveal) * np.maximum(gaussian, np.maximum(0.0, -np.expm1(epsilon)))


def outcomes_on(power, random, size):
    """Mechanisms whose tests lie on a curve of powers: probabilities of three outcomes under P and under Q."""
    # Cubes and mirrored cubes: corners near both ends as often as in the middle.
    corners = np.sort(random.random((size, OUTCOMES - 1)) ** random.choice([1.0, 3.0, 12.0], (size, 1)), axis=1)
    corners = np.where(random.random((size, 1)) < 0.5, corners, 1.0 - corners[:, ::-1])
    ends = [np.zeros((size, 1)), np.ones((size, 1))]
    q = np.diff(np.concatenate([ends[0], corners, ends[1]], axis=1), axis=1)
    p = np.diff(np.concatenate([ends[0], power(corners), ends[1]], axis=1), axis=1)
    # P and Q change places in half of them.
    swapped = random.random((size, 1)) < 0.5
    return np.where(swapped, q, p), np.where(swapped, p, q)


def hockey_sticks(p, q):
    """Exact divergences of each tree: at each epsilon, in both directions."""
    return np.array(
        [
            [np.maximum(first - np.exp(epsilon) * second, 0.0).sum(axis=1) for first, second in ((p, q), (q, p))]
            for epsilon in EPSILONS
        ]
    )


def gaussian_trees(count, random):
    """Trees that spend exactly a squared width and a probability of revealing: their divergences, and the limits."""
    width, reveal = random.uniform(0.2, 3.0, count), random.choice([0.0, 0.01, 0.2], count)
    p, q = np.ones((count, 1)), np.ones((count, 1))
    squares, logs = (width**2)[:, None], -np.log1p(-reveal)[:, None]
    for level in range(DEPTH):
        size = p.size
        # The last level spends what is left.
        parts = (
            np.ones((2, size))
            if level == DEPTH - 1
            else random.random((2, size)) ** random.choice([0.3, 1, 3], (2, size))
        )
        cost, log_cost = parts[0] * squares.ravel(), parts[1] * logs.ravel()
        d, w = -np.expm1(-log_cost)[:, None], np.sqrt(cost)[:, None]
        node_p, node_q = outcomes_on(lambda fpr, d=d, w=w: revealing_power(fpr, d, w), random, size)
        p, q = ((all_.reshape(size, 1) * node).reshape(count, -1) for all_, node in ((p, node_p), (q, node_q)))
        squares, logs = (
            np.repeat(left.ravel() - part, OUTCOMES).reshape(count, -1)
            for left, part in ((squares, cost), (logs, log_cost))
        )
    limits = np.array([[revealing_delta(epsilon, reveal, width)] * 2 for epsilon in EPSILONS])
    return hockey_sticks(p, q), limits


def log_moment(p, q, order):
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.log(np.sum(np.where(p > 0.0, p**order * q ** (1.0 - order), 0.0), axis=1))


def with_moment(p, q, order, target):
    """P moved towards Q until both Rényi divergences are at most the target, and the larger one equals it."""
    low, high = np.zeros(len(p)), np.ones(len(p))
    for _ in range(50):
        middle = 0.5 * (low + high)
        mixed = q + middle[:, None] * (p - q)
        largest = np.maximum(log_moment(mixed, q, order), log_moment(q, mixed, order))
        is_within = largest <= target
        low, high = np.where(is_within, middle, low), np.where(is_within, high, middle)
    return q + low[:, None] * (p - q)


def renyi_trees(count, random):
    """Trees that spend a Rényi divergence: their divergences, and what is proved (Canonne et al. 2020)."""
    order, total = random.choice([1.5, 2.0, 4.0, 10.0]), random.uniform(0.02, 2.0, count)
    p, q, left = np.ones((count, 1)), np.ones((count, 1)), total[:, None]
    for level in range(DEPTH):
        size = p.size
        part = np.ones(size) if level == DEPTH - 1 else random.random(size)
        cost = part * left.ravel()
        first, second = (random.dirichlet([0.5] * OUTCOMES, size) + 1e-9 for _ in range(2))
        first, second = (one / one.sum(axis=1, keepdims=True) for one in (first, second))
        node_q = second
        node_p = with_moment(first, node_q, order, (order - 1.0) * cost)
        p, q = ((all_.reshape(size, 1) * node).reshape(count, -1) for all_, node in ((p, node_p), (q, node_q)))
        left = np.repeat(left.ravel() - cost, OUTCOMES).reshape(count, -1)
    proved = (1.0 - 1.0 / order) ** (order - 1.0) / order * np.exp((order - 1.0) * (total - EPSILONS[:, None]))
    limits = np.where(EPSILONS[:, None] >= 0.0, np.minimum(1.0, proved), 1.0)
    return hockey_sticks(p, q), np.repeat(limits[:, None, :], 2, axis=1)


def planned_trees(count, random):
    """Trees that run garbled versions of planned mechanisms in an order of their own: divergences, and the plan's."""
    units = [tuple(random.dirichlet([0.7] * OUTCOMES, count) for _ in range(2)) for _ in range(DEPTH)]
    plan_p, plan_q = np.ones((count, 1)), np.ones((count, 1))
    for unit_p, unit_q in units:
        plan_p = (plan_p[:, :, None] * unit_p[:, None, :]).reshape(count, -1)
        plan_q = (plan_q[:, :, None] * unit_q[:, None, :]).reshape(count, -1)
    p, q = np.ones((count, 1)), np.ones((count, 1))
    order = np.tile(np.arange(DEPTH), (count, 1, 1))
    for level in range(DEPTH):
        nodes = p.shape[1]
        # The next unit is any of those that are left, by the outcomes so far.
        pick = random.integers(level, DEPTH, (count, nodes))
        chosen = np.take_along_axis(order, pick[:, :, None], axis=2)[:, :, 0]
        np.put_along_axis(order, pick[:, :, None], order[:, :, level : level + 1], axis=2)
        kernel = random.dirichlet([0.2] * OUTCOMES, (count, nodes, OUTCOMES))
        node_p, node_q = (
            np.einsum(
                "cni,cnio->cno",
                np.stack([unit[side] for unit in units], axis=1)[np.arange(count)[:, None], chosen],
                kernel,
            )
            for side in (0, 1)
        )
        p, q = ((all_[:, :, None] * node).reshape(count, -1) for all_, node in ((p, node_p), (q, node_q)))
        order = np.repeat(order, OUTCOMES, axis=1)
    return hockey_sticks(p, q), hockey_sticks(plan_p, plan_q)


KINDS = {"gaussian": gaussian_trees, "renyi": renyi_trees, "planned": planned_trees}


def excess_and_use(kind, trees, random):
    """The largest excess of any divergence over its limit, and the largest part of a limit that is used."""
    excess, use = -np.inf, 0.0
    for _ in range(0, trees, 500):
        deltas, limits = KINDS[kind](500, random)
        excess = max(excess, float((deltas - limits).max()))
        # Limits that are neither next to nothing nor next to 1 say how hard the trees try.
        matters = (EPSILONS[:, None, None] > 0.0) & (limits > 0.01) & (limits < 0.5)
        shares = deltas / np.maximum(limits, 1e-300)
        use = max(use, float(shares[np.broadcast_to(matters, deltas.shape)].max()))
    return excess, use


@pytest.mark.parametrize(("kind", "share"), [("gaussian", 0.97), ("renyi", 0.7), ("planned", 0.97)])
def test_no_adaptive_tree_exceeds_its_filter(kind, share):
    excess, use = excess_and_use(kind, TREES, np.random.default_rng(20261119))
    assert excess < 1e-12
    # The trees are worth running: some use most of what is allowed.
    assert use > share


def response(epsilon):
    """Randomised response."""
    right = 1.0 / (1.0 + np.exp(-epsilon))
    return np.array([right, 1.0 - right]), np.array([1.0 - right, right])


def revealing(probability):
    """A mechanism that tells everything with this probability, and nothing otherwise."""
    return np.array([probability, 0.0, 1.0 - probability]), np.array([0.0, probability, 1.0 - probability])


def exact_delta(p, q, epsilon):
    return float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum())


def least_width(p, q, reveal):
    """The width that a filter charges for a small mechanism."""
    order = np.argsort(-np.log(np.maximum(p, 1e-300)) + np.log(np.maximum(q, 1e-300)))
    tests = CurveTests(fpr=np.cumsum(q[order])[:-1], power=np.cumsum(p[order])[:-1])
    mirrored = CurveTests(fpr=1.0 - tests.power, power=1.0 - tests.fpr)
    return max(tests.least_width(reveal), mirrored.least_width(reveal))


def test_the_tight_rule_is_exceeded_where_the_filter_refuses():
    """Two ways to go on, each within the budget; which one is taken depends on the first outcome."""
    epsilon = 1.5
    first, again = response(1.0), response(1.0)
    delta = exact_delta(np.outer(first[0], again[0]), np.outer(first[1], again[1]), epsilon)
    tell = revealing(delta)
    # The tight rule admits either continuation: each is within (epsilon, delta) if it is fixed beforehand.
    for second in (again, tell):
        assert exact_delta(np.outer(first[0], second[0]), np.outer(first[1], second[1]), epsilon) <= delta * (1 + 1e-12)
    p = np.concatenate([first[0][0] * again[0], first[0][1] * tell[0]])
    q = np.concatenate([first[1][0] * again[1], first[1][1] * tell[1]])
    assert exact_delta(p, q, epsilon) > 1.26 * delta
    # No budget of the filter that is within (epsilon, delta) admits both continuations.
    for reveal in delta * np.array([0.01, 0.1, 0.5, 0.9, 0.99, 0.9999]):
        limit = width_within(epsilon, delta, reveal)
        admits_response = least_width(*first, 0.0) ** 2 + least_width(*again, 0.0) ** 2 <= limit**2
        admits_telling = delta <= reveal
        assert not (admits_response and admits_telling)


def test_stopping_when_it_looks_bad_exceeds_the_tight_rule():
    """Stop and state what was spent once the loss exceeds it: more than delta lies beyond what was stated."""
    sigma, delta, rounds = 3.0, 0.01, 40
    random = np.random.default_rng(7)
    widths = np.sqrt(np.arange(1, rounds + 1)) / sigma
    stated = np.array([gaussian_epsilon(width, delta) for width in widths])
    # Losses under P: each round adds a normal step of mean r^2 / 2 and variance r^2.
    steps = random.normal(0.5 / sigma**2, 1.0 / sigma, (40_000, rounds))
    losses = np.cumsum(steps, axis=1)
    beyond = losses > stated
    stop = np.where(beyond.any(axis=1), beyond.argmax(axis=1), rounds - 1)
    loss, claim = losses[np.arange(len(stop)), stop], stated[stop]
    mass = np.maximum(-np.expm1(claim - loss), 0.0)
    assert mass.mean() - 5.0 * mass.std() / np.sqrt(len(mass)) > 2.0 * delta


def gaussian_epsilon(width, delta):
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if revealing_delta(middle, 0.0, width) > delta else (low, middle)
    return high


def test_least_widths_are_least_and_wide_enough():
    """Random mechanisms of five outcomes: dominated at every epsilon, and not with a width smaller by a thousandth."""
    random = np.random.default_rng(3)
    epsilons = np.linspace(-12.0, 12.0, 4_001)
    for _ in range(30):
        p, q = random.dirichlet([0.6] * 5), random.dirichlet([0.6] * 5)
        reveal = float(random.choice([0.0, 0.01, 0.1]))
        width = least_width(p, q, reveal)
        deltas = np.array([exact_delta(p, q, epsilon) for epsilon in epsilons])
        assert np.all(deltas <= revealing_delta(epsilons, reveal, width) + 1e-12)
        assert np.any(deltas > revealing_delta(epsilons, reveal, 0.999 * width))


if __name__ == "__main__":
    for name in KINDS:
        print(name, *excess_and_use(name, int(sys.argv[1]), np.random.default_rng(1)))
