"""The page about trust: each promise names the tests that attack it, and these exist."""

import ast
import pathlib
import re

HERE = pathlib.Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "explanation" / "trust.md").read_text()


def rows(title):
    """The cells of each row of a section's first table, without its head."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def all_tests():
    """The names of all tests of the deployment."""
    trees = [ast.parse(path.read_text()) for path in HERE.glob("test_*.py")]
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}


PROMISES = rows("Each promise, and the test that attacks it")


def test_each_promise_names_tests_that_exist():
    assert len(PROMISES) > 20
    known = all_tests()
    for promise, party, attacks in PROMISES:
        assert party, promise
        named = re.findall(r"`(\w+)`", attacks)
        assert named, promise
        assert set(named) <= known, (promise, set(named) - known)


def test_each_defence_is_a_promise():
    """What the page says protects something is attacked by a test."""
    defences = {re.match(r"\*\*(.*?)\.?\*\*", cells[0])[1] for cells in rows("What protects what, and what it costs")}
    promised = {cells[0].strip("*") for cells in PROMISES}
    assert len(defences) > 15
    assert defences <= promised, defences - promised
