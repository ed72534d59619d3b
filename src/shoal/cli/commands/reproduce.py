"""The command `shoal reproduce`."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal import _extras
from shoal.cli import options as opt
from shoal.cli.commands import train as training
from shoal.errors import InvalidInput

if TYPE_CHECKING:
    from shoal.reproduction import Part


class What(str, enum.Enum):
    table1 = "table1"
    figure1a = "figure1a"
    figure1b = "figure1b"
    frontier = "frontier"
    all = "all"


def reproduce(
    what: Annotated[What, typer.Argument(help="What to recompute.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the report, pictures and data.")] = Path("paper"),
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A run folder of shoal train for Figure 1b. [default: the full run kept here]"
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option("--train", help="Train anew for Figure 1b, in DIR/run: an hour or more; goes on if it exists."),
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """The paper's table and figures: recomputed, checked against the print, beside the exact results.

    And the frontier: what accuracy trainings reach at a chosen epsilon, each epsilon recomputed.

    Writes report.html, which needs no other file, and for each part a picture (PNG, SVG) and data (CSV).
    Exit code 1 if a recomputed number is not the printed one.

    Examples:

    \b
    shoal reproduce table1 --out paper

    \b
    shoal reproduce all
    """
    from shoal.cli import report, show
    from shoal.plots import check
    from shoal.reproduction import PART_NAMES
    from shoal.reproduction import reproduce as recompute

    names = PART_NAMES if what is What.all else (what.value,)
    if (train or run is not None) and "figure1b" not in names:
        raise InvalidInput(f"{'train' if train else 'run'} is for figure1b only, got {what.value}")
    if train and run is not None:
        raise InvalidInput("train and run cannot be given together: one makes the run that the other reads")
    # Before an hour of training: a folder that cannot be written to, or a missing extra, is told now.
    check(out / "report.png")
    if train:
        run = _trained(out / "run")
    with show.progress("the paper's methods") as bar:
        parts = list(recompute(names, run=run, progress=bar))
    files = report.write(parts, out, redo=f"--run {run}" if run is not None else "")
    if as_json:
        listed: list[dict[str, Any]] = [
            {
                "name": part.name,
                "rows": [dict(zip((c.key for c in part.columns), row, strict=True)) for row in part.rows],
                "checks": [vars(c) for c in part.checks],
                "differences": part.differences,
            }
            for part in parts
        ]
        show.emit_json({"parts": listed, "files": [str(f) for f in files]})
    else:
        for part in parts:
            _say(part)
        show.say_path("Report", files[0], " (needs no other file); pictures and data beside it.")
    # Where the paper is wrong a check is expected to differ; only what comes out otherwise is a failure.
    surprises = [c for part in parts for c in part.surprises]
    for c in surprises:
        print(f"shoal: not as expected: {c.statement}: printed {c.printed}, recomputed {c.recomputed}", file=sys.stderr)
    if surprises:
        raise typer.Exit(code=1)


def _trained(folder: Path) -> Path:
    """The run folder after a full training with the paper's parameters; an interrupted one goes on."""
    _extras.need("train needs PyTorch", "train", "torch")
    if (folder / "config.json").is_file():
        training.train(resume=folder)
    else:
        training.train(preset=training.Preset.paper, seed=1, out=folder)
    return folder


def _say(part: Part) -> None:
    from shoal.cli import report, show

    rows = list(part.rows)
    # A screen has room for eight; the file has all.
    picked = rows if len(rows) <= 8 else [rows[round(i * (len(rows) - 1) / 7)] for i in range(8)]
    cells = [[report.cell(c, v, 3) for c, v in zip(part.columns, row, strict=True) if c.short] for row in picked]
    show.table(f"{part.title}\n{part.setting}", [c.short for c in part.columns if c.short], cells)
    show.say(
        "ε (upper bounds), zero-out adjacency; ident(ical) and any: the crowd; tight: certified, within its bracket."
    )
    if len(picked) < len(rows):
        show.say(f"{len(picked)} of {len(rows)} rows; all are in {part.name}.csv.")
    show.say(f"{part.verdict[0].upper()}{part.verdict[1:]}. Where and why the paper differs from the truth:")
    for text in part.differences:
        show.say(f"  • {text}")
    show.say("")
