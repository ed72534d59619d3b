"""Sealed reports, the node's mod, the shuffler and the analyst: each alone and all in one process."""

import base64
import collections
import contextlib
import hashlib
import importlib.util
import itertools
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import socket
import sqlite3
import ssl
import sys
import threading
import time
import warnings

import numpy as np
import pytest

if sys.version_info < (3, 11):
    pytest.skip("Flower needs Python 3.11", allow_module_level=True)

import httpx
import mpmath
import tomllib
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from shoal import Accountant, LocalGaussian, ShuffledCheckIn
from shoal.cli.app import app as command
from shoal.deployment import analyst as analyst_module
from shoal.deployment import client as client_module
from shoal.deployment import files, keys, link, noise, template, tokens
from shoal.deployment.analyst import (
    Analyst,
    BatchError,
    ConflictError,
    DamagedError,
    ExhaustedError,
    Settings,
)
from shoal.deployment.budget import BudgetAccountant
from shoal.deployment.client import sealed_reports
from shoal.deployment.local_machine import Machine
from shoal.deployment.node import REFUSALS, Node, State, join
from shoal.deployment.report import (
    PROTOCOL,
    REASONS,
    SUITE,
    RefusedError,
    Task,
    counted,
    numbers,
    opening,
    seal,
    unseal,
)
from shoal.deployment.service import make_app
from shoal.deployment.shuffler import AnalystClient, AnalystError, Journal, Shuffler

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
    from fastapi.testclient import TestClient


def task(**fields):
    terms = {"minimum": 3, "epsilon": 50.0, "delta": 1e-5, "crowd": "identical"}
    return Task(**{"name": "test", "dimension": 12, "clip": 1.0, "sigma": 2.0, "rate": 0.5, **terms, **fields})


TASK = task()
TOKEN = b"t" * 16


@pytest.fixture(autouse=True)
def inside_a_flower_process(monkeypatch):
    """What Flower sets in the processes that run an app: messages are stamped with it."""
    for name, value in {"_task_id": 5, "_run_id": 1, "_node_id": 77}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture
def forgetful_disk(monkeypatch):
    """Hundreds of files, none of which must last."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def key():
    return X25519PrivateKey.generate()


def opened(sealed, *, task=TASK, number, key, longest=None):
    """Token and numbers of a sealed report, None for a dummy's."""
    token, content = unseal(sealed, task=task, number=number, key=key)
    report, values = numbers(content, longest=task.longest if longest is None else longest)
    assert report or not values.any()
    return token, values if report else None


# ------------------------------------------------------------------------------------ reports


def test_a_report_comes_back_as_it_was(key):
    values = np.linspace(-3, 3, 12)
    token, found = opened(
        seal(values, task=TASK, number=7, key=key.public_key(), token=TOKEN), task=TASK, number=7, key=key
    )
    assert token == TOKEN
    np.testing.assert_array_equal(found, values.astype(np.float32))


def test_reports_and_dummies_have_one_length_and_nothing_in_common(key):
    pub = key.public_key()
    sealed = [seal(v, task=TASK, number=1, key=pub, token=TOKEN) for v in (None, None, np.zeros(12), np.full(12, 4.0))]
    assert {len(s) for s in sealed} == {TASK.length} == {48 + 1 + 16 + 48}
    assert len({s[i : i + 8] for s in sealed for i in range(0, TASK.length - 8)}) == 4 * (TASK.length - 8)
    assert opened(sealed[0], number=1, key=key)[1] is None


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"clip": 2.0},
        {"sigma": 1.9},
        {"rate": 0.51},
        {"minimum": 1_000},
        {"epsilon": 1.0},
        {"delta": 1e-6},
        {"crowd": "any"},
        {"corrupt": 1},
        {"noise": "simulation"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_a_report_is_bound_to_every_parameter(key, change):
    sealed = seal(np.ones(12), task=task(**change), number=1, key=key.public_key(), token=TOKEN)
    with pytest.raises(RefusedError, match="seal"):
        unseal(sealed, task=TASK, number=1, key=key)


def test_a_report_is_bound_to_its_round_and_key(key):
    sealed = seal(np.ones(12), task=TASK, number=3, key=key.public_key(), token=TOKEN)
    for number, opener in ((4, key), (3, X25519PrivateKey.generate())):
        with pytest.raises(RefusedError, match="seal"):
            unseal(sealed, task=TASK, number=number, key=opener)


def test_every_flipped_bit_is_refused(key):
    sealed = seal(np.ones(12), task=TASK, number=1, key=key.public_key(), token=TOKEN)
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
        opened(sealed, number=1, key=key)


def test_info_says_what_a_report_is_bound_to():
    said = json.loads(TASK.info(9))
    assert said == {
        "protocol": PROTOCOL,
        "name": "test",
        "dimension": 12,
        "clip": 1.0,
        "sigma": 2.0,
        "rate": 0.5,
        "minimum": 3,
        "epsilon": 50.0,
        "delta": 1e-5,
        "crowd": "identical",
        "corrupt": 0,
        "noise": "secure",
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
        ({"minimum": 1}, "minimum must be at least 2, got 1"),
        ({"minimum": 4, "corrupt": 3}, "minimum must be at least 5, got 4"),
        ({"noise": "none"}, "noise must be one of secure, simulation"),
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
    assert stats.kstest(found / 3.0, "norm").pvalue > 1e-4
    assert stats.kstest(found / 3.3, "norm").pvalue < 1e-2 or abs(found.std() - 3.0) < 0.12


@pytest.mark.parametrize("scale", [1e-3, 0.5, 1.0, 2.0, 3.0, 1e6])
def test_the_grid_is_as_fine_as_the_accounting_says(scale):
    assert 2.0**-80 <= math.ldexp(1.0, noise.grid(scale)) / scale * 2 <= 2.0**-78
    assert math.ldexp(1.0, noise.grid(scale)) / scale <= 2.0**-80  # the step h is at most 2^-80 s


def test_discrete_and_rounded_noise_differ_by_what_the_page_says():
    """Their logarithms differ by at most (h/s)^2 (1 + t^2): here on a coarse grid, with 60 digits."""
    mpmath.mp.dps = 60
    for step in (mpmath.mpf(2) ** -4, mpmath.mpf(2) ** -7):
        total = sum(mpmath.exp(-((j * step) ** 2) / 2) for j in range(int(-20 / step), int(20 / step) + 1))
        for t in (0, 1, 3, 10, 40):
            j = mpmath.nint(t / step)
            discrete = -((j * step) ** 2) / 2 - mpmath.log(total)
            cell = mpmath.erfc((j - 0.5) * step / mpmath.sqrt(2)) - mpmath.erfc((j + 0.5) * step / mpmath.sqrt(2))
            assert abs(discrete - mpmath.log(cell / 2)) <= step**2 * (1 + (j * step) ** 2)


def test_secure_noise_is_opendp_on_its_grid():
    mechanism = noise._mechanism(5, 2.0)
    assert mechanism.map(1.0) == pytest.approx(1 / (2 * 2.0**2), rel=1e-12)  # zCDP of the exact Gaussian
    assert not np.array_equal(noise.gaussian_secure(np.zeros(5), 2.0), noise.gaussian_secure(np.zeros(5), 2.0))


# ------------------------------------------------------------------------------------ the node


def signed(desk, number, *, size=12, signer=None, key=None, model=1.0):
    """The analyst's signature under a round whose model is all ones."""
    content = opening(desk.node.task, number, np.full(size, model), (key or desk.key).public_key())
    return (signer or desk.signer).sign(content)


class Desk:
    """One node, with a Flower context, and an app that returns what a test wants."""

    def __init__(self, folder, *, home=None, member=0, terms=TASK, joined=True, **fields):
        self.key, self.signer = X25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        self.secret = secrets.token_bytes(32) if home is None else home.secrets[member]
        given = folder / f"{secrets.token_hex(4)}.secret"
        given.write_text(tokens.secret_text(self.secret))
        if home is None:
            pub, signer = (self.key.public_key(),), self.signer.public_key()
            options = {
                "task": terms,
                "keys": pub,
                "epoch": 100,
                "signer": signer,
                "rounds": 5,
                "state": folder / "state",
            }
            self.node = Node(**{**options, "secret": given, **fields})
        else:
            self.node = home.node(secret=given, **fields)
        self.path = folder / f"node-{secrets.token_hex(4)}.toml"
        self.path.write_text(self.node.to_toml())
        self.node = Node.read(self.path)
        if joined:
            join(self.node)
        self.context = Context(
            run_id=1, node_id=77, node_config={"shoal": str(self.path)}, state=RecordDict(), run_config={}
        )
        self.trained = 0

    def ask(self, number, *, update=0.0, app=None, kind="train", size=12, signature=None, **config):
        signature = signed(self, number, size=size) if signature is None else signature
        sent = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(np.ones(size, np.float32))}),
                "config": ConfigRecord({"round": number, "opening": signature, **config}),
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
        assert not reply.has_error(), reply.error
        assert list(reply.content) == ["report"]
        assert list(reply.content["report"]) == ["sealed"]
        return reply.content["report"]["sealed"]

    def refused(self, *args, **kwargs):
        """The code by which a node refuses; its words are always those of the table."""
        reply = self.ask(*args, **kwargs)
        assert reply.has_error()
        assert reply.error.reason == REFUSALS[reply.error.code]
        return reply.error.code

    def opened(self, number, **kwargs):
        return opened(self.sealed(number, **kwargs), task=self.node.task, number=number, key=self.key)[1]


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_a_node_sends_a_sealed_report_and_nothing_else(desk):
    assert len(desk.sealed(1, update=9.0)) == TASK.length


@pytest.mark.filterwarnings("ignore::shoal.AccuracyWarning")
def test_the_report_is_the_clipped_update_with_noise(tmp_path):
    desk = Desk(tmp_path, terms=task(rate=1.0, sigma=1e-2, clip=2.0, epsilon=1e6))
    np.testing.assert_allclose(desk.opened(1, update=9.0), np.full(12, 2 / math.sqrt(12)), atol=0.2)
    np.testing.assert_allclose(desk.opened(2, update=0.01), np.full(12, 0.01), atol=0.2)


