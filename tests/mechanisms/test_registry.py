"""Every mechanism of the registry, through data, command, page and reference pages; what each declares about itself."""

import ast
import dataclasses
import importlib
import json
import pkgutil
import re

import pytest
from typer.testing import CliRunner

import shoal
from helpers import ROOT
from shoal import mechanisms
from shoal.cli.app import app
from shoal.mechanisms import MECHANISMS, Mechanism, Parameter, from_dict, labelled, parameters_of
from shoal.mechanisms.parameter import UNSET
from shoal.web import tasks
from shoal.web.fields import page_data

ALL = list(MECHANISMS.values())
BAD = {"whole": [-1, 2.5, "x"], "real": [0.0, -1.0, "x"], "flag": [1, "yes"], "choice": ["nothing", 3]}


def example(cls):
    """The mechanism with every parameter at its example."""
    values = {p.name: p.example for p in cls.parameters() if p.is_required}
    whole = {p.name for p in cls.parameters() if p.domain.kind == "whole"}
    return cls(**{name: int(value) if name in whole else value for name, value in values.items()})


def test_it_has_every_mechanism_that_the_package_defines():
    modules = [importlib.import_module(f"shoal.mechanisms.{m.name}") for m in pkgutil.iter_modules(mechanisms.__path__)]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    defined = {cls for cls in classes if issubclass(cls, Mechanism) and cls.label}
    assert defined == set(ALL)
    assert len(labelled()) == len(ALL)


def test_nothing_adds_to_it():
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"MECHANISMS(\.update|\[[^\]]+\] =)", path.read_text()), path


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_it_says_what_others_need_to_know(cls):
    assert all((cls.label, cls.trust, cls.protocol))
    assert cls.crowd_matters == ("crowd" in {field.name for field in dataclasses.fields(cls)})
    assert {p.name for p in parameters_of(cls)} == {field.name for field in dataclasses.fields(cls)}
    assert cls.__name__ in shoal.__all__
    m = example(cls)
    assert m.crowd == ("any" if cls.crowd_matters else None)
    assert 0.0 < m.participation <= 1.0
    assert m.expected_reports(60_000) > 0.0


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_its_parameters_are_complete(cls):
    m = example(cls)
    for parameter in cls.parameters():
        assert parameter.help.endswith(".")
        assert parameter.label[0].isupper() or parameter.title
        assert parameter.domain.kind == "flag" or parameter.metavar
        if parameter.slider is not None:
            first, last = parameter.slider
            assert first <= parameter.example <= last
        value = getattr(m, parameter.name)
        assert (f"{parameter.words} = {parameter.written(value)}" in m.settings) == parameter.is_written(value)
        if parameter.is_silent:
            number = 2 if parameter.domain.kind == "whole" else 0.5
            assert f"{parameter.words} = {number}" in m.replace(**{parameter.name: number}).settings
    for parameter in parameters_of(cls):
        for value in BAD[parameter.domain.kind]:
            with pytest.raises((ValueError, TypeError), match=rf"^{parameter.name} must"):
                m.replace(**{parameter.name: value})


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_it_goes_through_data(cls):
    m = example(cls)
    assert from_dict(json.loads(json.dumps(m.to_dict()))) == m
    for parameter in parameters_of(cls):
        data = {name: value for name, value in m.to_dict().items() if name != parameter.name}
        if parameter.absent is not UNSET:
            assert getattr(from_dict(data), parameter.name) == parameter.absent
            continue
        with pytest.raises(ValueError, match=f"{cls.__name__} must have the fields"):
            from_dict(data)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_it_goes_through_the_command(cls):
    m = example(cls)
    words = [word for p in cls.parameters() if p.is_required for word in (f"--{p.name}", str(getattr(m, p.name)))]
    run = CliRunner().invoke(app, ["rdp", cls.label, *words, "--delta", "1e-5", "--orders", "2", "--json"])
    assert run.exit_code == 0, run.output
    data = json.loads(run.stdout)["mechanism"]
    assert {name: data[name] for name in m.to_dict() if name != "crowd"} == {
        name: value for name, value in m.to_dict().items() if name != "crowd"
    }


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_it_goes_through_the_page(cls):
    m = example(cls)
    fields = page_data()["kinds"][cls.label]["fields"]
    required = {p.name for p in cls.parameters() if p.is_required}
    assert required <= set(fields)
    state = {name: str(getattr(m, name)) for name in required}
    pieces = tasks.answer("first", {"state": {"mechanism": cls.label, **state, "rounds": "3", "delta": "1e-5"}})
    answers = {piece.get("crowd", piece["piece"]): piece for piece in pieces if piece["piece"] in ("epsilon", "error")}
    # The identical crowd's number is quick; a mechanism without a crowd has one number only.
    first = answers["identical" if cls.crowd_matters else "only"]
    expected = m.replace(crowd="identical") if cls.crowd_matters else m
    assert first["epsilon"]["upper"] == expected.epsilon(delta=1e-5, rounds=3).upper


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_it_is_on_the_reference_page_and_in_both_lists_of_public_names(cls):
    assert f"::: shoal.{cls.__name__}\n" in (ROOT / "docs" / "reference" / "mechanisms.md").read_text()
    tree = ast.parse((ROOT / "src" / "shoal" / "__init__.py").read_text())
    imported = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert cls.__name__ in imported


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_its_rounds_bound_it(cls):
    m = example(cls)
    bounds = m.bounds(3)
    assert bounds.upper
    assert all(rounds >= 3 for _, rounds in bounds.upper)
    assert len(set(bounds.attacks)) == len(bounds.attacks) >= 1
    assert not any(round_.is_upper_only for attack in bounds.attacks for round_, _ in attack)
    both = mechanisms.bounds([(m, 3), (shoal.LocalGaussian(sigma=9.0), 1)])
    assert both.upper[: len(bounds.upper)] == bounds.upper
    assert [attack[:-1] for attack in both.attacks] == list(bounds.attacks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Younger(shoal.LocalGaussian):
    """A mechanism that got a parameter after ledgers with it were saved."""

    factor: float = Parameter(
        domain=mechanisms.PROBABILITY, words="factor", metavar="F", help="A factor.", default=0.5, absent=1.0
    ).field()


def test_old_data_means_what_it_meant(monkeypatch):
    monkeypatch.setitem(MECHANISMS, "Younger", Younger)
    saved = {"mechanism": "Younger", "sigma": 2.0, "adjacency": "zero-out"}
    assert from_dict(saved).factor == 1.0
    assert from_dict({**saved, "factor": 0.25}).factor == 0.25
    with pytest.raises(ValueError, match="must have the fields adjacency, factor, sigma"):
        from_dict({"mechanism": "Younger", "adjacency": "zero-out"})
