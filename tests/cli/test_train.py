"""`shoal train`: offline on the embedded digits, budget, resuming, pictures, and clear refusals."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import get_args

import pytest

from helpers import run
from shoal import ShuffledCheckIn
from shoal.cli.commands.train import NetworkName, TrainingProtocol
from shoal.cli.training import watching
from shoal.cli.training.presets import PRESETS
from shoal.formatting import rounded
from shoal.training import Config
from shoal.training.networks import NETWORKS
from shoal.training.protocol import PROTOCOLS

SHORT = ["--users", 400, "--rate", 0.5, "--sigma", 3, "--rounds", 6, "--evaluate-every", 2, "--checkpoint-every", 2]


def test_a_run_folder(tmp_path):
    result = run("train", *SHORT, "--seed", 3, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    names = {p.name for p in (tmp_path / "run").iterdir()}
    pictures = {"accuracy_vs_rounds.png", "accuracy_vs_epsilon.png"}
    assert names == {"config.json", "metrics.jsonl", "privacy.jsonl", "checkpoint.pt", "model.pt", *pictures}
    assert all((tmp_path / "run" / p).stat().st_size > 5000 for p in pictures)
    rows = [json.loads(line) for line in (tmp_path / "run" / "privacy.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rows] == [2, 4, 6]
    m = ShuffledCheckIn(users=400, rate=0.5, sigma=3.0, crowd="identical")
    for row in rows:
        assert row["epsilon"]["tight_identical"] == m.epsilon(delta=1e-5, rounds=row["round"]).upper
    text = " ".join(result.stdout.split())
    for word in ("NOT PRIVATE", "the shuffler is trusted", "tight (any crowd)", "paper, Theorem 3", "Picture:"):
        assert word in text
    before = (tmp_path / "run" / "privacy.jsonl").read_bytes()
    (tmp_path / "run" / "privacy.jsonl").unlink()
    assert run("train", "--report", tmp_path / "run").exit_code == 0
    assert (tmp_path / "run" / "privacy.jsonl").read_bytes() == before


def test_json_budget_and_resuming(tmp_path):
    m = ShuffledCheckIn(users=400, rate=0.5, sigma=3.0, crowd="identical")
    budget = float(m.epsilon(delta=1e-5, rounds=4)) * 1.0001
    words = [*SHORT, "--crowd", "identical", "--epsilon", budget, "--delta", "1e-5", "--out", tmp_path, "--json"]
    result = run("train", *words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["round"] == 4
    assert found["private"] is True
    assert found["epsilon"]["tight_identical"] <= budget
    again = json.loads(run("train", "--resume", tmp_path, "--json").stdout)
    assert again["accuracy"] == found["accuracy"]


def test_the_presets():
    assert PRESETS["paper"] == {
        "data": "mnist",
        "protocol": "check-in",
        "rate": "0.1",
        "sigma": "5",
        "clip": 0.01,
        "rounds": "5540",
        "delta": "1/60000",
        "learning_rate": 3.0,
        "network": "small",
    }


def test_the_options_offer_what_a_training_takes():
    """They are written down where PyTorch is not needed, so that the help does without."""
    assert set(get_args(TrainingProtocol)) == set(PROTOCOLS)
    assert set(get_args(NetworkName)) == set(NETWORKS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--protocol", "central", "--rate", "0.5"], "poisson"),
        (["--protocol", "local"], "local"),
        (["--protocol", "shuffle"], "shuffle"),
        (["--protocol", "subsampled", "--sample", "10"], "subsampled"),
    ],
)
def test_other_protocols(words, expected, tmp_path):
    given = ["--users", 30, "--sigma", 10, "--rounds", 2, "--out", tmp_path, "--json"]
    result = run("train", *words, *given)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert expected in found["mechanism"]["mechanism"].lower()
    assert all(value is None or value > 0 for value in found["epsilon"].values())
    first = rounded(next(iter(found["epsilon"].values())))  # the guarantee, for any crowd
    assert f" are ({first}, " in found["guarantee"]
    assert "identical" not in found["guarantee"]
    if expected == "local":  # once is enough
        again = json.loads(run("train", *words, *given, "--out", tmp_path / "seeded", "--seed", 1).stdout)
        assert again["guarantee"] is None  # who knows the seed can subtract the noise


BAD = [
    (["--sigma", "-1"], "sigma must be positive, got -1"),
    (["--users", "6000"], "users must be at most 5000 (the images of digits), got 6000"),
    (["--data", "nothing"], "data must be digits, mnist, fashion-mnist or a folder with IDX files, got 'nothing'"),
    (["--protocol", "subsampled"], "sample must be given for subsampled: add --sample"),
    (["--sample", "5"], "sample is not a parameter of check-in"),
    (["--momentum", "1"], "momentum must be at least 0 and below 1, got 1.0"),
    (["--threads", "0"], "threads must be at least 1, got 0"),
    (["--rounds", "none"], "rounds must be a number such as"),
    (["--resume", "{}/nowhere"], "is not a run folder: it has no config.json"),
    (["--resume", "{}/nowhere", "--sigma", "2"], "sigma cannot be given with resume"),
    (["--report", "{}/nowhere"], "is not a run folder"),
    (["--learning-rate", "1e38", "--users", "100", "--rounds", "9"], "use a smaller learning rate"),
    (["--epsilon", "1e-9", "--users", "100", "--sigma", "2"], "epsilon"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=lambda x: x[0] if isinstance(x, list) else "")
def test_refusals(words, message, tmp_path):
    words = [w.format(tmp_path) for w in words]
    out = [] if {"--resume", "--report"} & set(words) else ["--out", tmp_path / "run"]
    result = run("train", *words, *out)
    assert result.exit_code == 2, result.output
    assert message in result.output.replace("\n", "")
    assert "Traceback" not in result.output


def test_missing_data_says_what_to_do(tmp_path):
    result = run("train", "--data", "mnist", "--data-dir", tmp_path / "no", "--offline", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "put train-images-idx3-ubyte" in result.output
    assert not (tmp_path / "run").exists()


def test_ctrl_c_leaves_a_valid_checkpoint(tmp_path):
    folder = tmp_path / "run"
    words = [
        "train",
        "--users",
        "400",
        "--rounds",
        "100000",
        "--seed",
        "1",
        "--checkpoint-every",
        "50000",
        "--json",
        "--out",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli", *words, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:
        assert child.poll() is None, child.communicate()
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    told = re.search(r"stopped after round ([\d,]+); continue with: shoal train --resume", errors)
    stopped = int(told[1].replace(",", ""))
    from shoal.training import load, resume

    continued = resume(load().first(400), folder)
    assert continued.done == continued.spent == stopped
    assert stopped >= 20


def test_without_torch_the_command_says_what_to_install():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from typer.testing import CliRunner\nfrom shoal.cli.app import app\n"
        "result = CliRunner().invoke(app, ['train'])\nprint(result.exit_code, result.output)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 ")
    assert "pip install 'shoal-dp[train]'" in done.stdout


def test_the_opacus_example(tmp_path):
    """Trains with Opacus' PrivacyEngine, and epsilon is that of the protocol with the given noise of a report."""
    example = pathlib.Path(__file__).parents[2] / "examples" / "opacus_training.py"
    words = [sys.executable, str(example), "--steps", "30", "--sigma", "0.5"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    accuracy = float(re.search(r"([\d.]+)%", done.stdout)[1])
    assert accuracy > 25
    m = ShuffledCheckIn(users=5000, rate=0.2, sigma=0.5, crowd="identical")
    identical = float(m.epsilon(delta=1e-5, rounds=30))
    assert f"held one vector: {identical:.4f}" in done.stdout
    assert float(re.search(r"any crowd: +([\d.]+)", done.stdout)[1]) > identical
    assert "times sqrt(B): 15.8" in done.stdout


@pytest.mark.parametrize(("spent", "words"), [(40, ""), (41, "1 round may"), (60, "20 rounds may")])
def test_a_resumed_run_says_how_many_rounds_are_counted_twice(spent, words):
    """Rounds that may have been sent before it stopped: as many as there can be since the last checkpoint."""
    m = ShuffledCheckIn(users=100, rate=0.5, sigma=2.0)
    config = Config(mechanism=m, rounds=100, delta=1e-5)
    run = SimpleNamespace(config=config, spent=spent, done=40, rounds=100, clients=SimpleNamespace(users=100))
    text = watching.opening_words(run, pathlib.Path("runs/a"))
    assert ("counted twice" in text) == bool(words)
    assert words in text
