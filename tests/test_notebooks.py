"""The notebooks of the documentation run from top to bottom, and show what they print."""

import runpy

import pytest

from helpers import ROOT

pytest.importorskip("matplotlib")

TOOL = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NEEDS = {"my-loader-shuffles": ("torch", "opacus"), "check-in-on-flower": ("torch", "flwr")}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    stored = TOOL["load"](path)
    fresh = TOOL["run"](TOOL["load"](path))
    for before, after in zip(stored["cells"], fresh["cells"], strict=True):
        assert before["source"] == after["source"]
        if before["cell_type"] == "code":
            # Numbers may move in their last digits; what kind of thing a cell shows may not.
            assert [o["output_type"] for o in before["outputs"]] == [o["output_type"] for o in after["outputs"]]
            assert before["execution_count"] == after["execution_count"]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 5


def test_a_cell_shows_what_it_prints_and_its_last_value():
    names = {}
    outputs = TOOL["run_cell"]("x = 3\nprint('a')\nx + 1", names)
    assert [o.get("text") or o["data"]["text/plain"] for o in outputs] == [["a\n"], ["4"]]
    assert TOOL["run_cell"]("x;", names) == []
    with pytest.raises(ZeroDivisionError):
        TOOL["run_cell"]("x / 0", names)
