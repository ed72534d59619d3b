"""Sealed reports, the node's mod, the shuffler and the analyst: each alone and all in one process."""

import collections
import hashlib
import importlib.util
import json
import math
import os
import secrets
import sqlite3
import sys
import threading
import warnings

import numpy as np
import pytest

if sys.version_info < (3, 11):
    pytest.skip("Flower needs Python 3.11", allow_module_level=True)

import httpx
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from shoal import Accountant, LocalGaussian, ShuffledCheckIn
from shoal.cli.app import app as command
from shoal.integrations.flower import analyst as analyst_module
from shoal.integrations.flower import client as client_module
from shoal.integrations.flower import files, keys, noise
from shoal.integrations.flower.analyst import (
    Analyst,
    BatchError,
    Budget,
    ConflictError,
    ExhaustedError,
    Settings,
    counted,
)
from shoal.integrations.flower.budget import BudgetAccountant
from shoal.integrations.flower.client import Node, sealed_reports
from shoal.integrations.flower.report import PROTOCOL, REASONS, SUITE, RefusedError, Task, seal, unseal
from shoal.integrations.flower.run import Machine
from shoal.integrations.flower.service import make_app
from shoal.integrations.flower.shuffler import AnalystClient, AnalystError, Journal, Shuffler

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
    from fastapi.testclient import TestClient

TASK = Task(name="test", dimension=12, clip=1.0, sigma=2.0, rate=0.5)


def task(**fields):
    return Task(**{"name": "test", "dimension": 12, "clip": 1.0, "sigma": 2.0, "rate": 0.5, **fields})


@pytest.fixture(autouse=True)
def inside_a_flower_process(monkeypatch):
    """What Flower sets in the processes that run an app: messages are stamped with it."""
    for name, value in {"_task_id": 5, "_run_id": 1, "_node_id": 77}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture
def forgetful_disk(monkeypatch):
    """Hundreds of files, none of which must last."""
    monkeypatch.setattr(files.os, "fsync", lambda handle: None)


@pytest.fixture
def key():
    return X25519PrivateKey.generate()


# ------------------------------------------------------------------------------------ reports


def test_a_report_comes_back_as_it_was(key):
    values = np.linspace(-3, 3, 12)
    identity, found = unseal(seal(values, task=TASK, number=7, key=key.public_key()), task=TASK, number=7, key=key)
    assert len(identity) == 16
    np.testing.assert_array_equal(found, values.astype(np.float32))


def test_reports_and_dummies_have_one_length_and_nothing_in_common(key):
    pub = key.public_key()
    sealed = [seal(v, task=TASK, number=1, key=pub) for v in (None, None, np.zeros(12), np.full(12, 1e30))]
    assert {len(s) for s in sealed} == {TASK.length} == {48 + 1 + 16 + 48}
    assert len({s[i : i + 8] for s in sealed for i in range(0, TASK.length - 8)}) == 4 * (TASK.length - 8)
    assert unseal(sealed[0], task=TASK, number=1, key=key)[1] is None


@pytest.mark.parametrize(
    "change",
    [{"name": "other"}, {"clip": 2.0}, {"sigma": 1.9}, {"rate": 0.51}],
    ids=lambda c: next(iter(c)),
)
def test_a_report_is_bound_to_every_parameter(key, change):
    sealed = seal(np.ones(12), task=task(**change), number=1, key=key.public_key())
    with pytest.raises(RefusedError, match="seal"):
        unseal(sealed, task=TASK, number=1, key=key)


def test_a_report_is_bound_to_its_round_and_key(key):
    sealed = seal(np.ones(12), task=TASK, number=3, key=key.public_key())
    for number, opener in ((4, key), (3, X25519PrivateKey.generate())):
        with pytest.raises(RefusedError, match="seal"):
            unseal(sealed, task=TASK, number=number, key=opener)


def test_every_flipped_bit_is_refused(key):
    sealed = seal(np.ones(12), task=TASK, number=1, key=key.public_key())
    opened = 0
    for place in range(0, 8 * len(sealed), 5):
        bad = bytearray(sealed)
        bad[place // 8] ^= 1 << place % 8
        with pytest.raises(RefusedError, match="seal"):
            unseal(bytes(bad), task=TASK, number=1, key=key)
        opened += 1
    assert opened > 100


@pytest.mark.parametrize("length", [0, 1, 48, TASK.length - 1, TASK.length + 1])
def test_wrong_lengths_are_refused(key, length):
    with pytest.raises(RefusedError, match="length"):
        unseal(b"x" * length, task=TASK, number=1, key=key)


@pytest.mark.parametrize("inside", [b"\x02" + bytes(64), b"\x01" + bytes(16) + np.full(12, np.nan, "<f4").tobytes()])
def test_nonsense_inside_a_good_seal_is_refused(key, inside):
    sealed = SUITE.encrypt(inside, key.public_key(), info=TASK.info(1))
    with pytest.raises(RefusedError, match="content"):
        unseal(sealed, task=TASK, number=1, key=key)


def test_info_says_what_a_report_is_bound_to():
    said = json.loads(TASK.info(9))
    assert said == {
        "protocol": PROTOCOL,
        "name": "test",
        "dimension": 12,
        "clip": 1.0,
        "sigma": 2.0,
        "rate": 0.5,
        "round": 9,
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "A b"}, "name must be"),
        ({"dimension": 0}, "dimension must be at least 1, got 0"),
        ({"clip": -1.0}, "clip must lie between"),
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"rate": 1.5}, "rate must be above 0 and at most 1"),
    ],
)
def test_bad_tasks_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        task(**fields)


# ------------------------------------------------------------------------------------ clipping and noise


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.floats(min_value=1e-9, max_value=1e9),
)
@settings(max_examples=300, deadline=None)
def test_no_clipped_update_is_longer_than_the_norm(values, clip):
    found = noise.clipped([np.array(values)], clip=clip)
    assert np.isfinite(found).all()
    assert math.hypot(*found.tolist()) <= clip  # hypot is exact to the last bit, here the reference


