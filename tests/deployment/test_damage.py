"""Damaged, changed and missing files of the analyst's folder."""

import contextlib
import hashlib
import json
import shutil
import sqlite3
import warnings

import pytest
from typer.testing import CliRunner

from shoal import ShuffledCheckIn
from shoal.cli.app import app as command
from shoal.deployment import tokens
from shoal.deployment.analyst import Analyst
from shoal.deployment.errors import ConflictError, DamagedError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import (
    TASK,
    batch,
    close_round,
    invoke,
    vectors,
)

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
        Analyst.read(home.folder)
    with pytest.raises(DamagedError, match="restore"):
        Analyst.open(home.folder)


def test_changed_settings_are_noticed_before_the_first_round(home):
    home.database.execute(CHANGES["settings"])
    home.close()
    with pytest.raises(DamagedError, match="its settings are not as they were written"):
        Analyst.open(home.folder)


def test_an_end_that_is_missing_is_noticed_and_made_up_for(home):
    """A backup of the database alone is put back after round 3; rounds 2 and 3 may have been published."""
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3, 4, 5)))
    home.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
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
            (Analyst.read if reading else Analyst.open)(home.folder)
    result = CliRunner().invoke(command, [*words, "3"])
    assert result.exit_code == 2
    assert "round must lie between 4 and 13, got 3" in result.output
    assert "2 rounds were charged with the smallest crowd. The next round is 4." in invoke(*words, "4")
    again = Analyst.open(home.folder)
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
        Analyst.open(home.folder)
    assert "0 rounds were charged" in invoke(*words, "5")
    Analyst.open(home.folder).close()
    (home.folder / "head").write_bytes(old)  # a crash before the head was written
    Analyst.open(home.folder).close()
    assert json.loads((home.folder / "head").read_text())["round"] == 4
    (home.folder / "head").write_text(json.dumps({"round": 2, "chain": "00" * 32}))
    with pytest.raises(DamagedError, match="of different analysts"):
        Analyst.open(home.folder)


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
            with contextlib.closing(Analyst.open(copy)) as found:
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
    home.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    home.close()
    name, left, words = DAMAGE[kind]
    path = home.folder / name
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match=words):
        Analyst.open(home.folder)
    result = CliRunner().invoke(command, ["analyst", "restore", str(home.folder), "--after", "1"])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_key_of_somebody_else_is_noticed_before_nodes_are_asked(home):
    (home.folder / "keys" / "00001.key").write_bytes((home.folder / "keys" / "00002.key").read_bytes())
    with pytest.raises(DamagedError, match="is not the key that nodes were given"):
        home.signature()
    home.close()
    with pytest.raises(DamagedError, match="is not the key that nodes were given"):
        Analyst.open(home.folder)


def test_a_database_cut_off_anywhere_is_one_sentence(home):
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    home.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    home.close()
    path = home.folder / "analyst.db"
    content = path.read_bytes()
    whole = []
    for cut in sorted({0, 1, 15, 16, 99, 100, len(content) - 1, *range(0, len(content), 1_999)}):
        path.write_bytes(content[:cut])
        try:
            with contextlib.closing(Analyst.open(home.folder)) as found:
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
        Analyst.open(home.folder)


def test_nobody_is_enrolled_by_changing_the_database_alone(home, tmp_path):
    roster, _ = tokens.enrol_nodes(tmp_path / "sybils", task=TASK, nodes=9, first=1, last=12)
    (home.folder / "rosters" / "0002.roster").write_bytes(roster.read_bytes())
    digest = hashlib.sha256(roster.read_bytes()).digest()
    home.database.execute("INSERT INTO rosters VALUES ('0002.roster', ?, 2)", digest)
    home.close()
    with pytest.raises(DamagedError, match=r"0002\.roster is damaged"):
        Analyst.open(home.folder)
