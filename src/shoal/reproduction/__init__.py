"""Table 1, Figure 1a and Figure 1b of Liew and Takahashi (2022), recomputed and checked.

A `Part` holds one table or figure: its numbers by column, its picture, the comparison with the printed numbers, and
where and why the paper's numbers differ from the exact ones. This package draws and writes nothing. Each part has a
file: a class with all numbers and what is shown of them, and a function that computes them.

The paper's methods come from `shoal.literature`. Beside them stand exact Rényi DP (all orders, both
directions), and certified intervals for the paper's identical crowd and for any crowd.
Figure 1b needs a training run: the accuracy after each evaluated round. The packaged run with the paper's parameters
was made with `shoal train --preset paper --seed 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shoal import _validate
from shoal.progress import Progress
from shoal.reproduction.figure1a import reproduce_figure1a
from shoal.reproduction.figure1b import GENERIC_ORDERS, reproduce_figure1b
from shoal.reproduction.frontier import FRONTIER, reproduce_frontier
from shoal.reproduction.parts import PAPER_DELTA, Check, Column, Part, Picture, Rounding, verdict
from shoal.reproduction.runs import PACKAGED_RUN, TrainingRun, read_run
from shoal.reproduction.table1 import reproduce_table1

__all__ = [
    "FRONTIER",
    "GENERIC_ORDERS",
    "PACKAGED_RUN",
    "PAPER_DELTA",
    "PART_NAMES",
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

PART_NAMES = ("table1", "figure1a", "figure1b", "frontier")


def reproduce(
    names: Sequence[str] = PART_NAMES, *, progress: Progress | None = None, run: Path | None = None
) -> Iterator[Part]:
    """Yield the recomputed parts, one at a time.

    Args:
      names: Which parts, from `PART_NAMES`.
      progress: Called with the name of each step and the share done.
      run: The run folder of `shoal train` for Figure 1b; the packaged run if None.

    Yields:
      The parts, in the order of the names.

    Raises:
      InvalidInput: If a name is unknown.
      DataError: If the run folder cannot be read.
    """
    makers: dict[str, Callable[[], Part]] = {
        "table1": lambda: reproduce_table1(progress),
        "figure1a": lambda: reproduce_figure1a(progress),
        "figure1b": lambda: reproduce_figure1b(progress, run=run),
        "frontier": lambda: reproduce_frontier(progress),
    }
    for name in names:
        yield makers[_validate.choice("name", name, PART_NAMES)]()
