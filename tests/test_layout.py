"""Imports point upwards only and never in a circle, private names stay at home, and the core stays light."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).parents[1] / "src" / "shoal"

# A file may import those in lower ranks only. Files of bounds have ranks of their own; elsewhere files of
# one package may import each other (but not in a circle).
RANKS = [
    {"errors"},
    {"bounds.numeric"},
    {"_extras", "_files", "_moved", "_validate", "_written", "run_folder"},
    {"formatting", "progress"},
    {"interval"},
    {"bounds.laplace", "bounds.quadrature", "bounds.grid", "bounds.powering", "bounds.gaussian"},
    {"bounds.ratio"},
    {"bounds.sums", "bounds.moments"},
    {"bounds.mean_law"},
    {"bounds.round"},
    {"bounds.central.lines", "bounds.central.attacks"},
    {"bounds.central.swap"},
    {"bounds.central.switching"},
    {"bounds.anycrowd.prices"},
    {"bounds.central.records"},
    {"bounds.central.summed"},
    {"bounds.rdp", "bounds.composition"},
    {"bounds.certify", "bounds.anycrowd.mixture", "bounds.anycrowd.thinning"},
    {"bounds.anycrowd.groups", "bounds.anycrowd.iterated"},
    {"bounds.anycrowd.adaptive"},
    {"bounds.anycrowd.exchange", "bounds.anycrowd.opposite"},
    {"bounds.anycrowd.sequential"},
    {"bounds.anycrowd.direct"},
    {"bounds.anycrowd.replace"},
    {"bounds.anycrowd.evaluate", "bounds.dominating"},
    {"query", "records"},
    {"statement"},
    {"mechanisms"},
    {"accountant"},
    {"calibrate"},
    {"curves"},
    {"risk"},
    {"audit"},
    {"plots"},
    {"literature"},
    {"noise_check"},
    {"training"},
    {"reproduction"},
    {"adapters"},
    {"deployment"},
    {"web"},
    {"cli"},
]
RANK = {name: i for i, names in enumerate(RANKS) for name in names}


def ranked(parts):
    """The name by which a module has its rank: its own inside `bounds`, elsewhere that of its package."""
    if parts[0] != "bounds":
        return parts[0]
    return ".".join(parts[: 3 if len(parts) > 1 and parts[1] in ("anycrowd", "central") else 2])


def imports(path):
    """The ranked modules of shoal that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "shoal":
            parts = node.module.split(".")[1:]
            inner = [ranked([*parts, alias.name]) for alias in node.names]
            yield from ([ranked(parts)] if parts and ranked(parts) in RANK else (n for n in inner if n in RANK))
        elif isinstance(node, ast.Import):
            yield from (ranked(a.name.split(".")[1:]) for a in node.names if a.name.startswith("shoal."))


FILES = sorted(p for p in SOURCE.rglob("*.py") if p.name != "__init__.py" or p.parent != SOURCE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_upwards(path):
    own = ranked(path.relative_to(SOURCE).with_suffix("").parts)
    if own.endswith(".__init__"):
        assert list(imports(path)) == []
        return
    assert own in RANK, f"{own} has no rank yet"
    for name in imports(path):
        assert RANK[name] < RANK[own] or name == own, f"{own} must not import {name}"


def test_the_rule_bites(tmp_path):
    bad = tmp_path / "ratio.py"
    bad.write_text("def f():\n    from shoal import mechanisms\n    import shoal.bounds.rdp\n")
    assert sorted(imports(bad)) == ["bounds.rdp", "mechanisms"]


def names(path, source=SOURCE):
    """The module of a file, as a dotted name."""
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def graph(source=SOURCE):
    """For each module the modules of the package that it imports when it runs, also inside functions."""
    files = {names(path, source): path for path in source.rglob("*.py")}
    found = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text())
        only_types = {n for i in ast.walk(tree) if is_for_types(i) for part in i.body for n in ast.walk(part)}
        reached = set()
        for node in set(ast.walk(tree)) - only_types:
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                reached.update(one if one in files else node.module for one in inner)
            elif isinstance(node, ast.Import):
                reached.update(alias.name for alias in node.names)
        found[name] = (reached & set(files)) - {name}
    return found


LOADERS = {
    "shoal": "public names are loaded when they are used",
    "shoal._extras": "an integration is loaded when it is asked for, and by no other file of the core",
    "shoal._moved": "import paths of earlier versions",
    "shoal.cli.lazy": "commands are imported when they are called; typer brings click along under one of two names",
    "shoal.deployment": "public names are loaded when they are used",
    "shoal.deployment.template": "an app that a user wrote",
    "shoal.training.networks": "a model that a user wrote",
}
"""The modules that import others by a name in a string, which the rules above cannot see, and why."""


def by_string(source=SOURCE):
    return {names(p, source) for p in source.rglob("*.py") if re.search(r"import_module\(|__import__\(", p.read_text())}


def test_nothing_else_imports_by_a_string():
    assert by_string() == set(LOADERS)


