"""Table 1, Figure 1a and Figure 1b of Liew and Takahashi (2022), recomputed, checked and put beside the exact results.

A `Part` holds one of them: its numbers by column, its picture, what was compared with the print, and
where and why the paper's numbers differ from the exact ones. Nothing is drawn or written here. Each
part has a file, which reads from the top: compute, then columns, picture, checks and differences.

The paper's methods are those of `shoal.literature`; beside them stand exact Rényi DP (all orders, both
directions), the certified bracket for the paper's identical crowd, and that for any crowd.
Figure 1b needs a training run: the accuracy after each evaluated round. The full run of the paper's
parameters that comes with the package was made with `shoal train --preset paper --seed 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shoal import _validate
from shoal.audit import Progress
from shoal.reproduction.figure1a import reproduce_figure1a
from shoal.reproduction.figure1b import GENERIC_ORDERS, reproduce_figure1b
from shoal.reproduction.frontier import FRONTIER, reproduce_frontier
from shoal.reproduction.parts import DELTA, Check, Column, Part, Picture, Rounding, verdict
from shoal.reproduction.runs import PACKAGED_RUN, TrainingRun, read_run
from shoal.reproduction.table1 import reproduce_table1

__all__ = [
    "DELTA",
    "FRONTIER",
    "GENERIC_ORDERS",
    "NAMES",
    "PACKAGED_RUN",
    "Check",
    "Column",
    "Part",
    "Picture",
    "Progress",
    "Rounding",
    "TrainingRun",
    "read_run",
    "reproduce",
    "reproduce_figure1a",
    "reproduce_figure1b",
    "reproduce_frontier",
    "reproduce_table1",
    "verdict",
]

NAMES = ("table1", "figure1a", "figure1b", "frontier")


def reproduce(
    names: Sequence[str] = NAMES, *, progress: Progress | None = None, run: Path | None = None
) -> Iterator[Part]:
    """The parts asked for, one after the other."""
    makers: dict[str, Callable[[], Part]] = {
        "table1": lambda: reproduce_table1(progress),
        "figure1a": lambda: reproduce_figure1a(progress),
        "figure1b": lambda: reproduce_figure1b(progress, run=run),
        "frontier": lambda: reproduce_frontier(progress),
    }
    for name in names:
        yield makers[_validate.choice("name", name, NAMES)]()
