"""What a stranger gets: the right name, a wheel that works alone, and one sentence for each extra that is missing."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import shoal
from helpers import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text()
EXTRAS = set(re.findall(r"^([\w-]+) = \[", PROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0], re.M))
BARE = "shoal" + "["  # an extra of somebody else's package

pytestmark = pytest.mark.xdist_group("packaging")  # the wheel is built and installed once


def texts():
    """Every file of the project in which somebody could read how to install it."""
    kept = {".md", ".py", ".toml", ".yml", ".yaml", ".cff", ".html", ".ipynb", ".json", ".txt", ".cfg"}
    skipped = {".venv", ".venv-bench", ".venv-hooks", ".git", "build", "dist", "site", "out", "runs"}
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT).parts
        if not skipped & set(inside) and path.is_file() and (path.suffix in kept or path.name == "Makefile"):
            yield path, path.read_text(encoding="utf-8")


def wrong_names(text):
    """Installations of a package that is not this one, and extras that it does not have."""
    bare = re.findall(re.escape(BARE) + r"[^\]]*\]?", text)
    installed = re.findall(r"pip3? install[ \t](?:[^\n;|&#]*[ \t])?['\"]?shoal['\"]?(?![\w\-/.\[])", text)
    named = (e.strip() for group in re.findall(r"shoal-dp\[([\w,\s-]+)\]", text) for e in group.split(","))
    return bare + installed + [f"extra {name}" for name in named if name not in EXTRAS]


def test_every_line_on_installing_names_this_package_and_extras_it_has():
    found = {str(path.relative_to(ROOT)): wrong for path, text in texts() if (wrong := wrong_names(text))}
    found.pop("tests/test_packaging.py", None)  # the bad examples below
    assert found == {}
    assert sum("shoal-dp[" in text for _, text in texts()) > 8


@pytest.mark.parametrize(
    "line", [f"pip install '{BARE}train]'", "pip install shoal", "pip install -U 'shoal'", "'shoal-dp[fly]'"]
)
def test_the_rule_on_names_bites(line):
    assert wrong_names(line)


@pytest.mark.parametrize("line", ["pip install 'shoal-dp[plot,train]'", "pip install .", "pip install -e . # shoal's"])
def test_the_rule_on_names_lets_good_lines_pass(line):
    assert not wrong_names(line)


def test_the_workflow_runs_the_two_commands_on_the_oldest_and_the_newest_python():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make run", "make test"]
    named = re.findall(r"Python :: (3\.\d+)", PROJECT)
    assert job["strategy"]["matrix"]["python"] == [named[0], named[-1]]
    assert f'requires-python = ">={named[0]}"' in PROJECT


def test_the_hooks_are_those_of_make_test():
    yaml = pytest.importorskip("yaml")
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    recipe = (ROOT / "Makefile").read_text()
    for hook in repo["hooks"]:
        command = hook["entry"].removeprefix(".venv/bin/").removesuffix(" --fix")
        assert f"$(BIN)/{command}" in recipe


def test_one_version():
    assert f"\nversion: {shoal.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {shoal.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


# ---------------------------------------------------------------------------------------------
# The wheel in an empty environment


def pip(*words):
    """Run pip, and skip, saying so, where the package index is out of reach."""
    done = subprocess.run([sys.executable, "-m", "pip", *map(str, words)], capture_output=True, text=True, check=False)
    unreachable = ("Connection", "Temporary failure", "No matching distribution found for setuptools", "timed out")
    if done.returncode and any(sign in done.stderr for sign in unreachable):
        pytest.skip(f"the wheel was not tried: the package index cannot be reached ({done.stderr.strip()[-200:]})")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def empty(tmp_path_factory):
    """The folder of programs of an environment that holds the wheel and what the wheel asks for, nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"  # a build leaves files behind
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", folder, copy)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == f"shoal_dp-{shoal.__version__}-py3-none-any.whl"
    home = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    pip("--python", home / "bin" / "python", "install", "--quiet", wheel)
    return home / "bin"


