"""The shuffler's journal, and files that are whole or old."""

import collections
import warnings

import pytest
from scipy import stats

from shoal.deployment import files
from shoal.deployment.errors import AnalystError
from shoal.deployment.journal import Journal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import TEMPLATE, LocalAnalyst, federation, shuffler


@pytest.mark.usefixtures("forgetful_disk", "in_one_process")
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
    assert files.is_whole(path)
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        assert not files.is_whole(path)
        path.write_bytes(content[:cut] + bytes([content[cut] ^ 1]) + content[cut + 1 :])
        assert not files.is_whole(path)
    path.write_bytes(content + b"x")
    assert not files.is_whole(path)


def test_files_are_whole_or_old(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def pieces():
        yield b"new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.replace(path, pieces())
    assert path.read_bytes() == b"old"
