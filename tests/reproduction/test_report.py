"""The technical report quotes the committed benchmark, and nothing else."""

import pathlib

from helpers import ROOT

COLUMNS = {
    "opposite crowd ≥": "opposite crowd (below)",
    "ours ≤": "ours",
    "theorem alone ≤": "ours, no groups",
    "Gaussian clones": "Gaussian clones",
    "blanket, d = 1": "blanket, d = 1",
    "blanket, d = 100": "blanket, d = 100",
}


def table(path: pathlib.Path, first: str) -> dict[str, dict[str, str]]:
    """The rows of the table whose head begins so, by their first cell."""
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in path.read_text().splitlines()
        if line.startswith("| ")
    ]
    head = next(i for i, row in enumerate(rows) if row[0] == first)
    return {row[0]: dict(zip(rows[head], row, strict=True)) for row in rows[head + 1 :]}


def test_the_report_quotes_the_benchmark() -> None:
    quoted = table(ROOT / "docs" / "explanation" / "report.md", "users; σ; δ")
    measured = table(ROOT / "benchmarks" / "results" / "any_crowd.md", "users; σ; δ")
    assert quoted.keys() == measured.keys()
    for point, row in quoted.items():
        for name, source in COLUMNS.items():
            assert row[name] == measured[point][source].removesuffix(" (local)"), (point, name)
    ahead = {point for point, row in measured.items() if row["ahead"] != "ours"}
    assert ahead == {"1,000; 2; 1e-6", "10,000; 1; 1e-6"}  # as the report says
