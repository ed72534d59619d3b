"""The bounds of Liew and Takahashi (2022) and of their competitors, as baselines.

Liew and Takahashi (2022), Shuffle Gaussian Mechanism for Differential Privacy, arXiv:2206.09569.
Each function implements one published statement and departs from it only where its docstring says so. They reproduce
the paper's table and figures, and show what exact accounting gains. For a guarantee, use the mechanisms of `shoal`:
the Rényi bounds here cover one direction, D(P||Q), and the paper's crowd, in which all other users hold the vector
that the moved user held.

    partitions.py    Theorem 1 by Algorithm 1, Corollary 1, and Theorem 1 by series
    sampling.py      Theorem 2: a fixed number of users is sampled             (partitions)
    composition.py   optimal composition; conversion of Rényi bounds
    clones.py        amplification by shuffling of any local randomiser
    checkin.py       Theorem 3, the exact sum it bounds, and two baselines     (all of the above)
    tables.py        Table 1 and Figure 1a                                     (all of the above)
    compare.py       one mechanism by every method                             (all of the above)

>>> from shoal import literature
>>> f"{literature.algorithm1(users=1_000, order=8, sigma=1.0):.12g}"
'0.00690906441954'
>>> literature.corollary1(order=8, sigma=1.0)
4.0
"""

from __future__ import annotations

from shoal.literature.checkin import checkin_baseline, checkin_sum, checkin_sum_printed, generic_bound, theorem3
from shoal.literature.clones import GaussianClones, Guarantee, clones, clones_gaussian, clones_profile
from shoal.literature.composition import epsilon_from_rdp, optimal_composition
from shoal.literature.partitions import algorithm1, corollary1, partitions, shuffle_rdp
from shoal.literature.sampling import theorem2
from shoal.literature.tables import PRINTED_TABLE1, TABLE1_NOTE, Figure1a, Table1, figure1a, table1

__all__ = [
    "PRINTED_TABLE1",
    "TABLE1_NOTE",
    "Figure1a",
    "GaussianClones",
    "Guarantee",
    "Table1",
    "algorithm1",
    "checkin_baseline",
    "checkin_sum",
    "checkin_sum_printed",
    "clones",
    "clones_gaussian",
    "clones_profile",
    "corollary1",
    "epsilon_from_rdp",
    "figure1a",
    "generic_bound",
    "optimal_composition",
    "partitions",
    "shuffle_rdp",
    "table1",
    "theorem2",
    "theorem3",
]
