"""Hook of mkdocs: the navigation, links that lead out of the docs, and formulas.

The order of known pages is fixed here; a page that is not there is left out, and a new page in a folder comes last.
"""

import html
import json
import pathlib
import re
from collections.abc import Iterator

from latex2mathml.converter import convert
from mkdocs.structure.files import File

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
        "howto/user-level.md",
        "howto/opacus.md",
        "howto/dp-accounting.md",
        "howto/flower.md",
        "howto/train.md",
        "howto/audit.md",
        "howto/reproduce.md",
        "howto/fix-the-noise.md",
        "howto/migrate.md",
    ),
    "Notebooks": (
        "notebooks/first-guarantee.md",
        "notebooks/my-loader-shuffles.md",
        "notebooks/check-in-on-flower.md",
        "notebooks/reading-a-claim.md",
        "notebooks/noise-for-a-risk.md",
    ),
    "Explanation": (
        "explanation/shuffle-model.md",
        "explanation/guarantee.md",
        "explanation/worst-crowd.md",
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
FOLDERS = {"How to": "howto", "Notebooks": "notebooks", "Explanation": "explanation", "Reference": "reference"}

_OUT = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+((?:src|benchmarks|examples|results|tools|tests|README)[^)]*)\)")


def notebook_page(notebook: pathlib.Path) -> str:
    """A notebook as Markdown: its text, its code, and what its cells printed and drew when it was written."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![The picture that this cell draws](data:image/png;base64,{data['image/png']})")
            else:
                parts.append("```text\n" + "".join(output.get("text") or data["text/plain"]).rstrip() + "\n```")
    return "\n\n".join(parts) + "\n"


def on_files(files, config):
    """Each notebook is a page, too."""
    for path in sorted((pathlib.Path(config.docs_dir) / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    return files


def navigation(docs: pathlib.Path) -> list[dict[str, list[str]]]:
    sections = []
    for section, order in SECTIONS.items():
        files = (docs / FOLDERS.get(section, "-")).glob("*.[mi][dp]*")  # a notebook becomes a page of its name
        names = sorted(path.relative_to(docs).with_suffix(".md").as_posix() for path in files)
        pages = [page for page in order if page in names or (docs / page).is_file()]
        sections.append({section: pages + [page for page in names if page not in pages]})
    return sections


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
