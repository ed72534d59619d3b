"""All exceptions of the package stand in one tree, and users' mistakes are in it."""

import ast
import builtins
import warnings

import pytest

import shoal
from helpers import ROOT
from shoal import errors
from shoal.errors import InvalidInput, InvalidType, MissingExtra, ShoalError, Unreachable

SOURCE = ROOT / "src" / "shoal"
PYTHONS = {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)}
PYTHONS -= {name for name in PYTHONS if issubclass(getattr(builtins, name), Warning)}


def parents(source=SOURCE):
    """For each class of the package the names of the classes it derives from directly."""
    trees = [ast.parse(path.read_text()) for path in source.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {node.name: {ast.unparse(base).split(".")[-1] for base in node.bases} for node in classes}


def outside_the_tree(edges):
    """The exceptions that do not derive from `ShoalError`."""

    def ancestors(name):
        return {name}.union(*(ancestors(parent) for parent in edges.get(name, ())))

    exceptions = {name for name in edges if ancestors(name) & PYTHONS}
    return exceptions, {name for name in exceptions if "ShoalError" not in ancestors(name)}


def test_every_exception_is_in_the_tree():
    exceptions, outside = outside_the_tree(parents())
    assert outside == set()
    assert {"ShoalError", "DataError", "RefusedReportError", "AnalystError"} <= exceptions
    assert outside_the_tree({"A": {"ValueError"}, "B": {"A"}, "C": {"Warning"}})[1] == {"A", "B"}


def test_the_head_of_the_file_shows_the_tree():
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, ShoalError)]
    head = [line for line in errors.__doc__.splitlines() if line.startswith("    ")]
    assert [line.split()[0] for line in head if "..." not in line] == [cls.__name__ for cls in classes]
    for cls in classes[1:]:
        line = next(line for line in head if line.split()[0] == cls.__name__)
        python = next((base for base in cls.__mro__[2:] if base.__module__ == "builtins"), Exception)
        assert line.startswith("      ")
        assert "(also a" in line or python is Exception
        assert python is Exception or python.__name__ in line or issubclass(python, ImportError)


def bare(source=SOURCE):
    """The lines that raise one of Python's own errors for a value or a type."""
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            made = node.exc.func if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) else None
            if isinstance(made, ast.Name) and made.id in ("ValueError", "TypeError"):
                yield path.relative_to(source).parts[0], node.lineno


def test_only_the_bounds_raise_pythons_own_errors():
    """Their arguments come from this package: what is wrong there is a bug, not a mistake of users."""
    assert {room for room, _ in bare()} <= {"bounds"}


def test_bad_input_is_one_of_ours_and_one_of_pythons():
    with pytest.raises(InvalidInput, match=r"^sigma must be positive, got -1\.0$") as value:
        shoal.LocalGaussian(sigma=-1.0)
    with pytest.raises(InvalidType, match=r"^sigma must be a number, got 'x'$") as kind:
        shoal.LocalGaussian(sigma="x")
    assert isinstance(value.value, ValueError)
    assert isinstance(kind.value, TypeError)
    assert issubclass(MissingExtra, ImportError)
    for epsilon in (0.0, 0):
        with pytest.raises(InvalidInput, match=r"^epsilon must be positive, got 0\.0$"):
            shoal.calibrate.rounds(shoal.LocalGaussian(sigma=1.0), epsilon=epsilon, delta=1e-5)


def test_the_old_name_of_unreachable_warns():
    for module in (shoal, shoal.query):
        with pytest.warns(DeprecationWarning, match=r"UnreachableError has a new name: use shoal\.errors\.Unreachable"):
            assert module.UnreachableError is Unreachable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shoal.Unreachable is Unreachable
