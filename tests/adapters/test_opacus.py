"""Opacus trains, shoal accounts: epsilon is that of the protocol which the recorded steps simulate."""

from __future__ import annotations

import math
import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("opacus")

import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier
from torch.utils.data import DataLoader, TensorDataset

import shoal
from shoal.adapters import opacus as integration
from shoal.adapters.opacus import ShuffleAccountant, make_accountant, noise_multiplier, register, report_sigma

USERS, RATE, SIGMA = 60_000, 0.1, 5.0
DELTA = 1e-5
CHECK_IN = shoal.ShuffledCheckIn(users=USERS, rate=RATE, sigma=SIGMA, crowd="identical")

# What Opacus says on every run that is not for production; nothing else is silenced.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name of Opacus' registry for this test only."""
    from opacus.accountants import registry

    yield f"shoal-{request.node.name}"
    registry._ACCOUNTANTS.pop(f"shoal-{request.node.name}", None)


def ask(accountant_class: type[ShuffleAccountant], *history: tuple[float, float, int]) -> float:
    accountant = accountant_class()
    accountant.history = list(history)
    return accountant.get_epsilon(DELTA)


class Run:
    """A tiny real training under Opacus."""

    def __init__(self, accountant: str, *, noise: float, users: int = 400, batch: int = 40, **options: object) -> None:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(users, 3), torch.randint(0, 2, (users,)))
        self.engine = PrivacyEngine(accountant=accountant)
        model = torch.nn.Linear(3, 2)
        self.model, self.optimizer, self.loader = self.engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=batch),
            noise_multiplier=noise,
            max_grad_norm=1.0,
            **options,
        )

    def train(self, steps: int) -> None:
        taken = 0
        while True:
            for x, y in self.loader:
                if taken == steps:
                    return
                self.optimizer.zero_grad()
                torch.nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
                taken += 1

    @property
    def weights(self) -> list[float]:
        return [w for p in self.model.parameters() for w in p.detach().flatten().tolist()]


# --- noise ----------------------------------------------------------------------------------------


def test_noise_of_the_sum_and_of_one_report_are_inverse():
    noise = noise_multiplier(sigma=SIGMA, users=USERS, sample_rate=RATE)
    assert noise == pytest.approx(SIGMA * math.sqrt(6_000), rel=1e-15)
    assert report_sigma(noise_multiplier=noise, users=USERS, sample_rate=RATE) == pytest.approx(SIGMA, rel=1e-15)


def test_noise_of_the_sum_is_that_of_the_reports_added_up():
    generator = torch.Generator().manual_seed(1)
    reports = SIGMA * torch.randn(2_000, 400, generator=generator)  # 2,000 sums of 400 reports
    measured = reports.sum(dim=1).std().item()
    assert measured == pytest.approx(noise_multiplier(sigma=SIGMA, users=4_000, sample_rate=0.1), rel=0.06)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier must be positive"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be positive"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be finite"),
        ({"noise_multiplier": 1e-4}, r"noise_multiplier / sqrt\(sample_rate \* users\) must lie between"),
        ({"sample_rate": 0.0}, "sample_rate must be above 0"),
        ({"sample_rate": 1.5}, "sample_rate must be above 0 and at most 1"),
        ({"sample_rate": 1e-5}, r"sample_rate \* users must be at least 1 report a round, got 0.6"),
        ({"users": 0}, "users must be at least 1"),
        ({"users": 2.5}, "users must be a whole number"),
    ],
)
def test_noise_that_means_nothing_is_refused(arguments, message):
    good = {"noise_multiplier": 100.0, "users": USERS, "sample_rate": RATE}
    with pytest.raises(ValueError, match=message):
        report_sigma(**{**good, **arguments})


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("crowd", ["any", "identical"])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_epsilon_of_a_history_is_shoals_for_crowd_and_adjacency(crowd, adjacency):
    made = make_accountant(users=USERS, crowd=crowd, adjacency=adjacency)
    noise = noise_multiplier(sigma=SIGMA, users=USERS, sample_rate=RATE)
    wanted = CHECK_IN.replace(crowd=crowd, adjacency=adjacency).epsilon(delta=DELTA, rounds=5_540)
    assert ask(made, (noise, RATE, 5_540)) == pytest.approx(float(wanted), rel=1e-12)


