"""Import paths and names of version 0.2 still work, with a warning that names the new one."""

import functools
import importlib
import importlib.util
import subprocess
import sys

import pytest

import shoal
from shoal import _moved

OLD_PATHS = {
    "shoal.answers": "",
    "shoal.integrations.dp_accounting": "dp_accounting",
    "shoal.integrations.flower": "flwr",
    "shoal.integrations.flower.analyst": "flwr",
    "shoal.integrations.flower.node": "flwr",
    "shoal.integrations.flower.run": "flwr",
    "shoal.integrations.flower.service": "flwr",
    "shoal.integrations.flower.shuffler": "flwr",
    "shoal.integrations.opacus": "opacus",
    "shoal.learning": "torch",
    "shoal.learning.clipping": "torch",
    "shoal.learning.data": "torch",
    "shoal.learning.game": "torch",
    "shoal.learning.model": "torch",
    "shoal.learning.plan": "torch",
    "shoal.learning.protocol": "torch",
    "shoal.learning.training": "torch",
    "shoal.paper": "",
    "shoal.paper.checkin": "",
    "shoal.paper.clones": "",
    "shoal.paper.compare": "",
    "shoal.paper.reproduce": "",
    "shoal.sampling": "",
    "shoal.worth": "",
}
"""The public import paths that have moved, and the extra's package that each needs."""


@pytest.mark.parametrize("path", OLD_PATHS)
def test_an_old_path_imports_and_names_the_new_one(path):
    if OLD_PATHS[path]:
        pytest.importorskip(OLD_PATHS[path])
    assert f"DeprecationWarning: {path} has moved: import {_moved.new_path(path)}\n" in warned()


@functools.cache
def warned():
    """What all imports of old paths print, in one process."""
    paths = [path for path, package in OLD_PATHS.items() if not package or importlib.util.find_spec(package)]
    code = (
        "import importlib, warnings\nwarnings.simplefilter('always')\n"
        f"for path in {paths}: importlib.import_module(path)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr


def test_every_path_that_moved_is_listed():
    below = {path for path in OLD_PATHS if any(path.startswith(f"{old}.") for old in _moved.MOVED)}
    # One entry is no old path but where Python looks for a submodule of a package that has moved.
    assert set(_moved.MOVED) - {"shoal.literature.reproduce"} <= set(OLD_PATHS) - (below - set(_moved.MOVED))


def test_an_old_path_does_not_change_the_new_package(monkeypatch):
    """`shoal.learning.plan` is a module and a function; the function of the new package stays what it is."""
    pytest.importorskip("torch")
    # A path that was imported before does not warn again.
    monkeypatch.delitem(sys.modules, "shoal.learning.plan", raising=False)
    with pytest.warns(DeprecationWarning, match="shoal.training.plan"):
        importlib.import_module("shoal.learning.plan")
    training = importlib.import_module("shoal.training")
    assert callable(training.plan)
    from shoal.learning import Plan, plan

    assert plan is training.plan
    assert Plan is training.Plan


@pytest.mark.parametrize(("old", "new"), _moved.RENAMED.items(), ids=list(_moved.RENAMED))
def test_an_old_name_is_the_new_object(old, new):
    module, _, name = old.rpartition(".")
    home, _, attribute = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"{old} has a new name: use {new}") as caught:
        value = getattr(importlib.import_module(module), name)
    assert value is getattr(importlib.import_module(home), attribute)
    assert caught[0].filename == __file__


def test_an_old_call_still_answers():
    m = shoal.LocalGaussian(sigma=2.0)
    answer = m.epsilon(delta=1e-5, rounds=3)
    with pytest.warns(DeprecationWarning, match=r"Mechanism\.stated\(\.\.\.\) will go"):
        statement = m.stated("epsilon", 1e-5, answer, 3)
    assert statement == m.statement(delta=1e-5, rounds=3)