@given(st.lists(st.floats(min_value=-1e3, max_value=1e3), min_size=1, max_size=40))
@settings(deadline=None)
def test_short_updates_are_left_alone_and_long_ones_keep_their_direction(values):
    vector = np.array(values)
    norm = float(np.linalg.norm(vector))
    np.testing.assert_array_equal(noise.clipped([vector], clip=norm * 1.001 + 1e-6), vector)
    if norm > 1e-3:
        np.testing.assert_allclose(noise.clipped([vector], clip=norm / 2), vector / 2, rtol=1e-9, atol=1e-300)


def test_clipping_is_over_all_arrays_together():
    found = noise.clipped([np.full((2, 3), 3.0), np.full(1, 3.0), np.full(2, 3.0)], clip=1.0)
    np.testing.assert_allclose(found, np.full(9, 1 / 3), rtol=1e-9)


def test_single_precision_updates_are_measured_in_double():
    many = np.full(1_000_000, 1e-3, dtype=np.float32)
    assert float(np.linalg.norm(noise.clipped([many], clip=0.5))) == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_zero(bad):
    assert not noise.clipped([np.ones(3), np.array([1.0, bad])], clip=1.0).any()


@pytest.mark.parametrize("source", noise.SOURCES)
def test_noise_is_gaussian_of_the_right_size(source):
    shift = np.linspace(-5, 5, 4_000)
    found = noise.SOURCES[source](shift, 3.0) - shift
    assert stats.kstest(found, "norm", args=(0.0, 3.0)).pvalue > 1e-4
    assert stats.kstest(found, "norm", args=(0.0, 3.3)).pvalue < 1e-2 or abs(found.std() - 3.0) < 0.12


def test_secure_noise_is_opendp_on_its_finest_grid():
    mechanism = noise._mechanism(5, 2.0)
    assert mechanism.map(1.0) == pytest.approx(1 / (2 * 2.0**2), rel=1e-12)  # zCDP of the exact Gaussian
    assert not np.array_equal(noise.gaussian_secure(np.zeros(5), 2.0), noise.gaussian_secure(np.zeros(5), 2.0))


# ------------------------------------------------------------------------------------ the node


class Desk:
    """One node, with a Flower context and an app that returns what a test wants."""

    def __init__(self, folder, key, **fields):
        self.key = key
        self.node = Node(
            **{
                "task": TASK,
                "key": key.public_key(),
                "rounds": 5,
                "state": folder / "state",
                "noise": "secure",
                **fields,
            }
        )
        self.path = folder / f"node-{secrets.token_hex(4)}.toml"
        self.path.write_text(self.node.to_toml())
        self.context = Context(
            run_id=1, node_id=77, node_config={"shoal": str(self.path)}, state=RecordDict(), run_config={}
        )
        self.trained = 0

    def ask(self, number, *, update=0.0, app=None, kind="train", size=12, **config):
        sent = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(np.ones(size, np.float32))}),
                "config": ConfigRecord({"round": number, **config}),
            }
        )
        message = Message(sent, dst_node_id=77, message_type=kind)
        message.metadata.__dict__["_message_id"] = "1"

        def train(message, context):
            self.trained += 1
            arrays = ArrayRecord({"w": Array((np.ones(size) + update).astype(np.float32))})
            return Message(
                RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1234, "loss": 0.5})}),
                reply_to=message,
            )

        return sealed_reports(message, self.context, app or train)

    def sealed(self, *args, **kwargs):
        reply = self.ask(*args, **kwargs)
        assert list(reply.content) == ["report"]
        assert list(reply.content["report"]) == ["sealed"]
        return reply.content["report"]["sealed"]

    def opened(self, number, **kwargs):
        return unseal(self.sealed(number, **kwargs), task=self.node.task, number=number, key=self.key)[1]


@pytest.fixture
def desk(tmp_path, key):
    return Desk(tmp_path, key)


def test_a_node_sends_a_sealed_report_and_nothing_else(desk):
    assert len(desk.sealed(1, update=9.0)) == TASK.length


def test_the_report_is_the_clipped_update_with_noise(tmp_path, key):
    quiet = task(rate=1.0, sigma=1e-4, clip=2.0)
    desk = Desk(tmp_path, key, task=quiet)
    np.testing.assert_allclose(desk.opened(1, update=9.0), np.full(12, 2 / math.sqrt(12)), atol=2e-3)
    np.testing.assert_allclose(desk.opened(2, update=0.01), np.full(12, 0.01), atol=2e-3)


def test_the_noise_is_that_of_the_node_whatever_the_server_says(tmp_path, key):
    desk = Desk(tmp_path, key, task=task(rate=1.0, dimension=3_000, sigma=2.0, clip=3.0))
    asked = {"sigma": 0.0, "clip": 1e9, "rate": 0.0, "shoal": "/dev/null", "key": "x", "noise": "simulation"}
    report = desk.opened(1, update=0.0, size=3_000, **asked)
    assert report.std() == pytest.approx(6.0, rel=0.1)


@pytest.mark.usefixtures("forgetful_disk")
def test_the_coin_has_the_rate_of_the_task(tmp_path, key):
    desk = Desk(tmp_path, key, task=task(rate=0.25), rounds=400, noise="simulation")
    heads = sum(desk.opened(r) is not None for r in range(1, 401))
    assert stats.binomtest(heads, 400, 0.25).pvalue > 1e-4
    assert desk.trained == 400  # tails trains as well: neither work nor time tells


def test_work_and_length_do_not_depend_on_the_coin(desk, monkeypatch):
    seen = collections.Counter()
    for name in ("secure",):
        real = noise.SOURCES[name]
        monkeypatch.setitem(noise.SOURCES, name, lambda *a, real=real: (seen.update(["noise"]), real(*a))[1])
    for number, toss in ((1, 0), (2, 2**128 - 1)):
        monkeypatch.setattr(client_module.secrets, "randbits", lambda bits, toss=toss: toss)
        seen[len(desk.sealed(number))] += 1
    assert seen == {"noise": 2, TASK.length: 2}
    assert desk.trained == 2


