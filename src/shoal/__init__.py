"""Shoal: how private are shuffled Gaussian reports?

>>> import shoal
>>> m = shoal.ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
>>> f"{m.epsilon(delta=1e-5, rounds=5_540):.4f}"
'[0.0567, 0.0568]'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shoal import _moved

__version__ = "0.2.0"

_moved.install()

if TYPE_CHECKING:
    from shoal import audit as audit
    from shoal import calibrate as calibrate
    from shoal import errors as errors
    from shoal import literature as literature
    from shoal import noise_check as noise_check
    from shoal import records as records
    from shoal import risk as risk
    from shoal.accountant import Accountant as Accountant
    from shoal.accountant import Entry as Entry
    from shoal.accountant import Filter as Filter
    from shoal.accountant import Odometer as Odometer
    from shoal.errors import ShoalError as ShoalError
    from shoal.errors import Unreachable as Unreachable
    from shoal.interval import Interval as Interval
    from shoal.mechanisms import BallsAndBins as BallsAndBins
    from shoal.mechanisms import FixedBatch as FixedBatch
    from shoal.mechanisms import LocalGaussian as LocalGaussian
    from shoal.mechanisms import Mechanism as Mechanism
    from shoal.mechanisms import PoissonSampling as PoissonSampling
    from shoal.mechanisms import RandomAllocation as RandomAllocation
    from shoal.mechanisms import SecureSum as SecureSum
    from shoal.mechanisms import SequentialShuffle as SequentialShuffle
    from shoal.mechanisms import Shuffle as Shuffle
    from shoal.mechanisms import ShuffledCheckIn as ShuffledCheckIn
    from shoal.mechanisms import ShuffledEpochs as ShuffledEpochs
    from shoal.mechanisms import SubsampledShuffle as SubsampledShuffle
    from shoal.query import AccuracyWarning as AccuracyWarning
    from shoal.query import Intervals as Intervals
    from shoal.statement import Statement as Statement

_HOME = {
    **dict.fromkeys(("Accountant", "Entry", "Filter", "Odometer"), "shoal.accountant"),
    "Interval": "shoal.interval",
    **dict.fromkeys(("ShoalError", "Unreachable"), "shoal.errors"),
    **dict.fromkeys(("AccuracyWarning", "Intervals"), "shoal.query"),
    "Statement": "shoal.statement",
    **dict.fromkeys(
        (
            "BallsAndBins",
            "FixedBatch",
            "LocalGaussian",
            "Mechanism",
            "PoissonSampling",
            "RandomAllocation",
            "SecureSum",
            "SequentialShuffle",
            "Shuffle",
            "ShuffledCheckIn",
            "ShuffledEpochs",
            "SubsampledShuffle",
        ),
        "shoal.mechanisms",
    ),
    "audit": "",
    "calibrate": "",
    "errors": "",
    "literature": "",
    "noise_check": "",
    "records": "",
    "risk": "",
}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604 (the table above is the one list of public names)


def __getattr__(name: str) -> Any:
    """Public names are loaded when first used, so that `import shoal` costs next to nothing."""
    if f"shoal.{name}" in _moved.MOVED:
        return importlib.import_module(f"shoal.{name}")
    if f"shoal.{name}" in _moved.RENAMED:
        return _moved.renamed(f"shoal.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    home = _HOME[name]
    value = getattr(importlib.import_module(home), name) if home else importlib.import_module(f"shoal.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
