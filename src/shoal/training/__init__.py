"""Distributed learning under shuffled Gaussian reports: data, clients, shuffler, server, training.

    data.py         embedded digits, MNIST, Fashion-MNIST, IDX files, records of any kind
    features.py     image features that each user computes alone
    randomness.py   coins, noise and permutations: from the operating system, or from a seed
    clipping.py     per-user gradients, clipped and summed                       (gradients, uses)
    networks.py     networks                                                     (data, features, randomness)
    protocol.py     who takes part, clients, shuffler, server: one round         (clipping, randomness)
    ledger.py       epsilon by every accountant
    plan.py         from a budget to noise, rounds, rate and learning rate       (ledger, protocol)
    run.py          configuration, rounds, checkpoints, metrics                  (all of the above)
    game.py         the distinguishing game against a real training              (protocol, training)
    figures.py      pictures of a run                                            (ledger, training)

>>> from shoal import training
>>> training.load("digits").users
5000
"""

from __future__ import annotations

from shoal._extras import missing as _missing
from shoal.errors import DataError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise _missing("shoal.training needs PyTorch", "train", error.name) from None

from shoal.training.clipping import ClippedSum, clipped_each, clipped_sum
from shoal.training.data import Dataset, Records, collect, load, read_records
from shoal.training.game import audit_run
from shoal.training.ledger import LedgerEntry, accountants
from shoal.training.plan import Plan, plan
from shoal.training.protocol import Clients, Collected, run_round, shuffled
from shoal.training.run import Config, Row, Run, read_config, read_metrics, resume, start, train, train_run

__all__ = [
    "Clients",
    "ClippedSum",
    "Collected",
    "Config",
    "DataError",
    "Dataset",
    "LedgerEntry",
    "Plan",
    "Records",
    "Row",
    "Run",
    "accountants",
    "audit_run",
    "clipped_each",
    "clipped_sum",
    "collect",
    "load",
    "plan",
    "read_config",
    "read_metrics",
    "read_records",
    "resume",
    "run_round",
    "shuffled",
    "start",
    "train",
    "train_run",
]
