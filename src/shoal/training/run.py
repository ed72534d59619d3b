"""Training under a protocol: configuration, rounds, checkpoints, metrics, and the run folder that holds them.

A run folder holds `config.json` (the settings), `metrics.jsonl` (a line for each evaluated round),
`checkpoint.pt` (from which a run resumes), and at the end `model.pt` (the trained weights).

**Resuming.** Checkpoints replace each other atomically, and metrics past the last one are dropped when a
run resumes, so every round counts once. With a seed the rounds after a checkpoint are repeated
bit for bit on the same machine. Without one they have fresh noise, and reports of the lost
rounds may have been seen: after a run that was killed, `spent` (the rounds that are paid for)
therefore grows by the number of rounds that can have been lost.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import math
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from shoal import _validate, calibrate, run_folder
from shoal.errors import DataError, InvalidInput, InvalidType
from shoal.mechanisms import Mechanism
from shoal.run_folder import CONFIG, METRICS, Optimiser, Schedule, Simulation
from shoal.training import networks, protocol
from shoal.training.clipping import trainable
from shoal.training.data import Dataset, Records, write_atomically
from shoal.training.ledger import guarantee, share_of_delta
from shoal.training.randomness import Source

CHECKPOINT, MODEL = "checkpoint.pt", "model.pt"
RUN_FORMAT = 1
"""Version of the run folder."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a run: all that determines it, apart from the data.

    `clip` is C; the noise of a report has standard deviation C sigma. The server's estimate of the mean
    gradient is the sum of reports divided by their expected number. `average` is the decay of the moving
    average of weights that is evaluated and saved (0: the last weights). `epsilon` is a budget: no
    round is begun after which epsilon at `delta` for the mechanism's crowd would exceed it. `stop_early` is an accuracy
    at which the run stops; its epsilon is then an odometer's, which holds for a run that stops when it likes.
    """

    mechanism: Mechanism
    rounds: int
    delta: float
    data: str = "digits"
    users: int | None = None
    clip: float = 0.01
    epsilon: float | None = None
    stop_early: float | None = None
    network: str = "small"
    optimiser: Optimiser = "sgd"
    learning_rate: float = 3.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = "linear"
    average: float = 0.0
    seed: int | None = None
    path: Simulation = "fast"
    evaluate_every: int = 20
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        if type(self.mechanism) not in protocol.PROTOCOLS.values():
            raise InvalidType(f"mechanism must be one of {', '.join(protocol.PROTOCOLS)}, got {self.mechanism!r}")
        # A simulated user sends one report.
        if (reports := getattr(self.mechanism, "reports_per_user", 1)) > 1:
            raise InvalidInput(f"reports_per_user must be 1 for a training, got {reports}")
        _validate.rounds(self.rounds)
        _validate.delta(self.delta)
        if self.epsilon is not None:
            _validate.epsilon(self.epsilon, positive=True)
        if self.stop_early is not None and not 0.0 < _validate.real("stop_early", self.stop_early) <= 1.0:
            raise InvalidInput(f"stop_early must be above 0 and at most 1 (an accuracy), got {self.stop_early}")
        if self.users is not None:
            _validate.users("users", self.users)
        for name in ("clip", "learning_rate"):
            if _validate.real(name, getattr(self, name)) <= 0.0:
                raise InvalidInput(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("momentum", "average"):
            if not 0.0 <= _validate.real(name, getattr(self, name)) < 1.0:
                raise InvalidInput(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        if _validate.real("weight_decay", self.weight_decay) < 0.0:
            raise InvalidInput(f"weight_decay must be at least 0, got {self.weight_decay}")
        networks.check_network(self.network)
        _validate.choice("optimiser", self.optimiser, get_args(Optimiser))
        _validate.choice("schedule", self.schedule, get_args(Schedule))
        _validate.choice("path", self.path, get_args(Simulation))
        Source(seed=self.seed)
        for name in ("evaluate_every", "checkpoint_every"):
            _validate.rounds(getattr(self, name), name)

    @property
    def claim_delta(self) -> float:
        """The delta at which the rounds must be within the budget: a part of `delta` if the run may stop early."""
        return self.delta if self.stop_early is None else share_of_delta(self.delta)

    @property
    def private(self) -> bool:
        """Whether the noise was unpredictable; a seeded run is for study only."""
        return self.seed is None

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data, for `config.json`."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"format": RUN_FORMAT, "private": self.private, **fields, "mechanism": self.mechanism.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Config:
        """The configuration that `to_dict` turned into plain data."""
        if data.get("format") != RUN_FORMAT:
            raise InvalidInput(f"format of the run must be {RUN_FORMAT}, got {data.get('format')!r}")
        fields = {k: v for k, v in data.items() if k not in ("format", "private")}
        settings = dict(fields["mechanism"])
        classes = {c.__name__: c for c in protocol.PROTOCOLS.values()}
        name = settings.pop("mechanism")
        if name not in classes:
            raise InvalidInput(f"mechanism must be one of {', '.join(classes)}, got {name!r}")
        fields["mechanism"] = classes[name](**settings)
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the metrics; `loss` and `clipped` (share of users) are never released."""

    round: int
    spent: int
    reports: int
    accuracy: float
    accuracy_last: float
    loss: float | None
    clipped: float | None


