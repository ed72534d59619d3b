"""Runs the notebooks of the documentation and writes what their cells print and draw.

    python tools/notebooks.py                      all of docs/notebooks
    python tools/notebooks.py docs/notebooks/first-guarantee.ipynb

A notebook is run in one namespace and an empty folder, as a reader would after "restart and run all". The last
expression of a cell is shown, and so is each picture of matplotlib that the cell leaves open.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

NOTEBOOKS = pathlib.Path(__file__).parents[1] / "docs" / "notebooks"


def load(path: pathlib.Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def source(cell: dict[str, Any]) -> str:
    """The text of a cell, which is kept line by line."""
    return "".join(cell["source"])


def run_cell(text: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell and return its outputs in the notebook format."""
    tree = ast.parse(text)
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, shown = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), namespace)
        if last is not None:
            shown = eval(compile(last, "cell", "eval"), namespace)
    outputs = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    outputs += [display_data({"image/png": picture}) for picture in pictures()]
    # As in Jupyter, a semicolon at the end hides the value.
    if shown is not None and not text.rstrip().endswith(";"):
        outputs.append(display_data(representations(shown)))
    return outputs


def display_data(data: dict[str, Any]) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": data}


def representations(value: Any) -> dict[str, Any]:
    """A value as text, and as Markdown where it knows how."""
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    markdown = getattr(value, "_repr_markdown_", None)
    return data if markdown is None else {"text/markdown": markdown().splitlines(keepends=True), **data}


def pictures() -> list[str]:
    """The open figures of matplotlib as PNG, which are closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    images = []
    for number in pyplot.get_fignums():
        image = io.BytesIO()
        pyplot.figure(number).savefig(image, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
        images.append(base64.b64encode(image.getvalue()).decode("ascii"))
    pyplot.close("all")
    return images


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run all cells in order and return the notebook with their outputs."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell.update(execution_count=number, outputs=run_cell(source(cell), namespace))
    return notebook


def main(paths: list[str]) -> None:
    os.environ.setdefault("MPLBACKEND", "Agg")
    for path in map(pathlib.Path, paths) if paths else sorted(NOTEBOOKS.glob("*.ipynb")):
        target = path.resolve()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            notebook = run(load(target))
            os.chdir(NOTEBOOKS)
        target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
