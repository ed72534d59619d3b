"""The commands of analyst, registrar and nodes; app, proxy and folder that they write."""

import importlib.util
import json
import pathlib
import re
import sys
import warnings

import numpy as np
import pytest
import tomllib
from typer.testing import CliRunner

from shoal.cli.app import app as command
from shoal.deployment import keys, link, template, tokens
from shoal.deployment.analyst import Analyst
from shoal.deployment.local_machine import Machine
from shoal.deployment.node import Node

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import batch, close_round, invoke, setup, vectors

INIT = "--task t --dimension 12 --clip 1 --sigma 2 --rate 0.5 --minimum 3 --epsilon 8 --delta 1e-5"


def test_the_commands_set_up_enrol_join_show_and_export(tmp_path):
    """Analyst, registrar, node and analyst again: what each of them types, in order."""
    folder, registrar, mine = tmp_path / "a", tmp_path / "r", tmp_path / "mine"
    made = invoke("analyst", "init", folder, *INIT.split())
    last = int(re.search(r"Rounds: (\d+) at most", made)[1])
    assert 20 <= last <= 30  # and not a thousand
    enrolled = invoke("flower", "enrol", registrar, "--node", folder / "node.toml", "--nodes", 5)
    assert "5 new secrets" in enrolled
    (roster,) = registrar.glob("*.roster")
    assert f"5 nodes may report in rounds 1 to {last}" in invoke("analyst", "admit", folder, roster)
    mine.mkdir()
    (mine / "node.toml").write_bytes((folder / "node.toml").read_bytes())
    (mine / "node.secret").write_bytes((registrar / "secrets" / "000001.secret").read_bytes())
    joined = invoke("flower", "join", mine / "node.toml")
    assert f"rounds 1 to {last}" in joined
    node = Node.read(mine / "node.toml")
    promised = node.task.mechanism(users=3).statement(delta=1e-5, rounds=last)
    assert promised.epsilon <= 8
    assert promised.sentence() in " ".join(joined.split())
    home = Analyst.open(folder)
    assert keys.public_text(home.signer.public_key()) in made
    assert keys.public_text(node.signer) in made
    assert node.task == home.settings.task
    home.secrets = [tokens.read_secret(p) for p in sorted((registrar / "secrets").glob("*"))]
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    home.close()
    data = json.loads(invoke("analyst", "status", folder, "--json"))
    assert data["next_round"] == 2
    assert data["epsilon"]["any"]["upper"] >= data["epsilon"]["identical"]["upper"]
    assert data["epsilon"]["any"] == data["rounds"][0]["answer"]["epsilon"]
    table = invoke("analyst", "status", folder)
    for crowd in ("Identical", "Any"):  # the whole statement for each
        assert f"{crowd} crowd: One round of check-in (users = 3, check-in rate = 0.5" in table
    out = tmp_path / "m.npy"
    invoke("analyst", "model", folder, "--out", out)
    np.testing.assert_allclose(np.load(out), np.full(12, 4.0))
    assert "Round 2 starts from the model as it was after round 0" in invoke("analyst", "restore", folder, "--after", 0)
    invoke("analyst", "model", folder, "--out", out)
    np.testing.assert_allclose(np.load(out), np.zeros(12))


def test_the_numbers_of_the_how_to_are_those_of_its_commands(tmp_path, monkeypatch):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "howto" / "flower.md").read_text()
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"^\$ shoal (.*)", page, re.MULTILINE)
    made = invoke(*first.split())
    invoke(*second.split())
    (rounds,) = re.findall(r"Rounds: (\d+) at most", made)
    assert f"({rounds} here)" in page
    (tmp_path / "node.toml").write_bytes((tmp_path / "analyst" / "node.toml").read_bytes())
    (enrol,) = re.findall(r"^shoal (flower enrol .*)", page, re.MULTILINE)
    invoke(*enrol.replace("1000", "100").split())
    (admit,) = re.findall(r"^shoal (analyst admit .*)", page, re.MULTILINE)
    (tmp_path / f"digits-1-{rounds}.roster").write_bytes(
        (tmp_path / f"registrar/digits-1-{rounds}.roster").read_bytes()
    )
    invoke(*admit.split())
    # The file that the page shows is the one that was written, but for keys and paths.
    (shown,) = re.findall(r"^```toml\n(keys.*?)^```", page, re.MULTILINE | re.DOTALL)
    shown, written = tomllib.loads(shown), tomllib.loads((tmp_path / "node.toml").read_text())
    assert list(shown) == list(written)
    for name in ("epoch", "rounds", "secret", "pace", "limit", "task"):
        assert shown[name] == written[name]