def test_defaults_are_shoals():
    default = shoal.ShuffledCheckIn(users=USERS, rate=RATE, sigma=SIGMA)
    made = make_accountant(users=USERS)
    assert made.parameters() == {
        "users": USERS,
        "protocol": "check-in",
        "crowd": default.crowd,
        "adjacency": default.adjacency,
    }


def test_steps_of_different_noise_and_rate_add_up():
    noise = noise_multiplier(sigma=SIGMA, users=USERS, sample_rate=RATE)
    accountant = make_accountant(users=USERS, crowd="identical")()
    for z, rate in [(noise, RATE), (noise, RATE), (2 * noise, RATE), (2 * noise, 0.2), (noise, RATE)]:
        accountant.step(noise_multiplier=z, sample_rate=rate)
    assert accountant.history == [(noise, RATE, 2), (2 * noise, RATE, 1), (2 * noise, 0.2, 1), (noise, RATE, 1)]
    assert len(accountant) == 5
    ours = shoal.Accountant()
    ours.compose(CHECK_IN, rounds=3).compose(CHECK_IN.replace(sigma=10.0))
    ours.compose(CHECK_IN.replace(sigma=10.0 / math.sqrt(2), rate=0.2))
    before = list(accountant.history)
    assert accountant.get_epsilon(DELTA) == pytest.approx(float(ours.epsilon(delta=DELTA)), rel=1e-12)
    assert accountant.history == before
    assert len(accountant.accountant()) == 5


def test_subsampled_protocol_is_the_subsampled_mechanism():
    made = make_accountant(users=USERS, protocol="subsampled", crowd="identical")
    noise = noise_multiplier(sigma=SIGMA, users=USERS, sample_rate=RATE)
    wanted = shoal.SubsampledShuffle(users=USERS, sample=6_000, sigma=SIGMA, crowd="identical")
    assert ask(made, (noise, RATE, 50)) == pytest.approx(float(wanted.epsilon(delta=DELTA, rounds=50)), rel=1e-12)
    with pytest.raises(ValueError, match=r"must be a whole number for subsampled, got 255.319"):
        ask(made, (noise, 1 / 235, 50))


def test_options_reach_shoal():
    accountant = make_accountant(users=USERS, crowd="identical")()
    accountant.history = [(noise_multiplier(sigma=SIGMA, users=USERS, sample_rate=RATE), RATE, 50)]
    wanted = float(CHECK_IN.epsilon(delta=DELTA, rounds=50, method="rdp", orders=[2, 3]))
    assert accountant.get_epsilon(DELTA, method="rdp", orders=[2, 3]) == pytest.approx(wanted, rel=1e-12)
    with pytest.raises(TypeError, match="alphas"):
        accountant.get_epsilon(DELTA, alphas=[2, 3])


def test_no_step_costs_nothing_and_a_step_without_noise_everything():
    made = make_accountant(users=USERS)
    assert ask(made) == 0.0
    for noise in (0.0, 0.01):  # the second is a sigma of 0.00013
        assert ask(made, (100.0, RATE, 5), (noise, RATE, 1)) == math.inf


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((-1.0, RATE, 1), "noise_multiplier must be positive, got -1.0"),
        ((math.nan, RATE, 1), "noise_multiplier must be finite"),
        ((100.0, 0.0, 1), "sample_rate must be above 0"),
        ((100.0, 1e-9, 1), r"sample_rate \* users must be at least 1"),
        ((100.0, RATE, 0), "steps must be at least 1, got 0"),
        ((100.0, RATE, 2.5), "steps must be a whole number"),
    ],
)
def test_history_that_means_nothing_is_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        ask(make_accountant(users=USERS), entry)


def test_bad_delta_is_refused_even_without_noise():
    accountant = make_accountant(users=USERS)()
    accountant.history = [(0.0, RATE, 1)]
    with pytest.raises(ValueError, match=r"delta must lie strictly between 0 and 1, got 1.5"):
        accountant.get_epsilon(1.5)


