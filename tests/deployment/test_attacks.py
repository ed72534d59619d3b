"""Attacks by each of the parties: what they tried once with success."""

import base64
import ctypes
import dataclasses
import faulthandler
import hashlib
import json
import os
import pathlib
import resource
import signal
import sys
import threading
import warnings

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.superlink.servicer.fleet import fleet_handlers

from shoal.deployment import keys, link, tokens
from shoal.deployment.analyst import Analyst
from shoal.deployment.analyst.backup import back_up
from shoal.deployment.analyst.ledger import RoundLine
from shoal.deployment.analyst.models import model_bytes, model_digest
from shoal.deployment.apart import vector_apart
from shoal.deployment.client import sealed_reports
from shoal.deployment.errors import AnalystError, RefusedReportError
from shoal.deployment.node import Node
from shoal.deployment.report import unseal
from shoal.deployment.state import State
from shoal.deployment.task import DIMENSION_MAX, counted_users

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import (
    TASK,
    TEMPLATE,
    Desk,
    LocalAnalyst,
    batch,
    close_round,
    endorsed,
    federation,
    invoke,
    opened,
    sealed_by,
    settle,
    setup,
    shuffler,
    task,
    token_of,
    vectors,
)
from deployment.superlink import SERVER, InnerSuperLink, as_node

P = 2**255 - 19
ORDER_8 = "xxdqcD1N2E+6PAt2DRBnDyogU/osOczGTsf9d5KsA3o="
"""A point of order 8, whose text looks like any other key."""


def text(number):
    return base64.b64encode(number.to_bytes(32, "little")).decode()


# ------------------------------------------------------------------------------------------- keys

Y8 = int.from_bytes(base64.b64decode(ORDER_8), "little") & (2**255 - 1)
SIGN = 2**255
SMALL_POINTS = [y + sign for y in (0, 1, P - 1, Y8, P - Y8) for sign in (0, SIGN)]
"""All points whose order divides 8, with both signs of x."""
NO_POINTS = [y + sign for y in (P, P + 1, P + 18, 2**255 - 1) for sign in (0, SIGN)]
"""Texts that are not canonical: some libraries read them as a point of small order."""


