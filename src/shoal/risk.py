"""The probability of a right guess about one user: at a prior, or from a baseline.

All functions read a certified curve of a `Mechanism` or an `Accountant`, so their intervals hold for every attacker who
sees what the server sees and knows all but the one user.

**Bayes accuracy.** Somebody who holds it probable with `prior` that the user's data was used guesses right with
probability at most (Neyman and Pearson 1933; with t = (1 - prior) / prior, E_t the hockey-stick divergence)

    (1 - prior) + prior E_t(P || Q) = max(prior, 1 - prior) + min(prior, 1 - prior) delta(|log t|),

where delta is of D(P || Q) for t >= 1 and of D(Q || P) otherwise. Here delta is the larger of both.

**Guessing a secret.** Suppose that a secret of the user (an attribute, a record up to some error, a predicate that
singles the user out) is guessed right with probability at most `baseline` by anyone who has not seen the output. With
the output the guess is right with probability at most `tpr(baseline)`, the largest true positive rate at that false
positive rate.

*Proof.* Let the secret be s ~ pi, and A_s the set of outputs from which the guess is right for s. Without the user's
data the output does not depend on s, so the mean of `Q(A_s)` over s is at most the baseline. With it the mean of
`P_s(A_s) <= tpr(Q(A_s))` is at most `tpr(mean of Q(A_s))`, because tpr is concave, and tpr rises. ∎ (Compare Hayes,
Mahloujifar and Balle 2023, arXiv:2302.07225, and Kulynych et al. 2025, arXiv:2507.06969.)
"""

from __future__ import annotations

import math

from shoal import _validate
from shoal.curves import CurveQuestions, CurveSource
from shoal.interval import Interval

_ROUNDED_UP, _ROUNDED_DOWN = 1.0 + 2.0**-50, 1.0 - 2.0**-50
"""Factors that cover the rounding of a few operations with numbers between 0 and 1."""


def bayes_accuracy(source: CurveSource, *, prior: float = 0.5, rounds: int = 1) -> Interval:
    """The probability that the best guess about one user's participation is right.

    Args:
        source: A mechanism, or an accountant.
        prior: How probable the guesser holds it beforehand that the user's data was used. The worse of this and
            `1 - prior` counts.
        rounds: The number of rounds; 1 for an accountant.

    Returns:
        A bracket of the probability. Without the output it is `max(prior, 1 - prior)`.

    Raises:
        InvalidInput: If an argument is out of its range.

    >>> from shoal import LocalGaussian
    >>> accuracy = bayes_accuracy(LocalGaussian(sigma=1.0))  # Phi(1/2)
    >>> 0.6914 < accuracy.lower <= accuracy.upper < 0.6915
    True
    """
    prior = _validate.probability("prior", prior)
    delta_at = CurveQuestions.of(source, rounds).delta
    # The likelier side last, and t from both without cancellation where the prior is close to 0 or 1.
    rare, usual = sorted((prior, 1.0 - prior))
    ratio = abs(math.log1p(-prior) - math.log(prior))
    # A larger epsilon has a smaller delta: each end is computed where rounding of the ratio is on its side.
    above = delta_at(max(0.0, ratio * _ROUNDED_DOWN - 2.0**-50))
    below = above if ratio == 0.0 else delta_at(ratio * _ROUNDED_UP + 2.0**-50)
    upper = min(1.0, (usual + rare * above.upper) * _ROUNDED_UP)
    return Interval(lower=min(upper, (usual + rare * below.lower) * _ROUNDED_DOWN), upper=upper)


def guessing(source: CurveSource, *, baseline: float, rounds: int = 1) -> Interval:
    """The probability that a secret of one user is guessed right.

    The secret may be an attribute, a whole record up to some error, or a predicate that singles the user out.

    Args:
        source: A mechanism, or an accountant.
        baseline: The probability of a right guess without the output.
        rounds: The number of rounds; 1 for an accountant.

    Returns:
        A bracket: at least the baseline, at most what the trade-off curve allows. Whether a given secret reaches the
        upper end depends on the secret.

    Raises:
        InvalidInput: If an argument is out of its range.

    >>> from shoal import Shuffle
    >>> guessing(Shuffle(users=1_000, sigma=2.0), baseline=1e-3).upper < 1.2e-3
    True
    """
    baseline = _validate.probability("baseline", baseline)
    power_at = CurveQuestions.of(source, rounds).power
    return Interval(lower=baseline, upper=max(baseline, power_at(baseline).upper))