def test_the_noise_is_that_of_the_node_whatever_the_server_says(tmp_path):
    desk = Desk(tmp_path, terms=task(rate=1.0, dimension=3_000, sigma=2.0, clip=3.0))
    asked = {"sigma": 0.0, "clip": 1e9, "rate": 0.0, "shoal": "/dev/null", "key": "x", "noise": "simulation"}
    report = desk.opened(1, update=0.0, size=3_000, **asked)
    assert report.std() == pytest.approx(6.0, rel=0.1)


@pytest.mark.usefixtures("forgetful_disk")
def test_the_coin_has_the_rate_of_the_task(tmp_path):
    desk = Desk(tmp_path, terms=task(rate=0.25, epsilon=1e6), rounds=200, epoch=200)
    heads = sum(desk.opened(r) is not None for r in range(1, 201))
    assert stats.binomtest(heads, 200, 0.25).pvalue > 1e-4
    assert desk.trained == 200  # tails trains as well: neither work nor time tells


def test_work_and_length_do_not_depend_on_the_coin(desk, monkeypatch):
    seen = collections.Counter()
    real = noise.SOURCES["secure"]
    monkeypatch.setitem(noise.SOURCES, "secure", lambda *a: (seen.update(["noise"]), real(*a))[1])
    for number, toss in ((1, 0), (2, 2**128 - 1)):
        monkeypatch.setattr(client_module.secrets, "randbits", lambda bits, toss=toss: toss)
        seen[len(desk.sealed(number))] += 1
    assert seen == {"noise": 2, TASK.length: 2}
    assert desk.trained == 2


def test_the_token_is_that_of_the_node_and_the_round_whatever_the_coin(desk, monkeypatch):
    for number, toss in ((1, 0), (2, 2**128 - 1)):
        monkeypatch.setattr(client_module.secrets, "randbits", lambda bits, toss=toss: toss)
        token, values = opened(desk.sealed(number), number=number, key=desk.key)
        assert token == tokens.token(desk.secret, task=TASK, number=number)
        assert (values is None) == (toss > 0)


def test_the_same_round_has_the_same_answer_even_after_a_restart(desk, tmp_path):
    first = desk.sealed(1, update=1.0)
    client_module._read_node.cache_clear()
    assert desk.sealed(1, update=-1.0) == first
    assert desk.trained == 1
    assert desk.sealed(2) != first


def test_a_message_for_a_late_round_does_not_kill_a_node(desk):
    """Only the analyst opens rounds: a message that somebody made up is refused, and nothing has changed."""
    desk.sealed(1)
    stranger = Ed25519PrivateKey.generate()
    for forged in (b"", b"x" * 64, signed(desk, 5, signer=stranger), signed(desk, 4)):
        assert desk.refused(5, signature=forged) == 104
    assert desk.refused(100, signature=signed(desk, 100, signer=stranger)) == 104
    assert desk.refused(1_000, signature=signed(desk, 1_000, signer=stranger)) == 107  # there is no key for it
    assert desk.trained == 1
    assert desk.sealed(2)  # as if nothing had been


def test_a_model_that_the_analyst_did_not_sign_is_refused(desk):
    assert desk.refused(1, signature=signed(desk, 1, model=0.0)) == 104


def test_a_node_that_was_given_another_key_does_not_seal_to_it(tmp_path):
    """Whoever hands out node.toml could put a key of its own into it, open the reports and seal them again."""
    own = X25519PrivateKey.generate()
    desk = Desk(tmp_path, keys=(own.public_key(),))
    assert desk.refused(1) == 104  # signed by the analyst, who opens rounds with its own key
    assert desk.trained == 0
    assert desk.sealed(1, signature=signed(desk, 1, key=own))


def test_earlier_rounds_and_too_many_are_refused(desk):
    desk.sealed(3)
    assert desk.refused(2) == 106
    assert desk.refused(6) == 107
    assert desk.refused(1_000) == 107  # signed, and still no harm:
    assert desk.sealed(4)
    assert desk.trained == 2


def test_a_node_answers_no_more_rounds_than_its_own_epsilon_allows(tmp_path):
    worst = ShuffledCheckIn(users=3, rate=0.5, sigma=2.0, crowd="identical")
    allowed = float(worst.epsilon(delta=1e-5, rounds=3)) * 1.0001
    desk = Desk(tmp_path, terms=task(epsilon=allowed), rounds=1_000, epoch=1_000)  # what the analyst would like
    assert State.read(desk.node.memory(None), desk.node).rounds == 3
    assert desk.sealed(2)
    desk.path.write_text(desk.path.read_text().replace("rounds = 1000", "rounds = 2"))  # the owner has second thoughts
    client_module._read_node.cache_clear()
    assert desk.refused(3) == 107
    desk.path.write_text(desk.path.read_text().replace("rounds = 2", "rounds = 1000"))
    client_module._read_node.cache_clear()
    assert desk.sealed(3)
    assert desk.refused(4) == 107


def test_corrupt_nodes_are_not_counted_on(tmp_path):
    sure, unsure = task(minimum=9, epsilon=3.0), task(minimum=9, epsilon=3.0, corrupt=6)
    assert unsure.mechanism(users=9) == sure.mechanism(users=3)
    assert unsure.rounds() < sure.rounds()


def test_a_lost_state_means_no_report(desk):
    desk.sealed(1)
    assert not desk.node.secret.exists()  # it is in the state, and nowhere else
    desk.node.memory(None).unlink()
    assert desk.refused(2) == 103
    with pytest.raises(ValueError, match="there is no such file"):
        join(desk.node)
    assert desk.trained == 1


def test_a_node_that_has_not_joined_does_not_report(tmp_path):
    desk = Desk(tmp_path, joined=False)
    assert desk.refused(1) == 103
    join(desk.node)
    assert desk.sealed(1)
    with pytest.raises(ValueError, match="has joined already"):
        join(desk.node)


def test_a_damaged_state_means_no_report(desk):
    desk.sealed(1)
    path = desk.node.memory(None)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert desk.refused(2) == 103
    content[len(content) // 2] ^= 1
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        assert desk.refused(2) == 103
    path.write_bytes(content)
    assert desk.sealed(2)


def test_a_join_that_broke_off_leaves_no_second_copy_of_the_secret(tmp_path):
    desk = Desk(tmp_path)
    desk.node.secret.write_text(tokens.secret_text(desk.secret))
    with pytest.raises(ValueError, match="has joined already"):
        join(desk.node)
    assert not desk.node.secret.exists()
    desk.node.secret.write_text(tokens.secret_text(secrets.token_bytes(32)))  # of somebody else: not ours to remove
    with pytest.raises(ValueError, match="has joined already"):
        join(desk.node)
    assert desk.node.secret.exists()


def test_the_state_is_written_before_a_report_leaves(desk, monkeypatch):
    monkeypatch.setattr(State, "write", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    assert desk.refused(1) == 108


def test_messages_at_once_get_one_answer(tmp_path):
    """The mod is locked: whoever comes second waits, and finds the round answered."""
    desk = Desk(tmp_path)
    entered, answers = threading.Event(), []

    def slow(message, context):
        entered.set()
        threading.Event().wait(0.3)
        desk.trained += 1
        return Message(message.content, reply_to=message)

    both = [threading.Thread(target=lambda: answers.append(desk.sealed(1, app=slow))) for _ in range(2)]
    both[0].start()
    entered.wait(10)
    both[1].start()
    for one in both:
        one.join()
    assert len(set(answers)) == 1
    assert desk.trained == 1


def test_simulated_noise_is_refused_in_a_deployment(tmp_path, monkeypatch, caplog):
    desk = Desk(tmp_path, terms=task(noise="simulation"), joined=False)
    join(desk.node, member="0")
    assert desk.refused(1) == 102
    monkeypatch.setenv("SHOAL_NODE", str(desk.path))
    assert desk.refused(1) == 102  # the SuperNode's own configuration decides
    desk.context.node_config = {"partition-id": 0}
    assert desk.sealed(1)
    assert sum("protects nobody" in r.message for r in caplog.records) > 0
    real = Desk(tmp_path, state=tmp_path / "real")
    monkeypatch.setenv("SHOAL_NODE", str(real.path))
    real.context.node_config = {"partition-id": 0}
    assert real.refused(1) == 102


def test_changed_settings_do_not_inherit_an_answer(desk, tmp_path):
    desk.sealed(1)
    other = Desk(tmp_path, terms=task(sigma=1.0), joined=False)
    assert other.refused(1) == 103


class Odd(BaseException):
    pass


@pytest.mark.filterwarnings("ignore::shoal.AccuracyWarning")
@pytest.mark.parametrize("kind", ["error", "exit", "odd", "keys", "shapes", "message", "nan"])
def test_a_training_that_fails_is_the_zero_update_and_says_nothing(tmp_path, kind):
    desk = Desk(tmp_path, terms=task(rate=1.0, sigma=1e-2, epsilon=1e6), rounds=1)

    def app(message, context):
        if kind == "error":
            raise RuntimeError("patient 17 has no label")
        if kind == "exit":
            sys.exit("patient 17")
        if kind == "odd":
            raise Odd("patient 17")
        if kind == "message":
            return Message(Error(code=1, reason="patient 17"), reply_to=message)
        arrays = {"keys": {"v": np.ones(12)}, "shapes": {"w": np.ones(11)}, "nan": {"w": np.full(12, np.nan)}}[kind]
        record = ArrayRecord({k: Array(v.astype(np.float32)) for k, v in arrays.items()})
        return Message(RecordDict({"arrays": record}), reply_to=message)

    assert np.abs(desk.opened(1, app=app)).max() < 0.1


def test_the_pace_hides_how_long_training_took(tmp_path):
    desk = Desk(tmp_path, pace=0.4)
    start = time.monotonic()
    desk.sealed(1, app=lambda m, c: (_ for _ in ()).throw(RuntimeError("at once")))
    assert time.monotonic() - start >= 0.4


@pytest.mark.parametrize("kind", ["evaluate", "query", "train.other"])
def test_only_training_is_answered(desk, kind):
    if kind == "train.other":
        assert desk.sealed(1, kind=kind)
    else:
        assert desk.refused(1, kind=kind) == 101


def test_a_model_of_another_size_is_refused(desk):
    assert desk.refused(1, size=11) == 105


def test_a_node_without_settings_says_what_to_do(desk, monkeypatch, caplog):
    monkeypatch.delenv("SHOAL_NODE", raising=False)
    desk.context.node_config = {}
    assert desk.refused(1) == 102
    assert "--node-config 'shoal=" in caplog.text
    desk.context.node_config = {"shoal": "/nowhere/node.toml"}
    assert desk.refused(1) == 102


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have epoch, keys, rounds, secret, signer, state and a table"),
        ("x = = 1", "must be a TOML file that can be read"),
        (
            'keys = ["x"]\nepoch = 1\nsigner = "x"\nrounds = 1\nstate = "s"\nsecret = "s"\n[task]\nname = "a"\n',
            "must have clip, corrupt, crowd, delta, dimension, epsilon, minimum, name, noise, rate, sigma, got name",
        ),
        (
            'keys = 1\nepoch = 1\nsigner = "x"\nrounds = 1\nstate = "s"\nsecret = "s"\n[task]\n'
            + "".join(f"{f} = 1\n" for f in Task.__dataclass_fields__),
            "must have texts for secret, state and signer, and a list of keys",
        ),
    ],
)
def test_bad_node_files_are_refused(tmp_path, text, words):
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(ValueError, match=words):
        Node.read(tmp_path / "node.toml")


