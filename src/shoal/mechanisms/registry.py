"""The one list of all mechanisms, and how to read one from plain data.

A new mechanism is a class in `shuffled.py`, `summed.py` or `central.py`, and its name here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from shoal.errors import InvalidInput, InvalidType
from shoal.mechanisms.base import Mechanism
from shoal.mechanisms.central import BallsAndBins, FixedBatch, PoissonSampling, RandomAllocation, ShuffledEpochs
from shoal.mechanisms.parameter import UNSET, parameters_of
from shoal.mechanisms.shuffled import LocalGaussian, SequentialShuffle, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.mechanisms.summed import SecureSum

MECHANISMS: dict[str, type[Mechanism]] = {
    cls.__name__: cls
    for cls in (
        LocalGaussian,
        Shuffle,
        SequentialShuffle,
        SubsampledShuffle,
        ShuffledCheckIn,
        SecureSum,
        BallsAndBins,
        PoissonSampling,
        FixedBatch,
        RandomAllocation,
        ShuffledEpochs,
    )
}
"""Every mechanism by the name of its class."""


def labelled() -> dict[str, type[Mechanism]]:
    """Every mechanism by its name in the command line and on the page."""
    return {cls.label: cls for cls in MECHANISMS.values()}


def from_dict(data: Mapping[str, Any]) -> Mechanism:
    """The mechanism that `Mechanism.to_dict` wrote.

    All fields must be present, even those with a default: a change of the default must not change saved data.
    A parameter that is younger than the data has the value that it declares as `absent`.

    Raises:
        InvalidInput: If the mechanism is unknown, or a field is missing, unknown or not allowed.
        InvalidType: If the data is no mapping.
    """
    if not isinstance(data, Mapping):
        raise InvalidType(f"a mechanism must be a mapping, got {data!r}")
    name = data.get("mechanism")
    if not isinstance(name, str) or name not in MECHANISMS:
        raise InvalidInput(f"mechanism must be one of {', '.join(MECHANISMS)}, got {name!r}")
    cls = MECHANISMS[name]
    absent = {p.name: p.absent for p in parameters_of(cls) if p.absent is not UNSET}
    fields = {**absent, **{field: value for field, value in data.items() if field != "mechanism"}}
    expected = sorted(field.name for field in dataclasses.fields(cls))
    if sorted(map(str, fields)) != expected:
        raise InvalidInput(
            f"{name} must have the fields {', '.join(expected)}, got {', '.join(sorted(map(str, fields)))}"
        )
    return cls(**fields)
