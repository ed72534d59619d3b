"""Pictures, in one style. matplotlib is imported when the first one is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal import _extras
from shoal.errors import InvalidInput
from shoal.interval import Interval

# Okabe and Ito's palette, which colour-blind readers can tell apart; dashes serve print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_MARKS = ("o", "s", "d", "^", "v", "P", "X")
_MARKERS = ("o", "|", "d", "s", "^")
_STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve: a label, x, and upper and lower bounds; or means and their spread."""

    label: str
    x: Sequence[float]
    upper: Sequence[float]
    lower: Sequence[float] | None = None
    top: Sequence[float] | None = None
    """The upper edge of the band, if it is not the line."""

    marks: bool = False
    """Whether each point gets a mark, as few points should."""
    look: int | None = None
    """The number of its colour and dashes; by default its place. The panels of a picture share them."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes; those named in `logarithmic` are logarithmic if the values are positive."""

    lines: Sequence[Line]
    title: str
    xlabel: str
    ylabel: str
    logarithmic: str = "xy"
    floor: float | None = None
    """Values of y below it are not drawn: they are not resolved."""


def band(label: str, x: Sequence[float], brackets: Iterable[Interval], *, marks: bool = False) -> Line:
    """The line of certified intervals, with a band if some lower end is positive.

    Args:
        label: The name of the line.
        x: The places.
        brackets: The interval at each place.
        marks: Whether each point gets a mark.

    Returns:
        The line.
    """
    intervals = list(brackets)
    upper, lower = [b.upper for b in intervals], [b.lower for b in intervals]
    return Line(label=label, x=x, upper=upper, lower=lower if any(lower) else None, marks=marks)


def draw(
    lines: Sequence[Line],
    path: str | Path,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    logarithmic: str = "xy",
    floor: float | None = None,
    note: str = "",
) -> Path:
    """Write a picture of lines on one pair of axes.

    Args:
        lines: The lines.
        path: The file, whose ending chooses PNG, SVG or PDF.
        title: The title.
        xlabel: The label of the horizontal axis.
        ylabel: The label of the vertical axis.
        logarithmic: The axes that are logarithmic: "", "x", "y" or "xy".
        floor: Values below it are not drawn.
        note: The text below.

    Returns:
        The file.

    Raises:
        InvalidInput: If the ending is another one.
        MissingExtra: If matplotlib is not installed.
    """
    panel = Panel(lines=lines, title=title, xlabel=xlabel, ylabel=ylabel, logarithmic=logarithmic, floor=floor)
    return draw_panels([panel], path, note=note)


def draw_panels(panels: Sequence[Panel], path: str | Path, *, note: str = "") -> Path:
    """Write a picture with the panels side by side, and a note below.

    Lines that end at the same x are named there, others in a legend. Lines that would cover each other are drawn as
    one, with both names. A picture with a band explains it below.

    Args:
        panels: The panels, from left to right.
        path: The file, whose ending chooses PNG, SVG or PDF.
        note: The text below.

    Returns:
        The file.

    Raises:
        InvalidInput: If the ending is another one.
        MissingExtra: If matplotlib is not installed.
    """
    target, plt = check(path), _pyplot()
    with plt.rc_context(_STYLE):
        width = 8.2 if len(panels) == 1 else 6.4 * len(panels)
        figure, grid = plt.subplots(1, len(panels), figsize=(width, 4.8), layout="constrained", squeeze=False)
        notes = [note] if note else []
        for axes, panel in zip(grid[0], panels, strict=True):
            # A legend hides what is under it, so names stand at the ends wherever all lines end together.
            lines = _merged(_above(panel))
            named = _end_together(lines)
            for i, line in enumerate(lines):
                _curve(axes, line, i)
            _scale(axes, "x", panel, [x for line in lines for x in line.x])
            _scale(axes, "y", panel, [y for line in lines for y in line.upper])
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
            axes.set_title(panel.title, loc="left", fontsize=12)
            axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.8)
            if not named and len(lines) > 4:  # too many to stand inside without hiding a line
                figure.legend(loc="outside lower center", ncols=2, frameon=False)
            elif not named:
                axes.legend(frameon=False)
            if any(_has_band(line) for line in lines) and _BAND not in notes:
                notes.append(_BAND)
        if notes:
            figure.supxlabel("\n".join(notes), fontsize=9, color="#444444")
        figure.canvas.draw()  # the layout first: labels are spread in its units
        for axes, panel in zip(grid[0], panels, strict=True):
            lines = _merged(_above(panel))
            if _end_together(lines):
                _name_ends(axes, lines)
        figure.savefig(target, dpi=160)
        plt.close(figure)
    return target


