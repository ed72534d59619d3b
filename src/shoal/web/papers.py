"""A statement for a document: Markdown and LaTeX. The words are the statement's own."""

from __future__ import annotations

from shoal.query import Statement

_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"$<$", ">": r"$>$",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "σ": r"$\sigma$", "é": r"\'e", "≤": r"$\le$", "≥": r"$\ge$",
    "–": "--", "…": r"\dots{}", "·": r"$\cdot$", "−": "$-$",
}  # fmt: skip


def markdown(statement: Statement) -> str:
    rows = "".join(f"| {name} | {value.replace('|', chr(92) + '|')} |\n" for name, value in statement.facts())
    return f"# Privacy statement\n\n{statement.sentence()}\n\n| | |\n|---|---|\n{rows}"


def latex(statement: Statement) -> str:
    """A paragraph and a table, to be put into a document; needs no package."""
    rows = "".join(f"  {tex(name)} & {tex(value)} \\\\\n" for name, value in statement.facts())
    return (
        f"\\paragraph{{Privacy statement.}}\n{tex(statement.sentence())}\n\n"
        f"\\begin{{tabular}}{{lp{{0.75\\linewidth}}}}\n{rows}\\end{{tabular}}\n"
    )


def tex(text: str) -> str:
    """A text with everything that LaTeX would take for a command written out.

    >>> tex("ε ≤ 5% of a_b")
    '$\\\\varepsilon$ $\\\\le$ 5\\\\% of a\\\\_b'
    """
    return "".join(_TEX.get(letter, letter) for letter in text)
