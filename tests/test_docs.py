"""Everything shown runs: code blocks of the README and the docs, and the commands they name."""

import doctest
import json
import pathlib
import re
import shlex
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from shoal import ShuffledCheckIn
from shoal.cli.app import app
from shoal.interval import rounded
from shoal.paper.reproduce import PACKAGED_RUN

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
if sys.version_info < (3, 11):
    PAGES.remove(ROOT / "docs" / "howto" / "flower.md")  # Flower needs Python 3.11
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """The blocks of a page run in one namespace, in order; a prompt marks an example with its output."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    for text in blocks(page, "python"):
        if ">>>" in text:
            test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), 0)
            runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
            runner.run(test, clear_globs=False)
            assert runner.tries > 0
            assert runner.failures == 0
            names.update(test.globs)
        else:
            exec(compile(text, str(page), "exec"), names)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "console")], ids=lambda p: p.name)
def test_commands_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [line[2:] for text in blocks(page, "console") for line in text.splitlines() if line.startswith("$ ")]
    assert commands
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "shoal"
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, (command, result.output)


def test_examples_in_the_help_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "".join(p.read_text() for p in sorted((ROOT / "src" / "shoal" / "cli").rglob("*.py")))
    examples = re.findall(r"^\s+\"?(shoal [a-z].*?)(?:\\n\\n\"|\"?,?)$", source, re.MULTILINE)
    assert len(examples) >= 12
    for example in examples:
        words = shlex.split(example)[1:]
        if words[0] in ("train", "explore") or words[:2] == ["reproduce", "all"] or "--run" in words:
            # Minutes or more, and run in tests of their own: here the words must be understood.
            get_command(app).commands[words[0]].make_context(words[0], words[1:])
            continue
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (example, result.output)


def test_the_readme_leads_with_the_two_commands():
    first = blocks(ROOT / "README.md", "sh")[0]
    makefile = (ROOT / "Makefile").read_text()
    for target in ("run", "test"):
        assert f"make {target}" in first
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_local_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_table_of_the_mnist_run_is_that_of_its_files():
    """Rounds, accuracy and each epsilon (rounded up) of the page are those of the metrics and the ledger."""
    page = (ROOT / "docs" / "explanation" / "mnist.md").read_text()
    folder = PACKAGED_RUN
    metrics, ledger = (
        {row["round"]: row for row in map(json.loads, (folder / name).read_text().splitlines())}
        for name in ("metrics.jsonl", "privacy.jsonl")
    )
    rows = re.findall(r"^\| ([\d,]+) \| ([\d.]+)% \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for number, accuracy, cells in rows:
        count = int(number.replace(",", ""))
        assert accuracy == f"{100 * metrics[count]['accuracy']:.1f}"
        assert cells.split(" | ") == [rounded(e, digits=3) for e in ledger[count]["epsilon"].values()]
    last = ledger[5_540]["epsilon"]
    assert f"reaches {metrics[5_540]['accuracy']:.0%} at ε ≤ {rounded(last['tight_any'], digits=3)}" in (
        ROOT / "README.md"
    ).read_text().replace(" %", "%")
    protocol = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
    found = protocol.epsilon(delta=1 / 60_000, rounds=5_540)
    assert found.lower <= last["tight_identical"] <= 1.001 * found.upper