_BAND = "Shaded: the truth lies in it. Its upper edge is proved; its lower edge is what some attack reaches."


def _above(panel: Panel) -> list[Line]:
    """The lines without what is below the floor."""
    if panel.floor is None:
        return list(panel.lines)
    lines = []
    for line in panel.lines:
        shown = [i for i, y in enumerate(line.upper) if y >= panel.floor]
        lower = None if line.lower is None else [max(line.lower[i], panel.floor) for i in shown]
        if shown:
            x, upper = [line.x[i] for i in shown], [line.upper[i] for i in shown]
            lines.append(replace(line, x=x, upper=upper, lower=lower))
    return lines


def _has_band(line: Line) -> bool:
    """Whether there is a bracket wide enough to be seen; a band with a top of its own is something else."""
    return (
        line.top is None
        and line.lower is not None
        # A twentieth is about the width of a line.
        and any(u > 1.05 * low for u, low in zip(line.upper, line.lower, strict=True))
    )


def _merged(lines: Sequence[Line]) -> list[Line]:
    """Lines that run within a three-hundredth of the height of each other become one."""
    values = [y for line in lines for y in line.upper if 0.0 < y < math.inf]
    height = math.log(max(values) / min(values)) if values and min(values) < max(values) else 1.0
    merged: list[Line] = []
    for line in lines:
        for i, earlier in enumerate(merged):
            pairs = list(zip(line.upper, earlier.upper, strict=False))
            same = list(line.x) == list(earlier.x) and len(line.x) > 1 and all(a > 0.0 and b > 0.0 for a, b in pairs)
            if same and max(abs(math.log(a / b)) for a, b in pairs) < height / 300.0:
                merged[i] = replace(earlier, label=f"{earlier.label}\n≈ {line.label}")
                break
        else:
            merged.append(line)
    return merged


def _end_together(lines: Sequence[Line]) -> bool:
    """Whether all lines end at the same x, so that they can be named there."""
    ends = {max(line.x) for line in lines if len(line.x)}
    return len(ends) == 1 and all(len(line.x) > 1 for line in lines)


def _look(line: Line, i: int) -> tuple[str, Any, str]:
    place = i if line.look is None else line.look
    return _COLOURS[place % len(_COLOURS)], _DASHES[place % len(_DASHES)], _MARKS[place % len(_MARKS)]


def _curve(axes: Any, line: Line, i: int) -> None:
    colour, dash, mark = _look(line, i)
    marker = mark if line.marks or len(line.x) == 1 else None
    axes.plot(
        line.x, line.upper, color=colour, linestyle=dash, linewidth=2, marker=marker, markersize=4, label=line.label
    )
    if line.lower is not None:
        top = line.upper if line.top is None else line.top
        axes.fill_between(line.x, line.lower, top, color=colour, alpha=0.25, linewidth=0)


def _name_ends(axes: Any, lines: Sequence[Line]) -> None:
    """Write each line's name to the right of its end, joined to it by a thin line; names never overlap."""
    height = axes.bbox.height
    lowest, highest = axes.bbox.y0, axes.bbox.y1
    ends = []
    for i, line in enumerate(lines):
        x, y = max(zip(line.x, line.upper, strict=True), key=lambda point: point[0])
        place = axes.transData.transform((x, y))
        ends.append((float(min(max(place[1], lowest), highest) - lowest) / height, i, line, y))
    ends.sort(key=lambda end: end[0])
    rows = [1 + line.label.count("\n") for _, _, line, _ in ends]
    # A line of text takes about this part of the height, with some room around it.
    spots = _apart([end[0] for end in ends], [0.058 * n for n in rows])
    for spot, (_, i, line, value) in zip(spots, ends, strict=True):
        colour = _look(line, i)[0]
        axes.annotate(
            line.label,
            xy=(max(line.x), value),
            xycoords="data",
            xytext=(1.04, spot),
            textcoords="axes fraction",
            color=colour,
            va="center",
            ha="left",
            fontsize=9.5,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 2},
        )