def test_the_core_names_no_integration():
    """Only what is below them (the page, the command) may; the core hands over through `_extras.integration`."""
    above = [name for name in graph() if RANK.get(ranked(name.split(".")[1:] or ["cli"]), 0) < RANK["adapters"]]
    for name in above:
        path = SOURCE.parent / pathlib.Path(*name.split("."))
        text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        libraries = {n.split(".")[0] for node in ast.walk(ast.parse(text)) for n in imported(node)}
        assert not libraries & {"dp_accounting", "flwr", "opacus"}, name


def imported(node):
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def is_for_types(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def cycles(edges):
    """The sets of modules that can all be reached from each other."""
    reach = {}
    for name in edges:
        seen, left = set(), [name]
        while left:
            for other in edges[left.pop()] - seen:
                seen.add(other)
                left.append(other)
        reach[name] = seen
    return sorted({tuple(sorted({n for n in reach[m] if m in reach[n]})) for m in edges if m in reach[m]})


def test_no_import_cycle_also_inside_packages():
    assert cycles(graph()) == []


def test_the_rule_on_cycles_bites(tmp_path):
    package = tmp_path / "shoal"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from shoal import b\n")
    (package / "b.py").write_text("def f():\n    import shoal.c\n")
    (package / "c.py").write_text("from shoal.a import x\n")
    (package / "d.py").write_text("if TYPE_CHECKING:\n    from shoal.e import y\n")
    (package / "e.py").write_text("from shoal.d import z\n")
    assert cycles(graph(package)) == [("shoal.a", "shoal.b", "shoal.c")]


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def home(module):
    """The package of a module: a folder of the source, or the module itself at the top."""
    return ".".join(module.split(".")[:2])


def strangers(source=SOURCE):
    """Private names of one package that another one uses, imported or as an attribute (a class may its parents')."""
    trees = {names(path, source): ast.parse(path.read_text()) for path in source.rglob("*.py")}
    own = {}
    for name, tree in trees.items():
        own.setdefault(home(name), set()).update(defined(tree))
    for name, tree in sorted(trees.items()):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal."):
                if home(node.module) != home(name):
                    yield from (f"{name}: {node.module}.{a.name}" for a in node.names if is_private(a.name))
            elif isinstance(node, ast.Attribute) and is_private(node.attr) and not is_self(node.value):
                owners = {package for package, known in own.items() if node.attr in known}
                if owners and home(name) not in owners:
                    yield f"{name}: {ast.unparse(node)}"


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def defined(tree):
    """The private names that a file gives to something: functions, classes, variables, fields."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_no_private_name_is_used_across_packages():
    assert list(strangers()) == []


def test_the_rule_on_private_names_bites(tmp_path):
    package = tmp_path / "shoal"
    (package / "cli").mkdir(parents=True)
    (package / "a.py").write_text("_y = 1\nclass A:\n    def _hidden(self):\n        return self._hidden()\n")
    (package / "cli" / "b.py").write_text("from shoal.a import A, _x\nimport shoal.a\nA()._hidden()\nshoal.a._y\n")
    (package / "cli" / "c.py").write_text("from shoal.cli.b import _z\n_z = 1\n")
    assert sorted(strangers(package)) == [f"shoal.cli.b: {use}" for use in ("A()._hidden", "shoal.a._x", "shoal.a._y")]


def lengths(text):
    """Each function and the lines of its body, without its text."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            yield node.name, node.end_lineno - body[0].lineno + 1


def test_functions_read_as_a_list_of_steps():
    long = [(p.name, name, n) for p in FILES for name, n in lengths(p.read_text()) if n > 60]
    assert long == []
    assert list(lengths('def f(\n    x,\n):\n    """Text."""\n    a = 1\n    return a\n')) == [("f", 2)]


def test_only_statements_claim_privacy():
    """One sentence for every guarantee: nothing else than `statement` writes it (docstrings may show it)."""
    for path in FILES:
        tree = ast.parse(path.read_text())
        shown = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in shown]
        claims = [text for text in texts if isinstance(text, str) and "differentially" in text]
        assert not claims or path.name == "statement.py", f"{path.name}: {claims}"


@pytest.mark.parametrize(
    "statement", ["import shoal", "import shoal; shoal.Shuffle(users=2, sigma=1.0, crowd='identical').rdp(2)"]
)
def test_heavy_packages_stay_out(statement):
    heavy = ("torch", "matplotlib", "flwr", "opacus", "dp_accounting")
    code = f"{statement}; import sys; print([m for m in {heavy} if m in sys.modules])"
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


def errors(text):
    """The numbers of the errors that the head of a file lists, and those that its code cites."""
    tree = ast.parse(text)
    head = ast.get_docstring(tree) or ""  # its only numbered list
    listed = {int(n) for n in re.findall(r"^(\d+)\. ", head, re.MULTILINE)}
    rest = "\n".join(text.splitlines()[tree.body[0].end_lineno :])
    cited = set()
    for first, last in re.findall(r"\b[Ee]rrors? (\d+)(?: to (\d+))?", rest):
        cited.update(range(int(first), int(last or first) + 1))
    for others in re.findall(r"\b[Ee]rrors \d+((?:(?:, | and )\d+)+)", rest):
        cited.update(map(int, re.findall(r"\d+", others)))
    return listed, cited


