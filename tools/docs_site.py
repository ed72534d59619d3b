"""Hook of mkdocs: the navigation, links that lead out of the docs, and formulas.

The order of known pages is fixed here; a page that is not there is left out, and a new page in a folder comes last.
"""

import html
import pathlib
import re
from collections.abc import Iterator

from latex2mathml.converter import convert

SECTIONS = {
    "Start": ("index.md",),
    "How to": (
        "howto/choose.md",
        "howto/explore.md",
        "howto/account.md",
        "howto/calibrate.md",
        "howto/combine.md",
        "howto/dropouts.md",
        "howto/dp-sgd.md",
        "howto/opacus.md",
        "howto/dp-accounting.md",
        "howto/flower.md",
        "howto/train.md",
        "howto/audit.md",
        "howto/reproduce.md",
        "howto/migrate.md",
    ),
    "Explanation": (
        "explanation/shuffle-model.md",
        "explanation/guarantee.md",
        "explanation/adaptivity.md",
        "explanation/report.md",
        "explanation/trust.md",
        "explanation/mathematics.md",
        "explanation/paper.md",
        "explanation/mnist.md",
        "explanation/frontier.md",
        "explanation/comparison.md",
        "explanation/glossary.md",
    ),
    "Reference": (
        "reference/mechanisms.md",
        "reference/accounting.md",
        "reference/command.md",
        "reference/learning.md",
        "reference/flower.md",
        "reference/integrations.md",
        "reference/paper.md",
        "reference/internals.md",
    ),
}
FOLDERS = {"How to": "howto", "Explanation": "explanation", "Reference": "reference"}

_OUT = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+((?:src|benchmarks|examples|results|tools|tests|README)[^)]*)\)")


def navigation(docs: pathlib.Path) -> list[dict[str, list[str]]]:
    found = []
    for section, known in SECTIONS.items():
        there = sorted(p.relative_to(docs).as_posix() for p in (docs / FOLDERS.get(section, "-")).glob("*.md"))
        pages = [page for page in known if (docs / page).is_file()]
        found.append({section: pages + [page for page in there if page not in pages]})
    return found


def on_config(config):
    config.nav = navigation(pathlib.Path(config.docs_dir))
    return config


def help_pages(*path: str) -> Iterator[str]:
    """The help of a command and of all below it, as a terminal of 80 columns shows it."""
    from typer.testing import CliRunner

    from shoal.cli.app import app

    text = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).stdout
    yield f"## {' '.join(('shoal', *path))}\n\n```text\n{text.rstrip()}\n```\n"
    listed = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.MULTILINE)
    for name in re.findall(r"^  (\S+)", listed.group(1) if listed else "", re.MULTILINE):
        yield from help_pages(*path, name)


def on_page_markdown(markdown, page, config, files):
    """A link to a file of the repository that is no page becomes its name; the help of the command is filled in."""
    if "<!-- help -->" in markdown:
        markdown = markdown.replace("<!-- help -->", "\n".join(help_pages()))
    return _OUT.sub(
        lambda m: f"{m.group(1)} (`{m.group(2)}`)" if m.group(1) != m.group(2) else f"`{m.group(2)}`", markdown
    )


_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content, page, config, files):
    """Formulas become MathML, which browsers show by themselves: no script, nothing to fetch."""
    return _FORMULA.sub(_shown, content)


_DOUBLE_STRUCK = {"E": "&#x1d53c;", "P": "&#x2119;"}
"""Double-struck letters that the formulas use."""


def _shown(found: re.Match[str]) -> str:
    """A formula of its own has a box, so that a wide one is scrolled by itself and not with the page."""
    text, alone = html.unescape(found.group(2)), found.group(1) == "div"
    made: str = convert(text, display="block" if alone else "inline")
    # Browsers do not know the attribute that should make a letter double-struck: the letter itself they know.
    made = re.sub(
        r'<mi mathvariant="double-struck">([EP])</mi>', lambda m: f"<mi>{_DOUBLE_STRUCK[m.group(1)]}</mi>", made
    )
    return f'<div class="formula">{made}</div>' if alone else made
