"""Everything shown runs: code blocks of the README and the docs, and the commands they name."""

import doctest
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from urllib.parse import parse_qsl

import pytest
from typer.testing import CliRunner

from helpers import ROOT
from shoal import ShuffledCheckIn
from shoal.cli.app import app
from shoal.formatting import rounded
from shoal.reproduction import PACKAGED_RUN

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
if sys.version_info < (3, 11):
    for name in ("flower.md", "fix-the-noise.md"):  # Flower needs Python 3.11
        PAGES.remove(ROOT / "docs" / "howto" / name)
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


EXAMPLES = list(dict.fromkeys(c for _, text in HELP for c in shown_commands(text)))
ENDLESS = [c for c in EXAMPLES if c.split()[1] == "explore"]
ON_RUNS = sorted((c for c in EXAMPLES if " runs/" in c), key=lambda c: c.split()[1] == "audit")
"""Those that read what an earlier one wrote: in the order in which that is there."""
ALONE = [c for c in EXAMPLES if c not in (*ENDLESS, *ON_RUNS, "shoal reproduce all")]


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


def run_as_printed(command):
    words = shlex.split(command)[1:]
    if words[0] in ("analyst", "flower"):
        pytest.importorskip("flwr")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (command, result.output)


@pytest.mark.parametrize("command", ALONE)
def test_every_command_of_every_help_page_runs_as_printed(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # An app that another test has made and loaded must not be in the way of one of the same name.
    monkeypatch.setattr(
        sys, "path", [path for path in sys.path if not path.startswith(tempfile.gettempdir() + "/pytest-")]
    )
    monkeypatch.delitem(sys.modules, "my_app", raising=False)
    run_as_printed(command)


def test_those_that_read_a_run_folder_do_so_after_those_that_write_it(tmp_path, monkeypatch):
    assert len(ON_RUNS) == 3
    monkeypatch.chdir(tmp_path)
    for command in ON_RUNS:
        run_as_printed(command)


@pytest.mark.xdist_group("reproduce")
def test_the_whole_paper_is_reproduced_as_printed(reproduced):
    assert "shoal reproduce all" in EXAMPLES
    assert reproduced.result.exit_code == 0


@pytest.mark.parametrize("command", ENDLESS)
def test_those_that_go_on_until_they_are_stopped(command, tmp_path):
    """The page is opened by a browser that only notes the address, fetched once, and ended as Ctrl-C does."""
    noted = tmp_path / "address"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {noted}.part && mv {noted}.part {noted}\n')
    browser.chmod(0o755)
    words = shlex.split(command)[1:]
    server = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli", *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "BROWSER": str(browser)},
    )
    try:
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        fields = json.loads(urllib.request.urlopen(f"{address.partition('#')[0]}api/fields").read())
        assert set(fields["kinds"]) >= {"shuffle", "check-in"}
        if "--no-browser" not in words:
            deadline = time.monotonic() + 60
            while not noted.exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert noted.read_text().strip() == address
        assert address.partition("#")[2] in ("", *words)
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    assert server.returncode == 0
    assert noted.exists() == ("--no-browser" not in words)


def test_commands_have_examples():
    assert len(EXAMPLES) >= 25
    assert len(ENDLESS) == 2


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
    places = [
        (ROOT / page).parent,
        ROOT,
        ROOT / "src" / "shoal",
        ROOT / "src" / "shoal" / "bounds",
        ROOT / "src" / "shoal" / "bounds" / "anycrowd",
    ]
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
    setting = pytest.importorskip("shoal.web.setting")
    links = re.findall(r"`shoal explore '([^']+)'`", (ROOT / "docs" / "howto" / "choose.md").read_text())
    found = [setting.read(dict(parse_qsl(link))) for link in links]
    assert [(s.mechanism.label, s.rounds, s.delta) for s in found] == [
        ("shuffle", 1, 1e-6),
        ("check-in", 2_000, 1e-7),
        ("shuffle", 50, 1e-3),
        ("balls-and-bins", 10, 1e-6),
    ]
    assert [getattr(s.mechanism, "users", None) for s in found] == [10_000, 60_000, 20, None]