# --- get_noise_multiplier -------------------------------------------------------------------------


def test_get_noise_multiplier_meets_the_target(name):
    register(name, users=USERS, crowd="identical")
    noise = get_noise_multiplier(
        target_epsilon=0.1, target_delta=DELTA, sample_rate=RATE, steps=5_540, accountant=name, epsilon_tolerance=1e-4
    )
    # End to end: the protocol whose reports have this noise, asked without Opacus.
    sigma = noise / math.sqrt(RATE * USERS)
    reached = float(CHECK_IN.replace(sigma=sigma).epsilon(delta=DELTA, rounds=5_540))
    assert 0.1 - 1.1e-4 <= reached <= 0.1
    best = shoal.calibrate.sigma(lambda s: CHECK_IN.replace(sigma=s), epsilon=0.1, delta=DELTA, rounds=5_540)
    assert sigma == pytest.approx(best, rel=2e-3)


def test_get_noise_multiplier_meets_the_target_for_the_default_crowd(name):
    made = register(name, users=USERS)
    noise = get_noise_multiplier(
        target_epsilon=0.5,
        target_delta=DELTA,
        sample_rate=RATE,
        epochs=3,
        accountant=name,
        epsilon_tolerance=0.05,
    )
    assert 0.45 <= ask(made, (noise, RATE, 30)) <= 0.5


def test_get_noise_multiplier_refuses_at_opacus_bound_and_shoal_goes_on(name):
    users, target = 10**14, 0.003
    register(name, users=users)
    with pytest.raises(ValueError, match="privacy budget is too low"):
        get_noise_multiplier(target_epsilon=target, target_delta=DELTA, sample_rate=1.0, steps=1, accountant=name)
    m = shoal.ShuffledCheckIn(users=users, rate=1.0, sigma=1.0)
    sigma = shoal.calibrate.sigma(lambda s: m.replace(sigma=s), epsilon=target, delta=DELTA)
    noise = noise_multiplier(sigma=sigma, users=users, sample_rate=1.0)
    assert noise > 1e6
    assert float(
        m.replace(sigma=report_sigma(noise_multiplier=noise, users=users, sample_rate=1.0)).epsilon(delta=DELTA)
    ) <= target * (1 + 1e-9)


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("crowd", ["any", "identical"])
def test_real_training_gives_shoals_epsilon(name, crowd):
    register(name, users=400, crowd=crowd)
    run = Run(name, noise=noise_multiplier(sigma=3.0, users=400, sample_rate=0.1))
    before = run.weights
    run.train(13)
    assert run.weights != before
    assert len(run.engine.accountant) == 13
    wanted = shoal.ShuffledCheckIn(users=400, rate=0.1, sigma=3.0, crowd=crowd).epsilon(delta=DELTA, rounds=13)
    assert run.engine.get_epsilon(DELTA) == pytest.approx(float(wanted), rel=1e-12)


def test_make_private_with_epsilon_meets_the_target(name):
    register(name, users=400, crowd="identical")
    data = TensorDataset(torch.randn(400, 3), torch.randint(0, 2, (400,)))
    model = torch.nn.Linear(3, 2)
    engine = PrivacyEngine(accountant=name)
    _, optimizer, _ = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=40),
        target_epsilon=0.5,
        target_delta=DELTA,
        epochs=2,
        max_grad_norm=1.0,
    )
    sigma = optimizer.noise_multiplier / math.sqrt(40)
    reached = shoal.ShuffledCheckIn(users=400, rate=0.1, sigma=sigma, crowd="identical").epsilon(delta=DELTA, rounds=20)
    assert 0.489 < float(reached) <= 0.5


def test_data_of_another_size_is_refused_before_the_model_changes(name):
    register(name, users=60_000)
    run = Run(name, noise=100.0, users=400, batch=40)
    before = run.weights
    with pytest.raises(ValueError, match=r"users must be the size of the data set: users=60000 .* has batches of 40"):
        run.train(1)
    assert run.weights == before
    assert run.engine.accountant.history == []


