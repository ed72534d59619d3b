"""From a budget to a plan: how much noise, how many rounds, how many users a round, how large steps.

What a training learns from is the mean of all its reports. The noise of that mean has, for each weight and
in units of the clipping norm, the standard deviation

    noise = sigma / sqrt(reports of all rounds)     (a trusted server's: sigma / (users a round * sqrt(rounds)))

and epsilon fixes sigma once rounds and rate are chosen. Epsilon depends on them through `rounds * rate`, the
reports that a user sends, and hardly otherwise. More reports with more noise each leave *less* noise in the
mean: a single report is then too noisy to stand out, and all that counts is the sum. The limit is what a
trusted server that adds noise once would need, `floor`. But reports cost work, and each doubling helps less.

**The rule.** Reports a user: 25, 100, 400, as long as four times as many lower the noise by `WORTH` or
more. It stops at 400: every report is a model's worth of numbers that a user computes and sends, and what is left to
gain is little accuracy. On MNIST at epsilon = 1, four times as many had over a third less noise, and 0.3 points
more accuracy. Who wants these gives the rounds. Everybody takes part in every round (rate 1, the fewest rounds); if the
rounds are given, the rate is reports / rounds; if the rate is given, rounds are reports / rate.

**The learning rate** of the linear model on fixed features: with a rate that falls linearly to 0 the weights
end with noise of standard deviation `learning_rate * clip * noise * rounds / sqrt(3)`. Records have length 1, so
this is about the noise of an output. Trials on a part of the training set, at noise that differed 13-fold,
were best between 1.7 and 3.5; `OUTPUT_NOISE` of it is allowed.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from shoal import _validate, calibrate
from shoal.bounds import certify
from shoal.errors import InvalidInput
from shoal.interval import rounded
from shoal.mechanisms import LocalGaussian, Mechanism, ShuffledCheckIn
from shoal.sampling import PoissonSampling
from shoal.training.ledger import guarantee
from shoal.training.protocol import expected_reports

REPORTS = (25, 100, 400)
WORTH = 0.15
OUTPUT_NOISE = 2.5
_FINE, _COARSE = 1e-3, 3e-2
"""Sigma is at most so much above the least, relatively, before it is rounded up to three digits; plans that are only
weighed are less exact."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A mechanism that meets the budget over these rounds, and what was weighed for it."""

    mechanism: Mechanism
    rounds: int
    noise: float
    """Of the mean of all reports: standard deviation for each weight, in units of the clipping norm."""

    floor: float
    """The same for a trusted server that adds noise once to the sum of everybody: a yardstick."""

    weighed: tuple[Plan, ...] = ()
    """The plans from which the rule chose, this one among them; empty if rounds and rate were given."""

    @property
    def gain(self) -> float | None:
        """By how much four times the reports would lower the noise, as a share, where that was weighed."""
        later = [p for p in self.weighed if p.noise < self.noise]
        return 1.0 - later[-1].noise / self.noise if later else None


def _short(sigma: float) -> float:
    """The next sigma above of three digits."""
    return float(rounded(sigma, digits=3))


def linear_rate(mechanism: Mechanism, *, users: int, rounds: int, clip: float) -> float:
    """The rule's learning rate for a linear model on features of length 1."""
    noise = noise_of_the_mean(mechanism, users=users, rounds=rounds)
    return OUTPUT_NOISE * math.sqrt(3.0) / (clip * noise * rounds)


def noise_of_the_mean(mechanism: Mechanism, *, users: int, rounds: int) -> float:
    """Standard deviation for each weight of the mean of all reports, in units of the clipping norm."""
    reports = expected_reports(mechanism, users)
    if isinstance(mechanism, PoissonSampling):
        return mechanism.sigma / (reports * math.sqrt(rounds))
    return mechanism.sigma / math.sqrt(reports * rounds)


def plan(
    mechanism: Mechanism,
    *,
    users: int,
    epsilon: float,
    delta: float,
    rounds: int | None = None,
    auto_rate: bool = False,
) -> Plan:
    """The least noise within the budget for a mechanism like this one, whose sigma is disregarded.

    Without `rounds` they are chosen by the rule, and with `auto_rate` so is the rate of a check-in.

    >>> from shoal import Shuffle
    >>> found = plan(Shuffle(users=1_000, sigma=1.0, crowd="identical"), users=1_000, epsilon=0.5, delta=1e-5)
    >>> found.mechanism.epsilon(delta=1e-5, rounds=found.rounds).upper <= 0.5
    True
    """
    if auto_rate and not isinstance(mechanism, (ShuffledCheckIn, PoissonSampling)):
        raise InvalidInput(f"rate must not be auto for {mechanism.label}, which has no rate")
    floor = calibrate.sigma(lambda s: LocalGaussian(sigma=s), epsilon=epsilon, delta=delta) / users

    def at(rate: float, count: int, tolerance: float) -> Plan:
        fitting = mechanism.replace(rate=rate) if auto_rate else mechanism
        sigma = calibrate.sigma(
            lambda s: fitting.replace(sigma=s),
            epsilon=epsilon,
            delta=delta,
            rounds=count,
            tolerance=tolerance,
            accuracy=max(0.1 * tolerance, certify.ACCURACY),
        )
        chosen = fitting.replace(sigma=sigma)
        if tolerance == _FINE:
            # The least one of few digits: the same whatever the search met on its way, so that a run can be repeated.
            chosen = fitting.replace(sigma=_short(sigma / (1.0 + tolerance)))
            # What everybody will ask for must be met: bounds of another accuracy differ in their last digits.
            while guarantee(chosen, delta=delta, rounds=count) > epsilon:
                chosen = chosen.replace(sigma=_short(chosen.sigma * (1.0 + 1e-9)))
        noise = noise_of_the_mean(chosen, users=users, rounds=count)
        return Plan(mechanism=chosen, rounds=count, noise=noise, floor=floor)

    if rounds is not None and not auto_rate:
        return at(1.0, _validate.rounds(rounds), _FINE)
    own_rate = 1.0 if auto_rate else expected_reports(mechanism, users) / users
    weighed: list[Plan] = []
    for reports in REPORTS:
        count = max(1, round(reports / own_rate)) if rounds is None else rounds
        rate = min(1.0, reports / count) if auto_rate else own_rate
        weighed.append(at(rate, count, _COARSE))
        worse = len(weighed) > 1 and weighed[-1].noise > (1.0 - WORTH) * weighed[-2].noise
        if worse or (rate == 1.0 and rounds is not None):
            break
    better = len(weighed) < 2 or weighed[-1].noise <= (1.0 - WORTH) * weighed[-2].noise
    chosen = weighed[-1] if better else weighed[-2]
    fine = at(getattr(chosen.mechanism, "rate", 1.0), chosen.rounds, _FINE)
    return dataclasses.replace(fine, weighed=tuple(weighed))
