"""Every name that a version defines and does not mark as private, module by module, as JSON.

    git worktree add /tmp/v01 2b765f7    # the last commit of 0.1.0
    python tests/reference/make_public.py /tmp/v01/src/shoal > tests/reference/public_0.1.json

A package also has the names of its `__all__`. Run it where the extras of that version are installed.
"""

import ast
import importlib
import json
import pathlib
import sys


def targets(node: ast.stmt) -> list[str]:
    """The names that a statement at the top of a file defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [name.id for one in node.targets for name in ast.walk(one) if isinstance(name, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return [name for inner in getattr(node, "body", []) for name in targets(inner)]  # if and try


def handed_on(package: str) -> list[str]:
    """The names that a package lets one import from itself; some are loaded only when they are asked for."""
    return list(getattr(importlib.import_module(package), "__all__", ()))


def public(source: pathlib.Path) -> dict[str, list[str]]:
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        parts = parts[:-1] if is_package else parts
        if any(part.startswith("_") for part in parts):
            continue
        names = {name for node in ast.parse(path.read_text()).body for name in targets(node)}
        names |= set(handed_on(".".join(parts))) if is_package else set()
        found[".".join(parts)] = sorted(n for n in names if not n.startswith("_") or n == "__version__")
    return found


if __name__ == "__main__":
    source = pathlib.Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(source.parent))
    rows = (f"  {json.dumps(module)}: {json.dumps(names)}" for module, names in public(source).items())
    print("{\n" + ",\n".join(rows) + "\n}")