def test_adaptive_clipping_is_refused(name):
    register(name, users=400)
    run = Run(
        name,
        noise=10.0,
        clipping="adaptive",
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.1,
        unclipped_num_std=100.0,
    )
    with pytest.raises(ValueError, match="clipping must not be adaptive"):
        run.train(1)


# --- state ----------------------------------------------------------------------------------------


def test_checkpoint_restores_the_account(name, tmp_path):
    register(name, users=400)
    first = Run(name, noise=20.0)
    first.train(7)
    spent = first.engine.get_epsilon(DELTA)
    first.engine.save_checkpoint(path=tmp_path / "c.pt", module=first.model, optimizer=first.optimizer)
    second = Run(name, noise=20.0)
    second.engine.load_checkpoint(path=tmp_path / "c.pt", module=second.model, optimizer=second.optimizer)
    assert second.engine.accountant.history == [(20.0, RATE, 7)]
    assert second.engine.get_epsilon(DELTA) == spent
    second.train(3)
    assert second.engine.accountant.history == [(20.0, RATE, 10)]
    assert second.engine.get_epsilon(DELTA) > spent


def test_state_of_another_protocol_or_a_corrupt_one_is_refused_and_changes_nothing():
    accountant = make_accountant(users=400)()
    accountant.history = [(20.0, 0.1, 7)]
    good = accountant.state_dict()
    assert good["protocol"] == accountant.parameters()
    bad = [
        (make_accountant(users=500)().state_dict(), "protocol must be .*400.* got .*500"),
        (make_accountant(users=400, crowd="identical")().state_dict(), "protocol must be"),
        (make_accountant("other", users=400)().state_dict(), "other"),
        ({k: v for k, v in good.items() if k != "protocol"}, "protocol must be .* got None"),
        ({k: v for k, v in good.items() if k != "history"}, "history"),
        ({**good, "history": [(20.0, 0.1)]}, "history must list"),
        ({**good, "history": [(20.0, 0.1, -7)]}, "history must list .* steps must be at least 1"),
        ({**good, "history": [(math.nan, 0.1, 7)]}, "history must list .* noise_multiplier must be finite"),
        ({**good, "history": 3}, "history must list"),
        ({}, "empty"),
    ]
    for state, message in bad:
        with pytest.raises(ValueError, match=message):
            accountant.load_state_dict(state)
        assert accountant.history == [(20.0, 0.1, 7)]


def test_state_is_not_shared():
    made = make_accountant(users=400)
    first, second = made(), made()
    first.step(noise_multiplier=20.0, sample_rate=0.1)
    state = first.state_dict()
    second.load_state_dict(state)
    second.step(noise_multiplier=20.0, sample_rate=0.2)
    assert state["history"] == first.history == [(20.0, 0.1, 1)]


# --- registration ---------------------------------------------------------------------------------


def test_registered_accountants_keep_their_own_users(name):
    made = register(name, users=USERS, crowd="identical")
    assert type(create_accountant(name)) is made
    assert made.mechanism() == name
    other = make_accountant("other", users=10 * USERS, crowd="identical")
    assert (made.users, other.users) == (USERS, 10 * USERS)


def test_registering_again(name):
    made = register(name, users=400)
    assert register(name, users=400) is made
    with pytest.raises(ValueError, match="name must be new to Opacus, or force=True given"):
        register(name, users=500)
    assert type(create_accountant(name)) is made
    assert register(name, users=500, force=True).users == 500
    assert create_accountant(name).users == 500
    with pytest.raises(ValueError, match="name must be new to Opacus"):
        register("rdp", users=400)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"users": 0}, ValueError, "users must be at least 1, got 0"),
        ({"users": 2.5}, ValueError, "users must be a whole number, got 2.5"),
        ({"protocol": "local"}, ValueError, "protocol must be one of check-in, subsampled, got 'local'"),
        ({"crowd": "friendly"}, ValueError, "crowd must be one of any, identical, got 'friendly'"),
        ({"adjacency": "remove"}, ValueError, "adjacency must be one of zero-out, replace, got 'remove'"),
        ({"name": ""}, TypeError, "name must be a non-empty string, got ''"),
    ],
)
def test_bad_protocols_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        make_accountant(**{"name": "shoal", "users": 400, **arguments})


