"""A Flower app to begin with: `shoal flower new` writes it, its owner changes one file of it.

The folder is an ordinary Flower app, which `flwr run` starts. `[tool.shoal]` in its `pyproject.toml` names the
function that gives the model to start from, so that nobody has to count its numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomllib

from shoal.errors import InvalidInput

_APP_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")

PROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "{name}"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
rounds = 3
shuffler = "/etc/shoal/shuffler.toml"

[tool.shoal]
model = "{package}.model:starting_arrays"
"""

MODEL = '''\
"""The model and the data: everything that is yours is in this file."""

import numpy as np


def starting_arrays():
    """The arrays that are trained, by name, with the numbers to start from."""
    return {"weights": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}


def load(part, parts):
    """The data of one node. Here: 40 points in 3 classes. Read your node's own files instead, in this function.

    What fails in a round stays on the node; what fails when this file is imported does not.
    """
    return _points(40, seed=part)


def train(arrays, data):
    """The arrays after training on one node's data: some steps of softmax regression."""
    (x, labels), weights, bias = data, arrays["weights"].astype(float), arrays["bias"].astype(float)
    for _ in range(20):
        error = (_shares(x, weights, bias) - np.eye(3)[labels]) / len(x)
        weights, bias = weights - x.T @ error, bias - error.sum(axis=0)
    return {"weights": weights, "bias": bias}


def evaluate(arrays):
    """How good a model is, on public data."""
    x, labels = _points(1_000, seed=10**6)
    guesses = _shares(x, arrays["weights"], arrays["bias"]).argmax(axis=1)
    return {"accuracy": float((guesses == labels).mean())}


def _shares(x, weights, bias):
    powers = np.exp(np.clip(x @ weights + bias, -50, 50))
    return powers / powers.sum(axis=1, keepdims=True)


def _points(count, seed):
    centres = np.random.default_rng(0).normal(size=(3, 4))
    own = np.random.default_rng(seed + 1)
    labels = own.integers(3, size=count)
    return centres[labels] + own.normal(scale=0.5, size=(count, 4)), labels
'''

CLIENT = '''\
"""The node's side: train, and let the mod clip, add noise and seal."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from shoal.deployment import sealed_reports

from {package} import model

app = ClientApp(mods=[sealed_reports])


@app.train()
def train(message: Message, context: Context) -> Message:
    data = model.load(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    sent = {{name: array.numpy() for name, array in message.content["arrays"].items()}}
    trained = model.train(sent, data)
    arrays = ArrayRecord({{name: Array(np.asarray(trained[name], sent[name].dtype)) for name in sent}})
    return Message(RecordDict({{"arrays": arrays}}), reply_to=message)
'''

SERVER = '''\
"""The shuffler's side: collect, permute, deliver."""

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from shoal.deployment import Shuffler

from {package} import model

app = ServerApp()


def judge(round_number: int, arrays: ArrayRecord) -> MetricRecord:
    scores = model.evaluate({{name: array.numpy() for name, array in arrays.items()}})
    print(f"after round {{round_number}}: {{scores}}", flush=True)
    return MetricRecord(scores)


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = ArrayRecord({{name: Array(a) for name, a in model.starting_arrays().items()}})
    shuffler = Shuffler.from_file(str(context.run_config["shuffler"]))
    shuffler.start(grid, start, num_rounds=int(context.run_config["rounds"]), evaluate_fn=judge)
'''


def write_app(folder: Path) -> None:
    """Write a new app into a new folder, whose name it takes; `InvalidInput` if the folder does not do."""
    name = folder.resolve().name
    if not _APP_NAME.fullmatch(name):
        raise InvalidInput(
            f"the name of the folder must be 1 to 40 lower-case letters, digits or dashes, a letter first, got {name!r}"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} must be a new or empty folder")
    package = name.replace("-", "_")
    # Its package would hide the module of that name, or be hidden by it.
    if keyword.iskeyword(package) or package in sys.stdlib_module_names or importlib.util.find_spec(package):
        raise InvalidInput(f"the name of the folder must not be that of a Python module, got {name!r}")
    home = folder / package
    home.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(name=name, package=package))
    (home / "__init__.py").write_text("")
    (home / "model.py").write_text(MODEL)
    (home / "client.py").write_text(CLIENT.format(package=package))
    (home / "server.py").write_text(SERVER.format(package=package))


def read_starting_arrays(folder: Path) -> Mapping[str, Any]:
    """The arrays that an app starts from, by the function that its `pyproject.toml` names."""
    project = folder / "pyproject.toml"
    try:
        module, function = tomllib.loads(project.read_text())["tool"]["shoal"]["model"].split(":")
    except (OSError, KeyError, ValueError, AttributeError, TypeError):
        raise InvalidInput(
            f"{project} must name the function that gives the starting arrays: [tool.shoal] model = "
            '"package.module:function"'
        ) from None
    # The app is no installed package: its folder is on the path for this import only.
    home = str(folder.resolve())
    sys.path.insert(0, home)
    try:
        arrays = getattr(importlib.import_module(module), function)()
    finally:
        sys.path.remove(home)
    return {name: np.asarray(array) for name, array in arrays.items()}
