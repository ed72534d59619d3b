"""Shoal's curves as privacy profiles of OpenDP.

`privacy_profile(source)` is the composed curve of a mechanism's rounds, or of a ledger, as the `PrivacyProfile` that a
measurement of OpenDP has in the measure `smoothed_max_divergence()`. It holds for the adjacency of the mechanism, which
OpenDP does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal._extras import missing

try:
    from opendp.measures import new_privacy_profile
except ModuleNotFoundError as error:
    raise missing("shoal.adapters.opendp needs OpenDP", "opendp", error.name) from None

from shoal.curves import CurveQuestions, CurveSource


def privacy_profile(source: CurveSource, *, rounds: int = 1) -> Any:
    """Return the composed curve as an OpenDP `PrivacyProfile`: delta by epsilon, from above.

    OpenDP asks that its features "contrib" and "honest-but-curious" be enabled: a profile is what its author says.

    Args:
      source: A mechanism, or an accountant.
      rounds: The number of rounds; 1 for an accountant.

    Returns:
      The profile, whose `delta` and `epsilon` are upper ends.

    Raises:
      InvalidInput: If an argument is out of its range.

    >>> import opendp.prelude as dp
    >>> from shoal import Shuffle
    >>> dp.enable_features("contrib", "honest-but-curious")
    >>> m = Shuffle(users=1_000, sigma=2.0, crowd="identical")
    >>> privacy_profile(m, rounds=10).delta(0.2) == m.delta(epsilon=0.2, rounds=10).upper
    True
    """
    delta_at = CurveQuestions.of(source, rounds).delta
    make: Callable[..., Any] = new_privacy_profile  # OpenDP leaves its result without a type
    return make(lambda epsilon: float(delta_at(epsilon).upper))
