"""Training: it learns, resumes bit for bit, keeps to its budget, and survives being killed."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from shoal import LocalGaussian, PoissonSampling, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.cli.app import app
from shoal.training import (
    Config,
    DataError,
    accountants,
    load,
    networks,
    protocol,
    read_metrics,
    resume,
    start,
    train_run,
)
from shoal.training.figures import report
from shoal.training.ledger import stopping_accountants
from shoal.training.randomness import Source
from shoal.training.run import rate_share

USERS = 400
QUIET = ShuffledCheckIn(users=USERS, rate=0.5, sigma=0.02, crowd="identical")


pytestmark = pytest.mark.xdist_group("training")  # what the tests share is made once


@pytest.fixture(scope="module")
def digits():
    return load().first(USERS)


def config(**changes):
    given = {"mechanism": QUIET, "rounds": 12, "delta": 1e-5, "seed": 7, "learning_rate": 20.0, "users": USERS}
    return Config(**{**given, "evaluate_every": 4, "checkpoint_every": 3, **changes})


def weights(folder):
    return torch.load(folder / "model.pt", weights_only=True)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(weights(a).values(), weights(b).values(), strict=True))


@pytest.mark.parametrize(
    "mechanism",
    [
        QUIET,
        Shuffle(users=USERS, sigma=0.02),
        SubsampledShuffle(users=USERS, sample=200, sigma=0.02),
        LocalGaussian(sigma=0.02),
        PoissonSampling(sigma=0.5, rate=1.0),
    ],
    ids=lambda m: m.label,
)
def test_every_protocol_learns(mechanism, digits, tmp_path):
    asked = config(mechanism=mechanism, rounds=60, learning_rate=30.0, evaluate_every=60)
    rows = train_run(start(asked, digits, tmp_path), tmp_path)
    assert [r.round for r in rows] == [60]
    assert rows[-1].accuracy > 0.55
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "metrics.jsonl", "checkpoint.pt", "model.pt"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.9, "average": 0.8, "schedule": "cosine", "weight_decay": 1e-3},
        {"optimiser": "adam", "learning_rate": 0.01, "schedule": "constant", "network": "opacus"},
        {"path": "faithful", "rounds": 6},
    ],
)
def test_resuming_changes_nothing(changes, digits, tmp_path):
    """Stopped after any round and resumed: the same metrics and the same weights, bit for bit."""
    asked = config(**changes)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_run(start(asked, digits, whole), whole)
    run = start(asked, digits, parts)
    for stop in (1, 5, 10):
        train_run(run, parts, watch=lambda done, _, stop=stop: done < stop)
        run = resume(digits, parts)
        assert run.done == min(stop, asked.rounds)
    train_run(run, parts)
    assert (whole / "metrics.jsonl").read_bytes() == (parts / "metrics.jsonl").read_bytes()
    assert same(whole, parts)
    again = resume(digits, parts)  # nothing left to do
    assert again.finished
    assert train_run(again, parts) == read_metrics(whole)


def test_metrics_after_the_checkpoint_are_dropped(digits, tmp_path):
    run = start(config(), digits, tmp_path)
    train_run(run, tmp_path, watch=lambda done, _: done < 4)
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        row = dataclasses.asdict(read_metrics(tmp_path)[-1])
        file.write(json.dumps({**row, "round": 8, "spent": 8}).encode() + b'\n{"round": 9, "sp')
    assert [r.round for r in read_metrics(tmp_path)] == [4, 8]
    run = resume(digits, tmp_path)
    assert run.done == 4
    assert [r.round for r in train_run(run, tmp_path)] == [4, 8, 12]


def test_the_same_command_with_the_same_seed_repeats_every_digit(tmp_path):
    """Here and in a process of its own: nothing depends on what was computed before."""
    words = ["train", "--users", "300", "--sigma", "10", "--rounds", "4", "--crowd", "identical", "--json"]
    words += ["--protocol", "shuffle", "--network", "histograms", "--seed", "5", "--evaluate-every", "1", "--out"]
    program = "import sys; sys.modules['matplotlib'] = None; from shoal.cli import main; main()"
    subprocess.run([sys.executable, "-c", program, *words, str(tmp_path / "one")], check=True, capture_output=True)
    assert CliRunner().invoke(app, [*words, str(tmp_path / "two")]).exit_code == 0
    for name in ("config.json", "metrics.jsonl", "privacy.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert same(tmp_path / "one", tmp_path / "two")


def test_seeds(digits, tmp_path):
    def trained(name, **changes):
        rows = train_run(start(config(rounds=3, **changes), digits, tmp_path / name), tmp_path / name)
        return rows, weights(tmp_path / name)

    (_, a), (_, b), (_, c), (_, d) = (trained(n, seed=s) for n, s in (("a", 1), ("b", 2), ("c", None), ("d", None)))
    first = [next(iter(w.values())) for w in (a, b, c, d)]
    assert all(not torch.equal(x, y) for i, x in enumerate(first) for y in first[i + 1 :])
    assert json.loads((tmp_path / "a" / "config.json").read_text())["private"] is False
    assert json.loads((tmp_path / "c" / "config.json").read_text())["private"] is True


def test_the_average_of_weights_is_what_is_kept(digits, tmp_path):
    asked = config(average=0.5, rounds=3, evaluate_every=1)
    run = start(asked, digits, tmp_path)
    seen = [[w.clone() for w in networks.weights(run.model)]]
    train_run(run, tmp_path, watch=lambda *_: seen.append([w.clone() for w in networks.weights(run.model)]) or True)
    kept = seen[0]
    for done, present in enumerate(seen[1:]):
        decay = min(0.5, (done + 1) / (done + 10))
        kept = [decay * k + (1 - decay) * p for k, p in zip(kept, present, strict=True)]
    for found, expected in zip(weights(tmp_path).values(), kept, strict=True):
        assert torch.allclose(found, expected, atol=1e-7)


def test_the_update_is_sgd_on_the_mean(digits, tmp_path):
    """One step by hand: weights - rate * total / (expected number of reports)."""
    run = start(config(), digits, tmp_path)
    before = torch.cat([w.reshape(-1).clone() for w in networks.weights(run.model)])
    again = start(config(), digits, tmp_path / "again")
    result = run.step()
    total = protocol.run_round(
        again.mechanism, again.clients, again.model, Source(seed=7, round=1), clip=again.config.clip
    ).total
    assert torch.equal(result.total, total)
    after = torch.cat([w.reshape(-1) for w in networks.weights(run.model)])
    assert torch.allclose(after, before - 20.0 * (total / 200.0).float(), atol=1e-7)
    assert [rate_share(s, 5, 20) for s in ("constant", "linear")] == [1.0, 0.75]
    assert rate_share("cosine", 10, 20) == pytest.approx(0.5)


def test_budget(digits, tmp_path):
    """Stops before the first round that would exceed it, and not earlier."""
    m = ShuffledCheckIn(users=USERS, rate=0.5, sigma=4.0, crowd="identical")
    budget = float(m.epsilon(delta=1e-5, rounds=6)) * 1.0001
    rows = train_run(start(config(mechanism=m, rounds=50, epsilon=budget), digits, tmp_path), tmp_path)
    assert rows[-1].round == 6
    assert float(m.epsilon(delta=1e-5, rounds=6)) <= budget < float(m.epsilon(delta=1e-5, rounds=7))
    with pytest.raises(ValueError, match="epsilon"):
        start(config(mechanism=m, epsilon=1e-6), digits, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_run_that_stops_when_it_is_good_enough_reports_an_odometer(digits, tmp_path):
    m = QUIET.replace(sigma=0.6)
    settings = config(mechanism=m, rounds=40, stop_early=0.02)
    rows = train_run(start(settings, digits, tmp_path / "a"), tmp_path / "a")
    assert len(rows) == 1
    assert rows[0].accuracy >= 0.02
    assert rows[0].round == 4
    # It is over, also after it was read again.
    assert resume(digits, tmp_path / "a").finished
    result = report(tmp_path / "a")
    assert result.keys == ["odometer_any", "odometer_identical"]
    fixed = m.epsilon(delta=1e-5, rounds=4).upper
    odometer = result.epsilons["odometer (identical crowd)"][0]
    # Four of 40 rounds are the first of ten claims: each at a tenth of delta, dearer than a plan of four rounds.
    assert odometer == pytest.approx(m.epsilon(delta=1e-6, rounds=4).upper, rel=2e-3)
    assert odometer > 1.02 * fixed
    # Without reaching the accuracy all rounds run, and the last claim pays for them.
    hopeless = dataclasses.replace(settings, stop_early=1.0)
    rows = train_run(start(hopeless, digits, tmp_path / "b"), tmp_path / "b")
    assert rows[-1].round == 40
    ends = report(tmp_path / "b").epsilons["odometer (identical crowd)"]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(m.epsilon(delta=1e-6, rounds=40).upper, rel=2e-3)


def test_a_budget_covers_every_stop(digits, tmp_path):
    m = ShuffledCheckIn(users=USERS, rate=0.5, sigma=3.0, crowd="identical")
    settings = config(mechanism=m, rounds=200, epsilon=0.5, stop_early=1.0)
    run = start(settings, digits, tmp_path / "run")
    assert run.rounds < start(dataclasses.replace(settings, stop_early=None), digits, tmp_path / "fixed").rounds < 200
    (odometer,) = (a for a in stopping_accountants(m, run.rounds) if a.key == "odometer_identical")
    first, last, beyond = odometer.epsilons([1, run.rounds, run.rounds + 1], settings.delta)
    assert first < 0.4 * last
    assert last <= 0.5
    assert beyond == np.inf


def test_lost_rounds_are_paid_for_unless_they_repeat(digits, tmp_path):
    """After a run that did not end in order, reports of up to checkpoint_every rounds may have been seen."""
    for seed, extra in ((None, 3), (7, 0)):
        folder = tmp_path / str(seed)
        run = start(config(seed=seed), digits, folder)
        killed = (folder / "checkpoint.pt").read_bytes()
        train_run(run, folder, watch=lambda done, _: done < 5)
        clean = resume(digits, folder)
        assert (clean.done, clean.spent) == (5, 5)
        (folder / "checkpoint.pt").write_bytes(killed)  # as if killed before the first checkpoint
        lost = resume(digits, folder)
        assert (lost.done, lost.spent) == (0, extra)


PROGRAM = """
import json, os, pathlib, random, signal, sys, time
import torch
torch.set_num_threads(1)
from shoal.training import Config, load, resume, start, train_run
folder, digits, rng = pathlib.Path(sys.argv[1]), load().first(400), random.Random(1)
config = Config.from_dict(json.loads(sys.argv[2]))
for _ in range(3):  # what is killed is a copy of this process, so that PyTorch is loaded once
    end, ready = os.pipe()
    child = os.fork()
    if not child:
        run = resume(digits, folder) if (folder / "config.json").exists() else start(config, digits, folder)
        os.write(ready, b"!")
        train_run(run, folder)
        os._exit(0)
    assert os.read(end, 1) == b"!"
    time.sleep(rng.uniform(0.02, 0.2))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def test_kill_9_at_random_moments(digits, tmp_path):
    """Killed again and again while it runs: no round is lost or repeated, and the end is the same."""
    asked = config(rounds=150, checkpoint_every=2, evaluate_every=25)
    folder = tmp_path / "run"
    words = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(asked.to_dict())]
    subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=120)
    run = resume(digits, folder)
    assert 0 < run.done < 150
    rows = train_run(run, folder)
    assert [r.round for r in rows] == list(range(25, 151, 25))
    assert [r.spent for r in rows] == [r.round for r in rows]
    whole = tmp_path / "whole"
    train_run(start(asked, digits, whole), whole)
    assert (whole / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert same(whole, folder)


def test_a_full_disk_keeps_the_last_checkpoint(digits, tmp_path, monkeypatch):
    run = start(config(), digits, tmp_path)
    good = (tmp_path / "checkpoint.pt").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"checkpoint\.pt cannot be written: No space left on device"):
        train_run(run, tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == good
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_damaged_run_folders(digits, tmp_path):
    with pytest.raises(DataError, match=r"is not a run folder: it has no config\.json"):
        resume(digits, tmp_path)
    start(config(), digits, tmp_path / "a")
    with pytest.raises(DataError, match="already holds a run"):
        start(config(), digits, tmp_path / "a")
    checkpoint = tmp_path / "a" / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    with pytest.raises(DataError, match=r"checkpoint\.pt is damaged"):
        resume(digits, tmp_path / "a")
    checkpoint.unlink()
    with pytest.raises(DataError, match=r"has no checkpoint\.pt"):
        resume(digits, tmp_path / "a")
    (tmp_path / "a" / "metrics.jsonl").write_text("x\n{}\n")
    with pytest.raises(DataError, match=r"line 1 of .*metrics\.jsonl is damaged"):
        read_metrics(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json is not a configuration of a run"):
        resume(digits, tmp_path / "a")
    start(config(), digits, tmp_path / "b")
    start(config(seed=8), digits, tmp_path / "c")
    (tmp_path / "b" / "checkpoint.pt").write_bytes((tmp_path / "c" / "checkpoint.pt").read_bytes())
    with pytest.raises(DataError, match="belongs to another configuration"):
        resume(digits, tmp_path / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made"):
        start(config(), digits, tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": 0}, "clip must be positive, got 0"),
        ({"learning_rate": float("inf")}, "learning_rate must be finite, got inf"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"average": -0.1}, "average must be at least 0 and below 1, got -0.1"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"epsilon": 0.0}, "epsilon must be positive, got 0.0"),
        ({"network": "huge"}, "network must be one of small, opacus, histograms, got 'huge'"),
        ({"stop_early": 80.0}, r"stop_early must be above 0 and at most 1 \(an accuracy\), got 80\.0"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1, got 0"),
        ({"seed": -3}, "seed must be at least 0, got -3"),
        ({"users": 399}, r"users of the mechanism must be those of the data \(399\), got 400"),
    ],
)
def test_bad_configurations(changes, message, digits, tmp_path):
    with pytest.raises(ValueError, match=message):
        start(config(**changes), digits, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_diverging_run_says_so(digits, tmp_path):
    run = start(config(learning_rate=1e38), digits, tmp_path)
    with pytest.raises(FloatingPointError, match="smaller learning rate"):
        train_run(run, tmp_path)


def test_configurations_are_plain_data():
    for mechanism in (QUIET, PoissonSampling(sigma=2.0, rate=0.5), LocalGaussian(sigma=1.0)):
        asked = config(mechanism=mechanism, epsilon=3.0)
        assert Config.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
    with pytest.raises(ValueError, match="format of the run must be 1, got 2"):
        Config.from_dict({**config().to_dict(), "format": 2})


def test_every_accountant_in_the_report(digits, tmp_path):
    m = ShuffledCheckIn(users=USERS, rate=0.5, sigma=3.0)
    train_run(start(config(mechanism=m), digits, tmp_path), tmp_path)
    found = report(tmp_path)
    by_key = dict(zip(found.keys, found.epsilons.values(), strict=True))
    assert list(by_key) == [a.key for a in accountants(m)]
    for key, crowd, method in (
        ("tight_any", "any", "tight"),
        ("tight_identical", "identical", "tight"),
        ("rdp_identical", "identical", "rdp"),
    ):
        expected = [m.replace(crowd=crowd).epsilon(delta=1e-5, rounds=t, method=method).upper for t in (4, 8, 12)]
        assert by_key[key] == pytest.approx(expected)
    assert all((np.diff(values) >= 0).all() for values in by_key.values())
    from shoal import literature

    theorem = literature.epsilon_from_rdp(
        curve=lambda k: literature.theorem3(users=USERS, rate=0.5, sigma=3.0, order=k),
        orders=range(2, 31),
        delta=1e-5,
        rounds=12,
    )
    assert by_key["paper_theorem"][-1] == pytest.approx(theorem)
    generic = literature.epsilon_from_rdp(
        curve=lambda k: literature.generic_bound(users=USERS, rate=0.5, sigma=3.0, order=k),
        orders=range(2, 7),
        delta=1e-5,
        rounds=12,
    )
    assert by_key["paper_generic"][-1] <= generic * (1 + 1e-12)


def test_accountants_of_the_other_protocols():
    keys = {
        m.label: [a.key for a in accountants(m)]
        for m in (
            Shuffle(users=9, sigma=1.0),
            SubsampledShuffle(users=9, sample=3, sigma=1.0),
            LocalGaussian(sigma=1.0),
            PoissonSampling(sigma=1.0, rate=1.0),
        )
    }
    assert keys["shuffle"] == ["tight_any", "tight_identical", "rdp_identical", "paper_theorem", "paper_baseline"]
    assert keys["subsampled"] == keys["shuffle"][:-1]
    assert keys["local"] == keys["poisson"] == ["tight", "rdp"]
    few = next(a for a in accountants(Shuffle(users=9, sigma=1.0)) if a.key == "paper_baseline")
    assert few.epsilons([1], 1e-5) == [float("inf")]  # clones do not apply to so few users


def test_a_simulated_user_sends_one_report():
    several = Shuffle(users=10, sigma=1.0, reports_per_user=2)
    with pytest.raises(ValueError, match=r"^reports_per_user must be 1 for a training, got 2"):
        Config(mechanism=several, rounds=1, delta=1e-5)
