"""Pictures, in one style. matplotlib is imported when the first one is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import _extras
from shoal.interval import Interval

# Okabe and Ito's palette, which colour-blind readers can tell apart; dashes serve print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_MARKS = ("o", "s", "d", "^", "v", "P", "X")
_MARKERS = ("o", "|", "d", "s", "^")
_STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve: a label, x, upper bounds, and lower bounds where they are known; or means, and their spread."""

    label: str
    x: Sequence[float]
    upper: Sequence[float]
    lower: Sequence[float] | None = None
    top: Sequence[float] | None = None
    """Where the band ends above, if not on the line."""

    marks: bool = False
    """Whether each point gets a mark, as few points should."""


def band(label: str, x: Sequence[float], brackets: Iterable[Interval], *, marks: bool = False) -> Line:
    """The line of certified brackets; no band where nothing is known from below."""
    every = list(brackets)
    upper, lower = [b.upper for b in every], [b.lower for b in every]
    return Line(label=label, x=x, upper=upper, lower=lower if any(lower) else None, marks=marks)


def draw(
    lines: Sequence[Line],
    path: str | Path,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    logarithmic: str = "xy",
) -> Path:
    """Write a picture of the lines (PNG, SVG or PDF by the file's ending) and return its path.

    The axes named in `logarithmic` are so where the values allow it; a line with lower bounds gets a band.
    """
    target, plt = check(path), _pyplot()
    from matplotlib import ticker

    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
        for i, line in enumerate(lines):
            colour, dash = _COLOURS[i % len(_COLOURS)], _DASHES[i % len(_DASHES)]
            marker = _MARKS[i % len(_MARKS)] if line.marks or len(line.x) == 1 else None
            axes.plot(line.x, line.upper, color=colour, linestyle=dash, linewidth=2, marker=marker, label=line.label)
            if line.lower is not None:
                top = line.upper if line.top is None else line.top
                axes.fill_between(line.x, line.lower, top, color=colour, alpha=0.25, linewidth=0)
        if "x" in logarithmic and all(x > 0 for line in lines for x in line.x):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(ticker.FuncFormatter(_tick))
            axes.xaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(1.0, 0.5)))
        if "y" in logarithmic and all(y > 0 for line in lines for y in line.upper):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(ticker.FuncFormatter(_tick))
            axes.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(1.0, 0.5)))
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(title, loc="left", fontsize=12)
        axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.8)
        if len(lines) > 4:  # too many to stand inside without hiding a line
            figure.legend(loc="outside lower center", ncols=2, frameon=False)
        else:
            axes.legend(frameon=False)
        figure.savefig(target, dpi=160)
        plt.close(figure)
    return target


def draw_rows(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    path: str | Path,
    *,
    title: str,
    xlabel: str,
) -> Path:
    """Write a picture with one row for each label and in it one mark for each series that has a value."""
    target, plt = check(path), _pyplot()
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 1.8 + 0.4 * len(labels)), layout="constrained")
        places = range(len(labels))
        for i, (name, values) in enumerate(series.items()):
            shown = [(x, y) for x, y in zip(values, places, strict=True) if x is not None]
            axes.plot(
                [x for x, _ in shown],
                [y for _, y in shown],
                color=_COLOURS[i % len(_COLOURS)],
                marker=_MARKERS[i % len(_MARKERS)],
                markersize=14 if _MARKERS[i % len(_MARKERS)] == "|" else 8,
                markeredgewidth=2,
                linestyle="none",
                clip_on=False,
                label=name,
            )
        axes.set_yticks(list(places), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlim(left=0.0)
        axes.set_xlabel(xlabel)
        axes.set_title(title, loc="left", fontsize=12)
        axes.grid(visible=True, color="#dddddd", linewidth=0.8)
        figure.legend(loc="outside lower center", ncols=len(series), frameon=False)
        figure.savefig(target, dpi=160)
        plt.close(figure)
    return target


def check(path: str | Path) -> Path:
    """The file, if a picture can be drawn to it: to be asked before a long computation."""
    target = Path(path)
    if target.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"plot must be a .png, .svg or .pdf file, got {str(path)!r}")
    _extras.need("plot needs matplotlib", "plot", "matplotlib")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _tick(value: float, _: Any) -> str:
    if value <= 0:
        return f"{value:g}"
    return f"{value:,.0f}" if 1 <= value < 1e7 and value == round(value) else f"{value:g}"