Watch = Callable[[int, Row | None], bool]
"""Called after each round with its number and, if it was evaluated, its metrics; False stops the run."""


def rate_share(schedule: Schedule, done: int, rounds: int) -> float:
    """The learning rate as a share of the first one.

    Args:
        schedule: Whether it falls to 0, linearly or by a cosine, or stays.
        done: Number of rounds that are done.
        rounds: Number of all rounds.

    Returns:
        A share between 0 and 1.
    """
    remaining = 1.0 - done / rounds
    if schedule == "linear":
        return remaining
    return 1.0 if schedule == "constant" else 0.5 - 0.5 * math.cos(math.pi * remaining)


class Run:
    """A training in progress: model, optimiser, averaged weights, and rounds done and paid for.

    `model` is for a configuration whose network is `own`. A graphics card is used if there is one.
    """

    def __init__(self, config: Config, data: Dataset | Records, model: nn.Module | None = None) -> None:
        data = _training_data(config, data)
        self.config = config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = _model(config, data, model).to(self.device)
        train, test, owners = _record_tensors(config, data)
        self.clients = protocol.Clients(
            inputs=train.to(self.device),
            labels=torch.from_numpy(data.train_labels.astype(np.int64)).to(self.device),
            owners=None if owners is None else owners.to(self.device),
        )
        self.test = test.to(self.device), torch.from_numpy(data.test_labels.astype(np.int64)).to(self.device)
        _check_outputs(self.model, self.test[0][:1], data.classes)
        self.expected = protocol.expected_reports(self.mechanism, data.users)
        self.optimiser = _optimiser(config, trainable(self.model))
        self.averaged = [w.clone() for w in networks.weights(self.model)]
        self.done, self.spent, self.is_good_enough = 0, 0, False
        self.rounds = planned_rounds(config)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of each round."""
        return self.config.mechanism

    @functools.cached_property
    def allowed(self) -> int:
        """The largest number of rounds whose guarantee does not exceed the budget."""
        return _allowed(self.config)

    @property
    def finished(self) -> bool:
        """Whether the run ends: by its rounds, its budget, or its accuracy."""
        # Only if rounds were lost can more be paid for than are done and affordable.
        is_spent = self.spent > self.done and self.spent >= self.allowed
        return self.done >= self.rounds or self.is_good_enough or is_spent

    def step(self) -> protocol.Collected:
        """Run one round: reports, sum, update of the weights."""
        source = Source(seed=self.config.seed, round=self.done + 1)
        result = protocol.run_round(
            self.mechanism, self.clients, self.model, source, clip=self.config.clip, path=self.config.path
        )
        self.update(result.total / self.expected)
        return result

    @torch.no_grad()
    def update(self, mean: Tensor) -> None:
        """End a round: step the optimiser by the mean of the reports."""
        parameters = trainable(self.model)
        share = rate_share(self.config.schedule, self.done, self.rounds)
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.learning_rate * share
        for p, part in zip(parameters, torch.split(mean, [p.numel() for p in parameters]), strict=True):
            p.grad = part.view(p.shape).to(p).contiguous(memory_format=_layout(p))
        self.optimiser.step()
        # The average starts as a plain mean, so that the first weights are soon forgotten.
        decay = min(self.config.average, (self.done + 1) / (self.done + 10))
        for mean_weights, p in zip(self.averaged, parameters, strict=True):
            mean_weights.lerp_(p, 1.0 - decay) if self.config.average else mean_weights.copy_(p)
        self.done += 1
        self.spent += 1

    def evaluate(self, result: protocol.Collected) -> Row:
        """The metrics after a round that had this result."""
        last = networks.model_accuracy(self.model, *self.test)
        if self.config.average:
            present = [w.clone() for w in networks.weights(self.model)]
            networks.set_weights(self.model, self.averaged)
            averaged = networks.model_accuracy(self.model, *self.test)
            networks.set_weights(self.model, present)
        else:
            averaged = last
        if self.config.stop_early is not None:
            self.is_good_enough = averaged >= self.config.stop_early
        return Row(
            round=self.done,
            spent=self.spent,
            reports=result.reports,
            accuracy=averaged,
            accuracy_last=last,
            loss=result.loss,
            clipped=result.clipped,
        )

    def state(self, *, clean: bool) -> bytes:
        """The content of a checkpoint; `clean` says that no round can follow before the next one."""
        buffer = io.BytesIO()
        state = {
            "config": json.dumps(self.config.to_dict()),
            "done": self.done,
            "spent": self.spent,
            "is_good_enough": self.is_good_enough,
            "clean": clean,
            "model": self.model.state_dict(),
            "averaged": self.averaged,
            "optimiser": self.optimiser.state_dict(),
        }
        torch.save(state, buffer)
        return buffer.getvalue()

    def restore(self, content: bytes, where: Path) -> None:
        """Continue from a checkpoint; rounds that can have been lost after it count as paid for.

        Args:
            content: The checkpoint.
            where: Its path, for messages.

        Raises:
            DataError: If it is damaged or belongs to another configuration.
        """
        try:
            state = torch.load(io.BytesIO(content), weights_only=True, map_location=self.device)
            if Config.from_dict(json.loads(state["config"])) != self.config:
                raise DataError(f"{where} belongs to another configuration than {CONFIG} beside it")
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.averaged = list(state["averaged"])
            self.done, self.spent = int(state["done"]), int(state["spent"])
            self.is_good_enough = bool(state.get("is_good_enough", False))
        except (RuntimeError, KeyError, TypeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
            raise DataError(f"{where} is damaged ({type(error).__name__}): start again in another folder") from None
        if not state["clean"] and self.config.private:
            self.spent += self.config.checkpoint_every


def _training_data(config: Config, data: Dataset | Records) -> Dataset | Records:
    """The data of a configuration's users, who must be the mechanism's."""
    if config.users is not None and config.users != data.users:
        data = data.first(config.users)
    users = config.mechanism.to_dict().get("users", data.users)
    if users != data.users:
        raise InvalidInput(f"users of the mechanism must be those of the data ({data.users}), got {users}")
    return data


def _model(config: Config, data: Dataset | Records, model: nn.Module | None) -> nn.Module:
    """The model of a configuration, with its first weights."""
    if config.network == networks.OWN:
        if model is None:
            raise InvalidInput("model must be given for a run whose network is 'own'")
        return model
    if model is not None:
        raise InvalidInput(f"network must be 'own' where a model is given, got {config.network!r}")
    if ":" in config.network:
        return networks.import_model(config.network, seed=config.seed)
    if isinstance(data, Records):
        raise InvalidInput(f"model must be given for {data.name}: {config.network!r} is a network for images")
    rows, columns = data.train_images.shape[1:]
    if rows != columns:
        raise InvalidInput(f"images must be square, got {rows} x {columns}")
    start = Source(seed=config.seed).stream("weights")
    return networks.build(config.network, side=rows, classes=data.classes, randomness=start)


def _record_tensors(config: Config, data: Dataset | Records) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs to train and to test, and the owners of the former if users have several records."""
    if isinstance(data, Records):
        owners = None if data.owners is None else torch.from_numpy(data.owners)
        return torch.from_numpy(data.train_inputs), torch.from_numpy(data.test_inputs), owners
    network = networks.NETWORKS.get(config.network)
    inputs = networks.standardised if network is None else network.inputs
    return inputs(data.train_images), inputs(data.test_images), None


