"""From a budget to a plan: noise, number of rounds, rate, learning rate.

A training learns from the mean of all its reports. The noise of that mean has, for each weight and
in units of the clipping norm, the standard deviation

    noise = sigma / sqrt(reports of all rounds)     (a trusted server's: sigma / (users a round * sqrt(rounds)))

and epsilon fixes sigma once rounds and rate are chosen. Epsilon depends on them through `rounds * rate`, the
reports that a user sends, and hardly otherwise. More reports with more noise each leave *less* noise in the
mean: a single report is then too noisy to stand out, and only the sum matters. The limit is what a
trusted server that adds noise once would need, `floor`. But reports cost work, and each doubling helps less.

**The rule.** A user sends 25 reports, 100, or 400: the next number as long as it lowers the noise by at least
`NOISE_GAIN_MIN`. It stops at 400: each report is a model's worth of numbers that a user computes and sends, and little
accuracy is left to gain. On MNIST at epsilon = 1, four times as many had over a third less noise, and 0.3 points more
accuracy. To send more, set the number of rounds. Everybody takes part in each round (rate 1, the fewest rounds); if the
rounds are set, the rate is reports / rounds; if the rate is set, the rounds are reports / rate.

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
from shoal.formatting import rounded
from shoal.mechanisms import LocalGaussian, Mechanism
from shoal.training.ledger import guarantee
from shoal.training.protocol import expected_reports

REPORTS = (25, 100, 400)
NOISE_GAIN_MIN = 0.15
OUTPUT_NOISE = 2.5
_FINE, _COARSE = 1e-3, 3e-2
"""Relative tolerance of sigma: for the chosen plan, before it is rounded up to three digits, and for the others."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A mechanism that meets the budget over its rounds, and the plans it was chosen from."""

    mechanism: Mechanism
    rounds: int
    noise: float
    """The noise of the mean of all reports, for each weight, in clipping norms."""

    floor: float
    """The noise if a trusted server added it once to the sum over all users: a yardstick."""

    weighed: tuple[Plan, ...] = ()
    """The plans from which the rule chose, including this one; empty if rounds and rate were set."""

    @property
    def gain(self) -> float | None:
        """The share by which four times the reports would lower the noise, if that was computed."""
        later = [p for p in self.weighed if p.noise < self.noise]
        return 1.0 - later[-1].noise / self.noise if later else None


def _three_digits(sigma: float) -> float:
    """Sigma rounded up to three digits."""
    return float(rounded(sigma, digits=3))


def linear_rate(mechanism: Mechanism, *, users: int, rounds: int, clip: float) -> float:
    """The rule's learning rate for a linear model on features of length 1.

    Args:
        mechanism: What is run in each round.
        users: Number of users.
        rounds: Number of rounds.
        clip: The clipping norm.

    Returns:
        The learning rate of the first round, from which it falls to 0.
    """
    noise = noise_of_the_mean(mechanism, users=users, rounds=rounds)
    return OUTPUT_NOISE * math.sqrt(3.0) / (clip * noise * rounds)


def noise_of_the_mean(mechanism: Mechanism, *, users: int, rounds: int) -> float:
    """Standard deviation of the mean of all reports, for each weight, in units of the clipping norm.

    Args:
        mechanism: What is run in each round.
        users: Number of users.
        rounds: Number of rounds.

    Returns:
        The standard deviation.
    """
    reports = expected_reports(mechanism, users)
    if mechanism.noise_by == "server":
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
    """The plan with the smallest noise within a budget.

    Args:
        mechanism: What is run in each round; its sigma is ignored.
        users: Number of users.
        epsilon: The budget.
        delta: The delta of the budget.
        rounds: Number of rounds; None lets the rule choose.
        auto_rate: Whether the rule chooses the rate of a check-in.

    Returns:
        The plan.

    Raises:
        InvalidInput: If the rate is to be chosen for a mechanism that has none.

    >>> from shoal import Shuffle
    >>> chosen = plan(Shuffle(users=1_000, sigma=1.0, crowd="identical"), users=1_000, epsilon=0.5, delta=1e-5)
    >>> chosen.mechanism.epsilon(delta=1e-5, rounds=chosen.rounds).upper <= 0.5
    True
    """
    if auto_rate and mechanism.sampling != "coin":
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
            # With few digits it does not depend on where the search ended, so that a run can be repeated.
            chosen = fitting.replace(sigma=_three_digits(sigma / (1.0 + tolerance)))
            # Bounds of another accuracy differ in their last digits; the guarantee itself must meet the budget.
            while guarantee(chosen, delta=delta, rounds=count) > epsilon:
                chosen = chosen.replace(sigma=_three_digits(chosen.sigma * (1.0 + 1e-9)))
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
        worse = len(weighed) > 1 and weighed[-1].noise > (1.0 - NOISE_GAIN_MIN) * weighed[-2].noise
        if worse or (rate == 1.0 and rounds is not None):
            break
    better = len(weighed) < 2 or weighed[-1].noise <= (1.0 - NOISE_GAIN_MIN) * weighed[-2].noise
    chosen = weighed[-1] if better else weighed[-2]
    fine = at(chosen.mechanism.participation, chosen.rounds, _FINE)
    return dataclasses.replace(fine, weighed=tuple(weighed))