def test_a_relative_state_folder_is_beside_the_file(tmp_path, monkeypatch):
    desk = Desk(tmp_path, state="memory")
    monkeypatch.chdir("/")
    desk.sealed(1)
    assert sorted(p.name for p in (tmp_path / "memory").iterdir()) == ["test.lock", "test.state"]
    assert os.stat(tmp_path / "memory" / "test.state").st_mode & 0o077 == 0


@pytest.mark.parametrize("read", [keys.sealing_key, keys.signing_key])
def test_a_bad_key_is_refused(read):
    for text in ("c2hvcnQ=", "?", None):
        with pytest.raises(ValueError, match="key must be a public key of the analyst"):
            read(text)


# ------------------------------------------------------------------------------------ tokens


def test_a_roster_knows_the_tokens_of_its_rounds_and_no_others(tmp_path):
    path, given = tokens.enrol(tmp_path / "r", task=TASK, nodes=20, first=3, last=5)
    roster = tokens.Roster.read(path)
    members = [tokens.read_secret(p) for p in given]
    assert len(set(members)) == 20
    for number in (3, 4, 5):
        marks = roster.marks(number)
        places = {
            marks.find(tokens.mark(tokens.token(m, task=TASK, number=number), digest=TASK.digest, number=number))
            for m in members
        }
        assert places == set(range(20))
        for wrong in (
            tokens.token(members[0], task=TASK, number=number + 1),
            tokens.token(members[0], task=task(minimum=4), number=number),
            tokens.token(secrets.token_bytes(32), task=TASK, number=number),
            marks[0],
        ):
            assert marks.find(tokens.mark(wrong, digest=TASK.digest, number=number)) is None


def test_a_roster_says_nothing_about_who_is_who(tmp_path):
    """Marks are sorted, so that a node's place in one round is unrelated to its place in another."""
    path, given = tokens.enrol(tmp_path / "r", task=TASK, nodes=200, first=1, last=40)
    roster = tokens.Roster.read(path)
    members = [tokens.read_secret(p) for p in given]
    places = np.array(
        [
            [
                marks.find(tokens.mark(tokens.token(m, task=TASK, number=r), digest=TASK.digest, number=r))
                for m in members
            ]
            for r, marks in ((r, roster.marks(r)) for r in range(1, 41))
        ]
    )
    assert (np.sort(places) == np.arange(200)).all()
    following = [stats.spearmanr(a, b).statistic for a, b in itertools.pairwise(places)]
    assert abs(np.mean(following)) < 5 / math.sqrt(200 * 39)
    assert abs(np.mean([stats.spearmanr(np.arange(200), p).statistic for p in places])) < 5 / math.sqrt(200 * 40)


def test_a_later_roster_adds_nodes_and_keeps_the_others(tmp_path):
    home = tmp_path / "r"
    _, first = tokens.enrol(home, task=TASK, nodes=5, first=1, last=2)
    kept = tokens.read_secret(first[0])
    for path in first:
        path.unlink()
    path, new = tokens.enrol(home, task=TASK, nodes=7, first=3, last=4)
    assert [p.name for p in new] == ["000006.secret", "000007.secret"]
    token = tokens.token(kept, task=TASK, number=3)
    assert tokens.Roster.read(path).marks(3).find(tokens.mark(token, digest=TASK.digest, number=3)) is not None
    with pytest.raises(ValueError, match="must not exist yet"):
        tokens.enrol(home, task=TASK, nodes=7, first=3, last=4)
    with pytest.raises(ValueError, match="nodes must be at least 3, got 2"):
        tokens.enrol(home, task=TASK, nodes=2, first=5, last=6)
    assert {oct(os.stat(p).st_mode)[-3:] for p in (home / "registrar.json", *new)} == {"600"}


def test_an_enrolment_that_breaks_off_goes_on_with_the_same_secrets(tmp_path, monkeypatch):
    real = files.replace

    def breaks(path, pieces):
        if path.suffix == ".roster":
            raise KeyboardInterrupt
        real(path, pieces)

    monkeypatch.setattr(files, "replace", breaks)
    with pytest.raises(KeyboardInterrupt):
        tokens.enrol(tmp_path / "r", task=TASK, nodes=5, first=1, last=2)
    given = {p.name: p.read_bytes() for p in (tmp_path / "r" / "secrets").iterdir()}
    monkeypatch.undo()
    _, new = tokens.enrol(tmp_path / "r", task=TASK, nodes=5, first=1, last=2)
    assert {p.name: p.read_bytes() for p in new} == given
    (tmp_path / "r" / "registrar.json").unlink()  # forgotten, as it should be: nobody can be added, nothing is lost
    with pytest.raises(ValueError, match=r"registrar\.json is gone.* enrol in a new folder"):
        tokens.enrol(tmp_path / "r", task=TASK, nodes=6, first=3, last=4)
    assert {p.name: p.read_bytes() for p in new} == given


@pytest.mark.parametrize(
    "change",
    [
        {"format": "shoal roster 1"},
        {"task": None},
        {"first": 0, "last": 1},
        {"first": 3, "last": 2, "nodes": 10**7},
        {"first": 1.0},
        {"first": True},
        {"last": "2"},
        {"nodes": -5},
        {"nodes": 10**18},
        {"path": "/etc/passwd"},
        {"more": 1},
    ],
    ids=str,
)
def test_rosters_that_are_not_what_they_say_are_refused(tmp_path, change):
    path, _ = tokens.enrol(tmp_path / "r", task=TASK, nodes=5, first=1, last=2)
    line, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(line), **change}).encode() + b"\n" + rest)
    with pytest.raises(ValueError, match=r"must be a roster from 'shoal flower enrol'|is damaged: it has"):
        tokens.Roster.read(path)


def test_a_roster_cut_off_or_with_a_mark_twice_is_refused(tmp_path, home):
    path, _ = tokens.enrol(tmp_path / "r", task=TASK, nodes=5, first=1, last=2)
    content = path.read_bytes()
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=r"this is something else|is damaged"):
            home.admit(path)
    path.write_bytes(content[:-16] + content[-32:-16])
    with pytest.raises(ValueError, match="is damaged in round 2: ask the registrar again"):
        home.admit(path)
    path.write_bytes(content[:-32] + content[-16:] + content[-32:-16])
    with pytest.raises(ValueError, match="is damaged in round 2"):
        home.admit(path)


def test_a_roster_takes_sixteen_bytes_for_a_node_and_a_round(tmp_path):
    """1,000 nodes for 1,000 rounds are 16 MB: what is measured here, a hundred times over."""
    path, _ = tokens.enrol(tmp_path / "r", task=TASK, nodes=100, first=1, last=100)
    assert path.stat().st_size * 100 < 64 * 2**20
    assert path.stat().st_size - 100 * 100 * 16 < 300


# ------------------------------------------------------------------------------------ the analyst


def setup(terms=TASK, **fields):
    return Settings(**{"task": terms, "rounds": 12, "epoch": 4, **fields})


def settle(folder, settings, *, nodes=80, model=None):
    """An analyst with a roster; `secrets` are those of its nodes."""
    made = Analyst.create(folder, settings, model=model)
    registrar = folder.with_name(folder.name + "-registrar")
    roster, given = tokens.enrol(registrar, task=settings.task, nodes=nodes, first=1, last=settings.rounds)
    made.admit(roster)
    made.secrets = [tokens.read_secret(path) for path in given]
    return made


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    """All databases, at the end: Python 3.13 complains of one left open, in whichever test it then runs."""
    opened, connect = [], analyst_module._connect

    def kept(path):
        opened.append(connect(path))
        return opened[-1]

    monkeypatch.setattr(analyst_module, "_connect", kept)
    yield
    for db in opened:
        db.close()


@pytest.fixture
def home(tmp_path):
    made = settle(tmp_path / "analyst", setup())
    yield made
    made.close()


def sealed_by(analyst, member, number, value, *, terms=None, key=None, token=None):
    """The sealed report of one of the nodes, or what somebody else has made of it."""
    own = analyst.settings.task if terms is None else terms
    pub = (analyst.key(number) if key is None else key).public_key()
    token = tokens.token(analyst.secrets[member], task=own, number=number) if token is None else token
    return seal(value, task=own, number=number, key=pub, token=token)


