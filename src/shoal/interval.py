"""A certified number: the truth lies between `lower` and `upper`."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal import _moved, _validate
from shoal.errors import InvalidInput, InvalidType
from shoal.formatting import outwards


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Two bounds on one privacy parameter.

    `upper` is the guarantee: the mechanism is at least this private. `lower` shows how much of it
    may be slack: no analysis of the same mechanism can go below it. A method that bounds from
    above only (Rényi DP) has `lower = 0`. `float(interval)` is `upper`.

    Compared with a number an interval stands for its guarantee: `eps <= budget` is `eps.upper <= budget`, and
    `eps > budget` is `eps.upper > budget`, so that code which goes on under a budget and code which stops above it
    are both on the safe side. Claims from below (what an attack proves) use `eps.lower`.
    Two intervals have no order: name the end. Equality is that of both ends, so no interval equals a number.

    >>> eps = Interval(lower=0.25, upper=0.5)
    >>> float(eps), 0.3 in eps, eps < 0.4, eps <= 0.5
    (0.5, True, False, True)
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        lower = _validate.real("lower", self.lower)
        # An upper bound may be infinite: "no finite guarantee" is an honest answer.
        upper = math.inf if self.upper == math.inf else _validate.real("upper", self.upper)
        if not 0 <= lower <= upper:
            raise InvalidInput(f"lower must lie between 0 and upper, got {lower} and {upper}")
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    def __float__(self) -> float:
        return self.upper

    def _against(self, value: Any, holds: Callable[[float, float], bool], sign: str) -> bool:
        if isinstance(value, Interval):
            raise InvalidType(f"two intervals have no order: compare one end of each, as in a.upper {sign} b.upper")
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return NotImplemented  # Python then says that the two do not compare
        number = float(value)
        if math.isnan(number):
            raise InvalidInput("an interval must be compared with a number, got nan")
        return holds(self.upper, number)

    def __lt__(self, value: float) -> bool:
        return self._against(value, operator.lt, "<")

    def __le__(self, value: float) -> bool:
        return self._against(value, operator.le, "<=")

    def __gt__(self, value: float) -> bool:
        return self._against(value, operator.gt, ">")

    def __ge__(self, value: float) -> bool:
        return self._against(value, operator.ge, ">=")

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __format__(self, spec: str) -> str:
        """Both ends in the given format, rounded outwards: a bound stays a bound when it is printed."""
        return f"[{outwards(self.lower, spec, -1.0)}, {outwards(self.upper, spec, 1.0)}]"

    def _repr_markdown_(self) -> str:
        """Both ends for a notebook, rounded outwards; the guarantee is bold."""
        if self.lower == 0.0:
            return f"at most **{outwards(self.upper, '.5g', 1.0)}**"
        return f"between {outwards(self.lower, '.5g', -1.0)} and **{outwards(self.upper, '.5g', 1.0)}** (the guarantee)"

    def _repr_html_(self) -> str:
        start, bold, end = self._repr_markdown_().split("**")
        return f"<span>{start}<b>{bold}</b>{end}</span>"

    @property
    def width(self) -> float:
        return self.upper - self.lower


def __getattr__(name: str) -> Any:
    """An object under its old name."""
    return _moved.old_attribute(__name__, name)
