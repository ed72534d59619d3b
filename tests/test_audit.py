"""The audit: exact likelihoods, honest rates, false claims found, true claims left standing."""

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import binomtest

from helpers import run
from shoal import LocalGaussian, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal import audit as module
from shoal.audit import Game, audit, clopper_pearson, crowd, findings, likelihood, lower_bound
from shoal.audit import game as games_module

STRONG = Shuffle(users=5, sigma=0.5)


def game(mechanism, shape="identical", dimension=1, rounds=1):
    points, counts = crowd(shape, mechanism, dimension, np.random.default_rng(7))
    return Game(mechanism=mechanism, rounds=rounds, shape=shape, dimensions=(dimension,), points=points, counts=counts)


# The likelihood ratio


def by_brute_force(g, reports):
    """log P/Q of a set of reports: the sum over all ways to give them to different users."""
    others = np.repeat(g.points, g.counts, axis=0)

    def likelihood(own):
        holders = np.vstack([own[None], others])
        squares = ((reports[:, None, :] - holders[None]) ** 2).sum(axis=-1)
        density = np.exp(-0.5 * squares / g.mechanism.sigma**2)
        ways = itertools.permutations(range(len(holders)), len(reports))
        return sum(math.prod(density[i, j] for i, j in enumerate(way)) for way in ways)

    return math.log(likelihood(g.own[1])) - math.log(likelihood(g.own[0]))