def batch(analyst, number, values, *, bad=()):
    return b"".join([*(sealed_by(analyst, i, number, v) for i, v in enumerate(values)), *bad])


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
    own = sealed_by(home, 50, 1, np.ones(12))
    bad = [
        own,
        own,  # twice
        bytes([own[0] ^ 1]) + own[1:],  # tampered with
        sealed_by(home, 51, 2, np.ones(12)),  # of another round
        sealed_by(home, 52, 1, np.ones(12), key=X25519PrivateKey.generate()),  # for somebody else
        sealed_by(home, 53, 1, np.ones(12), terms=task(sigma=0.1)),  # with less noise
        sealed_by(home, 54, 1, np.ones(12), terms=task(minimum=1_000)),  # for a larger crowd
        sealed_by(home, 55, 1, np.ones(12), token=secrets.token_bytes(16)),  # of nobody
        sealed_by(home, 56, 1, np.full(12, 3.4e38)),  # finite, and far from what clipping and noise give
    ]
    answer = close_round(home, 1, batch(home, 1, vectors(1, None, 1), bad=bad))
    assert (answer["users"], answer["refused"]) == (5, 8)  # the last one was there, and its numbers are left out
    (row,) = home.rounds()
    assert row["refused"] == {"length": 0, "seal": 5, "content": 0, "norm": 1, "token": 1, "duplicate": 1}
    assert set(row["refused"]) == set(REASONS)
    assert row["reports"] == 3
    assert home.accountant().ledger[0].mechanism == ShuffledCheckIn(users=5, rate=0.5, sigma=2.0, crowd="identical")
    np.testing.assert_allclose(home.present()[1], np.full(12, 3 / (0.5 * 5)))


def test_the_shuffler_alone_cannot_isolate_a_user(tmp_path):
    """One victim's report among forged dummies: refused, and nothing has happened; so are replays and old tokens."""
    home = settle(tmp_path / "a", setup(task(minimum=20)), nodes=40)
    victim = sealed_by(home, 7, 1, np.ones(12))
    before = home.present()[1]
    dummies = [sealed_by(home, 0, 1, None, token=secrets.token_bytes(16)) for _ in range(99)]
    for tricks in (
        dummies,
        [os.urandom(TASK.length) for _ in range(99)],
        [victim] * 99,
        [sealed_by(home, 0, 1, None, token=tokens.token(s, task=home.settings.task, number=2)) for s in home.secrets],
    ):
        with pytest.raises(BatchError, match="a round must have at least 20 users, got 1"):
            close_round(home, 1, b"".join([victim, *tricks]))
        assert home.rounds() == []
        assert len(home.accountant()) == 0
        np.testing.assert_array_equal(home.present()[1], before)
    # With 19 more users it is a round, of twenty, whatever else is in the batch.
    answer = close_round(home, 1, batch(home, 1, [None] * 20, bad=[*dummies, victim]))
    assert answer["users"] == 20
    home.close()


@given(st.sets(st.integers(min_value=0, max_value=29)), st.integers(min_value=0, max_value=5))
@settings(max_examples=15, deadline=None)
def test_the_ledger_never_counts_more_users_than_tokens_arrived(tmp_path_factory, arrived, copies):
    home = settle(tmp_path_factory.mktemp("drops") / "a", setup(), nodes=30)
    body = [sealed_by(home, m, 1, None) for m in arrived]
    body += body[:copies] + [os.urandom(TASK.length) for _ in range(3)]
    if len(arrived) < 3:
        with pytest.raises(BatchError):
            close_round(home, 1, b"".join(body))
        assert len(home.accountant()) == 0
    else:
        answer = close_round(home, 1, b"".join(body))
        assert answer["users"] == len(arrived)
        assert [e.mechanism.users for e in home.accountant()] == [len(arrived)]
    home.close()


def test_a_refusal_does_not_depend_on_what_is_in_a_report(home):
    """Rounds that are refused are in no ledger: what the shuffler is told then must not come from data."""
    said = set()
    for value in (None, np.ones(12), np.full(12, 1e30), np.full(12, np.nan)):
        with pytest.raises(BatchError) as refusal:
            close_round(home, 1, b"".join([sealed_by(home, 1, 1, value)] * 4))
        said.add(str(refusal.value))
    assert said == {"a round must have at least 3 users, got 1"}


def test_the_steps_of_opening_do_not_tell_a_dummy_from_a_report(home):
    """The shuffler can send one report a thousand times over, and look at the clock."""
    seen = []

    def steps(value, copies):
        found, one = [], sealed_by(home, 1, 1, value)
        receiving = home.receive(1)
        here = os.path.dirname(analyst_module.__file__)

        def trace(frame, event, _):
            if not frame.f_code.co_filename.startswith(here):
                return None
            found.append((frame.f_code.co_name, frame.f_lineno))
            return trace

        sys.settrace(trace)
        try:
            receiving.feed(one * copies)
        finally:
            sys.settrace(None)
            receiving.abandon()
        seen.append(found)
        return found

    assert steps(None, 3) == steps(np.ones(12), 3)
    assert sum(name == "numbers" for name, _ in steps(np.ones(12), 1)) > 2  # it was looked into
    entered = [sum(name == "numbers" for name, _ in found) for found in seen]
    assert len(set(entered)) == 1  # and once, however many copies there were


def test_a_token_counts_once_under_any_seal(home):
    again = [sealed_by(home, 9, 1, np.ones(12)) for _ in range(3)]
    answer = close_round(home, 1, batch(home, 1, vectors(1, 1), bad=again))
    assert (answer["users"], answer["refused"]) == (3, 2)


@pytest.mark.parametrize("dimension", [1, 12, 5_000])
def test_honest_reports_are_plausible_and_longer_ones_are_not(dimension):
    terms = task(dimension=dimension, sigma=1.5, clip=0.7)
    update = np.zeros(dimension)
    update[0] = 0.7
    lengths = [np.linalg.norm(noise.gaussian_simulation(update, 0.7 * 1.5)) for _ in range(2_000)]
    assert max(lengths) < terms.longest
    chi = stats.chi(dimension)
    assert chi.sf((terms.longest / 0.7 - 1) / 1.5) == pytest.approx(1e-9, rel=0.5)
    key = X25519PrivateKey.generate()
    for factor, fine in ((0.999, True), (1.001, False)):
        sealed = seal(
            np.full(dimension, factor * terms.longest / math.sqrt(dimension)),
            task=terms,
            number=1,
            key=key.public_key(),
            token=TOKEN,
        )
        if fine:
            opened(sealed, task=terms, number=1, key=key)
        else:
            with pytest.raises(RefusedError, match="norm"):
                opened(sealed, task=terms, number=1, key=key)


def test_the_ledger_is_the_accountant(home):
    counts = [5, 3, 4, 5]
    for number, count in enumerate(counts, 1):
        answer = close_round(home, number, batch(home, number, vectors(*range(count))))
    expected = Accountant()
    for count in counts:
        expected.compose(ShuffledCheckIn(users=count, rate=0.5, sigma=2.0, crowd="identical"))
    epsilon = expected.epsilon(delta=1e-5)
    assert answer["epsilon"] == {"lower": epsilon.lower, "upper": epsilon.upper}
    assert answer["guarantee"] == expected.statement(delta=1e-5).sentence()
    assert home.accountant().state_dict() == expected.state_dict()
    assert float(home.accountant("any").epsilon(delta=1e-5)) > epsilon.upper


@given(st.integers(min_value=1, max_value=10**7))
def test_the_ledger_counts_on_no_more_users_than_there_were(users):
    assert users * 31 / 32 < counted(users) <= users
    assert counted(counted(users)) == counted(users)


def test_many_users_are_counted_in_steps(tmp_path):
    home = settle(tmp_path / "many", setup(task(minimum=65)))
    for number, users in enumerate((66, 67, 70), 1):
        answer = close_round(home, number, batch(home, number, [None] * users))
        assert (answer["users"], answer["counted"]) == (users, {66: 66, 67: 66, 70: 70}[users])
    assert [(e.mechanism.users, e.rounds) for e in home.accountant()] == [(66, 2), (70, 1)]
    home.close()


def test_fewer_users_cost_more(home, tmp_path):
    other = settle(tmp_path / "other", setup())
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


def test_a_folder_has_one_analyst_and_many_readers(home):
    with pytest.raises(ValueError, match="must belong to one analyst: another process uses it"):
        Analyst(home.folder)
    reader = Analyst(home.folder, reading=True)
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    assert reader.present()[0] == 2
    with pytest.raises(ValueError, match="open for reading only"):
        reader.receive(2)
    reader.close()


def test_two_analysts_that_get_past_the_lock_do_not_close_a_round_twice(home):
    """Somebody has removed the file of the lock: each commit reads the ledger again, in its transaction."""
    first = home.receive(1)
    first.feed(batch(home, 1, vectors(1, 2, 3)))
    (home.folder / "lock").unlink()
    with contextlib.closing(Analyst(home.folder)) as other:
        second = other.receive(1)
        second.feed(batch(home, 1, vectors(4, 5, 6, 7)))
        assert json.loads(first.finish())["users"] == 3
        with pytest.raises(ConflictError, match="round must be 2"):
            second.finish()
        other.secrets = home.secrets
        assert close_round(other, 2, batch(other, 2, vectors(1, 2, 3)))["round"] == 2
        with pytest.raises(ConflictError, match="round 2 is closed"):
            close_round(home, 2, batch(home, 2, vectors(1, 2, 3)))
        assert len(home.accountant()) == len(other.accountant()) == 2


def test_what_is_known_survives_a_restart(home):
    body = batch(home, 1, vectors(1, 2, 3))
    answer = close_round(home, 1, body)
    model, ledger = home.present()[1], home.accountant().state_dict()
    home.close()
    again = Analyst(home.folder)
    assert again.present()[0] == 2
    np.testing.assert_array_equal(again.present()[1], model)
    assert again.accountant().state_dict() == ledger
    assert close_round(again, 1, body) == answer
    again.close()


