"""The law of the mean ratio lies between its two bounds, and its bounds are what they say."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from helpers import described, reference
from shoal.bounds import grid
from shoal.bounds import mean_law as mean_law_module
from shoal.bounds.mean_law import mean_law
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical

REFERENCES = reference("hockey_sticks")
BUDGET = 1e-24
KINDS = sorted({(r["users"], r["scale"], r["rate"], r["weight"]) for r in REFERENCES})
SOME = [
    (1, 1.0, 1.0, 1.0),
    (2, 0.3, 0.5, 1.0),
    (10, 0.2, 1.0, 1.0),
    (1000, 1.0, 1.0, 0.1),
    (60_000, 9.48, 0.01, 1.0),
    (10**7, 0.3, 1.0, 1.0),
    (10**8, 1000.0, 1.0, 1.0),
    (10**8, 0.5, 1e-6, 1.0),
]


def hockey_stick(pair: mean_law_module.Pair, epsilon: float) -> float:
    above = pair.loss > epsilon
    return float((pair.base * np.expm1(pair.loss - epsilon))[above].sum()) * math.exp(epsilon) + pair.infinite


def test_there_are_enough_references_of_both_directions() -> None:
    assert len(REFERENCES) >= 200
    assert {r["direction"] for r in REFERENCES} == {"forward", "reverse"}
    assert all(r["error"] <= 1e-9 * r["delta"] for r in REFERENCES if r["delta"] > 1e-16)


@pytest.mark.parametrize("half", [128, 512])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_high_precision_values_lie_strictly_between_the_bounds(
    kind: tuple[int, float, float, float], half: int
) -> None:
    exact = mean_law(described(*kind), half, BUDGET)
    for r in REFERENCES:
        if (r["users"], r["scale"], r["rate"], r["weight"]) != kind or r["delta"] < 1e-16:
            continue
        lower = hockey_stick(exact.pair("lower", r["direction"]), r["epsilon"])
        upper = hockey_stick(exact.pair("upper", r["direction"]), r["epsilon"])
        assert lower < r["delta"] < upper, r


@pytest.mark.parametrize("kind", SOME, ids=str)
def test_both_sides_keep_mass_and_mean(kind: tuple[int, float, float, float]) -> None:
    exact = mean_law(described(*kind), 256, BUDGET)
    assert float(exact.mass.sum()) == pytest.approx(1.0, abs=1e-9)
    for side in ("upper", "lower"):
        gap = float((exact.mass * np.expm1(exact.loss[side])).sum())  # type: ignore[index]
        assert gap == pytest.approx(0.0, abs=1e-9 * float(exact.mass @ np.abs(np.expm1(exact.loss["upper"]))) + 1e-12)


@pytest.mark.parametrize("kind", [k for k in SOME if k[1] >= 0.5], ids=str)
def test_the_variance_lies_between_those_of_the_bounds(kind: tuple[int, float, float, float]) -> None:
    users, scale, rate, weight = kind
    truth = weight**2 * rate * math.expm1(scale**-2) / users
    exact = mean_law(described(*kind), 256, BUDGET)
    lower, upper = (float(exact.mass @ np.expm1(exact.loss[side]) ** 2) for side in ("lower", "upper"))  # type: ignore[index]
    assert lower < truth * (1 + 1e-9)
    assert truth < upper * (1 + 1e-9)
    assert upper - lower < 0.02 * truth


@pytest.mark.parametrize("kind", SOME, ids=str)
def test_the_bounds_are_ordered_and_get_closer(kind: tuple[int, float, float, float]) -> None:
    widths = []
    for half in (64, 256):
        exact = mean_law(described(*kind), half, BUDGET)
        spread = float(exact.mass @ np.abs(exact.loss["upper"]).clip(max=50.0))
        total = 0.0
        for direction in ("forward", "reverse"):
            for epsilon in (0.1 * spread, spread, 3.0 * spread):
                lower, upper = (hockey_stick(exact.pair(s, direction), epsilon) for s in ("lower", "upper"))  # type: ignore[arg-type]
                assert lower <= upper
                total += upper - lower
        widths.append(total)
    assert widths[1] < 0.2 * widths[0] + 1e-20


def test_more_users_are_more_private() -> None:
    for direction in ("forward", "reverse"):
        before = 1.0
        for users in (1, 2, 3, 5, 8, 64, 65, 100, 1000):
            pair = mean_law(described(users, 0.8, 1.0, 1.0), 256, BUDGET)
            lower, upper = (hockey_stick(pair.pair(s, direction), 0.3) for s in ("lower", "upper"))  # type: ignore[arg-type]
            assert lower <= before
            before = upper


def test_what_is_cut_off_is_counted() -> None:
    for kind in SOME:
        exact = mean_law(described(*kind), 128, 1e-6)
        assert 0.0 < exact.cut["reverse"] < 1e-6
        assert exact.pair("upper", "forward").infinite > 0.0 > exact.pair("lower", "forward").infinite


def test_points_below_zero_are_counted() -> None:
    """`E[(1 - e^eps S)+]` of a law with `below` mass times distance under 0 is e^eps `below` more.

    A delta only falls with eps, so that the least of these sums up to eps is a bound, and is what is given.
    """
    exact = mean_law(described(3, 0.5, 1.0, 1.0), 128, BUDGET)
    moved = dataclasses.replace(exact, below=1e-3)
    least = 1.0
    for epsilon in np.linspace(0.0, 6.0, 601):
        before, after = (hockey_stick(one.pair("upper", "reverse"), epsilon) for one in (exact, moved))
        least = min(least, before + math.exp(epsilon) * 1e-3)
        assert least <= after * (1.0 + 1e-9) <= 1.05 * least
    for one in (exact, moved):
        assert hockey_stick(one.pair("upper", "forward"), 1.0) == hockey_stick(exact.pair("upper", "forward"), 1.0)


def test_coarsening_keeps_mass_and_mean() -> None:
    rng = np.random.default_rng(1)
    mass, moment, points = rng.random(65), 0.1 * rng.standard_normal(65), np.arange(-32.0, 33.0)
    p, q = grid.coarsen(mean_law_module._MOMENT_RULE, np.stack([mass, moment])[:, None], 1.0)[:, 0]
    assert p.sum() == pytest.approx(mass.sum(), rel=1e-14)
    assert p @ points[::2] == pytest.approx(mass @ points, rel=1e-12)
    assert p @ points[::2] + q.sum() == pytest.approx(mass @ points + moment.sum(), rel=1e-12)


@pytest.mark.parametrize("wrong", ["means", "left", "stretch"])
def test_breaking_the_safe_side_is_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upper law with cell means for points, or with unfair shares, falls below the references."""
    kind = (60_000, 9.48, 1.0, 1.0)
    if wrong == "left":

        def unfair(rule: Any, rows: Any, spacing: float) -> Any:
            even, odd = rows[..., 0::2].copy(), rows[..., 1::2]
            even[..., :-1] += odd
            even[1, :, :-1] += odd[0] * spacing
            return even

        monkeypatch.setattr(grid, "coarsen", unfair)
    exact = mean_law.__wrapped__(described(*kind), 128, BUDGET)
    if wrong == "means":
        exact.loss["upper"] = exact.loss["lower"]
    if wrong == "stretch":
        object.__setattr__(exact, "stretch", -1e-2)
    outside = 0
    for r in REFERENCES:
        if (r["users"], r["scale"], r["rate"], r["weight"]) == kind and r["delta"] > 1e-15:
            outside += r["delta"] > hockey_stick(exact.pair("upper", r["direction"]), r["epsilon"])
    assert outside > 0


