"""The shuffler and its client of the analyst."""

import contextlib
import os
import shutil
import socket
import ssl
import threading
import time
import warnings

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from shoal.deployment import files, keys
from shoal.deployment.analyst import Analyst
from shoal.deployment.analyst_client import AnalystClient
from shoal.deployment.errors import AnalystError
from shoal.deployment.journal import Journal
from shoal.deployment.shuffler import Shuffler

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import (
    TASK,
    TEMPLATE,
    LocalAnalyst,
    batch,
    close_round,
    federation,
    sealed_by,
    shuffler,
    signed,
    vectors,
)


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
    old = Analyst.open(tmp_path / "backup")
    again = shuffler(tmp_path, LocalAnalyst(old))
    with pytest.raises(AnalystError, match="expected a round after 2, which is closed, got 1"):
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

    strategy._open_round = LocalAnalyst(home).open_round()
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
        list(nodes.desks.values())[place].node.state_path(None).unlink()
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