def test_the_same_round_has_the_same_answer_even_after_a_restart(desk, tmp_path):
    first = desk.sealed(1, update=1.0)
    client_module._read_node.cache_clear()
    assert desk.sealed(1, update=-1.0) == first
    assert desk.trained == 1
    assert desk.sealed(2) != first


def test_the_fast_noise_says_that_it_protects_nobody(tmp_path, key, caplog):
    for kind, said in (("secure", 0), ("simulation", 1)):
        caplog.clear()
        Desk(tmp_path, key, noise=kind, state=tmp_path / kind).sealed(1)
        assert sum("protects nobody" in r.message for r in caplog.records) == said


def test_earlier_rounds_and_too_many_are_refused(desk):
    desk.sealed(3)
    with pytest.raises(ValueError, match="round must be at least 3"):
        desk.sealed(2)
    with pytest.raises(ValueError, match="round must be at most 5 on this node, got 6"):
        desk.sealed(6)
    assert desk.trained == 1


def test_changed_settings_do_not_inherit_an_answer(desk, tmp_path, key):
    desk.sealed(1)
    with pytest.raises(ValueError, match="other settings or damaged"):
        Desk(tmp_path, key, task=task(sigma=1.0)).sealed(1)


@pytest.mark.parametrize("kind", ["error", "keys", "shapes", "message", "nan"])
def test_a_training_that_fails_is_the_zero_update_and_says_nothing(tmp_path, key, kind):
    desk = Desk(tmp_path, key, task=task(rate=1.0, sigma=1e-4))

    def app(message, context):
        if kind == "error":
            raise RuntimeError("patient 17 has no label")
        if kind == "message":
            return Message(Error(code=1, reason="patient 17"), reply_to=message)
        arrays = {"keys": {"v": np.ones(12)}, "shapes": {"w": np.ones(11)}, "nan": {"w": np.full(12, np.nan)}}[kind]
        record = ArrayRecord({k: Array(v.astype(np.float32)) for k, v in arrays.items()})
        return Message(RecordDict({"arrays": record}), reply_to=message)

    reply = desk.ask(1, app=app)
    assert not reply.has_error()
    report = unseal(reply.content["report"]["sealed"], task=desk.node.task, number=1, key=key)[1]
    assert np.abs(report).max() < 1e-3


@pytest.mark.parametrize("kind", ["evaluate", "query", "train.other"])
def test_only_training_is_answered(desk, kind):
    if kind == "train.other":
        assert desk.ask(1, kind=kind)
    else:
        with pytest.raises(ValueError, match="type train"):
            desk.ask(1, kind=kind)


def test_a_model_of_another_size_is_refused(desk):
    with pytest.raises(ValueError, match="the model must have 12 numbers on this node, got 11"):
        desk.ask(1, size=11)


def test_a_node_without_settings_says_what_to_do(desk, monkeypatch):
    monkeypatch.delenv("SHOAL_NODE", raising=False)
    desk.context.node_config = {}
    with pytest.raises(ValueError, match="--node-config 'shoal="):
        desk.ask(1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have key, rounds, state and a table"),
        ('key = "x"\nrounds = 1\nstate = "s"\n[task]\nname = "a"\n', "must have clip, dimension, name, rate, sigma"),
    ],
)
def test_bad_node_files_are_refused(tmp_path, text, words):
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(ValueError, match=words):
        Node.read(tmp_path / "node.toml")


def test_a_relative_state_folder_is_beside_the_file(tmp_path, key, monkeypatch):
    desk = Desk(tmp_path, key, state="memory")
    monkeypatch.chdir("/")
    desk.sealed(1)
    assert [p.name for p in (tmp_path / "memory").iterdir()] == ["test.report"]


def test_a_bad_key_is_refused():
    with pytest.raises(ValueError, match="key must be the analyst's public key"):
        keys.public_key("c2hvcnQ=")


# ------------------------------------------------------------------------------------ the analyst


def setup(**fields):
    return Settings(
        **{"task": TASK, "budget": Budget(epsilon=50.0, delta=1e-5, crowd="identical"), "minimum": 3, **fields}
    )


@pytest.fixture
def home(tmp_path):
    made = Analyst.create(tmp_path / "analyst", setup())
    yield made
    made.close()


def batch(analyst, number, values, *, bad=()):
    pub = analyst.key.public_key()
    return b"".join([*(seal(v, task=analyst.settings.task, number=number, key=pub) for v in values), *bad])


def close_round(analyst, number, body, step=1000):
    receiving = analyst.receive(number)
    try:
        for start in range(0, len(body), step):
            receiving.feed(body[start : start + step])
        return json.loads(receiving.finish())
    finally:
        receiving.abandon()


def vectors(*numbers):
    return [None if n is None else np.full(12, float(n)) for n in numbers]


@pytest.mark.parametrize("step", [1, 112, 113, 114, 10**6])
def test_reports_are_added_and_dummies_are_not(home, step):
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3, None)), step)
    np.testing.assert_allclose(home.present()[1], np.full(12, 6 / (0.5 * 4)))  # rate * users, not the 3 that reported
    assert home.present()[0] == 2


def test_a_round_is_entered_with_the_users_that_count(home):
    sealed = seal(np.ones(12), task=TASK, number=1, key=home.key.public_key())
    tampered = bytes([sealed[0] ^ 1]) + sealed[1:]
    old = seal(np.ones(12), task=TASK, number=2, key=home.key.public_key())
    stranger = seal(np.ones(12), task=TASK, number=1, key=X25519PrivateKey.generate().public_key())
    weak = seal(np.ones(12), task=task(sigma=0.1), number=1, key=home.key.public_key())
    body = batch(home, 1, vectors(1, None, 1), bad=[sealed, sealed, tampered, old, stranger, weak])
    answer = close_round(home, 1, body)
    assert (answer["users"], answer["refused"]) == (4, 5)
    (row,) = home.rounds()
    assert row["refused"] == {"length": 0, "seal": 4, "content": 0, "duplicate": 1}
    assert set(row["refused"]) == set(REASONS)
    assert row["reports"] == 3
    assert home.accountant().ledger[0].mechanism == ShuffledCheckIn(users=4, rate=0.5, sigma=2.0, crowd="identical")