def test_the_base_class_cannot_account():
    with pytest.raises(TypeError, match="use make_accountant or register"):
        integration.ShuffleAccountant()


# --- imports --------------------------------------------------------------------------------------


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_shoal_does_not_import_torch_or_opacus():
    done = python(
        "import sys, shoal, shoal.adapters, shoal.adapters.dp_accounting; "
        "print(sorted({'torch', 'opacus'} & set(sys.modules)))"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.parametrize("missing", ["opacus", "torch"])
def test_a_missing_package_says_what_to_install(missing):
    done = python(f"import sys; sys.modules[{missing!r}] = None; import shoal.adapters.opacus")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("shoal.errors.MissingExtra: shoal.adapters.opacus needs PyTorch and Opacus")
    assert last.endswith("pip install 'shoal-dp[train]'")
    assert missing in last


# --- the run itself -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "options", "mechanism", "rounds"),
    [
        ("poisson", {}, shoal.PoissonSampling(rate=0.1, sigma=2.0), 25),
        ("poisson", {"adjacency": "replace"}, shoal.PoissonSampling(rate=0.1, sigma=2.0, adjacency="replace"), 25),
        ("fixed-batch", {"records": 500}, shoal.FixedBatch(records=500, batch=50, sigma=2.0), 25),
        ("shuffled-epochs", {}, shoal.ShuffledEpochs(steps=9, sigma=2.0), 3),
        ("balls-and-bins", {}, shoal.BallsAndBins(bins=10, sigma=2.0), 3),
        ("sequential", {}, shoal.LocalGaussian(sigma=2.0), 3),
    ],
)
def test_the_run_itself_by_how_it_draws_batches(name, sampling, options, mechanism, rounds):
    """25 steps of an epoch of 10 are two and a half epochs: three count."""
    made = integration.register_central(name, sampling=sampling, **options)
    assert integration.register_central(name, sampling=sampling, **options) is made
    assert ask(made, (2.0, 0.1, 25)) == float(mechanism.epsilon(delta=DELTA, rounds=rounds))
    assert ask(made, (0.0, 0.1, 25)) == math.inf


def test_in_the_place_of_prv(name):
    """The same training with another name of the accountant; near PRV, which is an estimate to 0.01 by default."""
    integration.register_central(name, records=400)
    ours, prv = (Run(accountant, noise=1.5) for accountant in (name, "prv"))
    for run in (ours, prv):
        run.train(10)
    found = ours.engine.get_epsilon(DELTA)
    assert found == float(shoal.PoissonSampling(rate=0.1, sigma=1.5).epsilon(delta=DELTA, rounds=10))
    assert prv.engine.get_epsilon(DELTA) == pytest.approx(found, abs=0.03)
    state = ours.engine.accountant.state_dict()
    fresh = create_accountant(name)
    fresh.load_state_dict(state)
    assert fresh.get_epsilon(DELTA) == found


def test_a_central_run_of_other_data_is_refused(name):
    integration.register_central(name, records=4_000)
    with pytest.raises(ValueError, match="records must be the size of the data set"):
        Run(name, noise=1.5).train(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampling": "shuffled"}, "sampling must be one of poisson, fixed-batch, shuffled-epochs"),
        ({"sampling": "fixed-batch"}, "records, the size of the data set, must be given for fixed-batch"),
        ({"sampling": "balls-and-bins", "adjacency": "replace"}, "adjacency must be zero-out for balls-and-bins"),
        ({"name": ""}, "name must be a non-empty string"),
    ],
)
def test_bad_central_accountants_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        integration.register_central(**arguments)


RECORDS = TensorDataset(torch.zeros(100, 2))


@pytest.fixture
def secret():
    """A generator that nobody can guess; the default one may have got a seed from another test."""
    return torch.Generator().manual_seed(secrets.randbits(63))


