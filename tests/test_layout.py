"""Imports point upwards only, the core stays light, and the package says nothing about its workshop."""

import ast
import pathlib
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).parents[1] / "src" / "shoal"

# A file may import those in lower ranks only (files of one package may import each other).
RANKS = [
    {"_validate"},
    {"interval"},
    {"ratio", "panels"},
    {"levels"},
    {"spread"},
    {"moments"},
    {"law"},
    {"rdp"},
    {"compose"},
    {"pld"},
    {"prices", "thinning"},
    {"mixture"},
    {"groups"},
    {"exchange", "opposite"},
    {"crowd"},
    {"answers"},
    {"mechanisms"},
    {"accountant"},
    {"calibrate"},
    {"audit"},
    {"plots"},
    {"paper"},
    {"learning"},
    {"integrations"},
    {"cli"},
]
RANK = {name: i for i, names in enumerate(RANKS) for name in names}


def imports(path):
    """The top-level modules of shoal that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "shoal":
            parts = node.module.split(".")
            if len(parts) > 1:
                yield parts[1]
            else:
                yield from (alias.name for alias in node.names if alias.name in RANK)
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("shoal."))


FILES = sorted(p for p in SOURCE.rglob("*.py") if p.name != "__init__.py" or p.parent != SOURCE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_upwards(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in RANK, f"{own} has no rank yet"
    for name in imports(path):
        assert RANK[name] < RANK[own] or name == own, f"{own} must not import {name}"


def test_the_rule_bites(tmp_path):
    bad = tmp_path / "ratio.py"
    bad.write_text("def f():\n    from shoal import mechanisms\n    import shoal.rdp\n")
    assert sorted(imports(bad)) == ["mechanisms", "rdp"]


@pytest.mark.parametrize(
    "statement", ["import shoal", "import shoal; shoal.Shuffle(users=2, sigma=1.0, crowd='identical').rdp(2)"]
)
def test_heavy_packages_stay_out(statement):
    code = f"{statement}; import sys; print([m for m in ('torch', 'matplotlib', 'flwr', 'opacus') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_help_needs_no_numerics():
    code = (
        "import sys; sys.argv = ['shoal', '--help']\n"
        "from shoal.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'scipy', 'torch', 'matplotlib', 'dp_accounting') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("[]")