def test_scales_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sums can be computed, got Lognormal\(scale=0\.01"):
        mean_law(described(10, 0.01, 1.0, 1.0), 128, BUDGET)


def test_atoms_at_zero_stay_numbers():
    """Few cells and little noise: sums spread to 0, where the loss is infinite, and nothing becomes NaN."""
    exact = mean_law(Identical(ratio=Lognormal(scale=0.1), users=79), 256, BUDGET)
    for side, direction in itertools.product(("upper", "lower"), ("forward", "reverse")):
        assert not np.isnan(exact.log_ratio(side, direction)).any()


# The two lemmas on round-off, with errors large enough to see


def excess_of_calls(points: np.ndarray, mass: np.ndarray, other: np.ndarray, other_mass: np.ndarray) -> float:
    """The largest `E[(other - k)+] - E[(points - k)+]` over k: above 0 where points is not the larger one."""
    at = np.concatenate([points, other])
    calls = [m @ np.maximum(x[:, None] - at, 0.0) for x, m in ((other, other_mass), (points, mass))]
    return float(np.max(calls[0] - calls[1]))


def random_law(rng: np.random.Generator, still: float) -> tuple[np.ndarray, np.ndarray]:
    """Atoms of mean 0 of which one, at 0, has the mass `still`."""
    points = rng.standard_normal(6) * np.exp(rng.standard_normal(6))
    mass = (1.0 - still) * rng.dirichlet(np.full(6, 0.5))
    return np.append(points - points @ mass / mass.sum(), 0.0), np.append(mass, still)


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_wrong_masses_are_a_stretch(share: float) -> None:
    """The lemma on masses, and that a tenth of its stretch would not do."""
    rng, worst = np.random.default_rng(3), 0.0
    for _ in range(2_000):
        points, mass = random_law(rng, 0.5)
        error = 0.02 * rng.choice([-1.0, 1.0], size=7) if rng.random() < 0.5 else 0.02 * np.sign(points)
        wrong = mass * (1.0 + error)
        wrong /= wrong.sum()
        e = float(np.max(np.abs(wrong / mass - 1.0)))
        stretch, moved = 1.0 + 4.0 * e * share, points - points @ wrong
        worst = max(worst, *(excess_of_calls(s * stretch * points, mass, s * moved, wrong) for s in (1.0, -1.0)))
    assert (worst <= 1e-12) == (share == 1.0)


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_wrong_points_are_a_stretch(share: float) -> None:
    """The lemma on points of a sum, whatever the signs of the errors, and that a tenth of its stretch would not do."""
    rng, worst = np.random.default_rng(4), 0.0
    for case in range(2_000):
        still = rng.choice([0.0, 0.5, 0.99])
        (x, p), (y, q) = random_law(rng, still), random_law(rng, still)
        points, mass = np.add.outer(x, y).ravel(), np.multiply.outer(p, q).ravel()
        sizes = np.add.outer(np.abs(x), np.abs(y)).ravel()
        r, a = rng.choice([0.0, 1e-4]), rng.choice([1e-6, 1e-4])
        size, moved = float(mass @ np.abs(points)), 1.0 - still**2
        c = 12.0 * (r + a * moved / size)
        if c >= 0.1:
            continue
        signs = [np.ones(49), np.sign(points), np.sign(points - rng.choice(points)), rng.choice([-1.0, 1.0], 49)][
            case % 4
        ]
        wrong = points + signs * (r * sizes + a) * (sizes > 0.0)
        wrong -= wrong @ mass
        for sign in (1.0, -1.0):
            found = excess_of_calls(sign * (1.0 + c * share) * points, mass, sign * wrong, mass)
            worst = max(worst, found / size)
    assert (worst <= 1e-12) == (share == 1.0)


def test_the_work_grows_with_the_logarithm_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of independent terms are counted, and the cells that they hold are bounded."""
    sums, cells = 0, 0
    once = grid.convolved

    def counted(a: Any, b: Any) -> Any:
        nonlocal sums, cells
        sums, cells = sums + 1, max(cells, a.mass.size)
        return once(a, b)

    monkeypatch.setattr(mean_law_module, "convolved", counted)
    for users in (3, 99, 10**4 - 1, 10**6 - 1, 10**8 - 1):
        sums = 0
        mean_law(described(users, 1.3, 0.7, 1.0), 96, 1.1e-24)
        assert 0 < sums <= 2 * math.log2(users)
    assert cells <= 40 * (2 * 96 + 1)
