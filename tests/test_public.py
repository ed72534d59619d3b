"""What could be imported from version 0.1 still can, or the changelog says what replaces it."""

import importlib
import json
import re

import pytest

from helpers import ROOT

# Written down from the last commit of 0.1.0: the names of its public modules, and the modules of its engine.
PUBLIC = json.loads((ROOT / "tests" / "reference" / "public_0.1.json").read_text())
SINCE = (ROOT / "CHANGELOG.md").read_text().split("## 0.1.0")[0]
NEEDS = {"shoal.integrations.flower": "flwr", "shoal.learning": "torch"}


def missing(module, names):
    """The names, or the module, that are gone."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return [module]
    return [f"{module}.{name}" for name in names if not hasattr(found, name)]


@pytest.mark.parametrize(("module", "names"), PUBLIC.items(), ids=list(PUBLIC))
def test_old_names_are_there_or_replaced(module, names):
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    gone = missing(module, names)
    assert [name for name in gone if not re.search(rf"`{re.escape(name)}`", SINCE)] == []


def test_a_name_that_is_gone_is_noticed():
    assert missing("shoal", ["Shuffle", "Shuffled"]) == ["shoal.Shuffled"]
    assert missing("shoal.compose", []) == ["shoal.compose"]
    assert sum(map(len, PUBLIC.values())) > 120