class Broken:
    """A database that fails at one statement."""

    def __init__(self, db, word):
        self.db, self.word = db, word

    def execute(self, statement, *values):
        if statement.startswith(self.word):
            raise sqlite3.OperationalError("disk I/O error")
        return self.db.execute(statement, *values)


def test_a_round_that_breaks_off_has_not_happened(home, monkeypatch):
    body = batch(home, 1, vectors(1, 2, 3))
    receiving = home.receive(1)
    receiving.feed(body[:200])
    receiving.abandon()
    assert home.rounds() == []
    for word in ("INSERT INTO rounds", "INSERT INTO models", "DELETE FROM models"):
        monkeypatch.setattr(home, "_db", Broken(home._db, word))
        with pytest.raises(sqlite3.OperationalError):
            close_round(home, 1, body)
        monkeypatch.undo()
        assert home.rounds() == []
        assert len(home.accountant()) == 0
    assert close_round(home, 1, body)["round"] == 1


CHANGES = {
    "users": "UPDATE rounds SET users = users + 1 WHERE round = 1",
    "entry": "UPDATE rounds SET entry = REPLACE(entry, '\"users\": 4', '\"users\": 5')",
    "answer": "UPDATE rounds SET answer = REPLACE(answer, 'identical', 'any')",
    "missing": "DELETE FROM rounds WHERE round = 1",
    "last": "DELETE FROM rounds WHERE round = 2",
    "model": "UPDATE models SET vector = RANDOMBLOB(96) WHERE round = 3",
    "settings": "UPDATE settings SET settings = REPLACE(settings, '50.0', '51.0')",
    "last and its model": "DELETE FROM rounds WHERE round = 2; DELETE FROM models WHERE round = 3",
    "all": "DELETE FROM rounds; UPDATE models SET round = 9 WHERE round = 1; DELETE FROM models WHERE round < 9; "
    "UPDATE models SET round = 1",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_digit_is_an_error_at_the_next_start_and_in_the_next_round(home, change):
    for number in (1, 2):
        close_round(home, number, batch(home, number, vectors(1, 2, 3, 4)))
    db = sqlite3.connect(home.folder / "analyst.db")
    db.executescript(CHANGES[change])
    assert db.total_changes > 0
    db.commit()
    db.close()
    if change != "settings":
        with pytest.raises(DamagedError, match=r"analyst\.db is damaged"):
            close_round(home, home.next_round, batch(home, home.next_round, vectors(1, 2, 3, 4)))
    home.close()
    with pytest.raises(DamagedError, match=r"analyst\.db is damaged"):
        Analyst(home.folder, reading=True)
    with pytest.raises(DamagedError, match="restore"):
        Analyst(home.folder)


def test_changed_settings_are_noticed_before_the_first_round(home):
    home._db.execute(CHANGES["settings"])
    home.close()
    with pytest.raises(DamagedError, match="its settings are not as they were written"):
        Analyst(home.folder)


def test_an_end_that_is_missing_is_noticed_and_made_up_for(home):
    """A backup of the database alone is put back after round 3; rounds 2 and 3 may have been published."""
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3, 4, 5)))
    home._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    backup, old = (home.folder / "analyst.db").read_bytes(), (home.folder / "head").read_bytes()
    bodies = [batch(home, n, vectors(1, 2, 3, 4, 5)) for n in (2, 3)]
    for number, body in zip((2, 3), bodies, strict=True):
        close_round(home, number, body)
    spent = float(home.accountant().epsilon(delta=1e-5))
    home.close()
    for left in home.folder.glob("analyst.db*"):
        left.unlink()
    (home.folder / "analyst.db").write_bytes(backup)
    words = ["analyst", "skip", str(home.folder), "--to"]
    for reading in (False, True):
        with pytest.raises(DamagedError, match=r"ends with round 1, and round 3 was closed; .* skip \S+ --to 4"):
            Analyst(home.folder, reading=reading)
    result = CliRunner().invoke(command, [*words, "3"])
    assert result.exit_code == 2
    assert "round must lie between 4 and 13, got 3" in result.output
    assert "2 rounds were entered with the smallest crowd. Round 4 comes next." in invoke(*words, "4")
    again = Analyst(home.folder)
    again.secrets = home.secrets
    least = ShuffledCheckIn(users=3, rate=0.5, sigma=2.0, crowd="identical")
    assert [e.mechanism.users for e in again.accountant() for _ in range(e.rounds)] == [5, 3, 3]
    assert again.accountant().ledger[-1].mechanism == least
    assert float(again.accountant().epsilon(delta=1e-5)) > spent
    for number, body in zip((2, 3), bodies, strict=True):  # neither is closed a second time, with whatever users
        with pytest.raises(ConflictError, match="is closed"):
            close_round(again, number, body)
    assert close_round(again, 4, batch(again, 4, vectors(1, 2, 3)))["round"] == 4
    again.close()
    (home.folder / "head").write_text("x")
    with pytest.raises(DamagedError, match="head is missing or damaged"):
        Analyst(home.folder)
    assert "0 rounds were entered" in invoke(*words, "5")
    Analyst(home.folder).close()
    (home.folder / "head").write_bytes(old)  # a crash before the head was written
    Analyst(home.folder).close()
    assert json.loads((home.folder / "head").read_text())["round"] == 4
    (home.folder / "head").write_text(json.dumps({"round": 2, "chain": "00" * 32}))
    with pytest.raises(DamagedError, match="of different analysts"):
        Analyst(home.folder)


def test_a_write_ahead_log_that_is_cut_off_anywhere_is_noticed(home, tmp_path):
    """After kill -9 the last rounds are in the log only, and SQLite forgets what is cut off without a word."""
    for number in (1, 2, 3):
        close_round(home, number, batch(home, number, vectors(1, 2, 3)))
    log = (home.folder / "analyst.db-wal").read_bytes()
    assert len(log) > 6 * 4096
    cuts = {0, 1, 31, 32, 33, len(log) - 1, *range(32, len(log), 4096 + 24), *range(7, len(log), 9_999)}
    noticed = 0
    for cut in sorted(cuts):
        copy = tmp_path / "copy"
        shutil.copytree(home.folder, copy, ignore=shutil.ignore_patterns("*-shm"))
        (copy / "analyst.db-wal").write_bytes(log[:cut])
        try:
            with contextlib.closing(Analyst(copy)) as found:
                assert len(found.rounds()) == 3
        except DamagedError as error:
            assert "restore" in str(error)  # noqa: PT017 (either is right, and nothing else)
            noticed += 1
        shutil.rmtree(copy)
    assert noticed > 5


DAMAGE = {
    "truncated database": ("analyst.db", 5_000, "analyst.db is damaged"),
    "no database": ("analyst.db", 40, "analyst.db is damaged"),
    "sign.key": ("sign.key", 30, "sign.key is damaged: restore it from a backup"),
    "password": ("password", 0, "password is missing or empty: write a new secret"),
    "empty database": ("analyst.db", 0, "analyst.db is damaged"),
    "head": ("head", 9, "head is missing or damaged: restore the folder from a backup"),
    "sealing key": ("keys/00001.key", 30, "00001.key is damaged: restore it from a backup"),
    "public keys": ("keys/public.json", 30, "public.json is missing or damaged"),
    "roster": ("rosters/0001.roster", 700, "0001.roster is damaged"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_files_are_named_with_what_to_do(home, kind):
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    home._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    home.close()
    name, left, words = DAMAGE[kind]
    path = home.folder / name
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match=words):
        Analyst(home.folder)
    result = CliRunner().invoke(command, ["analyst", "restore", str(home.folder), "--after", "1"])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_key_of_somebody_else_is_noticed_before_nodes_are_asked(home):
    (home.folder / "keys" / "00001.key").write_bytes((home.folder / "keys" / "00002.key").read_bytes())
    with pytest.raises(DamagedError, match="is not the key that nodes were given"):
        home.signature()
    home.close()
    with pytest.raises(DamagedError, match="is not the key that nodes were given"):
        Analyst(home.folder)


def test_a_database_cut_off_anywhere_is_one_sentence(home):
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    home._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    home.close()
    path = home.folder / "analyst.db"
    content = path.read_bytes()
    whole = []
    for cut in sorted({0, 1, 15, 16, 99, 100, len(content) - 1, *range(0, len(content), 1_999)}):
        path.write_bytes(content[:cut])
        try:
            with contextlib.closing(Analyst(home.folder)) as found:
                assert [r["users"] for r in found.rounds()] == [3]
                whole.append(cut)
        except DamagedError as error:
            assert "analyst.db is damaged" in str(error)  # noqa: PT017 (either is right, and nothing else)
    assert min(whole, default=len(content)) > len(content) - 4096  # SQLite does not miss the last zeros of a page


def test_a_flipped_bit_in_a_roster_is_noticed(home):
    home.close()
    path = home.folder / "rosters" / "0001.roster"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="ask the registrar again"):
        Analyst(home.folder)


def test_keys_change_with_the_epoch_and_old_ones_are_gone(home):
    names = [f"{i:05d}.key" for i in (1, 2, 3)]
    assert sorted(p.name for p in (home.folder / "keys").glob("*.key")) == names
    old = home.key(1)
    kept = sealed_by(home, 0, 1, np.ones(12))
    for number in range(1, 5):
        close_round(home, number, batch(home, number, vectors(1, 2, 3)))
    assert sorted(p.name for p in (home.folder / "keys").glob("*.key")) == names[1:]
    with pytest.raises(ValueError, match="is missing"):
        home.key(1)
    with pytest.raises(RefusedError, match="seal"):
        unseal(kept, task=TASK, number=1, key=home.key(5))
    # A report to the old key does not open in the new epoch.
    body = batch(home, 5, vectors(1, 2, 3), bad=[sealed_by(home, 9, 5, np.ones(12), key=old)])
    assert close_round(home, 5, body)["users"] == 3
    assert len({keys.public_text(k) for k in home.public_keys()}) == 3
    node = home.node()
    assert [keys.public_text(node.key(n)) for n in (5, 12)] == [keys.public_text(home.public_keys()[i]) for i in (1, 2)]