def test_a_report_id_counts_once_under_any_seal(home):
    inside = b"\x01" + b"i" * 16 + np.ones(12, "<f4").tobytes()
    pub = home.key.public_key()
    again = [SUITE.encrypt(inside, pub, info=TASK.info(1)) for _ in range(3)]
    answer = close_round(home, 1, batch(home, 1, vectors(1, 1), bad=again))
    assert (answer["users"], answer["refused"]) == (3, 2)


def test_the_ledger_is_the_accountant(home):
    counts = [5, 3, 4, 5]
    for number, count in enumerate(counts, 1):
        answer = close_round(home, number, batch(home, number, vectors(*range(count))))
    expected = Accountant()
    for count in counts:
        expected.compose(ShuffledCheckIn(users=count, rate=0.5, sigma=2.0, crowd="identical"))
    epsilon = expected.epsilon(delta=1e-5)
    assert answer["epsilon"] == {"lower": epsilon.lower, "upper": epsilon.upper}
    assert home.accountant().state_dict() == expected.state_dict()
    assert float(home.accountant("any").epsilon(delta=1e-5)) > epsilon.upper


@given(st.integers(min_value=1, max_value=10**7))
def test_the_ledger_counts_on_no_more_users_than_there_were(users):
    assert users * 31 / 32 < counted(users) <= users
    assert counted(counted(users)) == counted(users)


def test_many_users_are_counted_in_steps(tmp_path):
    home = Analyst.create(tmp_path / "many", setup(minimum=65))
    for number, users in enumerate((66, 67, 70), 1):
        answer = close_round(home, number, batch(home, number, [None] * users))
        assert (answer["users"], answer["counted"]) == (users, {66: 66, 67: 66, 70: 70}[users])
    assert [(e.mechanism.users, e.rounds) for e in home.accountant()] == [(66, 2), (70, 1)]
    home.close()


def test_fewer_users_cost_more(home, tmp_path):
    other = Analyst.create(tmp_path / "other", setup())
    many = close_round(home, 1, batch(home, 1, vectors(*range(9))))
    few = close_round(other, 1, batch(other, 1, vectors(*range(4))))
    assert few["epsilon"]["lower"] > many["epsilon"]["upper"]
    other.close()


def test_the_same_batch_has_the_same_answer_and_another_does_not(home):
    body = batch(home, 1, vectors(1, 2, 3))
    answer = close_round(home, 1, body)
    model = home.present()[1]
    assert close_round(home, 1, body) == answer
    with pytest.raises(ConflictError, match="round 1 is closed, with another batch"):
        close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    with pytest.raises(ConflictError, match="round must be at most 2"):
        close_round(home, 3, batch(home, 3, vectors(1, 2, 3)))
    np.testing.assert_array_equal(home.present()[1], model)
    assert len(home.accountant()) == 1


def test_what_is_known_survives_a_restart(home):
    body = batch(home, 1, vectors(1, 2, 3))
    answer = close_round(home, 1, body)
    again = Analyst(home.folder)
    assert again.present()[0] == 2
    np.testing.assert_array_equal(again.present()[1], home.present()[1])
    assert again.accountant().state_dict() == home.accountant().state_dict()
    assert close_round(again, 1, body) == answer
    again.close()


def test_a_round_that_breaks_off_has_not_happened(home, monkeypatch):
    body = batch(home, 1, vectors(1, 2, 3))
    receiving = home.receive(1)
    receiving.feed(body[:200])
    receiving.abandon()
    assert home.rounds() == []

    class Broken:  # the disk fails between the two statements of the transaction
        def __init__(self, db):
            self.db = db

        def execute(self, statement, *values):
            if statement.startswith("UPDATE model"):
                raise sqlite3.OperationalError("disk I/O error")
            return self.db.execute(statement, *values)

    monkeypatch.setattr(home, "_db", Broken(home._db))
    with pytest.raises(sqlite3.OperationalError):
        close_round(home, 1, body)
    monkeypatch.undo()
    assert home.rounds() == []
    assert len(home.accountant()) == 0
    assert close_round(home, 1, body)["round"] == 1


@pytest.mark.parametrize("size", [0, 1, 113 * 2, 113 * 3 - 1, 113 * 3 + 1])
def test_batches_of_another_size_are_refused_before_anything_is_opened(home, size, monkeypatch):
    monkeypatch.setattr(analyst_module, "unseal", lambda *a, **k: pytest.fail("opened"))
    receiving = home.receive(1)
    with pytest.raises(BatchError):
        receiving.expect(size)
    receiving.abandon()


def test_a_batch_of_nothing_but_rubbish_is_refused(home):
    with pytest.raises(BatchError, match="a report that can be opened"):
        close_round(home, 1, os.urandom(113 * 5))
    assert home.open_round() == 1


def test_no_round_is_opened_that_could_exceed_the_budget(tmp_path):
    m = ShuffledCheckIn(users=3, rate=0.5, sigma=2.0)  # any crowd: the default
    allowed = float(m.epsilon(delta=1e-5, rounds=2)) * 1.0001
    home = Analyst.create(tmp_path / "a", setup(budget=Budget(epsilon=allowed, delta=1e-5)))
    for number in (1, 2):
        body = batch(home, number, vectors(1, 2, 3))
        assert close_round(home, number, body)["crowd"] == "any"
    with pytest.raises(ExhaustedError, match="round 3 with 3 users could exceed the budget"):
        home.open_round()
    with pytest.raises(ExhaustedError):
        home.receive(3)
    assert close_round(home, 2, body)["round"] == 2  # what is closed is still answered
    again = Analyst(home.folder)
    with pytest.raises(ExhaustedError):
        again.open_round()
    again.close()
    home.close()


