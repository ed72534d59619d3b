"""What `shoal reproduce` writes: pictures, CSV files, and one page of HTML that needs no other file."""

from __future__ import annotations

import base64
import csv
import datetime
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from shoal import __version__
from shoal.formatting import rounded
from shoal.plots import draw
from shoal.reproduction import Column, Part, verdict

_CSS = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #59636e; --line: #d7dde3; --blue: #0072B2; --orange: #B34700; }
body { font: 16px/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color: var(--ink); background: #fff;
  max-width: 62rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { margin: 3rem 0 .3rem; border-top: 2px solid var(--line); padding-top: 1.2rem; }
h3 { margin: 1.6rem 0 .3rem; font-size: 1.05rem; }
.soft { color: var(--soft); } img { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .28rem .6rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; } .words td { text-align: left; vertical-align: top; }
.words th { text-align: left; } .good { color: var(--blue); font-weight: 600; } .bad { color: var(--orange);
  font-weight: 600; } code, pre { font: .88rem/1.4 ui-monospace, "DejaVu Sans Mono", monospace; background: #f3f5f7; }
pre { padding: .7rem .9rem; overflow-x: auto; } code { padding: .1rem .25rem; } pre code { padding: 0; }
nav a { margin-right: 1.2rem; } a { color: var(--blue); }
@media print { body { max-width: none; padding: 0; } h2 { break-before: page; } }
"""


def write_report(parts: Sequence[Part], folder: Path, *, options: str = "") -> list[Path]:
    """Write the report, and the picture and the data of each part.

    Args:
      parts: The recomputed parts.
      folder: Where the files go.
      options: What the command for Figure 1b has besides the part's name.

    Returns:
      The files, the report first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    sections = []
    # The page holds its pictures and data itself; the files beside it are for other documents.
    for part in parts:
        pictures = [_drawn(part, folder / f"{part.name}.{ending}") for ending in ("png", "svg")]
        data = folder / f"{part.name}.csv"
        data.write_text(to_csv(part), encoding="utf-8")
        files += [*pictures, data]
        command = f"shoal reproduce {part.name} {options if part.name == 'figure1b' else ''}".strip()
        sections.append(_section(part, pictures[1].read_bytes(), command))
    page = folder / "report.html"
    page.write_text(_page(parts, sections), encoding="utf-8")
    return [page, *files]


def to_csv(part: Part) -> str:
    """Return all values with all their digits; what was not computed is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([c.key for c in part.columns])
    writer.writerows(["" if v is None else repr(v) for v in row] for row in part.rows)
    return text.getvalue()


def cell_text(column: Column, value: float | None, digits: int = 5) -> str:
    """Return a value for people: bounds rounded outwards, the paper's numbers to its five decimals.

    Args:
      column: The column.
      value: The value, or None where there is none.
      digits: How many digits of a bound are shown.
    """
    if value is None:
        return "–"
    # The paper's own numbers are shown as it prints them; bounds of ours are rounded to their safe side.
    if column.side == "given":
        return f"{value:.1%}" if column.key.startswith("accuracy") else f"{value:,}"
    if column.side == "nearest":
        return f"{value:.5f}"
    return rounded(value, column.side, digits)


def _drawn(part: Part, path: Path) -> Path:
    p = part.picture
    return draw(p.lines, path, title=p.title, xlabel=p.xlabel, ylabel=p.ylabel, logarithmic=p.logarithmic)


def _page(parts: Sequence[Part], sections: Iterable[str]) -> str:
    links = "".join(f'<a href="#{p.name}">{html.escape(p.title.split(":")[0])}</a>' for p in parts)
    checks = [c for p in parts for c in p.checks]
    surprises = sum(len(p.surprises) for p in parts)
    words = verdict(checks)
    summary = f"{words[0].upper()}{words[1:]}{': look for “unexpected” below' if surprises else ''}."
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Shuffle Gaussian Mechanism: table and figures, recomputed</title><style>{_CSS}</style></head><body>
<h1>Shuffle Gaussian Mechanism for Differential Privacy: its table and figures, recomputed</h1>
<p class="soft">Liew and Takahashi (2022), arXiv:2206.09569. Made on {datetime.date.today()} by shoal {__version__}.</p>
<p>{summary} Every ε is for <b>zero-out adjacency</b> (one user's vector becomes zero) against a server that sees the
shuffled reports; the shuffler is trusted. The <b>identical crowd</b> is the paper's assumption that all other users
hold the same vector; <b>any crowd</b> assumes nothing about them. “Tight” is a certified interval: the truth lies
between its two ends. Bounds are rounded outwards; the CSV files have all digits.</p>
<nav>{links}</nav>
{"".join(sections)}
<h2>Reproduce everything</h2><pre><code>pip install 'shoal-dp[plot]'
shoal reproduce all --out paper</code></pre>
</body></html>
"""


def _section(part: Part, svg: bytes, command: str) -> str:
    escape = html.escape
    heads = "".join(f"<th>{escape(c.head)}</th>" for c in part.columns)
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{escape(cell_text(c, v))}</td>" for c, v in zip(part.columns, row, strict=True))
        + "</tr>"
        for row in part.rows
    )
    checks = "".join(
        f"<tr><td>{escape(c.statement)}</td><td>{escape(c.printed)}</td><td>{escape(c.recomputed)}</td>"
        f'<td class="{"good" if c.agrees else "bad"}">{"agrees" if c.agrees else "differs"}'
        f"{'' if c.agrees == c.expected else ' (unexpected)'}</td></tr>"
        for c in part.checks
    )
    differences = "".join(f"<li>{escape(d)}</li>" for d in part.differences)
    notes = "".join(f'<p class="soft">{escape(n)}</p>' for n in part.notes)
    return f"""
<h2 id="{part.name}">{escape(part.title)}</h2>
<p>{escape(part.setting)}</p>
<img alt="{escape(part.title)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">
<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{notes}
<h3>Against the paper</h3>
<div class="wide"><table class="words"><thead><tr><th>statement</th><th>paper</th><th>recomputed</th><th></th></tr>
</thead><tbody>{checks}</tbody></table></div>
<h3>Where and why they differ</h3><ul>{differences}</ul>
<h3>Reproduce</h3><pre><code>{escape(command)} --out paper</code></pre>
<p><a download="{part.name}.csv" href="data:text/csv;charset=utf-8;base64,{
        base64.b64encode(to_csv(part).encode()).decode()
    }">Data (CSV)</a></p>
"""