def test_a_missing_package_is_one_sentence(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("shoal.deployment")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(command, ["analyst", "status", "a"])
    assert result.exit_code == 2
    assert "pip install 'shoal-dp[flower]'" in result.output


def test_a_new_app_is_complete_and_learns(tmp_path, monkeypatch):
    invoke("flower", "new", tmp_path / "my-app")
    assert sum(a.size for a in template.read_starting_arrays(tmp_path / "my-app").values()) == 15
    monkeypatch.syspath_prepend(str(tmp_path / "my-app"))
    model = importlib.import_module("my_app.model")
    trained = model.train(model.starting_arrays(), model.load(0, 1))
    assert model.evaluate(trained)["accuracy"] > 0.9 > model.evaluate(model.starting_arrays())["accuracy"]
    for name in ("client", "server"):
        assert importlib.import_module(f"my_app.{name}").app
    (tmp_path / "file").write_text("")
    for bad, words in (
        ("My App", "must be 1 to 40 lower-case"),
        ("my-app", "must be a new or empty folder"),
        ("file", "must be a new or empty folder"),
        ("class", "must not be that of a Python module"),
        ("numpy", "must not be that of a Python module"),
        ("json", "must not be that of a Python module"),
    ):
        with pytest.raises(ValueError, match=words):
            template.write_app(tmp_path / bad)
    (tmp_path / "my-app" / "pyproject.toml").write_text("")
    with pytest.raises(ValueError, match="must name the function that gives the starting arrays"):
        template.read_starting_arrays(tmp_path / "my-app")


def test_the_proxy_names_what_it_lets_through(tmp_path):
    keys.make_certificates(tmp_path / "tls")
    files = {"certificate": tmp_path / "tls" / "server.pem", "key": tmp_path / "tls" / "server.key"}
    path = link.write_proxy(
        tmp_path / "p", port=8000, superlink=9000, gate=9001, authority=tmp_path / "tls" / "ca.pem", **files
    )
    text = path.read_text()
    assert set(re.findall(r"location (\S+ ?\S*) {", text)) == {
        "/",
        "= /authorise",
        *(f"= /v1/fleet/{w}" for w in link.FLEET),
    }
    assert not {"register-node", "unregister-node"} & set(link.FLEET)
    path = link.write_proxy(
        tmp_path / "p", host="::", port=8000, superlink=9000, gate=9001, authority=tmp_path / "tls" / "ca.pem", **files
    )
    assert "listen [::]:8000 ssl;" in path.read_text()
    with pytest.raises(ValueError, match="authority must be a file in PEM format"):
        link.write_proxy(tmp_path / "p", port=8000, superlink=9000, gate=9001, authority=tmp_path / "none.pem", **files)
    (tmp_path / "a b").mkdir()
    with pytest.raises(ValueError, match="without spaces"):
        link.write_proxy(
            tmp_path / "a b", port=8000, superlink=9000, gate=9001, authority=tmp_path / "tls" / "ca.pem", **files
        )


def test_a_folder_keeps_its_settings(tmp_path):
    machine = Machine(folder=tmp_path / "m", rounds=1)
    machine.set_up(setup(), nodes=5)
    machine.set_up(setup(), nodes=4)
    with pytest.raises(ValueError, match="its analyst has other settings"):
        machine.set_up(setup(step=2.0), nodes=5)
    with pytest.raises(ValueError, match="nodes must be at most 5, who are enrolled, got 6"):
        machine.set_up(setup(), nodes=6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["analyst", "status", "nowhere"], "must be a folder made by 'shoal analyst init'"),
        (
            ["analyst", "init", "a", *INIT.replace("--sigma 2", "--sigma -1").split()],
            "sigma must be positive, got -1.0",
        ),
        (["analyst", "init", "a", *INIT.split(), "--crowd", "none"], "--crowd"),
        (["analyst", "serve", "a", "--certificate", "c.pem", "--key", "k.pem"], "must be a file in PEM format"),
        (["flower", "deploy", "--nodes", "3", "--minimum", "4"], "minimum must lie between 2 and"),
        (
            ["flower", "simulate", "--nodes", "5001"],
            "nodes must lie between 2 and the number of images (5000), got 5001",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert said in result.output