def test_an_analyst_is_not_made_twice_and_needs_a_fitting_model(tmp_path):
    Analyst.create(tmp_path / "a", setup(), model=np.arange(12.0)).close()
    with pytest.raises(ValueError, match="must be a new folder"):
        Analyst.create(tmp_path / "a", setup())
    with pytest.raises(ValueError, match="model must be 12 finite numbers, got 3"):
        Analyst.create(tmp_path / "b", setup(), model=np.ones(3))
    with pytest.raises(ValueError, match="made by 'shoal analyst init'"):
        Analyst(tmp_path / "nowhere")
    assert [oct(os.stat(tmp_path / "a" / f).st_mode)[-3:] for f in ("analyst.key", "token")] == ["600", "600"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"minimum": 1}, "minimum must be at least 2, got 1"),
        ({"minimum": 5, "maximum": 4}, "maximum must be at least 5, got 4"),
        ({"step": 0.0}, "step must be positive"),
    ],
)
def test_bad_settings_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        setup(**fields)


# ------------------------------------------------------------------------------------ the service


@pytest.fixture
def web(home):
    with TestClient(make_app(home), headers={"Authorization": f"Bearer {home.token}"}) as client:
        yield client


OCTETS = {"Content-Type": "application/octet-stream"}


def test_the_service_closes_a_round(web, home):
    assert web.post("/v1/rounds").json() == {"round": 1, "length": 113, "dimension": 12, "minimum": 3}
    assert web.get("/v1/rounds/1/model").content == bytes(48)
    body = batch(home, 1, vectors(1, 2, 3))
    first = web.put("/v1/rounds/1/reports", content=body, headers=OCTETS)
    assert first.status_code == 200
    assert first.json()["users"] == 3
    assert "reports" not in first.json()  # how many checked in is not the shuffler's business
    assert web.put("/v1/rounds/1/reports", content=body, headers=OCTETS).content == first.content
    refused = web.put("/v1/rounds/1/reports", content=batch(home, 1, vectors(1, 2, 3)), headers=OCTETS)
    assert (refused.status_code, refused.json()["detail"]) == (409, "round 1 is closed, with another batch")
    assert web.get("/v1/rounds/1/model").status_code == 409
    np.testing.assert_allclose(np.frombuffer(web.get("/v1/rounds/2/model").content, "<f4"), np.full(12, 4.0))


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic abc", "Bearer "])
def test_only_the_shuffler_may_ask(home, given):
    web = TestClient(make_app(home), headers={} if given is None else {"Authorization": given})
    for method, path in (("POST", "/v1/rounds"), ("GET", "/v1/rounds/1/model"), ("PUT", "/v1/rounds/1/reports")):
        assert web.request(method, path, headers=OCTETS).status_code == 401
    assert web.get("/v1/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/rounds/1/reports", b"x" * 113, 422),
        ("/v1/rounds/1/reports", b"x" * 400, 422),
        ("/v1/rounds/1/reports", b"x" * 113 * 5, 422),
        ("/v1/rounds/2/reports", b"x" * 113 * 5, 409),
        ("/v1/rounds/0/reports", b"x" * 113 * 5, 422),
        ("/v1/rounds/99999999999999/reports", b"", 422),
        ("/v1/rounds/one/reports", b"", 422),
    ],
)
def test_refusals_are_clear(web, path, content, status):
    answer = web.put(path, content=content, headers=OCTETS)
    assert answer.status_code == status
    assert "must" in answer.json()["detail"]


def test_a_batch_that_is_too_large_is_refused_with_and_without_its_length(tmp_path):
    home = Analyst.create(tmp_path / "small", setup(maximum=4))
    web = TestClient(make_app(home), headers={"Authorization": f"Bearer {home.token}", **OCTETS})
    body = batch(home, 1, vectors(1, 2, 3, 4, 5))
    assert web.put("/v1/rounds/1/reports", content=body).status_code == 413
    assert web.put("/v1/rounds/1/reports", content=iter([body[:300], body[300:]])).status_code == 413
    assert web.put("/v1/rounds/1/reports", content=body[: 113 * 4]).status_code == 200
    home.close()


def test_one_batch_at_a_time(web, home):
    receiving = home.receive(1)
    answer = web.put("/v1/rounds/1/reports", content=b"", headers=OCTETS)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    receiving.abandon()
    assert web.put("/v1/rounds/1/reports", content=batch(home, 1, vectors(1, 2, 3)), headers=OCTETS).is_success


def test_an_exhausted_budget_is_a_refusal(tmp_path):
    home = Analyst.create(tmp_path / "poor", setup(budget=Budget(epsilon=0.01, delta=1e-5)))
    web = TestClient(make_app(home), headers={"Authorization": f"Bearer {home.token}", **OCTETS})
    assert web.post("/v1/rounds").status_code == 403
    assert web.put("/v1/rounds/1/reports", content=batch(home, 1, vectors(1, 2, 3))).status_code == 403
    assert "could exceed the budget of epsilon = 0.01" in web.post("/v1/rounds").json()["detail"]
    home.close()


