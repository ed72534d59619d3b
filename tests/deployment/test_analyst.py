"""The analyst: what is counted, added, entered and forgotten."""

import contextlib
import json
import math
import os
import secrets
import sqlite3
import sys
import warnings

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shoal import Accountant, ShuffledCheckIn
from shoal.deployment import keys, noise, tokens
from shoal.deployment.analyst import Analyst, delivery
from shoal.deployment.analyst.delivery import Counts
from shoal.deployment.errors import BatchError, ConflictError, ExhaustedError, RefusedReportError
from shoal.deployment.journal import Journal
from shoal.deployment.report import REFUSAL_REASONS, seal, unseal
from shoal.deployment.task import counted_users

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import (
    TASK,
    TOKEN,
    Desk,
    batch,
    close_round,
    opened,
    sealed_by,
    settle,
    setup,
    task,
    token_of,
    vectors,
)


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
    assert set(row["refused"]) == set(REFUSAL_REASONS)
    assert row["reports"] == 3
    assert home.accountant().ledger[0].mechanism == ShuffledCheckIn(users=5, rate=0.5, sigma=2.0, crowd="identical")
    np.testing.assert_allclose(home.present()[1], np.full(12, 3 / (0.5 * 5)))


def test_the_shuffler_alone_cannot_isolate_a_user(tmp_path):
    """One victim's report among forged dummies: refused, and nothing has happened; so are replays and old tokens."""
    home = settle(tmp_path / "a", setup(task(minimum=20)), nodes=40)
    victim, victim_task = sealed_by(home, 7, 1, np.ones(12)), home.settings.task
    before = home.present()[1]
    dummies = [sealed_by(home, 0, 1, None, token=secrets.token_bytes(16)) for _ in range(99)]
    for tricks in (
        dummies,
        [os.urandom(TASK.length) for _ in range(99)],
        [victim] * 99,
        [sealed_by(home, 0, 1, None, token=token_of(s, task=victim_task, round_number=2)) for s in home.secrets],
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
        here = os.path.dirname(tokens.__file__)

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
    assert sum(name == "report_values" for name, _ in steps(np.ones(12), 1)) > 2  # it was looked into
    entered = [sum(name == "report_values" for name, _ in found) for found in seen]
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
            round_number=1,
            key=key.public_key(),
            token=TOKEN,
        )
        if fine:
            opened(sealed, task=terms, round_number=1, key=key)
        else:
            with pytest.raises(RefusedReportError, match="norm"):
                opened(sealed, task=terms, round_number=1, key=key)


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
    assert users * 31 / 32 < counted_users(users) <= users
    assert counted_users(counted_users(users)) == counted_users(users)


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
    with pytest.raises(ConflictError, match="expected a round up to 2, got 3"):
        close_round(home, 3, batch(home, 3, vectors(1, 2, 3)))
    np.testing.assert_array_equal(home.present()[1], model)
    assert len(home.accountant()) == 1


def test_a_folder_has_one_analyst_and_many_readers(home):
    with pytest.raises(ValueError, match="must belong to one analyst: another process uses it"):
        Analyst.open(home.folder)
    reader = Analyst.read(home.folder)
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
    with contextlib.closing(Analyst.open(home.folder)) as other:
        second = other.receive(1)
        second.feed(batch(home, 1, vectors(4, 5, 6, 7)))
        assert json.loads(first.finish())["users"] == 3
        with pytest.raises(ConflictError, match="expected round 2, got 1"):
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
    again = Analyst.open(home.folder)
    assert again.present()[0] == 2
    np.testing.assert_array_equal(again.present()[1], model)
    assert again.accountant().state_dict() == ledger
    assert close_round(again, 1, body) == answer
    again.close()