PROTOCOLS = [
    Shuffle(users=1, sigma=1.0),
    Shuffle(users=2, sigma=0.6),
    Shuffle(users=5, sigma=0.8),
    Shuffle(users=4, sigma=1.5, adjacency="replace"),
    SubsampledShuffle(users=5, sample=3, sigma=0.7),
    SubsampledShuffle(users=5, sample=1, sigma=0.7, adjacency="replace"),
    ShuffledCheckIn(users=5, rate=0.5, sigma=0.7),
    ShuffledCheckIn(users=4, rate=0.9, sigma=1.0, adjacency="replace"),
]


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("shape", module.SHAPES)
@pytest.mark.parametrize("m", PROTOCOLS, ids=repr)
def test_the_likelihood_ratio_is_the_sum_over_all_permutations(m, shape, dimension):
    g = game(m, shape, dimension)
    assert g.exact
    played = g.draw(12, np.random.default_rng(3))
    statistic = likelihood.ratio_of_one_class if len(g.points) == 1 else likelihood.ratio_of_classes
    found = statistic(g, played)
    for world, trial in itertools.product((0, 1), range(12)):
        seen = played.crowd[trial, played.present[trial]]
        if played.taking_part[trial]:
            seen = np.vstack([seen, played.own[world, trial]])
        assert len(seen) == played.sizes[trial]
        assert found[world, trial, 0] == pytest.approx(by_brute_force(g, seen), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("m", [Shuffle(users=30, sigma=0.5), ShuffledCheckIn(users=40, rate=0.3, sigma=0.5)], ids=repr)
def test_two_classes_at_one_place_are_one_class(m):
    one = game(m, "opposite")
    half = (m.users - 1) // 2
    two = Game(**{**vars(one), "points": np.array([[-1.0], [-1.0]]), "counts": np.array([m.users - 1 - half, half])})
    played = one.draw(50, np.random.default_rng(0))
    assert likelihood.ratio_of_classes(two, played) == pytest.approx(
        likelihood.ratio_of_one_class(one, played), rel=1e-9, abs=1e-9
    )


def test_tiny_noise_gives_no_nan():
    for shape in module.SHAPES:
        for m in (Shuffle(users=6, sigma=1e-3), ShuffledCheckIn(users=6, rate=0.2, sigma=1e-3)):
            for batch in likelihood.play(game(m, shape, 2), 200, np.random.default_rng(0)):
                assert not np.isnan(batch).any()
                if isinstance(m, Shuffle):
                    assert (batch[1] > 100).all()
                    assert (batch[0] < -100).all()


@pytest.mark.parametrize("m", PROTOCOLS[1:], ids=repr)
def test_the_ratio_has_mean_one_under_q(m):
    """E_Q[dP/dQ] = 1: games and likelihood speak of the same protocol."""
    for shape in ("identical", "clusters", "spread"):
        g = game(m.replace(sigma=m.sigma * 2), shape, 2)
        ratios = np.exp(np.concatenate([b[0, :, 0] for b in likelihood.play(g, 40_000, np.random.default_rng(1))]))
        assert abs(ratios.mean() - 1.0) < 5 * ratios.std() / 200
        inverse = np.exp(-np.concatenate([b[1, :, 0] for b in likelihood.play(g, 40_000, np.random.default_rng(1))]))
        assert abs(inverse.mean() - 1.0) < 5 * inverse.std() / 200


# The crowds


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
@pytest.mark.parametrize("users", [1, 2, 3, 50])
def test_crowds_are_what_they_are_called(users, adjacency):
    m = Shuffle(users=users, sigma=1.0, adjacency=adjacency)
    for shape, dimension in itertools.product(module.SHAPES, (2, 3, 20)):
        g = game(m, shape, dimension)
        assert g.counts.sum() == users - 1
        assert (np.linalg.norm(g.points, axis=1) <= 1 + 1e-12).all()
        assert g.counts[0] == g.counts.max()
        origin, moved = g.own
        assert np.linalg.norm(moved - origin) == (1.0 if adjacency == "zero-out" else 2.0)
        if shape == "identical":
            assert (g.points == origin).all()
        elif shape == "opposite":
            assert (g.points == -moved).all()
        elif shape == "orthogonal":
            assert (g.points @ moved == 0).all()
            assert np.linalg.norm(g.points) == 1.0
        elif shape == "clusters":
            assert np.unique(g.points).tolist() == [-1.0, 1.0]
        else:
            assert g.points.shape[1] <= dimension


def test_a_spread_crowd_keeps_its_distances_in_fewer_dimensions(monkeypatch):
    m = Shuffle(users=4, sigma=1.0)
    short, _ = crowd("spread", m, 30, np.random.default_rng(5))
    monkeypatch.setattr(np.linalg, "qr", lambda a: (None, a))
    full, _ = crowd("spread", m, 30, np.random.default_rng(5))
    assert short.shape[1] < full.shape[1]
    assert short @ short.T == pytest.approx(full @ full.T)
    assert (short[:, 0] == full[:, 0]).all()


def test_uniform_in_the_ball():
    points, _ = crowd("spread", Shuffle(users=20_001, sigma=1.0), 3, np.random.default_rng(0))
    lengths = np.linalg.norm(points, axis=1)
    assert np.mean(lengths < 0.5) == pytest.approx(1 / 8, abs=0.01)
    assert points.mean(axis=0) == pytest.approx(np.zeros(3), abs=0.02)


@pytest.mark.parametrize("width", [0, 1, 4, 6])
def test_random_order(width):
    found = games_module._first_of_random_order(500, 6, width, np.random.default_rng(2))
    assert (found == np.random.default_rng(2).random((500, 6)).argsort(axis=1)[:, :width]).all()


# Rates and bounds


@pytest.mark.parametrize(("k", "n"), [(0, 50), (1, 50), (25, 50), (50, 50), (3, 100_000), (99_990, 100_000)])
@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_clopper_pearson_is_scipys(k, n, alpha):
    low, high = clopper_pearson(k, n, alpha)
    greater = binomtest(k, n, alternative="greater").proportion_ci(1 - alpha, "exact")
    less = binomtest(k, n, alternative="less").proportion_ci(1 - alpha, "exact")
    assert float(low) == pytest.approx(greater.low, rel=1e-6, abs=1e-15)  # scipy's root finder is no better
    assert float(high) == pytest.approx(less.high, rel=1e-6)
    if k == 0:
        assert float(high) == pytest.approx(-math.expm1(math.log(alpha) / n), rel=1e-12)
    if k == 1:
        assert float(low) == pytest.approx(-math.expm1(math.log1p(-alpha) / n), rel=1e-12)


def test_lower_bound_is_the_definition():
    low, _ = clopper_pearson(900, 1000, 0.01)
    _, high = clopper_pearson(20, 1000, 0.01)
    assert lower_bound(900, 20, 1000, delta=0.1, alpha=0.01) == pytest.approx(math.log((low - 0.1) / high))
    assert lower_bound(20, 900, 1000, delta=0.1, alpha=0.01) == 0.0
    assert lower_bound(900, 20, 1000, delta=0.95, alpha=0.01) == 0.0


class Noise:
    """A game in which both worlds are the same, so that epsilon is 0."""

    shape, dimensions, exact = "identical", (1,), True


def noise(game, trials, rng):
    yield rng.standard_normal((trials, 2, 1)).swapaxes(0, 1)


def test_choosing_costs_no_confidence(monkeypatch):
    """Two equal rates look different by both margins in about 23% of games, by 0.74 standard deviations.

    Measured on the games that chose the threshold they would look different much more often.
    """
    monkeypatch.setattr(findings, "play", noise)
    asked = {"delta": 1e-6, "alpha": 0.3, "trials": 400, "played": lambda count: None}
    wrong = np.mean([findings._measure(Noise(), seed=seed, **asked)["epsilon"] > 0.0 for seed in range(300)])
    assert wrong < 0.3
    same = 0
    for seed in range(100):
        games = np.random.default_rng(seed).standard_normal((2, 400, 1))
        event = module.choose(games, np.ones(1), 1e-6, 0.3)
        same += lower_bound(*event.count(games), 400, delta=1e-6, alpha=0.3) > 0.0
    assert same > 60


@pytest.mark.parametrize("delta", [0.02, 0.1])
@pytest.mark.parametrize(
    "m",
    [
        Shuffle(users=2, sigma=1.0),
        Shuffle(users=8, sigma=1.5, adjacency="replace"),
        SubsampledShuffle(users=6, sample=3, sigma=0.5),
        ShuffledCheckIn(users=6, rate=0.5, sigma=0.5),
    ],
    ids=repr,
)
def test_identical_crowd_is_close_below_the_truth(m, delta):
    (row,) = audit(m, delta=delta, shapes="identical", trials=200_000, confidence=0.99)
    truth = m.replace(crowd="identical").epsilon(delta=delta)
    assert row.identical_crowd == truth
    assert 0.85 * truth.lower < row.epsilon <= truth.upper


def test_rounds_add_up():
    m = Shuffle(users=3, sigma=1.0, crowd="identical")
    once, often = (audit(m, delta=0.05, rounds=t, trials=100_000)[0] for t in (1, 4))
    truth = m.epsilon(delta=0.05, rounds=4)
    assert once.identical_crowd.upper < 0.8 * truth.lower < often.epsilon <= truth.upper
    assert once.any_crowd is None


def test_the_opposite_crowd_hides_less_than_the_identical_one():
    rows = audit(Shuffle(users=20, sigma=1.0), delta=0.01, shapes=["identical", "opposite"], trials=50_000)
    identical, opposite = rows
    assert opposite.epsilon > identical.identical_crowd.upper
    assert opposite.stands


def test_the_trained_test_comes_close_to_the_best(monkeypatch):
    m = Shuffle(users=12, sigma=0.7)
    asked = {"delta": 0.01, "shapes": ["clusters"], "trials": 60_000}
    (best,) = audit(m, **asked)
    monkeypatch.setattr(games_module, "_LONGEST_PASS", 0)
    (trained,) = audit(m, **asked)
    assert (best.test, trained.test) == ("optimal", "trained")
    assert 0.6 * best.epsilon < trained.epsilon < 1.05 * best.epsilon


# Claims


@pytest.mark.parametrize(
    "m",
    [STRONG, Shuffle(users=2, sigma=0.5), Shuffle(users=10, sigma=0.5), ShuffledCheckIn(users=4, rate=0.8, sigma=0.5)],
    ids=repr,
)
def test_an_under_report_is_contradicted(m):
    for crowd_name, shapes in (("any", ["opposite"]), ("identical", ["identical"])):
        claim = m.replace(crowd=crowd_name).epsilon(delta=1e-3).upper / 3
        (row,) = audit(m, delta=1e-3, shapes=shapes, claim=claim, trials=40_000)
        assert not row.stands
        assert row.limit == claim < row.epsilon


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "m",
    [
        STRONG,
        Shuffle(users=30, sigma=1.0, adjacency="replace"),
        SubsampledShuffle(users=8, sample=4, sigma=0.5),
        ShuffledCheckIn(users=12, rate=0.4, sigma=0.5),
    ],
    ids=repr,
)
def test_true_claims_stand(m, seed):
    rows = audit(m, delta=1e-2, trials=2_000, seed=seed, rounds=1 + seed % 2, confidence=0.9999)
    assert all(row.stands for row in rows)
    assert {row.shape for row in rows} == set(module.SHAPES) - ({"opposite"} if m.adjacency == "replace" else set())


