"""Distributed learning under shuffled Gaussian reports: data, clients, shuffler, server, training.

    data.py         embedded digits, MNIST, Fashion-MNIST, IDX files
    randomness.py   coins, noise and permutations: from the operating system, or from a seed
    clipping.py     per-user gradients, clipped and summed                       (torch)
    model.py        networks                                                     (data, randomness)
    protocol.py     who takes part, clients, shuffler, server: one round         (clipping, randomness)
    ledger.py       epsilon by every accountant
    training.py     configuration, rounds, checkpoints, metrics                  (all of the above)
    figures.py      pictures of a run                                            (ledger, training)

>>> from shoal import learning
>>> learning.load("digits").users
5000
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"shoal.learning needs PyTorch ({error.name} was not found): pip install 'shoal[train]'", name=error.name
    ) from None

from shoal.learning.clipping import ClippedSum, clipped_each, clipped_sum
from shoal.learning.data import DataError, Dataset, load
from shoal.learning.ledger import LedgerEntry, accountants
from shoal.learning.protocol import CentralGaussian, Clients, Round, Shuffler, run_round
from shoal.learning.training import Config, Row, Run, read_config, read_metrics, resume, start, train

__all__ = [
    "CentralGaussian",
    "Clients",
    "ClippedSum",
    "Config",
    "DataError",
    "Dataset",
    "LedgerEntry",
    "Round",
    "Row",
    "Run",
    "Shuffler",
    "accountants",
    "clipped_each",
    "clipped_sum",
    "load",
    "read_config",
    "read_metrics",
    "resume",
    "run_round",
    "start",
    "train",
]
