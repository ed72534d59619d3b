"""The model on its way to the nodes: one record, whatever the number of arrays.

Flower moves each array of a message as an object of its own, with a request for each node and array. A model of a
hundred layers would cost the SuperLink a hundred requests for each node, and 6 ms each. So the numbers travel as bytes
in the record that names the round, and the mod makes arrays of them again before the app is called.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from shoal.errors import DataError

MODEL, LAYOUT = "model", "layout"
"""Entries of the configuration: all numbers in single precision, and name, shape and type of each array."""
TYPES = ("float32", "float64")


def packed_model(arrays: ArrayRecord) -> dict[str, bytes | str]:
    """Entries of a configuration that hold a model, in single precision."""
    parts = {name: array.numpy() for name, array in arrays.items()}
    layout = [[name, list(part.shape), str(part.dtype)] for name, part in parts.items()]
    numbers = b"".join(part.astype("<f4").tobytes() for part in parts.values())
    return {MODEL: numbers, LAYOUT: json.dumps(layout)}


def unpacked_model(config: Mapping[str, Any]) -> ArrayRecord:
    """The arrays that a configuration holds; `DataError` if it holds none."""
    try:
        numbers = np.frombuffer(config[MODEL], "<f4")
        layout = [(str(name), tuple(map(int, shape)), str(kind)) for name, shape, kind in json.loads(config[LAYOUT])]
    except (KeyError, ValueError, TypeError):
        raise DataError("a message must have a model and its layout") from None
    sizes = [math.prod(shape) for _, shape, _ in layout]
    if any(n < 0 for _, shape, _ in layout for n in shape) or sum(sizes) != len(numbers):
        raise DataError(f"the layout must be that of {len(numbers)} numbers, got {sum(sizes)}")
    if unknown := {kind for _, _, kind in layout} - {*TYPES}:
        raise DataError(f"arrays must be of type {' or '.join(TYPES)}, got {', '.join(sorted(unknown))}")
    parts = np.split(numbers, np.cumsum(sizes)[:-1])
    return ArrayRecord(
        {name: Array(part.reshape(shape).astype(kind)) for (name, shape, kind), part in zip(layout, parts, strict=True)}
    )