def _apart(targets: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """The places nearest to the (rising) targets at which labels of these sizes do not touch."""
    places = list(targets)
    # Neighbours that touch push each other apart until none do; a few labels need a few dozen turns.
    for _ in range(200):
        moved = False
        for i in range(len(places) - 1):
            missing = 0.5 * (sizes[i] + sizes[i + 1]) - (places[i + 1] - places[i])
            if missing > 1e-9:
                places[i] -= 0.5 * missing
                places[i + 1] += 0.5 * missing
                moved = True
        if not moved:
            break
    return places


def _scale(axes: Any, name: str, panel: Panel, values: Sequence[float]) -> None:
    """Scale an axis, logarithmically if the panel says so and all values are positive."""
    from matplotlib import ticker

    axis = getattr(axes, f"{name}axis")
    if name not in panel.logarithmic or not values or min(values) <= 0.0:
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: plain(value)))
        return
    getattr(axes, f"set_{name}scale")("log")
    low, high = min(values), max(values)
    # One notation for all ticks: plain numbers while they are short, else powers of ten.
    powers = not (low >= 1e-4 and high < 1e7)
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: tick(value, powers=powers)))
    # Within one decade the powers of ten alone would be one tick or two.
    short = high / low < 12.0
    axis.set_minor_locator(ticker.LogLocator(base=10.0, subs=(2.0, 3.0, 5.0) if short else range(2, 10)))
    axis.set_minor_formatter(ticker.FuncFormatter(lambda value, _: tick(value, powers=powers) if short else ""))


def plain(value: float) -> str:
    """A number on an axis without an exponent: `60,000`, `0.05`."""
    text = f"{value:,.12f}".rstrip("0").rstrip(".") if abs(value) >= 1e-9 else "0"
    return text.replace("-", "−")


def tick(value: float, *, powers: bool) -> str:
    """The label of a tick: a plain number or a power of ten.

    >>> tick(0.001, powers=False), tick(1e-7, powers=True)
    ('0.001', '$10^{-7}$')

    Args:
        value: The number.
        powers: Whether the axis is labelled by powers of ten.

    Returns:
        The label.
    """
    if not powers or value <= 0.0:
        return plain(value)
    exponent = math.floor(math.log10(value) + 1e-9)
    digits = value / 10.0**exponent
    return f"$10^{{{exponent}}}$" if abs(digits - 1.0) < 1e-6 else f"${digits:.3g}\\times10^{{{exponent}}}$"


def draw_rows(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    path: str | Path,
    *,
    title: str,
    xlabel: str,
) -> Path:
    """Write a picture with one row per label and one mark per series.

    Args:
        labels: The names of the rows.
        series: The values of each series, by its name; None leaves a mark out.
        path: The file, whose ending chooses PNG, SVG or PDF.
        title: The title.
        xlabel: The label of the axis.

    Returns:
        The file.

    Raises:
        InvalidInput: If the ending is another one.
        MissingExtra: If matplotlib is not installed.
    """
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
    """The path, if a picture can be written there; call it before a long computation."""
    target = Path(path)
    if target.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidInput(f"plot must be a .png, .svg or .pdf file, got {str(path)!r}")
    _extras.need("plot needs matplotlib", "plot", "matplotlib")
    target.parent.mkdir(parents=True, exist_ok=True)
    existed = target.exists()
    with target.open("ab"):  # an unwritable file is refused here, not after the computation
        pass
    if not existed:
        target.unlink()
    return target


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # files only: a machine without a screen will do
    from matplotlib import pyplot

    return pyplot
