"""Array types, sides, directions, unit round-off and limits: shared by all files of `bounds`."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Side = Literal["upper", "lower"]
SIDES: tuple[Side, Side] = ("upper", "lower")

Direction = Literal["forward", "reverse"]
"""D(P||Q), or D(Q||P)."""

DIRECTIONS: tuple[Direction, Direction] = ("forward", "reverse")

UNIT = 2.0**-53
"""Unit round-off: a correctly rounded operation is within a factor 1 +- UNIT."""

ROUNDED_UP = 1.0 + 1e-9
"""A factor for sums that are charged: larger than their round-off, smaller than any printed digit."""

SCALE_MIN, SCALE_MAX = 0.1, 1e4
"""Below, one lognormal ratio spans more orders of magnitude than a grid can hold; above, all ratios are nearly 1."""

LAW_USERS_MAX, LAW_RATE_MIN, LAW_ROUNDS_MAX = 10**9, 1e-10, 10**7
"""The limits within which laws are computed.

More users count as the largest number. Beyond the other two only the local guarantee is given.
"""

DELTA_MIN, EPSILON_MAX = 1e-15, 300.0
"""Questions beyond these are answered by the local guarantee."""
