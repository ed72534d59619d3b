"""One round: who takes part, the law of the noise, shuffling, and that the fast path equals the faithful one."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from shoal import LocalGaussian, PoissonSampling, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.training import protocol, randomness
from shoal.training.clipping import clipped_each
from shoal.training.protocol import Clients, run_round, shuffled
from shoal.training.randomness import SeededRandomness, Source, SystemRandomness

USERS, CLIP, SIGMA = 40, 0.5, 3.0


pytestmark = pytest.mark.xdist_group("protocol")  # what the tests share is made once


@pytest.fixture(scope="module")
def setting():
    """Forty users and a model with 85 weights: small, so that many rounds can be drawn."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 4, stride=4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))
    clients = Clients(inputs=torch.randn(USERS, 1, 8, 8), labels=torch.randint(0, 2, (USERS,)))
    clipped = clipped_each(model, clients.inputs, clients.labels, clip=CLIP).double()
    return model, clients, clipped


PROTOCOLS = [
    PoissonSampling(sigma=SIGMA, rate=1.0),
    PoissonSampling(sigma=SIGMA, rate=0.5),
    LocalGaussian(sigma=SIGMA),
    Shuffle(users=USERS, sigma=SIGMA),
    SubsampledShuffle(users=USERS, sample=10, sigma=SIGMA),
    ShuffledCheckIn(users=USERS, rate=0.25, sigma=SIGMA),
]


def variance_is(sample, expected, confidence=1e-6):
    """A two-sided chi-squared test of the variance about a known mean of 0."""
    n, square = sample.size, float((sample**2).sum()) / expected
    low, high = stats.chi2.ppf([confidence / 2, 1 - confidence / 2], n)
    return low < square < high


@pytest.mark.parametrize("seed", [None, 11])
def test_every_report_has_noise_of_its_own(setting, seed):
    """Per-report variance C^2 sigma^2 and independence between users; wrong C, sigma or shared noise would fail."""
    model, clients, clipped = setting
    rounds = []
    for t in range(20):
        source = Source(seed=seed, round=t).stream("noise")
        sent = torch.stack(list(clients.reports(model, np.arange(USERS), source, clip=CLIP, sigma=SIGMA))).double()
        rounds.append((sent - clipped).numpy())
    noise = np.stack(rounds)  # rounds x users x weights
    assert variance_is(noise, (CLIP * SIGMA) ** 2)
    assert not variance_is(noise, (CLIP * SIGMA * 1.05) ** 2)  # the test has the power to tell
    for i in range(USERS):
        assert variance_is(noise[:, i], (CLIP * SIGMA) ** 2)
    flat = noise.transpose(1, 0, 2).reshape(USERS, -1) / (CLIP * SIGMA)
    correlation = np.corrcoef(flat)[np.triu_indices(USERS, 1)]
    assert np.abs(correlation).max() < 6 / math.sqrt(flat.shape[1])
    weights = np.corrcoef(noise.reshape(-1, noise.shape[2]).T)[np.triu_indices(noise.shape[2], 1)]
    assert np.abs(weights).max() < 6 / math.sqrt(20 * USERS)
    assert stats.kstest(flat.ravel(), "norm").pvalue > 1e-6


@pytest.mark.parametrize("path", ["fast", "faithful"])
@pytest.mark.parametrize("mechanism", PROTOCOLS, ids=lambda m: f"{m.label}-{getattr(m, 'rate', '')}")
def test_the_sum_has_its_clipped_gradients_and_the_noise_of_its_reports(setting, mechanism, path):
    """Variance K C^2 sigma^2 for K reports (C^2 sigma^2 for the central one): a wrong root of K would fail."""
    model, clients, clipped = setting
    rounds = 60
    standardised = []
    for t in range(rounds):
        source = Source(seed=5, round=t)
        who = protocol.draw_participants(mechanism, USERS, source.stream("coins"))
        result = run_round(mechanism, clients, model, source, clip=CLIP, path=path)
        assert result.reports == len(who)
        reports = 1 if isinstance(mechanism, PoissonSampling) else len(who)
        noise = (result.total - clipped[torch.from_numpy(who)].sum(dim=0)).numpy()
        standardised.append(noise / (CLIP * SIGMA * math.sqrt(reports)))
    found = np.stack(standardised)
    assert variance_is(found, 1.0)
    assert abs(found.mean()) < 6 / math.sqrt(found.size)
    assert stats.kstest(found.ravel(), "norm").pvalue > 1e-6
    assert np.abs(np.corrcoef(found)[np.triu_indices(rounds, 1)]).max() < 6 / math.sqrt(found.shape[1])


def test_fast_and_faithful_have_one_law(setting):
    """The two paths' totals, in two samples: same mean and variance in every coordinate."""
    model, clients, _ = setting
    mechanism = Shuffle(users=USERS, sigma=SIGMA)
    fast, faithful = (
        np.stack(
            [
                run_round(mechanism, clients, model, Source(seed=None), clip=CLIP, path=p).total.numpy()
                for _ in range(150)
            ]
        )
        for p in ("fast", "faithful")
    )
    p = stats.ttest_ind(fast, faithful, equal_var=False).pvalue
    assert p.min() > 1e-6
    ratio = fast.var(axis=0, ddof=1).sum() / faithful.var(axis=0, ddof=1).sum()
    assert abs(ratio - 1.0) < 6 * math.sqrt(2 * 2 / fast.size)


