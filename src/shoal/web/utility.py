"""What the noise costs: how far one round's estimate of the users' mean vector is from the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.mechanisms import Mechanism

_UP = 1.0 + 1e-14
"""More than the round-off of the few operations below."""

_ESTIMATES = {
    "all": "The mean of all reports is off the users' mean",
    "drawn": "The mean of the sampled reports is off the users' mean",
    "coin": "The sum of reports / (rate · users) is off the users' mean",
}
"""The beginning of a sentence, by who is sampled."""


@dataclass(frozen=True, kw_only=True)
class Error:
    """Root mean square errors in the Euclidean norm: of the noise, of who was sampled (at most), of both."""

    noise: float
    sampling: float
    estimate: str
    """What is off from what: the beginning of a sentence."""

    @property
    def total(self) -> float:
        """The error of both together."""
        return math.hypot(self.noise, self.sampling) * _UP


def error(mechanism: Mechanism, *, clip: float, dimension: int) -> Error:
    """Return the root mean square distance between a round's estimate and the mean of all users' clipped vectors.

    Each report has noise N(0, (C sigma)^2 I_d), so a sum of k reports is off by C sigma sqrt(d k). With n users of
    norm at most C:

    - all report, the mean of n reports: C sigma sqrt(d / n);
    - m are drawn, the mean of m reports: C sigma sqrt(d / m), and the mean of m drawn without replacement is off by
      sqrt(V / m * (n - m) / (n - 1)), V <= C^2 the variance of the n vectors;
    - each tosses a coin, the sum of reports / (rate n), which does not tell how many checked in: k reports have rate n
      on average, so C sigma sqrt(d / (rate n)); each user's coin adds |x|^2 rate (1 - rate), together at most
      C sqrt((1 - rate) / (rate n)).

    Noise is independent of the sample and has mean 0, so the squares add. By Jensen's inequality the expected
    distance is not above its root mean square. Where no number of users is known, it is that of one published vector.

    Args:
      mechanism: The mechanism.
      clip: The clipping norm C.
      dimension: The number of coordinates d.
    """
    vector = clip * mechanism.sigma * math.sqrt(dimension)
    if "users" not in mechanism.to_dict():
        by_server = mechanism.noise_by == "server"
        estimate = "One batch's sum is off the true sum" if by_server else "One report is off its vector"
        return Error(noise=vector * _UP, sampling=0.0, estimate=estimate)
    n = mechanism.to_dict()["users"]
    reports = mechanism.expected_reports(n)
    absent = 0.0
    if mechanism.sampling == "coin":
        absent = 1.0 - mechanism.participation
    elif mechanism.sampling == "drawn" and n > 1:
        absent = (n - reports) / (n - 1)
    return Error(
        noise=vector / math.sqrt(reports) * _UP,
        sampling=clip * math.sqrt(absent / reports) * _UP,
        estimate=_ESTIMATES[mechanism.sampling],
    )
