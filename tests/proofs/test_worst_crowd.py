"""The theorems about crowds themselves: swaps, derivatives, the star shuffle, and the counter-example in reverse."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from helpers import Array


def two_users(r: float, a: float, t: float, points: int = 41) -> tuple[float, float]:
    """Forward and reverse hockey sticks of two users, the second at a place of inner product a, by quadrature.

    With g normal and independent: log beta has the deviation r sqrt(2 (1 - a)), log alpha is half of it and a rest.
    """
    x = np.linspace(-6.5, 6.5, points)
    weight = np.exp(-0.5 * x * x) * (x[1] - x[0]) / math.sqrt(2.0 * math.pi)
    wide, rest = r * math.sqrt(2.0 * (1.0 - a)), r * math.sqrt(0.5 * (1.0 + a))
    log_beta = (wide * x - 0.5 * wide**2)[:, None] + 0.0 * x[None, :]
    log_alpha = (0.5 * wide * x)[:, None] + (rest * x)[None, :] - 0.5 * r**2
    both = (weight[:, None] * weight[None, :]).ravel()
    used = both > 1e-11
    alpha, beta, both = np.exp(log_alpha.ravel()[used]), np.exp(log_beta.ravel()[used]), both[used]
    forward = reverse = 0.0
    for start in range(0, len(both), 512):
        part = slice(start, start + 512)
        gain = 0.5 * (beta[part, None] + beta[None, :]) - t * 0.5 * (alpha[part, None] + alpha[None, :])
        forward += float(both[part] @ np.maximum(gain, 0.0) @ both)
        gain = 0.5 * (alpha[part, None] + alpha[None, :]) - t * 0.5 * (beta[part, None] + beta[None, :])
        reverse += float(both[part] @ np.maximum(gain, 0.0) @ both)
    return forward, reverse


def orbit(g: Array, e: Array, power: float) -> Array:
    """The two states of a swap of the first two e, for phi'' = s^(power - 2): their sum, over the leading axis."""
    total = 0.0
    for first, second in ((0, 1), (1, 0)):
        order = [first, second, *range(2, g.shape[-1])]
        swapped = e[..., order]
        alpha, beta = g * swapped, g * g
        s = beta.sum(-1) / alpha.sum(-1)
        pair = (beta[..., 0] - beta[..., 1]) * (beta[..., 0] * alpha[..., 1] - alpha[..., 0] * beta[..., 1])
        total = total + s ** (power - 2.0) * pair / alpha.sum(-1) ** 2
    return np.asarray(total)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0, 6.0])
def test_a_swap_never_lowers_the_mean(power: float) -> None:
    """Theorem 1: s^2 phi'' = s^power is nondecreasing for power >= 0, and both states together are not negative."""
    rng = np.random.default_rng(0)
    for users in (2, 3, 6):
        g, e = (np.exp(rng.normal(0.0, 1.0, (4_000, users))) for _ in range(2))
        assert float(orbit(g, e, power).min()) >= -1e-12


def test_a_falling_weight_breaks_it() -> None:
    rng = np.random.default_rng(1)
    g, e = (np.exp(rng.normal(0.0, 1.5, (20_000, 3))) for _ in range(2))
    assert float(orbit(g, e, -3.0).min()) < 0.0


def test_two_forms_of_the_sum_over_pairs() -> None:
    rng = np.random.default_rng(2)
    alpha, beta = (np.exp(rng.normal(0.0, 1.0, 5)) for _ in range(2))
    s = beta.sum() / alpha.sum()
    pairs = sum(
        (beta[i] - beta[j]) * (beta[i] * alpha[j] - alpha[i] * beta[j]) for i, j in itertools.combinations(range(5), 2)
    )
    assert float(beta @ (beta - s * alpha)) / alpha.sum() == pytest.approx(pairs / alpha.sum() ** 2, rel=1e-12)


def test_forward_divergences_fall_with_the_place() -> None:
    """Theorem 1 for two users: moments of S of several orders, by the same quadrature points."""
    r, x = 0.8, np.linspace(-6.5, 6.5, 27)
    weight = np.exp(-0.5 * x * x) * (x[1] - x[0]) / math.sqrt(2.0 * math.pi)
    both = (weight[:, None] * weight[None, :]).ravel()
    last = np.full(4, np.inf)
    for a in (-1.0, -0.5, 0.0, 0.5, 1.0):
        wide, rest = r * math.sqrt(2.0 * (1.0 - a)), r * math.sqrt(0.5 * (1.0 + a))
        beta = np.exp((wide * x - 0.5 * wide**2)[:, None] + 0.0 * x[None, :]).ravel()
        alpha = np.exp((0.5 * wide * x)[:, None] + (rest * x)[None, :] - 0.5 * r**2).ravel()
        h, g = beta[:, None] + beta[None, :], alpha[:, None] + alpha[None, :]
        values = np.array(
            [float(both @ (0.5 * g * (h / g) ** order) @ both) for order in (2.0, 3.0, 1.5)]
            + [float(both @ (0.5 * h * np.log(h / g)) @ both)]
        )
        assert np.all(values < last)
        last = values


@pytest.mark.parametrize("r", [0.5, 1.0])
def test_of_two_users_the_opposite_one_shows_most_forward(r: float) -> None:
    """Theorem 2."""
    for epsilon in (-0.5, 0.0, 1.0):
        curve = [two_users(r, a, math.exp(epsilon))[0] for a in (-1.0, -0.3, 0.4, 1.0)]
        assert all(before > after for before, after in itertools.pairwise(curve))


def test_in_reverse_the_crowd_at_the_new_place_shows_more() -> None:
    """The counter-example: two users, sigma = 1, eps = 3.5."""
    t = math.exp(3.5)
    beside, opposite = (two_users(1.0, a, t, 91)[1] for a in (1.0, -1.0))
    assert beside == pytest.approx(2.28e-5, rel=0.04)
    assert opposite == pytest.approx(0.83e-5, rel=0.05)
    assert two_users(1.0, -1.0, t)[0] > 10.0 * beside


# The star shuffle, for finite alphabets


def star_and_shuffle(p: Array, moved: Array, others: list[Array], t: float) -> tuple[float, float, float, float]:
    """Forward and reverse hockey sticks of the star, then of the shuffle."""
    users = 1 + len(others)
    by_multiset: dict[tuple[int, ...], Array] = {}
    forward = reverse = 0.0
    for slots in itertools.product(range(len(p)), repeat=users):
        masses = np.zeros(2)
        for first in range(users):
            # User 1's slot: its own, or that of another user who then sits in slot 0.
            owners = [others[j - 1] for j in range(1, users)]
            placed = {first: None} | {j: owners[j - 1] for j in range(1, users) if j != first}
            if first:
                placed[0] = owners[first - 1]
            rest = math.prod(float(law[slots[j]]) for j, law in placed.items() if law is not None)
            masses += np.array([p[slots[first]], moved[slots[first]]]) * rest / users
        forward += max(masses[1] - t * masses[0], 0.0)
        reverse += max(masses[0] - t * masses[1], 0.0)
        key = tuple(sorted(slots))
        by_multiset[key] = by_multiset.get(key, np.zeros(2)) + masses
    shuffled = np.array(list(by_multiset.values()))
    gains = [np.maximum(shuffled[:, 1 - i] - t * shuffled[:, i], 0.0).sum() for i in (0, 1)]
    return forward, reverse, float(gains[0]), float(gains[1])


def test_the_star_shuffle_dominates_and_is_equal_for_one_place() -> None:
    rng = np.random.default_rng(4)
    for users in (2, 3, 4):
        for _ in range(12):
            p, moved, *others = rng.dirichlet(np.full(3, 0.8), users + 1)
            t = math.exp(rng.uniform(-0.5, 1.0))
            star = star_and_shuffle(p, moved, list(others), t)
            assert star[0] >= star[2] - 1e-13
            assert star[1] >= star[3] - 1e-13
            one_place = star_and_shuffle(p, moved, [others[0]] * (users - 1), t)
            assert one_place[:2] == pytest.approx(one_place[2:], abs=1e-13)