def test_nobody_is_enrolled_by_changing_the_database_alone(home, tmp_path):
    roster, _ = tokens.enrol(tmp_path / "sybils", task=TASK, nodes=9, first=1, last=12)
    (home.folder / "rosters" / "0002.roster").write_bytes(roster.read_bytes())
    digest = hashlib.sha256(roster.read_bytes()).digest()
    home._db.execute("INSERT INTO rosters VALUES ('0002.roster', ?, 2)", (digest,))
    home.close()
    with pytest.raises(DamagedError, match=r"0002\.roster is damaged"):
        Analyst(home.folder)


def test_a_crash_before_a_key_is_forgotten_is_made_good(home, monkeypatch):
    monkeypatch.setattr(Analyst, "_forget_keys", lambda self: None)
    for number in range(1, 5):
        close_round(home, number, batch(home, number, vectors(1, 2, 3)))
    assert (home.folder / "keys" / "00001.key").exists()
    home.close()
    monkeypatch.undo()
    Analyst(home.folder).close()
    assert not (home.folder / "keys" / "00001.key").exists()


def test_the_last_models_are_kept_and_there_is_a_way_back(tmp_path):
    home = settle(tmp_path / "a", setup(keep=3), model=np.full(12, 5.0))
    models = [home.present()[1]]
    for number in range(1, 5):
        close_round(home, number, batch(home, number, vectors(number, number, number)))
        models.append(home.present()[1])
    with pytest.raises(ValueError, match=r"whose model is kept \(2, 3, 4\), got 1"):
        home.restore(1)
    home.restore(2)
    number, vector = home.present()
    assert number == 5
    np.testing.assert_array_equal(vector, models[2])
    assert len(home.accountant()) == 4  # what is spent is spent
    home.close()
    again = Analyst(home.folder)
    np.testing.assert_array_equal(again.present()[1], models[2])
    again.secrets = home.secrets
    close_round(again, 5, batch(again, 5, vectors(0, 0, 0)))
    np.testing.assert_array_equal(again.present()[1], models[2])
    again.close()


def test_the_first_model_can_be_gone_back_to_and_built_on(tmp_path):
    home = settle(tmp_path / "a", setup(keep=2))
    close_round(home, 1, batch(home, 1, vectors(1, 1, 1)))
    home.restore(0)
    for number in (2, 3):
        close_round(home, number, batch(home, number, vectors(0, 0, 0)))
        assert not home.present()[1].any()
    home.close()
    Analyst(home.folder).close()


@pytest.mark.parametrize("size", [0, 1, 113 * 2, 113 * 3 - 1, 113 * 3 + 1])
def test_batches_of_another_size_are_refused_before_anything_is_opened(home, size, monkeypatch):
    monkeypatch.setattr(analyst_module, "unseal", lambda *a, **k: pytest.fail("opened"))
    receiving = home.receive(1)
    with pytest.raises(BatchError):
        receiving.expect(size)
    receiving.abandon()


def test_a_batch_of_nothing_but_rubbish_is_refused(home):
    with pytest.raises(BatchError, match="at least 3 users, got 0"):
        close_round(home, 1, os.urandom(113 * 5))
    assert home.open_round() == 1


def test_no_round_is_opened_that_could_exceed_the_budget(tmp_path):
    m = ShuffledCheckIn(users=3, rate=0.5, sigma=2.0)  # any crowd: the default
    allowed = float(m.epsilon(delta=1e-5, rounds=2)) * 1.0001
    home = settle(tmp_path / "a", setup(task(epsilon=allowed, crowd="any")))
    for number in (1, 2):
        body = batch(home, number, vectors(1, 2, 3))
        assert close_round(home, number, body)["crowd"] == "any"
    with pytest.raises(ExhaustedError, match="round 3 with 3 users could exceed the budget"):
        home.open_round()
    with pytest.raises(ExhaustedError):
        home.receive(3)
    assert close_round(home, 2, body)["round"] == 2  # what is closed is still answered
    home.close()
    again = Analyst(home.folder)
    with pytest.raises(ExhaustedError):
        again.open_round()
    again.close()


def test_the_budget_holds_when_a_round_closes_as_well(home, monkeypatch):
    """Also if the check at the opening were passed: the number of users that came decides."""
    object.__setattr__(home.settings.task, "epsilon", 0.01)
    monkeypatch.setattr(home, "_exceeds", (1, False))
    with pytest.raises(ExhaustedError, match="would exceed the budget"):
        home._commit(1, b"", np.zeros(12), 3, 3, {})
    assert home.rounds() == []


def test_rounds_end_with_the_keys_and_wait_for_a_roster(tmp_path):
    home = Analyst.create(tmp_path / "a", setup(rounds=3, epoch=2))
    with pytest.raises(ExhaustedError, match="round 1 has no roster"):
        home.open_round()
    given = []
    for first, last in ((1, 1), (2, 3)):
        roster, new = tokens.enrol(tmp_path / "r", task=TASK, nodes=4, first=first, last=last)
        home.admit(roster)
        given += new
    home.secrets = [tokens.read_secret(p) for p in given]
    for number in (1, 2, 3):
        close_round(home, number, batch(home, number, vectors(1, 2, 3)))
    with pytest.raises(ExhaustedError, match="round must be at most 3"):
        home.open_round()
    home.close()


def test_rosters_of_other_terms_or_past_rounds_are_refused(home, tmp_path):
    other, _ = tokens.enrol(tmp_path / "other", task=task(epsilon=1.0), nodes=9, first=1, last=2)
    with pytest.raises(ValueError, match="must be a roster of this task and its terms"):
        home.admit(other)
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    late, given = tokens.enrol(tmp_path / "late", task=TASK, nodes=9, first=1, last=2)
    with pytest.raises(ValueError, match="must begin at round 2 or later, got 1"):
        home.admit(late)
    with pytest.raises(ValueError, match="this is something else"):
        home.admit(given[0])
    newer, given = tokens.enrol(tmp_path / "newer", task=TASK, nodes=9, first=2, last=2)
    home.admit(newer)  # counts instead of the first one, in its own round
    with pytest.raises(BatchError, match="got 0"):
        close_round(home, 2, batch(home, 2, vectors(1, 2, 3)))
    old, home.secrets = home.secrets, [tokens.read_secret(p) for p in given]
    close_round(home, 2, batch(home, 2, vectors(1, 2, 3)))
    home.secrets = old
    close_round(home, 3, batch(home, 3, vectors(1, 2, 3)))


def test_an_analyst_is_not_made_twice_and_needs_a_fitting_model(tmp_path):
    Analyst.create(tmp_path / "a", setup(), model=np.arange(12.0)).close()
    with pytest.raises(ValueError, match="must be a new folder"):
        Analyst.create(tmp_path / "a", setup())
    with pytest.raises(ValueError, match="model must be 12 finite numbers, got 3"):
        Analyst.create(tmp_path / "b", setup(), model=np.ones(3))
    with pytest.raises(ValueError, match="made by 'shoal analyst init'"):
        Analyst(tmp_path / "nowhere")


def test_what_is_secret_can_be_read_by_its_owner_only(tmp_path):
    """Whatever the umask is, and whoever made the folder."""
    old = os.umask(0)
    try:
        for name in ("analyst", "analyst-registrar", "journal", "node"):
            (tmp_path / name).mkdir(mode=0o755)
        home = settle(tmp_path / "analyst", setup())
        desk = Desk(tmp_path / "node", home=home, state=tmp_path / "node" / "state")
        close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
        journal, modes = Journal(tmp_path / "journal"), set()

        def arriving():
            modes.update(p.stat().st_mode & 0o777 for p in (tmp_path / "journal").glob("*.spool"))
            yield from (b"a", b"b")

        journal.collect(1, arriving(), length=1, minimum=2)
        assert modes == {0o600}
        keys.make_certificates(tmp_path / "tls")
        keys.make_node_key(tmp_path / "node" / "node.key")
        public = {"lock", "test.lock", desk.path.name, "ca.pem", "server.pem", "node.key.pub"}
        found = {p for p in tmp_path.rglob("*") if p.is_file()}
        assert {"sign.key", "analyst.db-wal", "00001.key", "0001.roster", "test.state"} <= {p.name for p in found}
        assert not [p for p in found if p.name not in public and p.stat().st_mode & 0o077]
        journal.close()
        home.close()
    finally:
        os.umask(old)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"maximum": 2}, "maximum must be at least 3, got 2"),
        ({"step": 0.0}, "step must be positive"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"keep": 0}, "keep must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        setup(**fields)


# ------------------------------------------------------------------------------------ the service


@pytest.fixture
def web(home):
    with TestClient(make_app(home), headers={"Authorization": f"Bearer {home.password}"}) as client:
        yield client


OCTETS = {"Content-Type": "application/octet-stream"}


def test_the_service_closes_a_round(web, home):
    asked = web.post("/v1/rounds").json()
    signature = base64.b64decode(asked.pop("opening"))
    assert asked == {"round": 1, "length": 113, "dimension": 12, "minimum": 3}
    home.signer.public_key().verify(signature, opening(TASK, 1, np.zeros(12), home.key(1).public_key()))
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
    home = settle(tmp_path / "small", setup(maximum=4))
    web = TestClient(make_app(home), headers={"Authorization": f"Bearer {home.password}", **OCTETS})
    body = batch(home, 1, vectors(1, 2, 3, 4, 5))
    assert web.put("/v1/rounds/1/reports", content=body).status_code == 413
    assert web.put("/v1/rounds/1/reports", content=iter([body[:300], body[300:]])).status_code == 413
    assert web.put("/v1/rounds/1/reports", content=body[: 113 * 4]).status_code == 200
    home.close()


def test_strangers_are_answered_a_few_at_a_time_and_the_shuffler_always(home):
    app = make_app(home)
    stranger, known = TestClient(app), TestClient(app, headers={"Authorization": f"Bearer {home.password}"})
    seen = collections.Counter(stranger.get("/v1/health").status_code for _ in range(300))
    assert seen[429] > 100
    assert seen[200] >= 50
    assert {known.post("/v1/rounds").status_code for _ in range(100)} == {200}