class Broken:
    """A database that fails at one statement."""

    def __init__(self, db, word):
        self.db, self.word = db, word

    @property
    def in_transaction(self):
        return self.db.in_transaction

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
        monkeypatch.setattr(home.database, "connection", Broken(home.database.connection, word))
        with pytest.raises(sqlite3.OperationalError):
            close_round(home, 1, body)
        monkeypatch.undo()
        assert home.rounds() == []
        assert len(home.accountant()) == 0
    assert close_round(home, 1, body)["round"] == 1


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
    with pytest.raises(RefusedReportError, match="seal"):
        unseal(kept, task=TASK, round_number=1, key=home.key(5))
    # A report to the old key does not open in the new epoch.
    body = batch(home, 5, vectors(1, 2, 3), bad=[sealed_by(home, 9, 5, np.ones(12), key=old)])
    assert close_round(home, 5, body)["users"] == 3
    assert len({keys.public_text(k) for k in home.public_keys()}) == 3
    node = home.node()
    assert [keys.public_text(node.key(n)) for n in (5, 12)] == [keys.public_text(home.public_keys()[i]) for i in (1, 2)]


def test_a_crash_before_a_key_is_forgotten_is_made_good(home, monkeypatch):
    monkeypatch.setattr(Analyst, "_forget_keys", lambda self: None)
    for number in range(1, 5):
        close_round(home, number, batch(home, number, vectors(1, 2, 3)))
    assert (home.folder / "keys" / "00001.key").exists()
    home.close()
    monkeypatch.undo()
    Analyst.open(home.folder).close()
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
    again = Analyst.open(home.folder)
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
    Analyst.open(home.folder).close()


@pytest.mark.parametrize("size", [0, 1, 113 * 2, 113 * 3 - 1, 113 * 3 + 1])
def test_batches_of_another_size_are_refused_before_anything_is_opened(home, size, monkeypatch):
    monkeypatch.setattr(delivery, "unseal", lambda *a, **k: pytest.fail("opened"))
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
    again = Analyst.open(home.folder)
    with pytest.raises(ExhaustedError):
        again.open_round()
    again.close()


def test_the_budget_holds_when_a_round_closes_as_well(home, monkeypatch):
    """Also if the check at the opening were passed: the number of users that came decides."""
    object.__setattr__(home.settings.task, "epsilon", 0.01)
    monkeypatch.setattr(home, "_least", (1, 0.0))
    counts = Counts(batch=b"", total=np.zeros(12), users=3, reports=3, refused={})
    with pytest.raises(ExhaustedError, match="would exceed the budget"):
        home._close_round(1, counts)
    assert home.rounds() == []


def test_rounds_end_with_the_keys_and_wait_for_a_roster(tmp_path):
    home = Analyst.create(tmp_path / "a", setup(rounds=3, epoch=2))
    with pytest.raises(ExhaustedError, match="round 1 has no roster"):
        home.open_round()
    given = []
    for first, last in ((1, 1), (2, 3)):
        roster, new = tokens.enrol_nodes(tmp_path / "r", task=TASK, nodes=4, first=first, last=last)
        home.admit(roster)
        given += new
    home.secrets = [tokens.read_secret(p) for p in given]
    for number in (1, 2, 3):
        close_round(home, number, batch(home, number, vectors(1, 2, 3)))
    with pytest.raises(ExhaustedError, match="there are keys for 3 rounds, and none for round 4"):
        home.open_round()
    home.close()


def test_rosters_of_other_terms_or_past_rounds_are_refused(home, tmp_path):
    other, _ = tokens.enrol_nodes(tmp_path / "other", task=task(epsilon=1.0), nodes=9, first=1, last=2)
    with pytest.raises(ValueError, match="must be a roster of this task and its terms"):
        home.admit(other)
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    late, given = tokens.enrol_nodes(tmp_path / "late", task=TASK, nodes=9, first=1, last=2)
    with pytest.raises(ValueError, match="must begin at round 2 or later, got 1"):
        home.admit(late)
    with pytest.raises(ValueError, match="this is something else"):
        home.admit(given[0])
    newer, given = tokens.enrol_nodes(tmp_path / "newer", task=TASK, nodes=9, first=2, last=2)
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
        Analyst.open(tmp_path / "nowhere")


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