def test_rows_name_their_dimensions():
    rows = audit(STRONG, delta=0.01, trials=200, dimensions=[8, 1])
    assert [(r.shape, r.dimensions) for r in rows] == [
        ("identical", (1, 8)),
        ("opposite", (1, 8)),
        ("orthogonal", (8,)),
        ("clusters", (1, 8)),
        ("spread", (1,)),
        ("spread", (8,)),
    ]


def test_the_same_seed_gives_the_same_rows():
    first, again, other = (audit(STRONG, delta=0.01, trials=1_000, seed=s) for s in (3, 3, 4))
    assert first == again
    assert first != other


def test_progress_goes_to_one():
    told = []
    audit(STRONG, delta=0.01, trials=1_000, progress=lambda shape, done: told.append((shape, done)))
    assert told == sorted(told, key=lambda t: t[1])
    assert told[-1] == ("spread", pytest.approx(1.0))


def test_batches_stay_small(monkeypatch):
    seen = []
    real = Game.draw

    def spy(self, trials, rng):
        result = real(self, trials, rng)
        seen.append(result.crowd.nbytes)
        return result

    monkeypatch.setattr(Game, "draw", spy)
    audit(ShuffledCheckIn(users=20_000, rate=0.05, sigma=1.0), delta=0.01, trials=100)
    audit(STRONG, delta=0.01, trials=100_000, shapes="identical")
    assert max(seen) <= 8 * 2**20