@torch.no_grad()
def _check_outputs(model: nn.Module, record: Tensor, classes: int) -> None:
    """Refuse a model that does not have an output for each class."""
    try:
        shape = tuple(model(record).shape)
    except RuntimeError as error:
        raise InvalidInput(f"model must take records of shape {tuple(record.shape[1:])}: {error}") from None
    if len(shape) != 2 or shape[1] < classes:
        raise InvalidInput(f"model must have {classes} outputs for a record, one for each class, got {shape[1:]}")


def _layout(p: Tensor) -> torch.memory_format:
    return torch.channels_last if p.dim() == 4 else torch.contiguous_format


def _optimiser(config: Config, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay, "foreach": False}
    if config.optimiser == "adam":
        return torch.optim.AdamW(parameters, betas=(config.momentum or 0.9, 0.999), **common)
    return torch.optim.SGD(parameters, momentum=config.momentum, **common)


def planned_rounds(config: Config) -> int:
    """The largest number of rounds of a run within its settings and its budget."""
    if config.epsilon is None:
        return config.rounds
    epsilon = guarantee(config.mechanism, delta=config.claim_delta, rounds=config.rounds)
    return config.rounds if epsilon <= config.epsilon else _allowed(config)


def _allowed(config: Config) -> int:
    """The largest number of rounds whose guarantee does not exceed the budget."""
    if config.epsilon is None:
        return _validate.ROUNDS_MAX
    return calibrate.rounds(config.mechanism, epsilon=config.epsilon, delta=config.claim_delta)