def test_what_a_data_loader_really_does(name, secret):
    shuffled = integration.sampling_of(DataLoader(RECORDS, batch_size=30, shuffle=True, generator=secret), sigma=1.0)
    # Three full batches; the last one has ten records only.
    assert shuffled.mechanism == shoal.ShuffledEpochs(steps=3, sigma=1.0)
    assert (shuffled.name, shuffled.reason) == ("shuffled-epochs", "")
    assert shuffled.epsilon(delta=DELTA, epochs=3) == shuffled.mechanism.epsilon(delta=DELTA, rounds=3)
    ordered = integration.sampling_of(DataLoader(RECORDS, batch_size=10), sigma=1.0, adjacency="replace")
    assert (ordered.mechanism, ordered.rounds) == (shoal.LocalGaussian(sigma=1.0, adjacency="replace"), 1)
    integration.register_central(name)
    loader = Run(name, noise=1.5).loader
    torch.seed()
    poisson = integration.sampling_of(loader, sigma=1.5)
    assert (poisson.name, poisson.rounds) == ("poisson", 10)
    assert poisson.mechanism == shoal.PoissonSampling(rate=0.1, sigma=1.5)


def test_accumulated_batches_are_one_step(secret):
    loader = DataLoader(RECORDS, batch_size=10, shuffle=True, generator=secret)
    assert integration.sampling_of(loader, sigma=1.0, accumulation=3).mechanism.steps == 3
    with pytest.raises(ValueError, match="loader must have at least 11 full batches, got 10"):
        integration.sampling_of(loader, sigma=1.0, accumulation=11)
    with pytest.raises(ValueError, match="accumulation must be at least 1, got 0"):
        integration.sampling_of(loader, sigma=1.0, accumulation=0)
    with pytest.raises(ValueError, match="loader must have at least 1 full batch, got 0"):
        integration.sampling_of(DataLoader(RECORDS, batch_size=101, shuffle=True, generator=secret), sigma=1.0)


def test_an_order_that_can_be_guessed_hides_nobody(secret):
    """The order follows from the seed: whoever knows it knows where each record is, which really is so."""

    def order(generator):
        loader = DataLoader(torch.arange(100), batch_size=10, shuffle=True, generator=generator)
        return torch.cat(list(loader)).tolist()

    assert order(torch.Generator()) == order(torch.Generator())
    assert order(torch.Generator().manual_seed(7)) == order(torch.Generator().manual_seed(7))
    for generator, seed in [(torch.Generator(), torch.Generator().initial_seed()), (secret.manual_seed(7), 7)]:
        loader = DataLoader(RECORDS, batch_size=10, shuffle=True, generator=generator)
        found = integration.sampling_of(loader, sigma=1.0)
        assert (found.name, found.mechanism) == ("sequential", shoal.LocalGaussian(sigma=1.0))
        assert found.reason.startswith(f"the seed {seed} of the loader's generator can be guessed")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = integration.sampling_of(DataLoader(RECORDS, batch_size=10, shuffle=True), sigma=1.0)
        assert "the seed 0 of PyTorch's default generator can be guessed" in found.reason
        torch.seed()
        found = integration.sampling_of(DataLoader(RECORDS, batch_size=10, shuffle=True), sigma=1.0)
        assert found.mechanism == shoal.ShuffledEpochs(steps=10, sigma=1.0)


def test_batches_of_poisson_sampling_that_can_be_guessed_are_refused(name):
    integration.register_central(name)
    loader = Run(name, noise=1.5).loader
    loader.batch_sampler.generator = torch.Generator().manual_seed(3)
    with pytest.raises(ValueError, match="loader must draw batches that nobody can predict: the seed 3"):
        integration.sampling_of(loader, sigma=1.5)


def distributed(**options):
    sampler = torch.utils.data.DistributedSampler(RECORDS, num_replicas=4, rank=0, **options)
    return sampler, DataLoader(RECORDS, batch_size=5, sampler=sampler)


