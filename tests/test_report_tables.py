"""The tables of the technical report are those of their generator, and their values those of the package."""

import importlib.util
import json
import math
import sys

import pytest

import shoal
from helpers import ROOT


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("report_tables", ROOT / "tools" / "report_tables.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["report_tables"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["report_tables"]


@pytest.fixture(scope="module")
def values(generator):
    return json.loads(generator.VALUES.read_text())


def test_the_tables_of_the_report_are_those_of_the_generator(generator, values):
    page = generator.PAGE.read_text()
    parts = generator.tables(values)
    assert generator.filled(page, parts) == page, "run tools/report_tables.py --render, then tools/report_pdf.py"
    assert page.count("<!-- table: ") == len(parts)
    wrong = json.loads(json.dumps(values))
    wrong["one_round"][3]["upper"] *= 1.01
    assert generator.filled(page, generator.tables(wrong)) != page


def test_where_another_method_is_ahead_the_report_says_so(generator):
    """A blanket, in one dimension, at two points."""
    head, *rows = generator._column_rows(generator.RESULTS / "any_crowd.md", 12)
    ahead = {row[0]: row for row in rows if row[head.index("ahead")] != "ours"}
    assert set(ahead) == {"1,000; 2; 1e-6", "10,000; 1; 1e-6"}
    for row in ahead.values():
        blanket = min(float(row[head.index(f"blanket, d = {d}")]) for d in (1, 10, 100))
        assert blanket == float(row[head.index("blanket, d = 1")])
        assert 1.0 - blanket / float(row[head.index("ours")]) < 0.02


def test_the_page_on_loaders_quotes_the_benchmark(generator):
    """Its table at the settings of Chua et al. is the one of the benchmark, and what it says of all settings holds."""
    _, *rows = generator._column_rows(generator.RESULTS / "shuffled_epochs.md", 10)
    measured = {(row[0], row[1], row[3], f"**{row[4]}**", row[6], row[8]) for row in rows if row[2] == "1"}
    quoted = generator._column_rows(ROOT / "docs" / "howto" / "dp-sgd.md", 6)
    table = [tuple(row) for row in quoted if row[0] in ("10,000", "100,000")]
    assert len(table) == 12
    assert set(table) <= measured
    grid = [row for row in rows if row[0] != "steps"][:60]
    assert max(float(row[5]) for row in grid) < 1.15
    assert all(float(row[6]) < float(row[3]) for row in grid)


def test_a_report_without_a_place_for_a_table_is_refused(generator):
    with pytest.raises(ValueError, match="the report must have a place for the table 'limit'"):
        generator.filled("# A report", {"limit": "| a |"})


def test_some_values_are_those_of_the_package(values):
    """Upper ends may have become smaller since, lower ends larger; the other way round the report would be wrong."""
    for row in values["one_round"]:
        if (row["users"], row["sigma"], row["adjacency"]) in ((100, 5.0, "zero-out"), (60_000, 9.48, "zero-out")):
            found = shoal.Shuffle(users=row["users"], sigma=row["sigma"]).epsilon(delta=row["delta"])
            assert row["lower"] <= found.lower * (1.0 + 1e-3)
            assert found.upper <= row["upper"] * (1.0 + 1e-3)


def test_the_limit_is_that_of_the_opposite_crowd(generator, values):
    """V is the variance of w_2 - w_1, and its delta tends to that of a normal law."""
    for sigma in (0.8, 1.0, 2.0, 5.0):
        r2 = 1.0 / sigma**2
        second_moment = math.exp(4.0 * r2) - 2.0 * math.exp(2.0 * r2) + math.exp(r2)
        assert generator.limit_variance(sigma) == pytest.approx(second_moment, rel=1e-10)
    limit = 0.5 * math.exp(-0.5) * math.sqrt(2.0 / math.pi) - 0.5 * math.erfc(math.sqrt(0.5))
    for row in values["limit"]:
        if row["users"] == 1_000_000:
            assert row["lower"] <= 1.1 * limit
            assert row["upper"] == pytest.approx(limit, rel=0.12)


def test_the_report_is_written_for_paper_as_it_is(generator):
    spec = importlib.util.spec_from_file_location("report_pdf", ROOT / "tools" / "report_pdf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = generator.PAGE.read_text()
    source = module.latex_source(page)
    assert source.startswith("---\ntitle: 'Shuffled Gaussian reports")
    assert "](" not in source
    assert source.count("$$") == page.count("$$")
    assert module.PDF.read_bytes().startswith(b"%PDF-")
