"""What could be imported from version 0.1 still can, or the changelog says what replaces it."""

import importlib
import json
import re

import pytest

from helpers import ROOT

# Every name that the last commit of 0.1.0 defined and did not mark as private (reference/make_public.py).
PUBLIC = json.loads((ROOT / "tests" / "reference" / "public_0.1.json").read_text())
SINCE = (ROOT / "CHANGELOG.md").read_text().split("## 0.1.0")[0]
NEEDS = {
    "shoal.integrations.dp_accounting": "dp_accounting",
    "shoal.integrations.flower": "flwr",
    "shoal.integrations.opacus": "opacus",
    "shoal.learning": "torch",
}


def missing(module, names):
    """The names, or the module, that are gone."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return [module]
    return [f"{module}.{name}" for name in names if not hasattr(found, name)]


def is_told(name, text=SINCE):
    """Whether the changelog speaks of the name, or of all that stood below the same package (`shoal.cli.*`)."""
    parts = name.split(".")
    packages = [f"{'.'.join(parts[:depth])}.*" for depth in range(2, len(parts))]
    return any(re.search(rf"`{re.escape(one)}`", text) for one in (name, *packages))


@pytest.mark.parametrize(("module", "names"), PUBLIC.items(), ids=list(PUBLIC))
def test_old_names_are_there_or_replaced(module, names):
    for package, needed in NEEDS.items():
        if module.startswith(package):
            pytest.importorskip(needed)
    assert [name for name in missing(module, names) if not is_told(name)] == []


def test_a_name_that_is_gone_is_noticed():
    assert missing("shoal", ["Shuffle", "Shuffled"]) == ["shoal.Shuffled"]
    assert missing("shoal.compose", []) == ["shoal.compose"]
    assert not is_told("shoal.paper.reproduce.Column")
    assert is_told("shoal.cli.app.Rate", "`shoal.cli.*`")
    assert not is_told("shoal.cli.main", "`shoal.cli`")
    assert {"shoal.paper.reproduce", "shoal.paper.compare", "shoal.learning.data"} <= set(PUBLIC)
    assert sum(map(len, PUBLIC.values())) > 600