def test_deliveries_at_once_count_once(web, home):
    body = batch(home, 1, vectors(*range(40)))
    answers = []

    def deliver():
        answers.append(web.put("/v1/rounds/1/reports", content=body, headers=OCTETS))

    threads = [threading.Thread(target=deliver) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {a.status_code for a in answers} <= {200, 503}
    assert len({a.content for a in answers if a.is_success}) == 1
    assert len(home.rounds()) == 1


# ------------------------------------------------------------------------------------ the shuffler


class LocalAnalyst(AnalystClient):
    """The shuffler's client on a service in this process; the first `fail` requests do not get through."""

    def __init__(self, home, fail=0, patience=30.0):
        super().__init__(url="https://analyst", token=home.token, patience=patience)
        self._http = TestClient(make_app(home), headers={"Authorization": f"Bearer {home.token}"})
        self.fail = fail
        self.bodies = []

    def _ask(self, request, allowed=(200,)):
        def unreliable():
            if self.fail > 0:
                self.fail -= 1
                raise httpx.ConnectError("no analyst")
            return request()

        return super()._ask(unreliable, allowed)

    def deliver(self, number, batch):
        self.bodies.append(batch.read_bytes())
        return super().deliver(number, batch)


class Federation:
    """Flower's grid with nodes in this process; some never answer, some answer with an error."""

    FIRST = 7_309_155_001_778_312_001  # Flower's node ids have 64 bits

    def __init__(self, desks, silent=(), broken=()):
        self.desks = dict(enumerate(desks, self.FIRST))
        self.silent, self.broken = ([self.FIRST + i for i in places] for places in (silent, broken))
        self.received, self.waiting = [], {}

    def get_node_ids(self):
        return list(self.desks)

    def push_messages(self, messages):
        ids = []
        for m in messages:
            name = f"m{len(self.waiting)}"
            m.metadata.__dict__["_message_id"] = name
            self.waiting[name] = m
            ids.append(name)
        return ids

    def pull_messages(self, ids):
        found = []
        for name in ids:
            m = self.waiting[name]
            node = m.metadata.dst_node_id
            if node in self.silent:
                continue
            if node in self.broken:
                reply = Message(Error(code=3, reason="gone"), reply_to=m)
            else:
                config = m.content["config"]
                desk = self.desks[node]
                reply = sealed_reports(m, desk.context, lambda message, _: Message(message.content, reply_to=message))
                assert config["round"] >= 1
            reply.metadata.__dict__["_reply_to_message_id"] = name
            self.received.append(reply)
            found.append(reply)
        return found


TEMPLATE = ArrayRecord({"w": Array(np.zeros((3, 4), np.float32))})


def federation(tmp_path, home, nodes, **kwargs):
    return Federation(
        [Desk(tmp_path, home.key, state=tmp_path / f"s{i}", noise="simulation") for i in range(nodes)], **kwargs
    )


def shuffler(tmp_path, analyst, **kwargs):
    options = {"minimum": 3, "timeout": 0.5, "poll": 0.01, **kwargs}
    return Shuffler(analyst=analyst, journal=Journal(tmp_path / "journal"), **options)


def test_rounds_go_through_and_leave_nothing_behind(tmp_path, home):
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    result = strategy.start(federation(tmp_path, home, 5), TEMPLATE, num_rounds=3)
    assert [r["users"] for r in home.rounds()] == [5, 5, 5]
    assert result.train_metrics_clientapp[3]["users"] == 5
    assert result.arrays["w"].numpy().shape == (3, 4)
    assert [p.name for p in (tmp_path / "journal").iterdir()] == ["lock"]
    strategy.journal.close()


def test_dropouts_and_errors_reduce_the_users(tmp_path, home):
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    strategy.start(federation(tmp_path, home, 6, silent=(0,), broken=(1,)), TEMPLATE, num_rounds=1)
    assert [r["users"] for r in home.rounds()] == [4]
    strategy.journal.close()


def test_too_small_a_batch_is_not_passed_on(tmp_path, home):
    analyst = LocalAnalyst(home)
    strategy = shuffler(tmp_path, analyst, timeout=0.1, attempts=2)
    with pytest.raises(AnalystError, match="round 1 stayed below it 2 times"):
        strategy.start(federation(tmp_path, home, 4, silent=(0, 1)), TEMPLATE, num_rounds=1)
    assert analyst.bodies == []
    assert home.rounds() == []
    strategy.journal.close()


def test_it_waits_for_enough_nodes(tmp_path, home):
    strategy = shuffler(tmp_path, LocalAnalyst(home), timeout=0.1)
    with pytest.raises(AnalystError, match="minimum is 3 nodes, only 2 are connected"):
        strategy.start(federation(tmp_path, home, 2), TEMPLATE, num_rounds=1)
    strategy.journal.close()


def test_an_analyst_that_comes_back_gets_the_batch_once(tmp_path, home):
    analyst = LocalAnalyst(home, fail=3)
    strategy = shuffler(tmp_path, analyst)
    strategy.start(federation(tmp_path, home, 4), TEMPLATE, num_rounds=1)
    assert [r["users"] for r in home.rounds()] == [4]
    strategy.journal.close()


def test_a_lost_answer_does_not_count_a_batch_twice(tmp_path, home):
    analyst = LocalAnalyst(home)
    real = analyst._http.put
    lost = []

    def put(*args, **kwargs):
        answer = real(*args, **kwargs)
        if not lost:
            lost.append(answer)
            raise httpx.ReadError("cut off")
        return answer

    analyst._http.put = put
    strategy = shuffler(tmp_path, analyst)
    strategy.start(federation(tmp_path, home, 4), TEMPLATE, num_rounds=1)
    assert lost[0].is_success
    assert len(home.rounds()) == 1
    assert len(home.accountant()) == 1
    strategy.journal.close()


def test_a_shuffler_that_died_delivers_the_same_batch(tmp_path, home):
    nodes = federation(tmp_path, home, 5)
    gone = LocalAnalyst(home, patience=0.1)
    first = shuffler(tmp_path, gone)
    gone.deliver = lambda *a: (_ for _ in ()).throw(AnalystError("dead"))
    with pytest.raises(AnalystError, match="dead"):
        first.start(nodes, TEMPLATE, num_rounds=1)
    first.journal.close()
    (left,) = (tmp_path / "journal").glob("*.batch")
    content = left.read_bytes()
    # All that the shuffler has stored: the sealed reports of a round, in another order.
    assert {p.name for p in (tmp_path / "journal").iterdir()} == {"lock", "round-0000000001.batch"}
    sealed = [r.content["report"]["sealed"] for r in nodes.received]
    assert sorted(sealed) == sorted(content[i : i + TASK.length] for i in range(0, len(content), TASK.length))
    analyst = LocalAnalyst(home)
    second = shuffler(tmp_path, analyst)
    second.start(nodes, TEMPLATE, num_rounds=1)
    assert analyst.bodies == [content]
    assert len(nodes.received) == 5  # nobody was asked again
    assert [r["users"] for r in home.rounds()] == [5]
    second.journal.close()


def test_a_shuffler_that_dies_while_collecting_asks_again_and_gets_the_same(tmp_path, home):
    nodes = federation(tmp_path, home, 5)
    strategy = shuffler(tmp_path, LocalAnalyst(home))

    def dies(replies):
        for count, reply in enumerate(replies):
            if count == 3:
                raise KeyboardInterrupt
            yield reply

    strategy._length = TASK.length
    arrays = ArrayRecord({"w": Array(np.zeros((3, 4), np.float32))})
    replies = strategy._replies(nodes, strategy.configure_train(1, arrays, ConfigRecord(), nodes))
    with pytest.raises(KeyboardInterrupt):
        strategy.aggregate_train(1, dies(replies))
    assert not list((tmp_path / "journal").glob("*.batch"))
    before = [r.content["report"]["sealed"] for r in nodes.received]
    strategy.start(nodes, TEMPLATE, num_rounds=1)
    after = [r.content["report"]["sealed"] for r in nodes.received[len(before) :]]
    assert set(before) <= set(after)
    assert [r["users"] for r in home.rounds()] == [5]
    strategy.journal.close()


@pytest.mark.usefixtures("forgetful_disk")
def test_the_order_is_a_uniform_permutation(tmp_path):
    journal = Journal(tmp_path / "journal")
    seen = collections.Counter()
    for number in range(1, 1201):
        path = journal.collect(number, [b"a", b"b", b"c"], length=1, minimum=2)
        seen[path.read_bytes()] += 1
        journal.done(number)
    assert len(seen) == 6
    assert stats.chisquare(list(seen.values())).pvalue > 1e-4
    journal.close()


def test_a_journal_has_one_owner_and_forgets_arrivals(tmp_path):
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "arrivals.spool").write_bytes(b"order")
    journal = Journal(tmp_path / "journal")
    assert not (tmp_path / "journal" / "arrivals.spool").exists()
    with pytest.raises(ValueError, match="another process uses it"):
        Journal(tmp_path / "journal")
    journal.close()