def run(empty, folder, *words):
    """Run a program of the environment, away from this copy and its settings."""
    return subprocess.run(
        [str(empty / words[0]), *words[1:]],
        cwd=folder,
        env={"PATH": str(empty), "HOME": str(folder), "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_core_works_alone(empty, tmp_path):
    code = """
import importlib.metadata, importlib.util, json, pathlib, shoal
from shoal import reproduction
home = pathlib.Path(shoal.__file__).parent
names = ("dp_accounting", "torch", "opacus", "matplotlib", "flwr", "attr", "mpmath")
print(json.dumps({
    "version": importlib.metadata.version("shoal-dp"),
    "extras": importlib.metadata.metadata("shoal-dp").get_all("Provides-Extra"),
    "epsilon": shoal.Shuffle(users=1_000, sigma=2.0, crowd="identical").epsilon(delta=1e-6, rounds=3).upper,
    "present": [n for n in names if importlib.util.find_spec(n)],
    "run": reproduction.read_run(reproduction.PACKAGED_RUN).rounds[-1],
    "files": [(home / n).is_file() for n in ("py.typed", "training/digits.npz", "reproduction/frontier.json",
                                             "web/page/main.js")],
    "home": str(home),
}))
"""
    done = run(empty, tmp_path, "python", "-c", code)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert pathlib.Path(found["home"]).is_relative_to(empty.parent)
    assert (found["version"], set(found["extras"])) == (shoal.__version__, EXTRAS)
    assert found["present"] == []
    here = shoal.Shuffle(users=1_000, sigma=2.0, crowd="identical").epsilon(delta=1e-6, rounds=3)
    assert found["epsilon"] == pytest.approx(here.upper, rel=1e-3)
    assert found["run"] == 5_540
    assert found["files"] == [True] * 4


def test_the_command_works_alone(empty, tmp_path):
    done = run(empty, tmp_path, "shoal", "epsilon", "local", "--sigma", "5", "--delta", "1e-5", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    here = shoal.LocalGaussian(sigma=5.0).epsilon(delta=1e-5)
    assert row["epsilon"]["upper"] == pytest.approx(here.upper, rel=1e-3)
    assert run(empty, tmp_path, "shoal", "--version").stdout.strip() == shoal.__version__
    assert "Number of users (shuffle" in run(empty, tmp_path, "shoal", "epsilon", "--help").stdout


MISSING = [
    ("plot", ("epsilon", "local", "--sigma", "5", "--delta", "1e-5", "--plot", "a.png")),
    ("plot", ("demo",)),
    ("train", ("train",)),
    ("train", ("audit", "--run", ".")),
    ("explore", ("explore", "--no-browser")),
    ("flower", ("analyst", "status", "folder")),
]


@pytest.mark.parametrize(("extra", "words"), MISSING, ids=[" ".join(words[:2]) for _, words in MISSING])
def test_the_command_names_the_extra_that_is_missing(empty, tmp_path, extra, words):
    done = run(empty, tmp_path, "shoal", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("shoal: ")
    assert done.stderr.endswith(f"pip install 'shoal-dp[{extra}]'\n")
    assert done.stderr.count("\n") == 1


def test_python_names_the_extra_that_is_missing(empty, tmp_path):
    code = """
import shoal
for extra, line in (
    ("train", "import shoal.training"),
    ("train", "import shoal.adapters.opacus"),
    ("dp-accounting", "import shoal.adapters.dp_accounting"),
    ("dp-accounting", "shoal.LocalGaussian(sigma=1.0).pld()"),
    ("flower", "import shoal.deployment"),
):
    try:
        exec(line)
    except ModuleNotFoundError as error:
        assert str(error).endswith(f"was not found{'; Python 3.11 or later' * (extra == 'flower')}): "
                                   f"pip install 'shoal-dp[{extra}]'"), error
        print(line)
"""
    done = run(empty, tmp_path, "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 5
