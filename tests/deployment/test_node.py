"""The node: its mod, its settings and its state."""

import collections
import math
import multiprocessing
import os
import secrets
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from scipy import stats

from shoal import ShuffledCheckIn
from shoal.deployment import client as client_module
from shoal.deployment import keys, noise, tokens
from shoal.deployment.node import Node
from shoal.deployment.state import State, join_task
from shoal.deployment.task import Task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import TASK, Desk, opened, signed, task, token_of


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


@pytest.mark.usefixtures("forgetful_disk", "in_one_process")
def test_the_coin_has_the_rate_of_the_task(tmp_path):
    desk = Desk(tmp_path, terms=task(rate=0.25, epsilon=1e6), rounds=200, epoch=200)
    heads = sum(desk.opened(r) is not None for r in range(1, 201))
    assert stats.binomtest(heads, 200, 0.25).pvalue > 1e-4
    assert desk.trained == 200  # tails trains as well: neither work nor time tells


def test_work_and_length_do_not_depend_on_the_coin(desk, monkeypatch):
    seen = collections.Counter()
    real = noise.NOISE_SOURCES["secure"]
    monkeypatch.setitem(noise.NOISE_SOURCES, "secure", lambda *a: (seen.update(["noise"]), real(*a))[1])
    for number, toss in ((1, 0), (2, 2**128 - 1)):
        monkeypatch.setattr(client_module.secrets, "randbits", lambda bits, toss=toss: toss)
        seen[len(desk.sealed(number))] += 1
    assert seen == {"noise": 2, TASK.length: 2}
    assert desk.trained == 2


def test_the_token_is_that_of_the_node_and_the_round_whatever_the_coin(desk, monkeypatch):
    for number, toss in ((1, 0), (2, 2**128 - 1)):
        monkeypatch.setattr(client_module.secrets, "randbits", lambda bits, toss=toss: toss)
        token, values = opened(desk.sealed(number), round_number=number, key=desk.key)
        assert token == token_of(desk.secret, task=TASK, round_number=number)
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
    assert State.read(desk.node.state_path(None), desk.node).rounds == 3
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
    desk.node.state_path(None).unlink()
    assert desk.refused(2) == 103
    with pytest.raises(ValueError, match="there is no such file"):
        join_task(desk.node)
    assert desk.trained == 1


def test_a_node_that_has_not_joined_does_not_report(tmp_path):
    desk = Desk(tmp_path, joined=False)
    assert desk.refused(1) == 103
    join_task(desk.node)
    assert desk.sealed(1)
    with pytest.raises(ValueError, match="has joined already"):
        join_task(desk.node)


def test_a_damaged_state_means_no_report(desk):
    desk.sealed(1)
    path = desk.node.state_path(None)
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
        join_task(desk.node)
    assert not desk.node.secret.exists()
    desk.node.secret.write_text(tokens.secret_text(secrets.token_bytes(32)))  # of somebody else: not ours to remove
    with pytest.raises(ValueError, match="has joined already"):
        join_task(desk.node)
    assert desk.node.secret.exists()


def test_the_state_is_written_before_a_report_leaves(desk, monkeypatch):
    monkeypatch.setattr(State, "write", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    assert desk.refused(1) == 108


def test_messages_at_once_get_one_answer(tmp_path):
    """The mod is locked: whoever comes second waits, and finds the round answered."""
    desk = Desk(tmp_path)
    entered, answers = multiprocessing.get_context("fork").Event(), []

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
    join_task(desk.node, member="0")
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
        ("", "must have endorsement, epoch, keys, rounds, secret, signer, state and a table"),
        ("x = = 1", "must be a TOML file that can be read"),
        (
            'keys = ["x"]\nepoch = 1\nsigner = "x"\nendorsement = "x"\nrounds = 1\nstate = "s"\nsecret = "s"\n'
            '[task]\nname = "a"\n',
            "must have clip, corrupt, crowd, delta, dimension, epsilon, minimum, name, noise, rate, sigma, got name",
        ),
        (
            'keys = 1\nepoch = 1\nsigner = "x"\nendorsement = "x"\nrounds = 1\nstate = "s"\nsecret = "s"\n[task]\n'
            + "".join(f"{f} = 1\n" for f in Task.__dataclass_fields__),
            "must have texts for secret, state, signer and endorsement, and a list of keys",
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
