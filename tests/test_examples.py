"""The scripts in examples/ run as they are, and say something."""

import pathlib
import runpy

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "examples"
NEEDS = {"training": ("torch",), "opacus_training": ("torch", "opacus", "shoal.training")}
LONG = {"opacus_training", "own_data"}
"""Run by the tests of the part they belong to."""


@pytest.mark.parametrize("path", sorted(p for p in FOLDER.glob("*.py") if p.stem not in LONG), ids=lambda p: p.stem)
def test_example(path, capsys, tmp_path, monkeypatch):
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_own_data_at_a_chosen_epsilon(capsys):
    for package in ("torch", "sklearn"):
        pytest.importorskip(package)
    assert runpy.run_path(str(FOLDER / "own_data.py"))["main"](seed=1) > 0.85
    assert "1,438 users, 400 rounds" in capsys.readouterr().out


def test_the_training_learns():
    pytest.importorskip("torch")
    assert runpy.run_path(str(FOLDER / "training.py"))["main"](rounds=60) > 0.8