# ---------------------------------------------------------------------------------------------
# The run folder


def read_config(folder: Path) -> Config:
    """The configuration of a run folder."""
    fields = _read_part(run_folder.config, folder)
    try:
        return Config.from_dict(fields)
    except (TypeError, KeyError) as error:
        raise DataError(f"{folder / CONFIG} is not a configuration of a run: {error}") from None


def read_metrics(folder: Path, *, until: int | None = None) -> list[Row]:
    """The metrics of a run folder.

    Args:
        folder: The run folder.
        until: The last round to read; None reads all.

    Returns:
        A row for each evaluated round; a last line that was cut short is left out.
    """
    try:
        rows = [Row(**line) for line in _read_part(run_folder.metrics, folder)]
    except TypeError as error:
        raise DataError(f"{folder / METRICS} is damaged: {error}") from None
    return [row for row in rows if until is None or row.round <= until]


def _read_part(part: Callable[[Path], Any], folder: Path) -> Any:
    try:
        return part(folder)
    except ValueError as error:
        raise DataError(str(error)) from None


def _lines(rows: list[Row]) -> bytes:
    return b"".join(json.dumps(dataclasses.asdict(row)).encode() + b"\n" for row in rows)


def start(config: Config, data: Dataset | Records, folder: Path, *, model: nn.Module | None = None) -> Run:
    """A new run in a folder.

    Args:
        config: The run's configuration.
        data: Its data.
        folder: A folder that does not hold a run yet; it is made if necessary.
        model: The model, for a configuration whose network is `own`.

    Returns:
        The run, before its first round.

    Raises:
        DataError: If the folder already holds a run.
    """
    if (folder / CONFIG).exists():
        raise DataError(f"{folder} already holds a run: resume it, or choose another folder")
    run = Run(config, data, model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made: {error.strerror}") from None
    write_atomically(folder / METRICS, b"")
    write_atomically(folder / CHECKPOINT, run.state(clean=False))
    write_atomically(folder / CONFIG, (json.dumps(config.to_dict(), indent=2) + "\n").encode())
    return run


def resume(data: Dataset | Records, folder: Path, *, model: nn.Module | None = None) -> Run:
    """The run of a folder, as of its last checkpoint.

    Args:
        data: The run's data.
        folder: The run folder.
        model: The model, for a run whose network is `own`.

    Returns:
        The run.

    Raises:
        DataError: If the folder holds no run, or a damaged one.
    """
    run = Run(read_config(folder), data, model)
    path = folder / CHECKPOINT
    if not path.exists():
        raise DataError(f"{folder} has no {CHECKPOINT}: the run never began")
    run.restore(path.read_bytes(), path)
    write_atomically(folder / METRICS, _lines(read_metrics(folder, until=run.done)))
    if not run.finished:
        write_atomically(path, run.state(clean=False))
    return run


def train(
    model: nn.Module, data: Dataset | Records, *, config: Config, folder: Path, watch: Watch | None = None
) -> list[Row]:
    """Train a model on data; a folder that already holds the run is continued.

    Args:
        model: The model, which has the trained weights afterwards.
        data: The data.
        config: The settings; the network counts as `own`.
        folder: The run folder.
        watch: Called after each round; the run stops when it returns False.

    Returns:
        A row for each evaluated round.

    Raises:
        DataError: If the folder holds a run of another configuration.
        InvalidType: If the model is not a `torch.nn.Module`.
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(
            f"model must be a torch.nn.Module, got {type(model).__name__}: continue a run by train_run(run, folder)"
        )
    config = dataclasses.replace(config, network=networks.OWN)
    if not (folder / CONFIG).exists():
        return train_run(start(config, data, folder, model=model), folder, watch=watch)
    if read_config(folder) != config:
        raise DataError(f"{folder} holds a run of another configuration: choose another folder")
    return train_run(resume(data, folder, model=model), folder, watch=watch)


def train_run(run: Run, folder: Path, *, watch: Watch | None = None) -> list[Row]:
    """Run the remaining rounds, and write metrics, checkpoints and the model.

    Args:
        run: The run, from `start` or `resume`.
        folder: Its folder.
        watch: Called after each round; the run stops when it returns False.

    Returns:
        A row for each evaluated round.
    """
    config = run.config
    is_running = True
    with open(folder / METRICS, "ab") as metrics:
        while is_running and not run.finished:
            result = run.step()
            row = None
            if run.done % config.evaluate_every == 0 or run.finished:
                row = run.evaluate(result)
                metrics.write(_lines([row]))
                metrics.flush()
            if run.done % config.checkpoint_every == 0 and not run.finished:
                write_atomically(folder / CHECKPOINT, run.state(clean=False))
            if watch is not None:
                is_running = watch(run.done, row)
    write_atomically(folder / CHECKPOINT, run.state(clean=True))
    if run.finished:
        buffer = io.BytesIO()
        networks.set_weights(run.model, run.averaged)
        torch.save({k: v.cpu() for k, v in run.model.state_dict().items()}, buffer)
        write_atomically(folder / MODEL, buffer.getvalue())
    return read_metrics(folder)
