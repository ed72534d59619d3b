"""The site builds with warnings as errors, without a network, and its navigation follows the files."""

import html
import os
import runpy
import shutil
import subprocess
import sys

import pytest

from helpers import ROOT

pytest.importorskip("mkdocs", reason="the docs extra is not installed")
pytest.importorskip("mkdocstrings", reason="the docs extra is not installed")


def build(folder, site):
    # Not --quiet: warnings that are not logged are not counted.
    # A proxy that refuses every connection: a build that asks the network for something fails.
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    return subprocess.run(words, cwd=folder, env={**os.environ, **nowhere}, capture_output=True, text=True, check=False)


pytestmark = pytest.mark.xdist_group("docs_site")  # what the tests share is made once


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    result = build(ROOT, target)
    assert result.returncode == 0, result.stderr
    return target


def test_every_page_is_in_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert (site / ("index.html" if name.name == "index" else name / "index.html")).is_file(), name


def test_numbers_of_the_comparison_are_those_of_the_benchmarks(site):
    page = (site / "explanation" / "comparison" / "index.html").read_text()
    for name in ("tight_vs_pld_accounting", "rdp_speed", "any_crowd", "tight_speed"):
        text = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text()
        assert text.split(" by ", 1)[0] in page  # "Measured on <date>"
        cells = [c.strip() for line in text.splitlines() if line.startswith("| ") for c in line.strip("|").split("|")]
        assert sum(c in page for c in cells) > 0.9 * len(cells)


def test_reference_and_proofs_come_from_the_docstrings(site):
    reference = (site / "reference" / "mechanisms" / "index.html").read_text()
    assert "permutes them uniformly for the server" in reference
    assert "&gt;&gt;&gt; " in reference
    assert "<blockquote>" not in reference  # examples are code, not quotations
    assert "likelihood ratio of one report" in (site / "explanation" / "mathematics" / "index.html").read_text()


def test_the_reference_has_the_command_learning_and_flower(site):
    command = (site / "reference" / "command" / "index.html").read_text()
    for words in ("shoal calibrate sigma", "shoal flower deploy", "shoal worth", "--clipping-norm"):
        assert words in command
    assert "clipped_sum" in (site / "reference" / "learning" / "index.html").read_text()
    assert "Task" in (site / "reference" / "flower" / "index.html").read_text()


def test_formulas_are_formulas(site):
    """MathML, a wide one in a box of its own, and no letter in a way that browsers do not show."""
    for name in ("guarantee", "mathematics", "trust"):
        page = (site / "explanation" / name / "index.html").read_text()
        assert page.count('<div class="formula"><math') == page.count('display="block"') > 0
        assert "arithmatex" not in page
        assert "double-struck" not in page
        assert "$$" not in page
    assert "𝔼" in html.unescape((site / "explanation" / "mathematics" / "index.html").read_text())


def test_wide_code_goes_on_in_the_next_line(site):
    """The style that does it is there, and code has the classes that it is for."""
    assert "pre-wrap" in (site / "assets" / "site.css").read_text()
    page = (site / "index.html").read_text()
    assert 'href="assets/site.css"' in page
    for language in ("python", "console", "sh"):
        assert f'class="language-{language} highlight"' in page


def test_nothing_is_fetched_by_the_pages(site):
    for page in site.rglob("*.html"):
        for tag in ("<script src=", '<link rel="stylesheet" href=', "<img src="):
            for piece in page.read_text().split(tag)[1:]:
                assert not piece.lstrip('"').startswith(("http", "//")), (page, piece[:80])


def test_a_broken_link_stops_the_build(tmp_path):
    for name in ("mkdocs.yml", "docs", "tools", "benchmarks", "src"):
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("reference", "__pycache__"))
        else:
            shutil.copy(source, target)
    shutil.rmtree(tmp_path / "docs" / "explanation")
    result = build(tmp_path, tmp_path / "site")
    assert result.returncode != 0
    assert "explanation/shuffle-model.md" in result.stderr


def test_navigation_takes_what_is_there(tmp_path):
    navigation = runpy.run_path(str(ROOT / "tools" / "docs_site.py"))["navigation"]
    (tmp_path / "howto").mkdir()
    for page in ("index.md", "howto/zebra.md", "howto/combine.md", "howto/account.md"):
        (tmp_path / page).touch()
    found = {k: v for section in navigation(tmp_path) for k, v in section.items()}
    assert found["Start"] == ["index.md"]
    assert found["How to"] == ["howto/account.md", "howto/combine.md", "howto/zebra.md"]