class Silent(SeededRandomness):
    """Noise of zeros."""

    def normals(self, count):
        return np.zeros(count)


class Noiseless(Source):
    """A round's streams, without noise."""

    def stream(self, purpose):
        return Silent(0) if purpose == "noise" else super().stream(purpose)


def test_clipped_sums_agree_exactly_between_the_paths(setting):
    """Without noise the total is the sum of the clipped gradients."""
    model, clients, clipped = setting
    mechanism = ShuffledCheckIn(users=USERS, rate=0.5, sigma=SIGMA)
    source = Noiseless(seed=2, round=9)
    who = torch.from_numpy(protocol.draw_participants(mechanism, USERS, source.stream("coins")))
    totals = [run_round(mechanism, clients, model, source, clip=CLIP, path=p).total for p in ("fast", "faithful")]
    for total in totals:
        assert torch.allclose(total, clipped[who].sum(dim=0), atol=1e-6)


def test_participants():
    rounds = [Source(seed=1, round=t).stream("coins") for t in range(400)]
    check_in = [protocol.draw_participants(ShuffledCheckIn(users=50, rate=0.3, sigma=1.0), 50, r) for r in rounds]
    counts = np.bincount(np.concatenate(check_in), minlength=50)
    assert stats.chisquare(np.stack([counts, 400 - counts]), np.full((2, 50), [[120.0], [280.0]])).pvalue.min() > 1e-6
    sizes = np.array([len(w) for w in check_in])
    assert variance_is((sizes - 15.0), 50 * 0.3 * 0.7)  # independent coins, so a binomial number
    sampled = [protocol.draw_participants(SubsampledShuffle(users=50, sample=7, sigma=1.0), 50, r) for r in rounds]
    assert all(len(set(w)) == 7 for w in sampled)
    assert stats.chisquare(np.bincount(np.concatenate(sampled), minlength=50)).pvalue > 1e-6
    for m in (LocalGaussian(sigma=1.0), Shuffle(users=50, sigma=1.0), PoissonSampling(sigma=1.0, rate=1.0)):
        assert list(protocol.draw_participants(m, 50, SystemRandomness())) == list(range(50))
    assert [protocol.expected_reports(m, USERS) for m in PROTOCOLS] == [40, 20, 40, 40, 10, 10]


@pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(4)])
def test_permutations_are_uniform(source):
    drawn = [tuple(randomness.permutation(source, 4)) for _ in range(4800)]
    names, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(names) == 24
    assert stats.chisquare(counts).pvalue > 1e-6
    assert sorted(randomness.permutation(source, 1000)) == list(range(1000))
    assert list(randomness.permutation(source, 1)) == [0]


def test_a_tie_of_keys_is_drawn_again():
    class Tied(SystemRandomness):
        calls = 0

        def words(self, count):
            self.calls += 1
            return np.zeros(count, dtype=np.uint64) if self.calls == 1 else super().words(count)

    tied = Tied()
    assert sorted(randomness.permutation(tied, 9)) == list(range(9))
    assert tied.calls == 2


def test_the_shuffler_holds_all_reports_before_the_first_leaves():
    seen = []

    def reports():
        for i in range(50):
            seen.append(i)
            yield torch.tensor([float(i)])

    found = shuffled(reports(), SystemRandomness())
    assert len(seen) == 50
    values = [int(r) for r in found]
    assert sorted(values) == list(range(50))
    assert values != list(range(50))


@pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(4)])
def test_normal_deviates(source):
    drawn = source.normals(200_001)
    assert drawn.shape == (200_001,)
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    assert np.abs(np.corrcoef(drawn[:100_000], drawn[100_000:200_000])[0, 1]) < 6 / math.sqrt(100_000)
    assert 3.8 < np.abs(drawn).max() < 7.0


def test_streams():
    """A seed repeats a stream; another seed, round or purpose gives another; without one nothing repeats."""
    keys = [(1, 1, "noise"), (1, 1, "coins"), (1, 2, "noise"), (2, 1, "noise")]
    streams = [tuple(Source(seed=s, round=r).stream(p).words(4)) for s, r, p in keys]
    assert len(set(streams)) == 4
    assert streams[0] == tuple(Source(seed=1, round=1).stream("noise").words(4))
    assert not Source(seed=1).stream("noise").private
    system = Source(seed=None).stream("noise")
    assert system.private
    assert tuple(system.words(4)) != tuple(Source(seed=None).stream("noise").words(4))
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        Source(seed=-1)


def test_poisson_sampling_is_dp_sgd():
    """Against dp_accounting's Poisson-sampled Gaussian, an independent implementation."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    m = PoissonSampling(sigma=2.0, rate=0.1)
    peer = PLDAccountant()
    peer.compose(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0)), 50)
    found = m.epsilon(delta=1e-5, rounds=50)
    assert found.lower * 0.999 <= peer.get_epsilon(1e-5) <= found.upper * 1.001
    everybody = PoissonSampling(sigma=2.0, rate=1.0).epsilon(delta=1e-5, rounds=50)
    assert everybody == LocalGaussian(sigma=2.0).epsilon(delta=1e-5, rounds=50)