def test_orders_of_several_workers():
    sampler, loader = distributed()
    public = integration.sampling_of(loader, sigma=1.0, sets_epoch=True)
    assert public.mechanism == shoal.LocalGaussian(sigma=1.0)
    assert "the seed 0 of DistributedSampler can be guessed" in public.reason
    sampler, loader = distributed(seed=secrets.randbits(62) + 2**62)
    same = integration.sampling_of(loader, sigma=1.0)
    assert same.mechanism == shoal.ShuffledEpochs(steps=5, sigma=1.0, persistent=True)
    assert (same.name, same.reason) == ("sequential", "without set_epoch all epochs have one order")
    assert list(sampler) == list(sampler)
    clear = shoal.LocalGaussian(sigma=1.0).epsilon(delta=DELTA, rounds=3)
    assert same.epsilon(delta=DELTA, epochs=3).upper == pytest.approx(clear.upper, rel=1e-9)
    fresh = integration.sampling_of(loader, sigma=1.0, sets_epoch=True)
    assert fresh.mechanism == shoal.ShuffledEpochs(steps=5, sigma=1.0)
    before = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != before
    assert integration.sampling_of(loader, sigma=1.0) == fresh
    _, loader = distributed(shuffle=False)
    assert integration.sampling_of(loader, sigma=1.0).mechanism == shoal.LocalGaussian(sigma=1.0)


def test_padding_uses_records_twice():
    some = TensorDataset(torch.zeros(101, 2))
    sampler = torch.utils.data.DistributedSampler(some, num_replicas=4, rank=0, seed=2**40)
    with pytest.raises(ValueError, match="101 records for 4 workers are padded by 3; use drop_last=True"):
        integration.sampling_of(DataLoader(some, batch_size=5, sampler=sampler), sigma=1.0)
    sampler = torch.utils.data.DistributedSampler(some, num_replicas=4, rank=0, seed=2**40, drop_last=True)
    found = integration.sampling_of(DataLoader(some, batch_size=5, sampler=sampler), sigma=1.0, sets_epoch=True)
    assert found.mechanism == shoal.ShuffledEpochs(steps=5, sigma=1.0)


def test_data_loaders_of_which_nothing_is_known_are_refused():
    data = TensorDataset(torch.zeros(100, 2))
    twice = torch.utils.data.RandomSampler(data, replacement=True)
    some = torch.utils.data.RandomSampler(data, num_samples=50)
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * 100, 100)
    for sampler, message in [
        (twice, "without replacement"),
        (some, "all 100 records once an epoch, got num_samples = 50"),
        (weighted, "got WeightedRandomSampler"),
    ]:
        with pytest.raises(ValueError, match=message):
            integration.sampling_of(DataLoader(data, batch_size=10, sampler=sampler), sigma=1.0)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-batch"])
def test_a_person_with_several_records(sampling):
    accountant = integration.register_central(
        f"person-{sampling}", sampling=sampling, records=1_000, records_per_user=4, force=True
    )()
    accountant.history = [(1.5, 0.01, 50)]
    kinds = {
        "poisson": shoal.PoissonSampling(rate=0.01, sigma=1.5, records_per_user=4),
        "fixed-batch": shoal.FixedBatch(records=1_000, batch=10, sigma=1.5, records_per_user=4),
    }
    assert accountant.get_epsilon(1e-6) == kinds[sampling].epsilon(delta=1e-6, rounds=50).upper
    assert "at most 4 records" in accountant.accountant().statement(delta=1e-6).sentence()
    restored = type(accountant)()
    restored.load_state_dict(accountant.state_dict())
    assert restored.history == accountant.history
    # A state of single records is not that of persons.
    single = integration.register_central(f"single-{sampling}", sampling=sampling, records=1_000, force=True)()
    with pytest.raises(ValueError, match=r"^protocol must be"):
        single.load_state_dict({**accountant.state_dict(), "mechanism": f"single-{sampling}"})


def test_loaders_that_go_through_all_records_know_single_records_only():
    with pytest.raises(ValueError, match=r"^records_per_user must be 1 for shuffled-epochs, got 2"):
        integration.register_central("person-loader", sampling="shuffled-epochs", records_per_user=2)
