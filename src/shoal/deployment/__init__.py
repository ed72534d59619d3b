"""The shuffle protocol on Flower: sealed reports, a federation that shuffles, an analyst that accounts.

Four parties, each of which sees as little as its work allows:

- the **registrar** (`shoal flower enrol`) gives every node a secret and the analyst a roster, once, so that
  users can be counted who cannot be named;
- a **node** clips its update, adds its own Gaussian noise and seals the report to the analyst's key,
  or seals a dummy if its coin says so (`sealed_reports`, a Flower mod; `Node`, its own settings);
- the **shuffler** is the Flower federation: whoever runs the SuperLink and the ServerApp (`Shuffler`,
  a Flower strategy) sees node ids and sealed reports that it cannot read, and permutes them;
- the **analyst** (`shoal analyst`) holds the key, sees reports without names, times or order, adds
  them up, and keeps the ledger of what they have cost.

`Task` is what all of them agree on beforehand; every report is bound to its terms. What each party must be
trusted with is written in `docs/explanation/trust.md`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shoal._extras import need

if TYPE_CHECKING:
    from shoal.deployment.analyst import Analyst as Analyst
    from shoal.deployment.analyst import Settings as Settings
    from shoal.deployment.budget import BudgetAccountant as BudgetAccountant
    from shoal.deployment.client import sealed_reports as sealed_reports
    from shoal.deployment.node import Node as Node
    from shoal.deployment.shuffler import Shuffler as Shuffler
    from shoal.deployment.task import Task as Task

need(
    "shoal.deployment needs Flower and what goes with it",
    "flower",
    *("flwr", "cryptography", "fastapi", "uvicorn", "httpx", "opendp"),
    also="; Python 3.11 or later",
)

_MODULES = {
    "Analyst": "analyst",
    "BudgetAccountant": "budget",
    "Node": "node",
    "Settings": "analyst",
    "Shuffler": "shuffler",
    "Task": "task",
    "sealed_reports": "client",
}

__all__ = [*_MODULES]  # noqa: PLE0604 (the table above is the list of public names)


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: the analyst needs no Flower, the nodes need no web service."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