CHARGED = [path for path in FILES if path.is_relative_to(SOURCE / "bounds") and errors(path.read_text())[0]]


@pytest.mark.parametrize("path", CHARGED, ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_error_of_a_file_is_charged_where_its_code_says_so(path):
    listed, cited = errors(path.read_text())
    assert listed - cited == set(), "listed at the head, cited nowhere"


def test_the_rule_on_errors_bites():
    head = '"""A law.\n\n*Errors.*\n\n1. One.\n2. Two.\n3. Three.\n4. Four.\n5. Five.\n"""\n'
    assert errors(head) == ({1, 2, 3, 4, 5}, set())
    assert errors(head + "x = 1  # error 1\n# Errors 2 and 3, once.\n")[1] == {1, 2, 3}
    assert errors(head + "# errors 2 to 4, and 1\n# error 5\n")[1] == {2, 3, 4, 5}
    assert len(CHARGED) >= 9


ALLOWED = {
    "ShuffleAccountant": "one for each framework, under the name that its users look for",
    "DIMENSION_MAX": "numbers in a report of the deployment, which holds them, and on the page, which only counts them",
}
"""Names of types and limits that two modules may define, and why."""


def types(source=SOURCE):
    """For each public class or alias of a type (a name in CamelCase) the modules that define it."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            given = [t.id for t in targets if isinstance(t, ast.Name) and t.id[0].isupper() and not t.id.isupper()]
            for name in [node.name] if isinstance(node, ast.ClassDef) else given:
                if not is_private(name):
                    found.setdefault(name, []).append(names(path, source))
    return found


def limits(source=SOURCE):
    """For each public name of a limit, and any of a number of users at most, the modules that define it."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            given = ast.walk(ast.Tuple(elts=node.targets)) if isinstance(node, ast.Assign) else ()
            for name in (one.id for one in given if isinstance(one, ast.Name)):
                if re.fullmatch(r"[A-Z]\w*_(MAX|MIN)|_?\w*USERS_MAX", name):
                    found.setdefault(name.lstrip("_"), []).append(names(path, source))
    return found


@pytest.mark.parametrize("defined_in", [types, limits])
def test_a_name_has_one_meaning(defined_in):
    twice = {name: where for name, where in defined_in().items() if len(where) > 1}
    assert set(twice) <= set(ALLOWED), twice


def test_the_rule_on_names_bites(tmp_path):
    package = tmp_path / "shoal"
    package.mkdir()
    (package / "a.py").write_text("class Row:\n    pass\nclass _Own:\n    pass\nUSERS_MAX = 1\n")
    (package / "b.py").write_text("Row = tuple[int, int]\nclass _Own:\n    pass\n_USERS_MAX, RATE_MIN, X = 1, 2, 3\n")
    (package / "c.py").write_text("RATE_MIN = 2\n_OWN_MAX = 3\n")
    assert types(package) == {"Row": ["shoal.a", "shoal.b"]}
    assert limits(package) == {"USERS_MAX": ["shoal.a", "shoal.b"], "RATE_MIN": ["shoal.b", "shoal.c"]}


FILLER = """
found there here told asked one every other others way ways how said known given made some more most least wanted kept
gone away near far few many each all both what which whose who good bad dear own alone together want asks
"""
"""Words of prose that name nothing: a variable is named by the noun for what it holds."""


def bindings(text):
    """The names of the variables and arguments that a file binds, without underscores around them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.strip("_")
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg.strip("_")


def homes(source=SOURCE):
    """For each function, class and constant at the top level the files that define it, underscores ignored."""
    places = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else ()
            tops = [t.id for t in targets if isinstance(t, ast.Name)]
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                tops = [node.name]
            for name in tops:
                if not name.startswith("__"):
                    places.setdefault(name.strip("_"), set()).add(str(path))
    return places


def test_names_are_nouns_for_what_they_hold():
    bound = [name for path in SOURCE.rglob("*.py") for name in bindings(path.read_text())]
    assert sum(name in FILLER.split() for name in bound) <= 0.01 * len(bound)
    assert len(bound) > 5_000


def test_a_top_level_name_stands_in_one_file():
    places = homes()
    assert sum(len(files) > 1 for files in places.values()) <= 0.05 * len(places)
    assert len(places) > 1_000


def test_the_counts_of_names_bite(tmp_path):
    text = "X, _all = 1, 2\ndef f(self, found, *others, key=0):\n    for _ in found:\n        x = y = lambda one: one\n"
    assert sorted(bindings(text)) == ["", "X", "all", "found", "key", "one", "others", "x", "y"]
    assert sum(name in FILLER.split() for name in bindings(text)) == 4
    (tmp_path / "a.py").write_text("def read():\n    def inner(): pass\nclass _Row: pass\nLIMIT = 1\n__all__ = []\n")
    (tmp_path / "b.py").write_text("async def _read(): pass\nclass Row: pass\ndef inner(): pass\n__all__ = []\n")
    assert {name: len(files) for name, files in homes(tmp_path).items()} == {
        "read": 2,
        "inner": 1,
        "Row": 2,
        "LIMIT": 1,
    }
