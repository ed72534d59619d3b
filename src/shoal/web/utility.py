"""What the noise costs: how far one round's estimate of the users' mean vector is from the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.mechanisms import Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle

_UP = 1.0 + 1e-14
"""More than the round-off of the few operations below."""


@dataclass(frozen=True, kw_only=True)
class Error:
    """Root mean square errors in the Euclidean norm: of the noise, of who was sampled (at most), of both."""

    noise: float
    sampling: float
    estimate: str
    """What is off from what: the beginning of a sentence."""

    @property
    def total(self) -> float:
        return math.hypot(self.noise, self.sampling) * _UP


def error(mechanism: Mechanism, *, clip: float, dimension: int) -> Error:
    """The root mean square distance between the estimate of a round and the mean of all users' clipped vectors.

    Each report has noise N(0, (C sigma)^2 I_d), so a sum of k reports is off by C sigma sqrt(d k). With n users of
    norm at most C:

    - shuffle, the mean of n reports: C sigma sqrt(d / n);
    - subsampled, the mean of m reports: C sigma sqrt(d / m), and the mean of m drawn without replacement is off by
      sqrt(V / m * (n - m) / (n - 1)), V <= C^2 the variance of the n vectors;
    - check-in, the sum of reports / (rate n), which does not tell how many checked in: k reports have rate n on
      average, so C sigma sqrt(d / (rate n)); each user's coin adds |x|^2 rate (1 - rate), together at most
      C sqrt((1 - rate) / (rate n)).

    Noise is independent of the sample and has mean 0, so the squares add. By Jensen's inequality the expected
    distance is not above its root mean square. Where no number of users is known, it is that of one published vector.
    """
    one = clip * mechanism.sigma * math.sqrt(dimension)
    if isinstance(mechanism, Shuffle):
        return Error(
            noise=one / math.sqrt(mechanism.users) * _UP,
            sampling=0.0,
            estimate="The mean of all reports is off the users' mean",
        )
    if isinstance(mechanism, SubsampledShuffle):
        n, m = mechanism.users, mechanism.sample
        part = (n - m) / (n - 1) if n > 1 else 0.0
        drawn = clip * math.sqrt(part / m) * _UP
        return Error(
            noise=one / math.sqrt(m) * _UP,
            sampling=drawn,
            estimate="The mean of the sampled reports is off the users' mean",
        )
    if isinstance(mechanism, ShuffledCheckIn):
        expected = mechanism.rate * mechanism.users
        drawn = clip * math.sqrt((1.0 - mechanism.rate) / expected) * _UP
        return Error(
            noise=one / math.sqrt(expected) * _UP,
            sampling=drawn,
            estimate="The sum of reports / (rate · users) is off the users' mean",
        )
    what = "One report is off its vector" if mechanism.label == "local" else "One batch's sum is off the true sum"
    return Error(noise=one * _UP, sampling=0.0, estimate=what)