BAD = [
    ({"delta": 0}, ValueError, "delta must lie strictly between 0 and 1, got 0.0"),
    ({"rounds": 0}, ValueError, "rounds must be at least 1, got 0"),
    ({"trials": 99}, ValueError, "trials must be at least 100, got 99"),
    ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
    ({"seed": 0.5}, ValueError, "seed must be a whole number, got 0.5"),
    ({"confidence": 1}, ValueError, "confidence must lie strictly between 0 and 1, got 1.0"),
    ({"claim": -1}, ValueError, "claim must be at least 0, got -1.0"),
    ({"shapes": "round"}, ValueError, "shapes must be one of identical, opposite"),
    ({"shapes": []}, ValueError, "shapes must not be empty"),
    ({"shapes": ["spread", "spread"]}, ValueError, "shapes must all be different, got spread, spread"),
    ({"dimensions": 0}, ValueError, "dimensions must be at least 1, got 0"),
    ({"dimensions": [2, 2]}, ValueError, "dimensions must all be different, got 2, 2"),
    ({"shapes": "orthogonal", "dimensions": 1}, ValueError, "dimensions must have one of at least 2 for the shape"),
    ({"rounds": 10**9}, ValueError, "rounds must be at most 20000000 for an audit of 5 users"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD, ids=[b[2][:45] for b in BAD])
def test_bad_input(change, error, message):
    with pytest.raises(error, match=message):
        audit(STRONG, **{"delta": 0.01, "trials": 100, **change})


def test_bad_mechanisms():
    with pytest.raises(TypeError, match="mechanism must be Shuffle, SubsampledShuffle or ShuffledCheckIn, got Local"):
        audit(LocalGaussian(sigma=1.0), delta=0.01)
    with pytest.raises(ValueError, match="shapes must be identical for a mechanism of the identical crowd"):
        audit(STRONG.replace(crowd="identical"), delta=0.01, shapes="spread")
    with pytest.raises(ValueError, match="shapes must not have opposite for replace adjacency"):
        audit(STRONG.replace(adjacency="replace"), delta=0.01, shapes="opposite")
    with pytest.raises(ValueError, match="users must be at most 5000000 for an audit"):
        audit(STRONG.replace(users=10**8), delta=0.01)


# The command


ASK = ("shuffle", "--users", 5, "--sigma", 0.5, "--delta", "1e-3", "--trials", 4000)


def test_json_equals_the_python_interface():
    result = run("audit", *ASK, "--json", "--seed", 5)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    rows = audit(STRONG, delta=1e-3, trials=4000, seed=5)
    assert [r["epsilon"]["lower"] for r in found["rows"]] == [r.epsilon for r in rows]
    assert [r["crowd"] for r in found["rows"]] == [r.shape for r in rows]
    assert found["rows"][0]["identical_crowd"]["upper"] == rows[0].identical_crowd.upper
    assert found["stands"] is True
    assert (found["seed"], found["trials"], found["confidence"]) == (5, 4000, 0.999)


def test_the_table_says_everything():
    result = run("audit", *ASK)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for word in ("zero-out adjacency", "4,000 games", "confidence 0.999", "Clopper–Pearson", "14 rates", "seed 0"):
        assert word in text
    assert text.count("stands") == 7
    assert "can refute a claim, not prove it" in text


def test_a_false_claim_ends_with_exit_code_1(tmp_path):
    words = [*map(str, ASK), "--claim", "1", "--shapes", "identical,opposite", "--plot", str(tmp_path / "a.png")]
    code = "from shoal.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code, "audit", *words], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("shoal: the claim is contradicted: against the opposite crowd epsilon is at least")
    assert result.stderr.count("\n") == 1
    assert result.stdout.count("BROKEN") == 2
    assert (tmp_path / "a.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("local", "--sigma", 1, "--delta", 0.1),
            "mechanism must be one of shuffle, sequential, subsampled, check-in for an audit",
        ),
        (("shuffle", "--sigma", 1, "--delta", 0.1), "users must be given for shuffle: add --users"),
        ((*ASK, "--shapes", "round"), "shapes must be one of identical"),
        ((*ASK, "--dimensions", "two"), "dimensions must be a number such as"),
        ((*ASK, "--confidence", 2), "confidence must lie strictly between 0 and 1, got 2.0"),
        ((*ASK, "--claim", "nan"), "claim must be finite, got nan"),
        ((*ASK, "--seed", "x"), "seed must be a number such as"),
        ((*ASK, "--plot", "a.txt"), "plot must be a .png, .svg or .pdf file"),
    ],
)
def test_the_command_refuses_with_exit_code_2(words, message):
    result = run("audit", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
