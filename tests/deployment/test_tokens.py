"""Tokens and rosters."""

import itertools
import json
import math
import os
import secrets
import warnings

import numpy as np
import pytest
from scipy import stats

from shoal.deployment import files, tokens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import TASK, task, token_of


def test_a_roster_knows_the_tokens_of_its_rounds_and_no_others(tmp_path):
    path, given = tokens.enrol_nodes(tmp_path / "r", task=TASK, nodes=20, first=3, last=5)
    roster = tokens.Roster.read(path)
    members = [tokens.read_secret(p) for p in given]
    assert len(set(members)) == 20
    for number in (3, 4, 5):
        marks = roster.marks(number)
        places = {
            marks.find(
                tokens.mark(token_of(m, task=TASK, round_number=number), digest=TASK.digest, round_number=number)
            )
            for m in members
        }
        assert places == set(range(20))
        for wrong in (
            token_of(members[0], task=TASK, round_number=number + 1),
            token_of(members[0], task=task(minimum=4), round_number=number),
            token_of(secrets.token_bytes(32), task=TASK, round_number=number),
            marks[0],
        ):
            assert marks.find(tokens.mark(wrong, digest=TASK.digest, round_number=number)) is None


def test_a_roster_says_nothing_about_who_is_who(tmp_path):
    """Marks are sorted, so that a node's place in one round is unrelated to its place in another."""
    path, given = tokens.enrol_nodes(tmp_path / "r", task=TASK, nodes=200, first=1, last=40)
    roster = tokens.Roster.read(path)
    members = [tokens.read_secret(p) for p in given]
    places = np.array(
        [
            [
                marks.find(tokens.mark(token_of(m, task=TASK, round_number=r), digest=TASK.digest, round_number=r))
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
    _, first = tokens.enrol_nodes(home, task=TASK, nodes=5, first=1, last=2)
    kept = tokens.read_secret(first[0])
    for path in first:
        path.unlink()
    path, new = tokens.enrol_nodes(home, task=TASK, nodes=7, first=3, last=4)
    assert [p.name for p in new] == ["000006.secret", "000007.secret"]
    token = token_of(kept, task=TASK, round_number=3)
    assert tokens.Roster.read(path).marks(3).find(tokens.mark(token, digest=TASK.digest, round_number=3)) is not None
    with pytest.raises(ValueError, match="must not exist yet"):
        tokens.enrol_nodes(home, task=TASK, nodes=7, first=3, last=4)
    with pytest.raises(ValueError, match="nodes must be at least 3, got 2"):
        tokens.enrol_nodes(home, task=TASK, nodes=2, first=5, last=6)
    assert {oct(os.stat(p).st_mode)[-3:] for p in (home / "registrar.json", *new)} == {"600"}


def test_an_enrolment_that_breaks_off_goes_on_with_the_same_secrets(tmp_path, monkeypatch):
    real = files.replace

    def breaks(path, pieces):
        if path.suffix == ".roster":
            raise KeyboardInterrupt
        real(path, pieces)

    monkeypatch.setattr(files, "replace", breaks)
    with pytest.raises(KeyboardInterrupt):
        tokens.enrol_nodes(tmp_path / "r", task=TASK, nodes=5, first=1, last=2)
    given = {p.name: p.read_bytes() for p in (tmp_path / "r" / "secrets").iterdir()}
    monkeypatch.undo()
    _, new = tokens.enrol_nodes(tmp_path / "r", task=TASK, nodes=5, first=1, last=2)
    assert {p.name: p.read_bytes() for p in new} == given
    (tmp_path / "r" / "registrar.json").unlink()  # forgotten, as it should be: nobody can be added, nothing is lost
    with pytest.raises(ValueError, match=r"registrar\.json is gone.* enrol in a new folder"):
        tokens.enrol_nodes(tmp_path / "r", task=TASK, nodes=6, first=3, last=4)
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
    path, _ = tokens.enrol_nodes(tmp_path / "r", task=TASK, nodes=5, first=1, last=2)
    line, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(line), **change}).encode() + b"\n" + rest)
    with pytest.raises(ValueError, match=r"must be a roster from 'shoal flower enrol'|is damaged: it has"):
        tokens.Roster.read(path)


def test_a_roster_cut_off_or_with_a_mark_twice_is_refused(tmp_path, home):
    path, _ = tokens.enrol_nodes(tmp_path / "r", task=TASK, nodes=5, first=1, last=2)
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
    path, _ = tokens.enrol_nodes(tmp_path / "r", task=TASK, nodes=100, first=1, last=100)
    assert path.stat().st_size * 100 < 64 * 2**20
    assert path.stat().st_size - 100 * 100 * 16 < 300