def test_replies_of_another_length_are_dropped(tmp_path):
    journal = Journal(tmp_path / "journal")
    path = journal.collect(1, [b"abc", b"ab", b"abcd", b"xyz"], length=3, minimum=2)
    assert sorted([path.read_bytes()[:3], path.read_bytes()[3:]]) == [b"abc", b"xyz"]
    journal.close()


def test_plain_http_is_refused():
    with pytest.raises(ValueError, match="url must start with https://"):
        AnalystClient(url="http://127.0.0.1", token="x")


def test_files_are_whole_or_old(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def pieces():
        yield b"new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.replace(path, pieces())
    assert path.read_bytes() == b"old"


# ------------------------------------------------------------------------------------ who sees what


def everything(value, depth=0):
    """All bytes and texts in a message: what a curious shuffler could look at."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, str):
        yield value.encode()
    elif isinstance(value, dict) or hasattr(value, "items"):
        for k, v in value.items():
            yield from everything(k)
            yield from everything(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from everything(v)
    else:
        yield repr(value).encode()


@pytest.mark.usefixtures("forgetful_disk")
def test_the_shuffler_sees_nothing_that_opens_or_tells_who_checked_in(tmp_path, home):
    nodes = federation(tmp_path, home, 40)
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    strategy.start(nodes, TEMPLATE, num_rounds=2)
    strategy.journal.close()
    by_coin = {True: [], False: []}
    for number, replies in ((1, nodes.received[:40]), (2, nodes.received[40:])):
        for reply in replies:
            sealed = reply.content["report"]["sealed"]
            # All there is in a reply, beside what Flower writes about every message.
            assert sorted(everything(reply.content)) == sorted([b"report", b"sealed", sealed])
            for other in (X25519PrivateKey.generate(), home.key):
                for wrong in (number, 3 - number):
                    if other is home.key and wrong == number:
                        continue
                    with pytest.raises(RefusedError):
                        unseal(sealed, task=TASK, number=wrong, key=other)
            by_coin[unseal(sealed, task=TASK, number=number, key=home.key)[1] is not None].append(reply)
    assert min(map(len, by_coin.values())) > 10
    for coin in by_coin.values():
        assert {len(r.content["report"]["sealed"]) for r in coin} == {TASK.length}
        assert {r.metadata.message_type for r in coin} == {"train"}
        counts = np.bincount(
            np.frombuffer(b"".join(r.content["report"]["sealed"] for r in coin), np.uint8), minlength=256
        )
        assert stats.chisquare(counts).pvalue > 1e-6  # bytes look the same: uniform
    answers = json.dumps([r["answer"] for r in home.rounds()])
    assert "reports" not in answers


@pytest.mark.usefixtures("forgetful_disk")
def test_the_analyst_sees_and_stores_no_name_no_time_no_order(tmp_path, home):
    nodes = federation(tmp_path, home, 30)
    analyst = LocalAnalyst(home)
    requests = []
    analyst._http.event_hooks["request"].append(lambda r: requests.append((r.method, str(r.url), dict(r.headers))))
    strategy = shuffler(tmp_path, analyst)
    strategy.start(nodes, TEMPLATE, num_rounds=2)
    strategy.journal.close()
    arrived = [r.content["report"]["sealed"] for r in nodes.received]
    length = TASK.length
    for number, body in enumerate(analyst.bodies, 1):
        got = [body[i : i + length] for i in range(0, len(body), length)]
        sent = arrived[30 * (number - 1) : 30 * number]
        assert got != sent
        assert sorted(got) == sorted(sent)
        inside = [SUITE.decrypt(s, home.key, info=TASK.info(number)) for s in got]
        assert len({i[1:17] for i in inside}) == 30
        assert all(len(i) == 1 + 16 + 4 * 12 for i in inside)
    # Requests: a method, a path and headers that say nothing about nodes or times.
    allowed = {"host", "accept", "accept-encoding", "connection", "user-agent", "authorization", "content-type"}
    for _, url, headers in requests:
        assert set(headers) <= allowed | {"content-length", "transfer-encoding"}
        assert url.split("/v1/")[1].rstrip("0123456789") in {"rounds", "rounds/1/model", "rounds/1/reports"} | {
            f"rounds/{n}/{w}" for n in (2, 3) for w in ("model", "reports")
        }
    # The whole database: these tables and columns, and nothing in them of a node, a report or a moment.
    home._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db = sqlite3.connect(home.folder / "analyst.db")
    columns = {
        name: [c[1] for c in db.execute(f"PRAGMA table_info({name})")]
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    assert columns == {
        "settings": ["version", "settings"],
        "model": ["round", "vector"],
        "rounds": ["round", "batch", "users", "reports", "refused", "entry", "answer"],
    }
    for _, digest, *_ in db.execute("SELECT * FROM rounds"):
        assert digest in {hashlib.sha256(b).digest() for b in analyst.bodies}
    db.close()
    stored = b"".join(p.read_bytes() for p in home.folder.iterdir())
    for number, body in enumerate(analyst.bodies, 1):
        for i in range(0, len(body), length):
            inside = SUITE.decrypt(body[i : i + length], home.key, info=TASK.info(number))
            assert inside[1:17] not in stored
            assert body[i : i + 32] not in stored
    for node in nodes.desks:
        assert str(node).encode() not in stored
    assert {p.name for p in home.folder.iterdir()} <= {
        "analyst.db",
        "analyst.db-wal",
        "analyst.db-shm",
        "analyst.key",
        "token",
    }


# ------------------------------------------------------------------------------------ the accountant, the command


def test_the_accountant_has_flowers_shape():
    from flwr.supercore.privacy_accounting import PrivacyAccountant

    for name in (
        "compose",
        "get_epsilon",
        "get_delta",
        "would_exceed",
        "state_dict",
        "load_state_dict",
        "num_releases",
    ):
        assert hasattr(PrivacyAccountant, name)
        assert hasattr(BudgetAccountant, name)


def test_the_accountant_agrees_with_the_mechanism():
    m = ShuffledCheckIn(users=200, rate=0.2, sigma=2.0, crowd="identical")
    a = BudgetAccountant(target_delta=1e-5, max_epsilon=1.0)
    a.compose(m, count=7)
    assert a.get_epsilon(1e-5) == float(m.epsilon(delta=1e-5, rounds=7))
    assert a.get_delta(0.1) == float(m.delta(epsilon=0.1, rounds=7))
    limit = float(m.epsilon(delta=1e-5, rounds=9))
    assert [a.would_exceed(m, max_epsilon=limit, count=c) for c in (1, 2, 3)] == [False, False, True]
    assert a.num_releases == 7
    b = BudgetAccountant(target_delta=1e-5)
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    assert b.state_dict() == a.state_dict()
    with pytest.raises(ValueError, match="max_epsilon must be given"):
        b.would_exceed(m)


@pytest.mark.parametrize("clip", [1.0, 10.0])
def test_flowers_local_dp_noise_is_what_the_page_says(clip):
    """Noise from the classical formula, whatever the clipping norm: see docs/explanation/trust.md."""
    from flwr.clientapp.mod import LocalDpMod

    asked = Message(
        RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(40_000))})}), dst_node_id=77, message_type="train"
    )
    asked.metadata.__dict__["_message_id"] = "1"
    mod = LocalDpMod(clip, 1.0, 10.0, 1e-5)  # clipping norm, sensitivity, epsilon, delta
    update = RecordDict({"arrays": ArrayRecord({"w": Array(np.full(40_000, 1e-9))})})  # it cannot clip zero
    reply = mod(asked, None, lambda m, c: Message(update, reply_to=m))
    found = float(reply.content["arrays"]["w"].numpy().std())
    assert found == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 10.0, rel=0.02)
    assert float(LocalGaussian(sigma=found * 0.98 / clip).epsilon(delta=1e-5)) > 10.0


INIT = "--task t --dimension 12 --clip 1 --sigma 2 --rate 0.5 --minimum 3 --epsilon 8 --delta 1e-5"


def test_the_command_sets_up_shows_and_exports(tmp_path):
    run = CliRunner().invoke
    folder = tmp_path / "a"
    made = run(command, ["analyst", "init", str(folder), *INIT.split()])
    assert made.exit_code == 0, made.output
    node = Node.read(folder / "node.toml")
    home = Analyst(folder)
    assert keys.public_text(node.key) == home.public_key
    assert home.public_key in made.output
    assert node.task == home.settings.task
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    home.close()
    shown = run(command, ["analyst", "status", str(folder), "--json"])
    data = json.loads(shown.output)
    assert data["next_round"] == 2
    assert data["epsilon"]["any"]["upper"] >= data["epsilon"]["identical"]["upper"]
    assert data["epsilon"]["any"] == data["rounds"][0]["answer"]["epsilon"]
    table = run(command, ["analyst", "status", str(folder)])
    assert "identical crowd" in table.output
    assert "any crowd" in table.output
    out = tmp_path / "m.npy"
    assert run(command, ["analyst", "model", str(folder), "--out", str(out)]).exit_code == 0
    np.testing.assert_allclose(np.load(out), np.full(12, 4.0))


def test_a_missing_package_is_one_sentence(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("shoal.integrations.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(command, ["analyst", "status", "a"])
    assert result.exit_code == 2
    assert "pip install 'shoal[flower]'" in result.output


def test_a_folder_keeps_its_settings(tmp_path):
    machine = Machine(folder=tmp_path / "m", rounds=1)
    machine.set_up(setup())
    machine.set_up(setup())
    with pytest.raises(ValueError, match="its analyst has other settings"):
        machine.set_up(setup(minimum=4))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["analyst", "status", "nowhere"], "must be a folder made by 'shoal analyst init'"),
        (
            ["analyst", "init", "a", *INIT.replace("--sigma 2", "--sigma -1").split()],
            "sigma must be positive, got -1.0",
        ),
        (["analyst", "init", "a", *INIT.split(), "--crowd", "none"], "crowd must be one of"),
        (["analyst", "serve", "a", "--certificate", "c.pem", "--key", "k.pem"], "must be a file in PEM format"),
        (["flower", "deploy", "--nodes", "3", "--minimum", "4"], "minimum must lie between 2 and"),
        (
            ["flower", "simulate", "--nodes", "5001"],
            "nodes must lie between 2 and the number of images (5000), got 5001",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert said in result.output
