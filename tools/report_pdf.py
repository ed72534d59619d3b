"""The technical report as PDF, from its one source, the page of the docs.

    python tools/report_pdf.py    needs pandoc and XeLaTeX; writes docs/report/report.pdf

Links that lead into the docs are written out as text; tables and formulas are those of the page.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "report.md"
PDF = ROOT / "docs" / "report" / "report.pdf"

HEADER = r"""
\usepackage{etoolbox,microtype}
\AtBeginEnvironment{longtable}{\footnotesize\setlength{\tabcolsep}{3.5pt}}
\setlength{\LTpre}{6pt}\setlength{\LTpost}{6pt}
\renewcommand{\arraystretch}{0.95}
\emergencystretch=3em
\allowdisplaybreaks
"""


def latex_source(page: str) -> str:
    """The page as Markdown for pandoc: a title block in the place of the heading, no links into the docs.

    Args:
        page: The text of the page.

    Returns:
        The text for pandoc.
    """
    heading, rest = page.split("\n", 1)
    # Links to files of the repository mean nothing on paper; their words stay.
    rest = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", rest)
    # The PDF numbers nothing: numbers stand in the headings.
    return f"---\ntitle: '{heading.removeprefix('# ')}'\n---\n{rest}"


def command() -> list[str]:
    """The call of pandoc that writes a PDF, without its files."""
    settings = {
        "documentclass": "article",
        "papersize": "a4",
        "fontsize": "10pt",
        "geometry": "margin=22mm",
        "colorlinks": "true",
    }
    words = ["pandoc", "--from", "markdown-auto_identifiers+smart", "--columns", "1000", "--pdf-engine", "xelatex"]
    return [*words, *(f"--variable={name}:{value}" for name, value in settings.items())]


def main() -> None:
    PDF.parent.mkdir(exist_ok=True)
    source = PDF.with_suffix(".tmp.md")
    header = PDF.with_suffix(".tmp.tex")
    try:
        source.write_text(latex_source(PAGE.read_text()))
        header.write_text(HEADER)
        words = [*command(), f"--include-in-header={header}", f"--output={PDF}", str(source)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    finally:
        source.unlink(missing_ok=True)
        header.unlink(missing_ok=True)
    if done.returncode:
        sys.exit(done.stderr)


if __name__ == "__main__":
    main()