def test_one_batch_at_a_time(web, home):
    receiving = home.receive(1)
    answer = web.put("/v1/rounds/1/reports", content=b"", headers=OCTETS)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    receiving.abandon()
    assert web.put("/v1/rounds/1/reports", content=batch(home, 1, vectors(1, 2, 3)), headers=OCTETS).is_success


def test_an_exhausted_budget_is_a_refusal(tmp_path):
    home = settle(tmp_path / "poor", setup(task(epsilon=0.01)))
    web = TestClient(make_app(home), headers={"Authorization": f"Bearer {home.password}", **OCTETS})
    assert web.post("/v1/rounds").status_code == 403
    assert web.put("/v1/rounds/1/reports", content=batch(home, 1, vectors(1, 2, 3))).status_code == 403
    assert "could exceed the budget of epsilon = 0.01" in web.post("/v1/rounds").json()["detail"]
    home.close()


def test_a_folder_that_is_damaged_meanwhile_is_said_in_the_analysts_own_log(web, home, capsys):
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    home._db.execute("UPDATE rounds SET users = 9")
    answer = web.put("/v1/rounds/2/reports", content=batch(home, 2, vectors(1, 2, 3)), headers=OCTETS)
    assert answer.status_code == 500
    assert answer.json() == {"detail": "the analyst's folder is damaged, its own log says how"}
    assert "line for round 1 is not as it was written; restore" in capsys.readouterr().err


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
        super().__init__(url="https://analyst", password=home.password, patience=patience)
        self._http = TestClient(make_app(home), headers={"Authorization": f"Bearer {home.password}"})
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
        self.bodies.append(batch.read_bytes()[: -files.SUM_BYTES])
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
    return Federation([Desk(tmp_path, home=home, member=i, state=tmp_path / f"s{i}") for i in range(nodes)], **kwargs)


def shuffler(tmp_path, analyst, **kwargs):
    options = {"minimum": 3, "timeout": 0.5, "poll": 0.01, **kwargs}
    return Shuffler(analyst=analyst, journal=Journal(tmp_path / "journal"), **options)


def test_rounds_go_through_and_leave_nothing_behind(tmp_path, home):
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    result = strategy.start(federation(tmp_path, home, 5), TEMPLATE, num_rounds=3)
    assert [r["users"] for r in home.rounds()] == [5, 5, 5]
    assert result.train_metrics_clientapp[3]["users"] == 5
    assert result.arrays["w"].numpy().shape == (3, 4)
    assert {p.name for p in (tmp_path / "journal").iterdir()} == {"lock", "confirmed"}
    assert strategy.journal.confirmed == 3
    strategy.journal.close()


def test_an_analyst_that_was_put_back_is_noticed(tmp_path, home):
    """With the whole folder of an earlier time the analyst cannot tell; the shuffler and the nodes can."""
    shutil.copytree(home.folder, tmp_path / "backup")
    nodes, strategy = federation(tmp_path, home, 4), shuffler(tmp_path, LocalAnalyst(home))
    strategy.start(nodes, TEMPLATE, num_rounds=2)
    strategy.journal.close()
    home.close()
    old = Analyst(tmp_path / "backup")
    again = shuffler(tmp_path, LocalAnalyst(old))
    with pytest.raises(AnalystError, match="waits for round 1, and has closed round 2 before: it was put back"):
        again.start(nodes, TEMPLATE, num_rounds=3)
    assert len(nodes.received) == 8  # nobody was asked
    (desk, *_) = nodes.desks.values()
    desk.signer, desk.key = old.signer, old.key(1)
    assert desk.refused(1, signature=signed(desk, 1)) == 106
    old.skip(3)
    again.start(nodes, TEMPLATE, num_rounds=3)
    assert [r["users"] for r in old.rounds()] == [3, 3, 4]
    again.journal.close()
    old.close()


def test_a_batch_whose_round_was_closed_with_another_one_does_not_stop_a_shuffler(tmp_path, home):
    journal = Journal(tmp_path / "journal")
    journal.collect(1, [sealed_by(home, i, 1, None) for i in range(4)], length=TASK.length, minimum=3)
    journal.close()
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    strategy.start(federation(tmp_path, home, 4), TEMPLATE, num_rounds=2)
    assert [r["users"] for r in home.rounds()] == [3, 4]
    assert not list((tmp_path / "journal").glob("round-*"))
    strategy.journal.close()


def test_dropouts_and_errors_reduce_the_users(tmp_path, home):
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    strategy.start(federation(tmp_path, home, 6, silent=(0,), broken=(1,)), TEMPLATE, num_rounds=1)
    assert [r["users"] for r in home.rounds()] == [4]
    strategy.journal.close()


def test_too_small_a_batch_is_not_passed_on(tmp_path, home):
    analyst = LocalAnalyst(home)
    strategy = shuffler(tmp_path, analyst, timeout=0.1, attempts=2)
    with pytest.raises(AnalystError, match="round 1 could not be closed in 2 attempts: minimum is 3 reports"):
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
    content = left.read_bytes()[: -files.SUM_BYTES]
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

    strategy._length, strategy._opening = TASK.length, home.signature()[1]
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
        seen[path.read_bytes()[:3]] += 1
        journal.drop(number)
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
    assert sorted([path.read_bytes()[:3], path.read_bytes()[3:6]]) == [b"abc", b"xyz"]
    journal.close()


def test_blobs_of_the_right_length_do_not_close_a_round(tmp_path, home):
    """Batches that the analyst refuses are collected again, and given up after some attempts; nothing is left over."""
    nodes = federation(tmp_path, home, 3)
    real = nodes.pull_messages

    def pull(ids):
        found = real(ids)
        for reply in found[1:]:
            reply.content["report"]["sealed"] = os.urandom(TASK.length)
        return found

    nodes.pull_messages = pull
    strategy = shuffler(tmp_path, LocalAnalyst(home), attempts=2)
    with pytest.raises(AnalystError, match=r"round 1 could not be closed in 2 attempts: .* at least 3 users, got 1"):
        strategy.start(nodes, TEMPLATE, num_rounds=1)
    assert home.rounds() == []
    assert [p.name for p in (tmp_path / "journal").iterdir()] == ["lock"]
    nodes.pull_messages = real  # the same nodes, honest now, and the same round
    strategy.start(nodes, TEMPLATE, num_rounds=1)
    assert [r["users"] for r in home.rounds()] == [3]
    strategy.journal.close()


@pytest.mark.parametrize("cut", [0, 40, 200])
def test_a_damaged_journal_is_set_aside_and_the_nodes_are_asked_again(tmp_path, home, cut, caplog):
    nodes = federation(tmp_path, home, 4)
    gone = LocalAnalyst(home, patience=0.1)
    first = shuffler(tmp_path, gone)
    gone.deliver = lambda *a: (_ for _ in ()).throw(AnalystError("dead"))
    with pytest.raises(AnalystError, match="dead"):
        first.start(nodes, TEMPLATE, num_rounds=1)
    first.journal.close()
    (left,) = (tmp_path / "journal").glob("*.batch")
    left.write_bytes(left.read_bytes()[:cut])
    second = shuffler(tmp_path, LocalAnalyst(home))
    second.start(nodes, TEMPLATE, num_rounds=1)
    assert [r["users"] for r in home.rounds()] == [4]
    assert "is damaged: it is set aside" in caplog.text
    assert not list((tmp_path / "journal").glob("round-*"))  # and gone when the round is over
    second.journal.close()


def test_a_journal_cut_off_or_changed_anywhere_is_damaged(tmp_path):
    path = tmp_path / "f"
    files.replace_summed(path, [b"a report", b"another"])
    content = path.read_bytes()
    assert files.whole(path)
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        assert not files.whole(path)
        path.write_bytes(content[:cut] + bytes([content[cut] ^ 1]) + content[cut + 1 :])
        assert not files.whole(path)
    path.write_bytes(content + b"x")
    assert not files.whole(path)


def test_slow_nodes_do_not_hold_a_round(tmp_path, home, caplog):
    strategy = shuffler(tmp_path, LocalAnalyst(home), timeout=600.0, enough=0.8, grace=0.1)
    start = time.monotonic()
    strategy.start(federation(tmp_path, home, 10, silent=(3, 7)), TEMPLATE, num_rounds=1)
    assert time.monotonic() - start < 60.0
    assert [r["users"] for r in home.rounds()] == [8]
    assert "2 nodes did not answer in time" in caplog.text
    strategy.journal.close()


def test_the_log_says_why_nodes_did_not_report_in_words_of_its_own(tmp_path, home, caplog):
    nodes = federation(tmp_path, home, 6, broken=(0,))
    for place in (1, 2):
        list(nodes.desks.values())[place].node.memory(None).unlink()
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    strategy.start(nodes, TEMPLATE, num_rounds=1)
    assert "2 nodes did not report: the node has no valid state" in caplog.text
    assert "1 nodes did not report: Flower's error code 3" in caplog.text
    assert "gone" not in caplog.text
    strategy.journal.close()


def test_half_precision_is_refused_because_the_signature_would_not_hold(tmp_path, home):
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    nodes, half = federation(tmp_path, home, 3), ArrayRecord({"w": Array(np.zeros((3, 4), np.float16))})
    with pytest.raises(ValueError, match="initial_arrays must be of type float32 or float64, got float16"):
        strategy.start(nodes, half, num_rounds=1)
    double = ArrayRecord({"w": Array(np.zeros((3, 4)))})
    strategy.start(nodes, double, num_rounds=1)
    assert len(home.rounds()) == 1
    strategy.journal.close()


def test_plain_http_is_refused():
    with pytest.raises(ValueError, match="url must start with https://"):
        AnalystClient(url="http://127.0.0.1", password="x")


