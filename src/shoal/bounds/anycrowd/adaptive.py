"""Groups of records that are used one after the other, each of which may react to all outputs before its own.

Terms, letters, places and intervals as in `anycrowd.groups`. There the users of a group stand in one interval, and who
stands where is known beforehand. In sequential shuffling (`anycrowd.sequential`) a record chooses its place when its
turn comes. Given v, let Y_I be the law of one term X_I(v) + v - 1 of a record in interval I, and

    C_0(k) = (-k)+,      C_{j+1}(k) = max over I of E C_j(k - Y_I).

C_b is the stop-loss function of a law of mean 0, and the sum of any b terms that follow one another is below that law,
given the outputs before the first of them. So every b records that are kept are a group; nobody is left over, and
those aside may be any number. Proof: `docs/explanation/guarantee.md`, "Records aside, and adaptive groups".

With one interval, C_b is the stop-loss function of a sum of b independent terms.

*Errors*, next to those of `anycrowd.groups` for one term and of `sums` for sums. All stay with the law, as a
stretch or as a cut.

1. The law of C_j and a term are added as laws that are independent. Let both be known up to a stretch and a cut: about
   their means the exact ones are below the computed ones, stretched by the larger of both stretches, and cuts add up.
   Both hold because a centred law that is stretched is larger, and sums keep the convex order.
2. The largest prices of the intervals, at each of the b steps: the stretch that `groups.law_of_largest_prices` says
   (error 3 there), times that of the law before; the largest cut of the intervals, and prices below 1e-290.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.bounds.anycrowd import groups
from shoal.bounds.anycrowd.groups import Division, MixtureNodes
from shoal.bounds.anycrowd.thinning import Thinning
from shoal.bounds.grid import in_order
from shoal.bounds.numeric import FloatArray
from shoal.bounds.ratio import Lognormal
from shoal.bounds.sums import Batch, atoms_on_grid, batch, batch_sum


@dataclass(frozen=True, kw_only=True)
class AdaptiveDivision(Division):
    """Groups of `size` records that follow one another; `spare` records at least are aside."""

    spare: int

    @property
    def aside(self) -> int:
        return self.spare

    def group_laws(self, ratio: Lognormal, thin: Thinning, nodes: MixtureNodes, half: int, share: float) -> Batch:
        cuts = [self.cuts_for(chance) for chance in nodes.weight.tolist()]
        terms, kinds = groups.interval_batch(ratio, thin, cuts, nodes, half, share)
        return adaptive_sum(terms, kinds, self.size, nodes.weight, share)


def adaptive_sum(terms: Batch, kinds: Sequence[int], size: int, weight: FloatArray, share: float) -> Batch:
    """Laws above the sum of terms whose kinds are chosen one after the other.

    Args:
        terms: Laws of one term, of mean 0, for each value of v and, next to each other, each kind.
        kinds: Number of kinds for each v.
        size: Number of terms in a sum.
        weight: How much each v matters for the choice of the grid.
        share: How much of its first moment may be cut, for each term.

    Returns:
        One law for each v.
    """
    repeats = np.asarray(kinds)
    total = _largest_of_kinds(terms, kinds, weight)
    for _ in range(size - 1):
        # error 1
        before = replace(
            total,
            rows=np.repeat(total.rows, repeats, axis=1),
            stretch=np.repeat(total.stretch, repeats),
            cut=np.repeat(total.cut, repeats),
            weight=terms.weight,
        )
        total = _largest_of_kinds(batch_sum(before, terms, share), kinds, weight)
    return total


def _largest_of_kinds(laws: Batch, kinds: Sequence[int], weight: FloatArray) -> Batch:
    """The law of the largest prices of all kinds, for each v."""
    points = in_order(laws.points())
    rows, stretch, cut = [], [], []
    for last, kind in zip(np.cumsum(kinds).tolist(), kinds, strict=True):
        part = slice(last - kind, last)
        at, masses = groups.without_repeats(points, in_order(laws.rows[0, part]))
        mass, lack = groups.law_of_largest_prices(at, masses / masses.sum(axis=1)[:, None])
        rows.append(atoms_on_grid(at, mass, laws.half, laws.base))
        # error 2
        stretch.append((1.0 + float(laws.stretch[part].max())) * (1.0 + lack) - 1.0)
        cut.append(float(laws.cut[part].max()) + groups.PRICE_CHARGE)
    largest = batch(rows, laws.base, weight=weight, stretch=stretch, cut=cut)
    return replace(largest, count=laws.count)
