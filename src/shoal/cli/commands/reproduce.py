"""The command `shoal reproduce`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shoal import _extras, reproduction
from shoal.cli import options as opt
from shoal.cli import reproduction_report as report
from shoal.cli import screen
from shoal.errors import InvalidInput
from shoal.plots import check
from shoal.reproduction import PART_NAMES, Part

PartName = Literal["table1", "figure1a", "figure1b", "frontier", "all"]

ROWS_ON_SCREEN = 8
"""The files have all rows."""


def reproduce_command(
    name: Annotated[
        PartName,
        typer.Argument(
            metavar="PART",
            help=f"What to recompute: {', '.join(PART_NAMES)} or all.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the report, pictures and data.")] = Path("paper"),
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A run folder of shoal train for Figure 1b. [default: the full run in this package]"
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="Train anew for Figure 1b, in DIR/run, which takes an hour or more; continue a run there."
        ),
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Recompute the paper's table and figures, and check them against the printed numbers.

    The part frontier shows what accuracy trainings reach at a chosen epsilon, each epsilon recomputed.

    Writes report.html, which needs no other file, and for each part a picture (PNG, SVG) and data (CSV).
    The exit code is 1 if a recomputed number is not the printed one.

    Examples:

    \b
    shoal reproduce table1 --out paper

    \b
    shoal reproduce all
    """
    names = PART_NAMES if name == "all" else (name,)
    if (train or run is not None) and "figure1b" not in names:
        raise InvalidInput(f"{'train' if train else 'run'} is for figure1b only, got {name}")
    if train and run is not None:
        raise InvalidInput("train and run cannot be given together: one makes the run that the other reads")
    # Before an hour of training: is the folder writable, and is the extra for pictures there?
    check(out / "report.png")
    if train:
        run = _trained(out / "run")
    with screen.progress_bar("the paper's methods") as bar:
        parts = list(reproduction.reproduce(names, run=run, progress=bar))
    files = report.write_report(parts, out, options=f"--run {run}" if run is not None else "")
    if as_json:
        screen.print_json({"parts": [_part_data(part) for part in parts], "files": [str(file) for file in files]})
    else:
        for part in parts:
            _print_part(part)
        screen.print_path("Report", files[0], " (needs no other file). Pictures and data are beside it.")
    _refuse_surprises(parts)


def _trained(folder: Path) -> Path:
    """Return the run folder after a full training with the paper's parameters; an interrupted one goes on."""
    _extras.need("train needs PyTorch", "train", "torch")
    from shoal import training
    from shoal.cli.training import session

    if (folder / "config.json").is_file():
        run = session.resumed(folder)
    else:
        config, _, data = session.prepared("paper", {}, seed=1)
        run = training.start(config, data, folder)
    session.train_to_the_end(run, folder)
    return folder


def _part_data(part: Part) -> dict[str, Any]:
    """Return a part for programs."""
    keys = [column.key for column in part.columns]
    return {
        "name": part.name,
        "rows": [dict(zip(keys, row, strict=True)) for row in part.rows],
        "checks": [vars(item) for item in part.checks],
        "differences": part.differences,
    }


def _print_part(part: Part) -> None:
    """Print some rows of a part, and where and why the paper differs."""
    rows = list(part.rows)
    if len(rows) > ROWS_ON_SCREEN:
        last = ROWS_ON_SCREEN - 1
        shown = [rows[round(i * (len(rows) - 1) / last)] for i in range(ROWS_ON_SCREEN)]
    else:
        shown = rows
    heads = [column.short for column in part.columns if column.short]
    cells = [
        [report.cell_text(column, value, 3) for column, value in zip(part.columns, row, strict=True) if column.short]
        for row in shown
    ]
    screen.print_table(f"{part.title}\n{part.setting}", heads, cells)
    screen.print_text(
        "ε (upper bounds), zero-out adjacency. The crowd is identical (ident) or any; tight: within a certified "
        "interval."
    )
    if len(shown) < len(rows):
        screen.print_text(f"{len(shown)} of {len(rows)} rows; all are in {part.name}.csv.")
    verdict = part.verdict
    screen.print_text(f"{verdict[0].upper()}{verdict[1:]}. Where and why the paper differs from the truth:")
    for text in part.differences:
        screen.print_text(f"  • {text}")
    screen.print_text("")


def _refuse_surprises(parts: Sequence[Part]) -> None:
    """End with exit code 1 if a check came out otherwise than it should: some should fail, where the paper is wrong."""
    surprises = [item for part in parts for item in part.surprises]
    for item in surprises:
        print(
            f"shoal: not as expected: {item.statement}: printed {item.printed}, recomputed {item.recomputed}",
            file=sys.stderr,
        )
    if surprises:
        raise typer.Exit(code=1)