@pytest.mark.parametrize(
    ("text", "words"),
    [("url = =", "must be a TOML file that can be read"), ('url = "x"', "must have journal, minimum, password, url")],
)
def test_bad_settings_of_a_shuffler_are_refused(tmp_path, text, words):
    for path, said in ((tmp_path / "s.toml", words), (tmp_path / "none.toml", "must be a TOML file that can be read")):
        (tmp_path / "s.toml").write_text(text)
        with pytest.raises(ValueError, match=said):
            Shuffler.from_file(path)


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_the_shuffler_knows_the_analyst_by_its_certificate(tmp_path, wrong):
    keys.make_certificates(tmp_path / "own", hosts=("elsewhere.example",) if wrong == "name" else ("127.0.0.1",))
    keys.make_certificates(tmp_path / "other")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "own" / "server.pem", tmp_path / "own" / "server.key")
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def impostor():
            with contextlib.suppress(OSError), context.wrap_socket(server.accept()[0], server_side=True) as one:
                asked.append(one.recv(1))

        thread = threading.Thread(target=impostor)
        thread.start()
        client = AnalystClient(
            url=f"https://127.0.0.1:{server.getsockname()[1]}",
            password="secret",
            authority=tmp_path / ("other" if wrong == "authority" else "own") / "ca.pem",
            patience=0.0,
        )
        with pytest.raises(AnalystError, match="CERTIFICATE_VERIFY_FAILED"):
            client.open_round()
        thread.join(10)
        client.close()
    assert asked == []  # not a byte of the password


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
            right = home.key(number)
            for other in (X25519PrivateKey.generate(), right):
                for wrong in (number, 3 - number):
                    if other is right and wrong == number:
                        continue
                    with pytest.raises(RefusedError):
                        unseal(sealed, task=TASK, number=wrong, key=other)
            by_coin[opened(sealed, number=number, key=home.key(number))[1] is not None].append(reply)
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
        inside = [SUITE.decrypt(s, home.key(number), info=TASK.info(number)) for s in got]
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
        "models": ["round", "vector"],
        "rounds": ["round", "batch", "users", "reports", "refused", "entry", "answer", "model", "chain"],
        "rosters": ["name", "digest", "place"],
    }
    for _, digest, *_ in db.execute("SELECT * FROM rounds"):
        assert digest in {hashlib.sha256(b).digest() for b in analyst.bodies}
    db.close()
    stored = b"".join(p.read_bytes() for p in home.folder.rglob("*") if p.is_file())
    for number, body in enumerate(analyst.bodies, 1):
        for i in range(0, len(body), length):
            inside = SUITE.decrypt(body[i : i + length], home.key(number), info=TASK.info(number))
            assert inside[1:17] not in stored
            assert body[i : i + 32] not in stored
    for node in nodes.desks:
        assert str(node).encode() not in stored
    assert {p.name for p in home.folder.iterdir()} <= {
        "analyst.db",
        "analyst.db-wal",
        "analyst.db-shm",
        "head",
        "keys",
        "lock",
        "password",
        "rosters",
        "sign.key",
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


def invoke(*words):
    result = CliRunner().invoke(command, [str(w) for w in words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_set_up_enrol_join_show_and_export(tmp_path):
    """Analyst, registrar, node and analyst again: what each of them types, in order."""
    folder, registrar, mine = tmp_path / "a", tmp_path / "r", tmp_path / "mine"
    made = invoke("analyst", "init", folder, *INIT.split())
    last = int(re.search(r"Rounds: (\d+) at most", made)[1])
    assert 20 <= last <= 30  # and not a thousand
    enrolled = invoke("flower", "enrol", registrar, "--node", folder / "node.toml", "--nodes", 5)
    assert "5 new secrets" in enrolled
    (roster,) = registrar.glob("*.roster")
    assert f"5 nodes may report in rounds 1 to {last}" in invoke("analyst", "admit", folder, roster)
    mine.mkdir()
    (mine / "node.toml").write_bytes((folder / "node.toml").read_bytes())
    (mine / "node.secret").write_bytes((registrar / "secrets" / "000001.secret").read_bytes())
    joined = invoke("flower", "join", mine / "node.toml")
    assert f"rounds 1 to {last}" in joined
    node = Node.read(mine / "node.toml")
    promised = node.task.mechanism(users=3).statement(delta=1e-5, rounds=last)
    assert promised.epsilon <= 8
    assert promised.sentence() in " ".join(joined.split())
    home = Analyst(folder)
    assert keys.public_text(home.signer.public_key()) in made
    assert keys.public_text(node.signer) in made
    assert node.task == home.settings.task
    home.secrets = [tokens.read_secret(p) for p in sorted((registrar / "secrets").glob("*"))]
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    home.close()
    data = json.loads(invoke("analyst", "status", folder, "--json"))
    assert data["next_round"] == 2
    assert data["epsilon"]["any"]["upper"] >= data["epsilon"]["identical"]["upper"]
    assert data["epsilon"]["any"] == data["rounds"][0]["answer"]["epsilon"]
    table = invoke("analyst", "status", folder)
    for crowd in ("Identical", "Any"):  # the whole statement for each
        assert f"{crowd} crowd: One round of check-in (users = 3, check-in rate = 0.5" in table
    out = tmp_path / "m.npy"
    invoke("analyst", "model", folder, "--out", out)
    np.testing.assert_allclose(np.load(out), np.full(12, 4.0))
    assert "Round 2 starts from the model as it was after round 0" in invoke("analyst", "restore", folder, "--after", 0)
    invoke("analyst", "model", folder, "--out", out)
    np.testing.assert_allclose(np.load(out), np.zeros(12))


def test_the_numbers_of_the_how_to_are_those_of_its_commands(tmp_path, monkeypatch):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "howto" / "flower.md").read_text()
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"^\$ shoal (.*)", page, re.MULTILINE)
    made = invoke(*first.split())
    invoke(*second.split())
    (rounds,) = re.findall(r"Rounds: (\d+) at most", made)
    assert f"({rounds} here)" in page
    (tmp_path / "node.toml").write_bytes((tmp_path / "analyst" / "node.toml").read_bytes())
    (enrol,) = re.findall(r"^shoal (flower enrol .*)", page, re.MULTILINE)
    invoke(*enrol.replace("1000", "100").split())
    (admit,) = re.findall(r"^shoal (analyst admit .*)", page, re.MULTILINE)
    (tmp_path / f"digits-1-{rounds}.roster").write_bytes(
        (tmp_path / f"registrar/digits-1-{rounds}.roster").read_bytes()
    )
    invoke(*admit.split())
    # The file that the page shows is the one that was written, but for keys and paths.
    (shown,) = re.findall(r"^```toml\n(keys.*?)^```", page, re.MULTILINE | re.DOTALL)
    shown, written = tomllib.loads(shown), tomllib.loads((tmp_path / "node.toml").read_text())
    assert list(shown) == list(written)
    for name in ("epoch", "rounds", "secret", "pace", "task"):
        assert shown[name] == written[name]


def test_a_missing_package_is_one_sentence(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("shoal.deployment")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(command, ["analyst", "status", "a"])
    assert result.exit_code == 2
    assert "pip install 'shoal-dp[flower]'" in result.output


def test_a_new_app_is_complete_and_learns(tmp_path, monkeypatch):
    invoke("flower", "new", tmp_path / "my-app")
    assert sum(a.size for a in template.starting_arrays(tmp_path / "my-app").values()) == 15
    monkeypatch.syspath_prepend(str(tmp_path / "my-app"))
    model = importlib.import_module("my_app.model")
    trained = model.train(model.starting_arrays(), model.load(0, 1))
    assert model.evaluate(trained)["accuracy"] > 0.9 > model.evaluate(model.starting_arrays())["accuracy"]
    for name in ("client", "server"):
        assert importlib.import_module(f"my_app.{name}").app
    (tmp_path / "file").write_text("")
    for bad, words in (
        ("My App", "must be 1 to 40 lower-case"),
        ("my-app", "must be a new or empty folder"),
        ("file", "must be a new or empty folder"),
        ("class", "must not be that of a Python module"),
        ("numpy", "must not be that of a Python module"),
        ("json", "must not be that of a Python module"),
    ):
        with pytest.raises(ValueError, match=words):
            template.write(tmp_path / bad)
    (tmp_path / "my-app" / "pyproject.toml").write_text("")
    with pytest.raises(ValueError, match="must name the function that gives the starting arrays"):
        template.starting_arrays(tmp_path / "my-app")


def test_the_proxy_names_what_it_lets_through(tmp_path):
    keys.make_certificates(tmp_path / "tls")
    files = {"certificate": tmp_path / "tls" / "server.pem", "key": tmp_path / "tls" / "server.key"}
    path = link.write(tmp_path / "p", port=8000, superlink=9000, authority=tmp_path / "tls" / "ca.pem", **files)
    text = path.read_text()
    assert set(re.findall(r"location (\S+ ?\S*) {", text)) == {"/", *(f"= /v1/fleet/{w}" for w in link.FLEET)}
    assert not {"register-node", "unregister-node"} & set(link.FLEET)
    path = link.write(
        tmp_path / "p", host="::", port=8000, superlink=9000, authority=tmp_path / "tls" / "ca.pem", **files
    )
    assert "listen [::]:8000 ssl;" in path.read_text()
    with pytest.raises(ValueError, match="authority must be a file in PEM format"):
        link.write(tmp_path / "p", port=8000, superlink=9000, authority=tmp_path / "none.pem", **files)
    (tmp_path / "a b").mkdir()
    with pytest.raises(ValueError, match="without spaces"):
        link.write(tmp_path / "a b", port=8000, superlink=9000, authority=tmp_path / "tls" / "ca.pem", **files)


def test_a_folder_keeps_its_settings(tmp_path):
    machine = Machine(folder=tmp_path / "m", rounds=1)
    machine.set_up(setup(), nodes=5)
    machine.set_up(setup(), nodes=4)
    with pytest.raises(ValueError, match="its analyst has other settings"):
        machine.set_up(setup(step=2.0), nodes=5)
    with pytest.raises(ValueError, match="nodes must be at most 5, who are enrolled, got 6"):
        machine.set_up(setup(), nodes=6)


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
