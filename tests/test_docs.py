"""Everything shown runs: code blocks of the README and the docs, and the commands they name."""

import doctest
import json
import re
import shlex
import sys
import tempfile
from urllib.parse import parse_qsl

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from helpers import ROOT
from shoal import ShuffledCheckIn
from shoal.cli.app import app
from shoal.interval import rounded
from shoal.paper.reproduce import PACKAGED_RUN

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


def help_pages(*path):
    """The help of a command and of all below it, as a terminal of 80 columns shows it."""
    text = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).stdout
    yield path, text
    listed = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.MULTILINE)
    for name in re.findall(r"^  (\S+)", listed.group(1) if listed else "", re.MULTILINE):
        yield from help_pages(*path, name)


HELP = list(help_pages())


def shown_commands(text):
    """The commands of a help page as they would be copied: a backslash continues a line."""
    found = re.findall(r"^  (shoal [a-z](?:\\\n|.)*)$", text, re.MULTILINE)
    return [" ".join(c.replace("\\\n", " ").split()) for c in found]


EXAMPLES = [(" ".join(path) or "shoal", c) for path, text in HELP for c in shown_commands(text)]
LONG = {"shoal train", "shoal reproduce all", "shoal explore"}
"""Minutes or more or without end, and run in tests of their own: here the words must be understood."""


def test_help_pages_are_whole_sentences_without_escapes_within_80_columns():
    assert len(HELP) >= 25
    for path, text in HELP:
        assert "\\[" not in text, path
        assert "..." not in text.replace("[ARGS]...", "").replace("]...", ""), path
        assert max(map(len, text.splitlines())) <= 80, path
        assert not re.search(r"\w-\n\s+\w", text), path  # no word broken at its hyphen
        about = text.split("\n\n")[1].strip()
        assert about.endswith((".", "?")), (path, about)
        for line in re.split(r"\n  (?=-)", text.split("Options:\n")[-1].split("\n\n")[0])[1:]:
            words = " ".join(line.split())
            assert re.search(r"[.\])]$", words), (path, words)


@pytest.mark.parametrize("command", [c for _, c in EXAMPLES])
def test_every_command_of_every_help_page_runs_as_printed(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # An app that another test has made and loaded must not be in the way of one of the same name.
    monkeypatch.setattr(
        sys, "path", [path for path in sys.path if not path.startswith(tempfile.gettempdir() + "/pytest-")]
    )
    monkeypatch.delitem(sys.modules, "my_app", raising=False)
    words = shlex.split(command)[1:]
    if words[0] in ("analyst", "flower"):
        pytest.importorskip("flwr")
    if any(command == long or command.startswith(f"{long} ") for long in LONG) or "--run" in words:
        top = get_command(app)
        name, found, rest = top.resolve_command(top.make_context("shoal", ["demo"]), words)
        found.make_context(name, rest)
        return
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (command, result.output)


def test_commands_have_examples():
    assert len(EXAMPLES) >= 25


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


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/explanation/architecture.md"])
def test_files_that_are_named_exist(page):
    """By their path from the top, or from the package; names without a suffix are folders."""
    text = (ROOT / page).read_text()
    paths = set(re.findall(r"(?<![\w/.-])((?:[\w.]+/)*[\w.]+\.(?:py|md)|(?:[\w.]+/)+)(?![\w/])", text))
    assert len(paths) > 5
    places = [(ROOT / page).parent, ROOT, ROOT / "src" / "shoal", ROOT / "src" / "shoal" / "engine"]
    assert [path for path in sorted(paths - {"dist/"}) if not any((place / path).exists() for place in places)] == []


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


def test_links_into_the_page_open_the_cases_of_the_guide():
    """What the links of the guide hold is understood by the page, and is what the guide computes with."""
    setting = pytest.importorskip("shoal.explore.setting")
    links = re.findall(r"`shoal explore '([^']+)'`", (ROOT / "docs" / "howto" / "choose.md").read_text())
    found = [setting.read(dict(parse_qsl(link))) for link in links]
    assert [(s.mechanism.label, s.rounds, s.delta) for s in found] == [
        ("shuffle", 1, 1e-6),
        ("check-in", 2_000, 1e-7),
        ("shuffle", 50, 1e-3),
        ("balls-and-bins", 10, 1e-6),
    ]
    assert [getattr(s.mechanism, "users", None) for s in found] == [10_000, 60_000, 20, None]