def added(one, other):
    """The sum of two points of Ed25519, by the addition law of RFC 8032 in plain coordinates."""
    (x1, y1), (x2, y2) = one, other
    product = keys.EDWARDS * x1 * x2 * y1 * y2
    return (
        (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P,
    )


def point(y):
    """A point with this y, by the root of RFC 8032, section 5.1.3."""
    square = (y * y - 1) * pow(keys.EDWARDS * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert (x * x - square) % P == 0
    return x, y


def test_the_refused_points_are_those_whose_order_divides_eight():
    for number in SMALL_POINTS:
        total = one = point(number & (SIGN - 1))
        for _ in range(7):
            total = added(total, one)
        assert total == (0, 1)  # 8 A is the neutral point


@pytest.mark.parametrize("number", [*SMALL_POINTS, *NO_POINTS], ids=hex)
def test_a_signing_key_of_small_order_or_not_canonical_is_refused(number):
    """Under the neutral point one signature stands under every message, so that every node gets its own opening."""
    with pytest.raises(ValueError, match="key must be a point of the curve and not of small order"):
        keys.signing_key(text(number))


def test_what_is_no_point_of_the_curve_is_no_signing_key():
    off = next(y for y in range(2, 99) if pow((y * y - 1) * pow(keys.EDWARDS * y * y + 1, -1, P), (P - 1) // 2, P) > 1)
    with pytest.raises(ValueError, match="key must be a point of the curve"):
        keys.signing_key(text(off))


@pytest.mark.parametrize("number", [0, 1, P - 1, P, P + 1, P + 9, 9 + SIGN, 2**256 - 1], ids=hex)
def test_a_sealing_key_of_small_order_or_not_canonical_is_refused(number):
    with pytest.raises(ValueError, match="key must be canonical and not of small order"):
        keys.sealing_key(text(number))


def test_honest_keys_are_taken():
    for _ in range(20):
        assert keys.signing_key(keys.public_text(Ed25519PrivateKey.generate().public_key()))
        assert keys.sealing_key(keys.public_text(X25519PrivateKey.generate().public_key()))


def test_a_node_takes_no_weak_key_on_any_way(desk):
    weak_signer = Ed25519PublicKey.from_public_bytes(base64.b64decode(ORDER_8))
    with pytest.raises(ValueError, match="not of small order"):
        dataclasses.replace(desk.node, signer=weak_signer)
    weak_sealing = X25519PublicKey.from_public_bytes(bytes(32))
    with pytest.raises(ValueError, match="not of small order"):
        dataclasses.replace(desk.node, keys=(weak_sealing,))
    content = desk.path.read_text().replace(keys.public_text(desk.node.signer), ORDER_8)
    desk.path.write_text(content)
    with pytest.raises(ValueError, match="not of small order"):
        Node.read(desk.path)


# ----------------------------------------------------------------------- settings of a node's own


def given_others(desk, signer):
    """A node's file with a sealing key of its own, endorsed by `signer`."""
    node = desk.node
    sealing = (X25519PrivateKey.generate().public_key(), *node.keys[1:])
    options = {"task": node.task, "epoch": node.epoch, "keys": sealing, "signer": signer.public_key()}
    return dataclasses.replace(
        node, keys=sealing, signer=signer.public_key(), endorsement=endorsed(signer, options), secret="s", state="t"
    )


def test_what_an_owner_compares_covers_terms_and_all_keys(desk, home):
    assert home.node().fingerprint == home.fingerprint
    prints = {desk.node.fingerprint, given_others(desk, desk.signer).fingerprint}
    prints |= {given_others(desk, Ed25519PrivateKey.generate()).fingerprint}
    prints.add(Desk(desk.path.parent, epoch=99, joined=False).node.fingerprint)
    assert len(prints) == 4
    with pytest.raises(ValueError, match="endorsement must be the signature of signer under keys, epoch and task"):
        dataclasses.replace(desk.node, epoch=101)


def test_a_round_whose_nodes_were_given_different_keys_is_not_passed_on(tmp_path, home):
    """The analyst alone: the same signer for all, and a sealing key for each, by which it would know the sender."""
    nodes, analyst = federation(tmp_path, home, 5), LocalAnalyst(home)
    victim = list(nodes.desks.values())[2]
    victim.path.write_text(given_others(victim, home.signer).to_toml())
    strategy = shuffler(tmp_path, analyst)
    with pytest.raises(AnalystError, match="whoever gives nodes different keys can tell their reports apart"):
        strategy.start(nodes, TEMPLATE, num_rounds=1)
    assert analyst.bodies == []
    assert [p.name for p in (tmp_path / "journal").iterdir()] == ["lock"]
    strategy.journal.close()


def test_a_node_that_only_says_so_does_not_end_a_round(tmp_path, home, caplog):
    """A signer of its own, a signature that is none, and the right settings: none of it shows anything."""
    nodes = federation(tmp_path, home, 6)
    liars = list(nodes.desks.values())[:3]
    liars[0].path.write_text(given_others(liars[0], Ed25519PrivateKey.generate()).to_toml())
    lies = {
        nodes.FIRST + 1: {"fingerprint": bytes(32), "endorsement": bytes(64)},
        nodes.FIRST + 2: {"fingerprint": home.fingerprint, "endorsement": home.endorsement},
    }
    real = nodes.pull_messages

    def pull(ids):
        found = real(ids)
        for reply in found:
            sender = nodes.waiting[reply.metadata.reply_to_message_id].metadata.dst_node_id
            if sender in lies:
                reply.content.clear()
                reply.content["settings"] = ConfigRecord(lies[sender])
        return found

    nodes.pull_messages = pull
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    strategy.start(nodes, TEMPLATE, num_rounds=1)
    assert [r["users"] for r in home.rounds()] == [3]
    assert "3 nodes did not report: the round was opened for other settings" in caplog.text
    strategy.journal.close()


def test_a_shuffler_that_knows_the_fingerprint_takes_no_other(tmp_path, home):
    nodes = federation(tmp_path, home, 4)
    strategy = shuffler(tmp_path, LocalAnalyst(home), fingerprint="0" * 64)
    with pytest.raises(AnalystError, match="the analyst opens rounds for other settings"):
        strategy.start(nodes, TEMPLATE, num_rounds=1)
    assert nodes.waiting == {}  # nobody was asked
    strategy.journal.close()
    strategy = shuffler(tmp_path, LocalAnalyst(home), fingerprint=home.fingerprint.hex().upper())
    strategy.start(nodes, TEMPLATE, num_rounds=1)
    assert len(home.rounds()) == 1
    strategy.journal.close()


def test_an_analyst_cannot_name_another_signer_to_the_shuffler(tmp_path, home):
    """The shuffler checks nodes' evidence by the signer that the opening's fingerprint covers, and no other."""
    nodes, analyst = federation(tmp_path, home, 4), LocalAnalyst(home)
    real = analyst.open_round
    other = Ed25519PrivateKey.generate().public_key()
    analyst.open_round = lambda: dataclasses.replace(real(), signer=other)
    strategy = shuffler(tmp_path, analyst, attempts=1)
    with pytest.raises(AnalystError, match="minimum is 3 reports"):  # no node answers for such a fingerprint
        strategy.start(nodes, TEMPLATE, num_rounds=1)
    assert analyst.bodies == []
    strategy.journal.close()


# ------------------------------------------------------------------- one node against the ServerApp


def honest(desk):
    """What an honest node does."""

    def answer(link, node_id, message, tree):
        whole = link.inflated(node_id, message, tree)
        as_node(link, node_id)
        link.push(node_id, sealed_reports(whole, desk.context, lambda m, _: Message(m.content, reply_to=m)))

    return answer


def a_child_that_is_not_uploaded(link, node_id, message, tree):
    """The message object names a record that the tree does not have (a KeyError in Flower's grid)."""
    reply = garbage(link, node_id, message, tree)
    link.push(node_id, reply, tree=ObjectTree(object_id=reply.object_id))


def another_kind_of_object(link, node_id, message, tree):
    """The message is a record (an AttributeError in Flower's grid)."""
    reply = garbage(link, node_id, message, tree)
    record = ConfigRecord({"sealed": b"x"})
    proto = message_to_proto(reply)
    proto.metadata.message_id = record.object_id
    request = PushMessagesRequest(
        node=NodeProto(node_id=node_id),
        messages_list=[proto],
        message_object_trees=[ObjectTree(object_id=record.object_id)],
    )
    response = fleet_handlers.push_messages(request, link.state)
    link.upload(node_id, response.session_id, record.object_id, record.deflate())


def an_upload_that_never_comes(link, node_id, message, tree):
    """Announced, and not uploaded: Flower's grid waits for its session of three minutes."""
    link.push(node_id, garbage(link, node_id, message, tree), leave_out=("ConfigRecord",))


def too_many_parts(link, node_id, message, tree):
    reply = garbage(link, node_id, message, tree)
    children = [ObjectTree(object_id=hashlib.sha256(bytes([i])).hexdigest()) for i in range(200)]
    link.push(node_id, reply, tree=ObjectTree(object_id=reply.object_id, children=children))


def too_large(link, node_id, message, tree):
    link.push(node_id, garbage(link, node_id, message, tree, size=1 << 20))


def no_records(link, node_id, message, tree):
    """A reply whose content is an array record."""
    whole = link.inflated(node_id, message, tree)
    as_node(link, node_id)
    reply = Message(RecordDict(), reply_to=whole)
    reply.__dict__["_content"] = ConfigRecord({"sealed": b"x"})
    link.push(node_id, reply)


def garbage(link, node_id, message, tree, size=113):
    whole = link.inflated(node_id, message, tree)
    as_node(link, node_id)
    return Message(RecordDict({"report": ConfigRecord({"sealed": os.urandom(size)})}), reply_to=whole)


def silence(link, node_id, message, tree):
    pass


HOSTILE = [
    a_child_that_is_not_uploaded,
    another_kind_of_object,
    an_upload_that_never_comes,
    too_many_parts,
    too_large,
    no_records,
    silence,
]


def deployed(tmp_path, home, count, hostile=()):
    """A SuperLink in this process, with honest nodes and hostile ones before them."""
    link = InnerSuperLink(count + len(hostile))
    desks = [Desk(tmp_path, home=home, member=i, state=tmp_path / f"s{i}") for i in range(count)]
    acts = [*hostile, *map(honest, desks)]
    link.answers = dict(zip(link.node_ids, acts, strict=True))
    return link


@pytest.mark.parametrize("act", HOSTILE, ids=lambda act: act.__name__)
def test_one_node_does_not_end_or_stall_a_round(tmp_path, home, act):
    link = deployed(tmp_path, home, 4, [act])
    strategy = shuffler(tmp_path, LocalAnalyst(home), timeout=60.0, enough=0.8, grace=0.1)
    strategy.start(link.grid, TEMPLATE, num_rounds=2)
    assert [r["users"] for r in home.rounds()] == [4, 4]  # and nothing of the others' is lost with it
    assert [r["refused"]["seal"] for r in home.rounds()] == [0, 0]
    strategy.journal.close()


def test_all_of_them_together(tmp_path, home, caplog):
    link = deployed(tmp_path, home, 5, HOSTILE)
    strategy = shuffler(tmp_path, LocalAnalyst(home), timeout=60.0, enough=0.4, grace=0.1)
    strategy.start(link.grid, TEMPLATE, num_rounds=1)
    assert [r["users"] for r in home.rounds()] == [5]
    assert "1 replies were dropped: the reply was too large" in caplog.text
    assert "1 replies were dropped: the reply had not the form of one" in caplog.text
    strategy.journal.close()


def test_a_node_has_one_reply_whatever_it_sends(tmp_path, home):
    """From the SuperLink to the SuperLink: what a node injects reaches the ServerApp, and is not looked at."""

    def flood(link, node_id, message, tree):
        reply = garbage(link, node_id, message, tree)
        link.push(node_id, reply)
        for _ in range(40):
            as_node(link, SERVER)
            blob = Message(
                RecordDict({"report": ConfigRecord({"sealed": os.urandom(113)})}),
                dst_node_id=SERVER,
                message_type="train",
            )
            link.push(node_id, blob)
        as_node(link, node_id)
        link.push(node_id, Message(RecordDict({"report": ConfigRecord({"sealed": b"y" * 113})}), reply_to=reply))

    link = deployed(tmp_path, home, 2, [flood])
    analyst = LocalAnalyst(home)
    strategy = shuffler(tmp_path, analyst, timeout=600.0, attempts=1)
    # With the blobs there would be 43 of them; the shuffler's own minimum holds: one for each node, and no more.
    with pytest.raises(AnalystError, match="at least 3 users, got 2"):
        strategy.start(link.grid, TEMPLATE, num_rounds=1)
    assert [len(body) for body in analyst.bodies] == [3 * TASK.length]
    strategy.journal.close()


def test_the_shuffler_minimum_cannot_be_filled_with_blobs(tmp_path, home):
    link = deployed(tmp_path, home, 1, [])

    def inject(link, node_id, message, tree):
        for _ in range(40):
            as_node(link, SERVER)
            content = RecordDict({"report": ConfigRecord({"sealed": os.urandom(113)})})
            link.push(node_id, Message(content, dst_node_id=SERVER, message_type="train"))

    hostile = InnerSuperLink(3)
    hostile.answers = dict(zip(hostile.node_ids, [*link.answers.values(), inject, inject], strict=True))
    analyst = LocalAnalyst(home)
    strategy = shuffler(tmp_path, analyst, timeout=0.5, attempts=1)
    with pytest.raises(AnalystError, match="minimum is 3 reports"):
        strategy.start(hostile.grid, TEMPLATE, num_rounds=1)
    assert analyst.bodies == []
    strategy.journal.close()


def test_a_request_that_fails_costs_one_reply_and_not_the_round(tmp_path, home, monkeypatch):
    link = deployed(tmp_path, home, 5)
    real, failing = link.grid._client.PullMessages, link.node_ids[0]

    def pull(request):
        sent = {m.metadata.message_id: m.metadata.dst_node_id for m in link.state.message_ins_store.values()}
        if failing in {sent.get(message_id) for message_id in request.message_ids}:
            raise RuntimeError("500")
        return real(request)

    link.grid._client.PullMessages = pull
    strategy = shuffler(tmp_path, LocalAnalyst(home), timeout=60.0)
    strategy.start(link.grid, TEMPLATE, num_rounds=1)
    assert [r["users"] for r in home.rounds()] == [4]
    strategy.journal.close()


def test_a_batch_that_is_too_large_does_not_wedge_the_shuffler(tmp_path):
    """Above the analyst's maximum: a batch of an earlier run is dropped, and the next round has no more reports."""
    home = settle(tmp_path / "small", setup(maximum=4), nodes=9)
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    strategy.journal.collect(1, [sealed_by(home, i, 1, None) for i in range(6)], length=TASK.length, minimum=3)
    strategy.start(federation(tmp_path, home, 9), TEMPLATE, num_rounds=2)
    assert [r["users"] for r in home.rounds()] == [4, 4]
    assert not list((tmp_path / "journal").glob("round-*"))
    strategy.journal.close()
    home.close()


# ------------------------------------------------------------------------------ the ledger's edges


def filled(home, sizes):
    """Enter closed rounds of these numbers of users, without pricing each of them."""
    for users in sizes:
        book = home.ledger.read()
        mechanism = home.settings.task.mechanism(users=users)
        content = model_bytes(np.zeros(home.settings.task.dimension))
        line = RoundLine(
            round=book.next_round,
            batch=b"",
            users=users,
            reports=0,
            refused="{}",
            entry=json.dumps(mechanism.to_dict()),
            answer="{}",
            model=model_digest(content),
        )
        with home.database.transaction():
            home.ledger.append(book, line, content)


def test_a_round_that_was_opened_is_closed_also_if_more_users_seem_to_cost_more(tmp_path):
    """Ledger {80 x 5, 40, 688 x 5}: 600 users more are bounded by 1.4517 and 40 users by 1.3662; the budget is 1.40."""
    terms = task(minimum=40, epsilon=1.40, crowd="any", rate=0.5, sigma=2.0)
    home = settle(tmp_path / "tight", setup(terms), nodes=600)
    filled(home, [80] * 5 + [40] + [688] * 5)
    assert home.open_round() == 12
    answer = close_round(home, 12, batch(home, 12, [None] * 600), step=113 * 100)
    assert (answer["users"], answer["counted"]) == (600, 40)
    assert answer["epsilon"]["upper"] <= 1.40
    assert float(home.accountant().epsilon(delta=1e-5)) == answer["epsilon"]["upper"]
    home.close()


def test_the_smaller_price_counts_and_never_a_smaller_one(tmp_path):
    """Whatever the accountant says of the two entries, the ledger holds one of them and states its epsilon."""
    home = settle(tmp_path / "home", setup(task(minimum=3)))
    for number, users in enumerate((3, 8, 40, 5), 1):
        answer = close_round(home, number, batch(home, number, [None] * users))
        assert answer["counted"] in (counted_users(users), 3)
        assert answer["epsilon"]["upper"] == float(home.accountant().epsilon(delta=1e-5))
    home.close()


def test_a_reader_never_calls_a_healthy_folder_damaged(home):
    """A round that is closed between two statements of a reader: the reader sees the state before it, whole."""
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    reader = Analyst.read(home.folder)
    real = reader.models.digests

    def digests():
        # Between the ledger's lines and the models, which are two statements.
        close_round(home, home.next_round, batch(home, home.next_round, vectors(1, 2, 3)))
        return real()

    reader.models.digests = digests
    for last in (1, 2, 3):
        assert reader.ledger.read().next_round == last + 1
    reader.close()
    assert len(home.rounds()) == 4


# ------------------------------------------------------------------------------ what leaks later


def test_a_stolen_state_does_not_tell_which_tokens_were_the_nodes(tmp_path, home):
    """A curious analyst has kept all tokens; then somebody gets hold of the node's state."""
    desk = Desk(tmp_path, home=home, member=0, state=tmp_path / "s")
    desk.signer, desk.key = home.signer, home.key(1)
    shown = [opened(desk.sealed(number), round_number=number, key=home.key(1))[0] for number in (1, 2, 4)]
    stolen = State.read(desk.node.state_path(None), desk.node)
    # Whatever the thief derives from it, in either way that a token is made: none of the rounds before.
    for rounds in range(6):
        secret = tokens.later_secret(stolen.secret, rounds=rounds)
        assert not {tokens.token(secret, task=TASK, round_number=number) for number in range(1, 5)} & set(shown)
    assert tokens.token(stolen.secret, task=TASK, round_number=5) == token_of(
        home.secrets[0], task=TASK, round_number=5
    )
    first = home.secrets[0]
    assert first not in desk.node.state_path(None).read_bytes()
    assert first.hex().encode() not in desk.node.state_path(None).read_bytes()
    # And the rounds that follow count, also after a round that the node missed.
    assert shown[2] == token_of(first, task=TASK, round_number=4)


def test_a_backup_does_not_open_what_is_over(tmp_path, home):
    """Whoever gets hold of a backup of round 1 after its epoch is over, and of all that is backed up later."""
    first, later, sticks = tmp_path / "first", tmp_path / "later", tmp_path / "stick"
    sealed = sealed_by(home, 0, 1, np.ones(12))
    words = ("--keys", sticks)
    assert "Backup after 0 rounds" in invoke("analyst", "backup", home.folder, first, *words)
    assert len(list(sticks.iterdir())) == 3
    for number in range(1, 6):  # an epoch has four rounds
        close_round(home, number, batch(home, number, vectors(1, 2, 3)))
    invoke("analyst", "backup", home.folder, later, *words)
    invoke("analyst", "backup", home.folder, later, *words)  # and again, in its place
    assert sorted(path.name for path in sticks.iterdir()) == ["00002.key", "00003.key"]
    for path in (*first.rglob("*"), *later.rglob("*"), *sticks.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
        if path.suffix == ".key" and path.name != "sign.key":
            with pytest.raises(RefusedReportError, match="seal"):
                unseal(sealed, task=TASK, round_number=1, key=keys.read_sealing(path))
        assert path.is_dir() or not (path.parent.name == "keys" and path.suffix == ".key")
    # With the keys in their place the analyst goes on where the backup ends, and skips what may have been closed since.
    for path in sticks.iterdir():
        (later / "keys" / path.name).write_bytes(path.read_bytes())
    spent = float(home.accountant().epsilon(delta=1e-5))
    invoke("analyst", "skip", later, "--to", 7)
    again = Analyst.open(later)
    again.secrets = home.secrets
    assert float(again.accountant().epsilon(delta=1e-5)) > spent
    assert close_round(again, 7, batch(again, 7, vectors(1, 2, 3)))["users"] == 3
    again.close()
    with pytest.raises(ValueError, match="must be a new folder or an earlier backup"):
        back_up(home, sticks)


def test_a_node_that_is_shut_out_counts_no_more(tmp_path):
    """From the first round of the next roster; the others' tokens are as before."""
    registrar = tmp_path / "home-registrar"
    home = settle(tmp_path / "home", setup(), nodes=6)
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    invoke(
        *("flower", "enrol", registrar, "--node", _node_file(tmp_path, home), "--nodes", 6, "--first", 2),
        *("--revoke", 2, "--revoke", 3),
    )
    home.admit(registrar / f"{TASK.name}-2-12.roster")
    answer = close_round(home, 2, batch(home, 2, vectors(*range(6))))
    assert (answer["users"], answer["refused"]) == (4, 2)
    with pytest.raises(ValueError, match="revoked must leave at least 3 nodes, 2 of 6 would be left"):
        tokens.enrol_nodes(registrar, task=TASK, nodes=6, first=3, last=4, revoked=(1, 2, 3, 4))
    with pytest.raises(ValueError, match="revoked must be at most 6, got 7"):
        tokens.enrol_nodes(registrar, task=TASK, nodes=6, first=3, last=4, revoked=(7,))
    home.close()


def _node_file(folder, home):
    path = folder / "node.toml"
    path.write_text(home.node().to_toml())
    return path


def test_the_largest_report_passes_the_proxy():
    """Otherwise nodes would train, and then nobody could report."""
    largest = task(dimension=DIMENSION_MAX)
    whole = Message(RecordDict({"report": ConfigRecord({"sealed": bytes(largest.length)})}), reply_to=_training())
    request = PushObjectRequest(
        object_content=whole.content["report"].deflate(), object_id="0" * 64, session_id="0" * 64
    )
    assert 0.9 * link.LARGE_BODY < request.ByteSize() <= link.LARGE_BODY - 1000
    with pytest.raises(ValueError, match="dimension must be at most 16000000, got 16000001"):
        task(dimension=DIMENSION_MAX + 1)


def _training():
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = "1"
    return message


# ------------------------------------------------------------ trainings that end more than themselves


def crash_segfault():
    ctypes.string_at(0)


def crash_exit():
    os._exit(0)


def crash_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def crash_abort():
    os.abort()


def crash_memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    hoard = [bytearray(1 << 29) for _ in range(9)]
    raise AssertionError(len(hoard))


def crash_recursion():
    sys.setrecursionlimit(10**9)
    code = "f = lambda: f()\nf()"
    exec(code, {})


def crash_never():
    while True:
        threading.Event().wait(1.0)


def crash_threads():
    threading.Thread(target=crash_never).start()
    sys.exit("with a thread left over")


CRASHES = [
    crash_segfault,
    crash_exit,
    crash_killed,
    crash_abort,
    crash_memory,
    crash_recursion,
    crash_never,
    crash_threads,
]


@pytest.mark.filterwarnings("ignore::shoal.AccuracyWarning")
@pytest.mark.parametrize("crash", CRASHES, ids=lambda crash: crash.__name__)
def test_a_training_that_ends_its_process_is_the_zero_update(tmp_path, crash):
    """The node answers as ever: who counts the nodes that answer learns nothing about their data."""
    # Only a training that does not end by itself is given an end: a busy machine must not end any other.
    limit = 0.5 if crash is crash_never else 0.0
    desk = Desk(tmp_path, terms=task(rate=1.0, sigma=1e-2, epsilon=1e6), rounds=2, limit=limit)

    def app(message, context):
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        crash()

    assert np.abs(desk.opened(1, app=app)).max() < 0.1
    following = desk.opened(2, update=9.0)
    if not limit:
        assert np.abs(following - 1 / np.sqrt(12)).max() < 0.1  # and the next round is as any other


def test_a_node_that_is_killed_takes_its_training_with_it(tmp_path):
    """Otherwise the training holds the node's lock, and the node that is started again waits for it."""
    desk = Desk(tmp_path)
    reading, writing = os.pipe()

    def app(message, context):
        os.write(writing, b"%d\n" % os.getpid())
        crash_never()

    node = os.fork()
    if node == 0:
        desk.ask(1, app=app)
        os._exit(0)
    training = int(os.read(reading, 20))
    os.kill(node, signal.SIGKILL)
    os.waitpid(node, 0)
    assert desk.sealed(1)  # waits for the lock, which nobody has
    while pathlib.Path(f"/proc/{training}").exists():  # until it is gone
        threading.Event().wait(0.01)
    os.close(reading)
    os.close(writing)


def test_what_comes_back_from_a_training_is_one_vector():
    assert vector_apart(lambda: np.ones(3), size=4, seconds=9.0) is None
    huge = vector_apart(lambda: np.full(4, 1e300), size=4, seconds=9.0)
    assert (huge == 1e300).all()
    assert vector_apart(lambda: np.arange(4.0), size=4, seconds=0.0).tolist() == [0, 1, 2, 3]
