"""Opacus: the privacy of a run itself, and of the shuffle protocol that a run simulates.

**The run itself.** `register_central()` registers an accountant of DP-SGD with a trusted server with Opacus; name it
instead of `"prv"` or `"rdp"`, and change nothing else. It needs to know how batches are drawn, because Opacus does not
pass this on: by Poisson sampling (the default of `make_private`), or as the data loader does it
(`poisson_sampling=False`). `sampling_of` reads the scheme off a data loader.

**A protocol.** The rest of this module is about shuffled Gaussian reports: train as usual, and read off the privacy of
the distributed protocol.

Opacus trains with a trusted server: it sums clipped gradients and adds noise once. In a shuffle
protocol each user adds noise and the server sees the shuffled reports. Both give the model
the same update if the noise of the sum is the same, so Opacus can *simulate* the protocol, and an
accountant from this module computes how private the simulated protocol is.

**Noise.** With `users` records and sampling rate g, B = g * users reports are expected per round. B
reports with noise multiplier sigma each have a sum with noise multiplier sqrt(B) * sigma. So

    Opacus' noise_multiplier = sqrt(sample_rate * users) * sigma,

and the accountant converts back: sigma = noise_multiplier / sqrt(sample_rate * users). The two
functions `noise_multiplier` and `report_sigma` do this.

**What the numbers mean.** They are the guarantee of the protocol in which each user clips its
gradient, adds noise of multiplier sigma and sends the report through the shuffler. They do
not describe the run of Opacus itself, where the server sees the gradients in the clear; if that server
is trusted and only the model is published, use `register_central`.

**What the simulation leaves out.** With check-in the number of reports K varies from round to
round, and the noise of their sum with it: its multiplier is sqrt(K) * sigma, while Opacus always
adds sqrt(B) * sigma (K deviates from B by a few times sqrt(B)). The guarantee is that of the
protocol, so it accounts for the varying K; the training sees only its mean.

**What must hold.** One record is one user, and `users` is the size of the data set: a step whose
batch size contradicts it is refused, before the model changes. Sampling must be the protocol's:
Opacus' Poisson sampling (the default of `make_private`) is the users' coin tosses of `"check-in"`; a
data loader that goes through the data in shuffled order (`poisson_sampling=False`) is neither of
the two protocols. Adaptive clipping is refused, because it also publishes a count.

**The search of `get_noise_multiplier`** stops at a multiplier of 655,360, with "The privacy budget
is too low": enough for sigma = 8,460 at B = 6,000, but for sigma = 0.65 only at B = 10^12. Beyond it,
`noise_multiplier(sigma=shoal.calibrate.sigma(...), ...)` has no such limit. Its `epsilon_tolerance`
is absolute (0.01): reduce it for small targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from shoal._extras import missing
from shoal.errors import InvalidInput, InvalidType

try:
    from opacus.accountants import IAccountant, create_accountant, register_accountant
    from opacus.optimizers import AdaClipDPOptimizer
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
    from torch import Generator, default_generator
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler
except ModuleNotFoundError as error:
    raise missing("shoal.adapters.opacus needs PyTorch and Opacus", "train", error.name) from None

from shoal import _validate
from shoal.accountant import Accountant
from shoal.interval import Interval
from shoal.mechanisms import (
    Adjacency,
    BallsAndBins,
    Crowd,
    FixedBatch,
    LocalGaussian,
    Mechanism,
    PoissonSampling,
    ShuffledCheckIn,
    ShuffledEpochs,
    SubsampledShuffle,
)


def _reports_per_step(users: int, sample_rate: float) -> float:
    """Return B, the expected number of reports in a round."""
    reports = _validate.users("users", users) * _validate.rate(sample_rate, "sample_rate")
    if reports < 1.0:
        raise InvalidInput(f"sample_rate * users must be at least 1 report a round, got {reports:g}")
    return reports


def report_sigma(*, noise_multiplier: float, users: int, sample_rate: float) -> float:
    """Return the noise multiplier of one report that Opacus' noise simulates.

    Args:
      noise_multiplier: Opacus' noise multiplier, of the sum of a batch.
      users: The number of users, which is the size of the data set.
      sample_rate: Opacus' sample rate.

    Returns:
      The noise multiplier of a report.

    Raises:
      InvalidInput: If fewer than one report a round is expected, or an argument is out of its range.

    >>> report_sigma(noise_multiplier=100.0, users=4_000, sample_rate=0.1)
    5.0
    """
    noise = _validate.real("noise_multiplier", noise_multiplier)
    if noise <= 0:
        raise InvalidInput(f"noise_multiplier must be positive, got {noise}")
    return _validate.sigma(
        noise / math.sqrt(_reports_per_step(users, sample_rate)), "noise_multiplier / sqrt(sample_rate * users)"
    )


def noise_multiplier(*, sigma: float, users: int, sample_rate: float) -> float:
    """Return Opacus' noise multiplier that simulates noisy reports.

    Args:
      sigma: The noise multiplier of a report.
      users: The number of users, which is the size of the data set.
      sample_rate: Opacus' sample rate.

    Returns:
      Opacus' noise multiplier, of the sum of a batch.

    Raises:
      InvalidInput: If fewer than one report a round is expected, or an argument is out of its range.

    >>> noise_multiplier(sigma=5.0, users=4_000, sample_rate=0.1)
    100.0
    """
    return _validate.sigma(sigma) * math.sqrt(_reports_per_step(users, sample_rate))


def _check_in(*, rate: float, **common: Any) -> Mechanism:
    return ShuffledCheckIn(rate=rate, **common)


def _subsampled(*, rate: float, users: int, **common: Any) -> Mechanism:
    sample = round(rate * users)
    # Rounding silently would account for a sample that is not the one drawn.
    if not math.isclose(sample, rate * users, rel_tol=1e-9):
        raise InvalidInput(f"sample_rate * users must be a whole number for subsampled, got {rate * users:g}")
    return SubsampledShuffle(users=users, sample=sample, **common)


_PROTOCOLS: dict[str, Callable[..., Mechanism]] = {
    ShuffledCheckIn.label: _check_in,
    SubsampledShuffle.label: _subsampled,
}

History = list[tuple[float, float, int]]
"""Opacus' record: (noise multiplier, sample rate, number of steps)."""


class _HistoryAccountant(IAccountant):  # type: ignore[misc]
    """An accountant that computes everything from Opacus' record of steps.

    Opacus builds accountants without arguments and overwrites their `history`. Therefore the class fixes all that
    describes the training, and `history` holds the rest.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        if not hasattr(self, "name"):
            raise InvalidType(f"{type(self).__name__} cannot be used itself: {self.made_by}")
        super().__init__()
        self.history: History = []

    made_by: ClassVar[str] = ""
    """Names the functions that make usable classes."""

    @classmethod
    def mechanism(cls) -> str:
        """Return the name under which Opacus knows this accountant."""
        return cls.name

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Return what the class fixes, as plain data."""
        raise NotImplementedError

    @classmethod
    def _rounds(cls, noise_multiplier: float, sample_rate: float, steps: int) -> tuple[Mechanism, int]:
        """Return the mechanism that equal steps amount to, and its number of rounds."""
        raise NotImplementedError

    @classmethod
    def _least_noise(cls, sample_rate: float) -> float:
        """Return the noise multiplier below which noise is too small to compute with, and counts as none."""
        return 2.0 * _validate.SIGMA_RANGE[0]

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Record one optimisation step.

        Args:
          noise_multiplier: Opacus' noise multiplier.
          sample_rate: Opacus' sample rate.
        """
        # Opacus' own form: consecutive equal steps are one entry.
        if self.history and tuple(self.history[-1][:2]) == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def __len__(self) -> int:
        """The number of optimisation steps."""
        return sum(steps for _, _, steps in self.history)

    def accountant(self) -> Accountant:
        """Return the steps so far as a `shoal.Accountant`, with intervals and a readable ledger."""
        return self._compose(self.history)

    @classmethod
    def _has_noise(cls, entry: tuple[float, float, int]) -> bool:
        """Return whether a step had noise to speak of."""
        # Negative noise is left to the mechanism, which refuses it with a reason.
        noise, rate, _ = entry
        return not 0.0 <= _validate.real("noise_multiplier", noise) < cls._least_noise(rate)

    @classmethod
    def _compose(cls, history: Iterable[tuple[float, float, int]]) -> Accountant:
        total = Accountant()
        for noise, rate, steps in history:
            mechanism, rounds = cls._rounds(noise, rate, _validate.rounds(steps, "steps"))
            total.compose(mechanism, rounds=rounds)
        return total

    def get_epsilon(self, delta: float, **options: Any) -> float:
        """Return epsilon of all steps so far, 0 before any step.

        Args:
          delta: The delta of all steps together.
          **options: Passed to `shoal.Accountant.epsilon`: `method`, `orders`, `accuracy`.

        Returns:
          Epsilon of what this class describes; infinite if a step had no noise to speak of.
        """
        # The noisy steps are computed in any case, so that bad options are refused before infinity is returned.
        noisy = [entry for entry in self.history if self._has_noise(entry)]
        epsilon = float(self._compose(noisy).epsilon(delta=delta, **options))
        return epsilon if len(noisy) == len(self.history) else math.inf

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """Return the function that Opacus calls at each step; it refuses steps of another scheme."""
        record = super().get_optimizer_hook_fn(sample_rate)

        def hook(optimizer: Any) -> None:
            # Adaptive clipping also publishes a noisy count, which no mechanism here includes.
            if isinstance(optimizer, AdaClipDPOptimizer):
                raise InvalidInput("clipping must not be adaptive: the count it publishes is not part of the protocol")
            self._check(optimizer, sample_rate)
            record(optimizer)

        return hook

    def _check(self, optimizer: Any, sample_rate: float) -> None:
        """Raise `InvalidInput` if the batches are not those that this class describes."""

    def state_dict(self, destination: Any = None) -> Any:
        """Return Opacus' state (history and name), and what the class fixes."""
        state = super().state_dict(destination)
        state["protocol"] = self.parameters()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a saved state; a corrupt state, or that of another protocol, changes nothing."""
        # A trial loads the state and composes its history first: it is taken over whole or not at all.
        trial = type(self)()
        super(_HistoryAccountant, trial).load_state_dict(state_dict)
        if state_dict.get("protocol") != self.parameters():
            raise InvalidInput(f"protocol must be {self.parameters()}, got {state_dict.get('protocol')}")
        try:
            history = [(noise, rate, steps) for noise, rate, steps in trial.history]
            self._compose(entry for entry in history if self._has_noise(entry))
        except (TypeError, ValueError) as error:  # also from taking a broken entry apart
            raise InvalidInput(f"history must list (noise_multiplier, sample_rate, steps): {error}") from None
        self.history = history


class ShuffleAccountant(_HistoryAccountant):
    """Opacus' accountant of a shuffle protocol; `make_accountant` and `register` make subclasses."""

    users: ClassVar[int]
    protocol: ClassVar[str]
    crowd: ClassVar[Crowd]
    adjacency: ClassVar[Adjacency]
    made_by: ClassVar[str] = "use make_accountant or register"

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Return the protocol as plain data."""
        return {"users": cls.users, "protocol": cls.protocol, "crowd": cls.crowd, "adjacency": cls.adjacency}

    @classmethod
    def round(cls, *, noise_multiplier: float, sample_rate: float) -> Mechanism:
        """Return the round of the protocol that one Opacus step simulates.

        Args:
          noise_multiplier: Opacus' noise multiplier.
          sample_rate: Opacus' sample rate.

        Returns:
          The mechanism of the round.
        """
        return _PROTOCOLS[cls.protocol](
            users=cls.users,
            rate=_validate.rate(sample_rate, "sample_rate"),
            sigma=report_sigma(noise_multiplier=noise_multiplier, users=cls.users, sample_rate=sample_rate),
            crowd=cls.crowd,
            adjacency=cls.adjacency,
        )

    @classmethod
    def _rounds(cls, noise_multiplier: float, sample_rate: float, steps: int) -> tuple[Mechanism, int]:
        return cls.round(noise_multiplier=noise_multiplier, sample_rate=sample_rate), steps

    @classmethod
    def _least_noise(cls, sample_rate: float) -> float:
        """Return the multiplier of the sum at which a report has 0.0002."""
        return super()._least_noise(sample_rate) * math.sqrt(_reports_per_step(cls.users, sample_rate))

    def _check(self, optimizer: Any, sample_rate: float) -> None:
        _check_batch_size(optimizer, sample_rate, "users", self.users)


def _check_batch_size(optimizer: Any, sample_rate: float, name: str, size: int) -> None:
    """Raise `InvalidInput` if the batches contradict the size of the data set."""
    per_worker = optimizer.expected_batch_size
    if per_worker is None:
        return
    batch = round(per_worker * getattr(optimizer, "world_size", 1))
    # Opacus rounds batch sizes down.
    if batch != int(size * sample_rate):
        raise InvalidInput(
            f"{name} must be the size of the data set: {name}={size} at sample_rate={sample_rate:g} "
            f"means batches of {int(size * sample_rate)}, Opacus has batches of {batch}"
        )


def make_accountant(
    name: str = "shoal",
    *,
    users: int,
    protocol: str = ShuffledCheckIn.label,
    crowd: Crowd = ShuffledCheckIn.crowd,
    adjacency: Adjacency = ShuffledCheckIn.adjacency,
) -> type[ShuffleAccountant]:
    """Return an Opacus accountant class for one protocol; `register` also registers it.

    Args:
      name: The name that Opacus uses for it.
      users: The number of users, which is the size of the data set.
      protocol: `"check-in"`: each user tosses a coin and takes part with probability `sample_rate`,
        as in Opacus' Poisson sampling (at rate 1 this is the plain shuffle of all users);
        `"subsampled"`: `sample_rate * users` users, drawn without replacement at each step, which
        needs your own data loader for the drawing, and `poisson_sampling=False`.
      crowd: What is assumed about the other users, see `shoal.mechanisms`.
      adjacency: Which data sets are compared, see `shoal.mechanisms`.

    Returns:
      A subclass of `ShuffleAccountant`.

    Raises:
      InvalidInput: If an argument is out of its range.

    >>> accountant = make_accountant(users=60_000, crowd="identical")()
    >>> accountant.history = [(noise_multiplier(sigma=5.0, users=60_000, sample_rate=0.1), 0.1, 5_540)]
    >>> 0.05673 < accountant.get_epsilon(1e-5) < 0.05676
    True
    """
    if not isinstance(name, str) or not name:
        raise InvalidType(f"name must be a non-empty string, got {name!r}")
    fixed = {
        "users": _validate.users("users", users),
        "protocol": _validate.choice("protocol", protocol, tuple(_PROTOCOLS)),
        "crowd": _validate.choice("crowd", crowd, get_args(Crowd)),
        "adjacency": _validate.choice("adjacency", adjacency, get_args(Adjacency)),
    }
    return type("ShuffleAccountant", (ShuffleAccountant,), {"__module__": __name__, "name": name, **fixed})


def register(
    name: str = "shoal",
    *,
    users: int,
    protocol: str = ShuffledCheckIn.label,
    crowd: Crowd = ShuffledCheckIn.crowd,
    adjacency: Adjacency = ShuffledCheckIn.adjacency,
    force: bool = False,
) -> type[ShuffleAccountant]:
    """Register an accountant, for `PrivacyEngine(accountant=name)` and `get_noise_multiplier`.

    Registering the same protocol again changes nothing.

    Args:
      name: The name that Opacus uses for it.
      users: The number of users, which is the size of the data set.
      protocol: `"check-in"` or `"subsampled"`, see `make_accountant`.
      crowd: What is assumed about the other users, see `shoal.mechanisms`.
      adjacency: Which data sets are compared, see `shoal.mechanisms`.
      force: Whether a name that is registered for something else may be taken.

    Returns:
      The registered subclass of `ShuffleAccountant`.

    Raises:
      InvalidInput: If the name is taken and `force` is false, or an argument is out of its range.
    """
    accountant_class = make_accountant(name, users=users, protocol=protocol, crowd=crowd, adjacency=adjacency)
    return _register(name, accountant_class, force)


def _register(name: str, accountant_class: type[Any], force: bool) -> type[Any]:
    """Register a class with Opacus, unless the name is registered for something else."""
    try:
        existing = type(create_accountant(name))
    except ValueError:
        existing = None
    if existing is not None:
        if issubclass(existing, _HistoryAccountant) and existing.parameters() == accountant_class.parameters():
            return existing
        if not force:
            raise InvalidInput(f"name must be new to Opacus, or force=True given, got {name!r}")
    register_accountant(name, accountant_class, force=force)
    return accountant_class


# ---------------------------------------------------------------------------------------------
# The run itself: DP-SGD with a trusted server, by how it draws its batches


def _epochs(steps: int, sample_rate: float) -> tuple[int, int]:
    """Return the number of steps in an epoch, and of epochs begun."""
    per_epoch = round(1.0 / _validate.rate(sample_rate, "sample_rate"))
    # An epoch that has begun counts in full: its first batches may hold anybody.
    return per_epoch, -(-steps // per_epoch)


def _central(
    sampling: str,
    sigma: float,
    rate: float,
    steps: int,
    records: int | None,
    adjacency: Adjacency,
    records_per_user: int = 1,
) -> tuple[Mechanism, int]:
    """Return the mechanism of some steps of a run, and its number of rounds."""
    if sampling == PoissonSampling.label:
        return PoissonSampling(rate=rate, sigma=sigma, adjacency=adjacency, records_per_user=records_per_user), steps
    if sampling == FixedBatch.label:
        size = _validate.users("records", records)
        batch = max(1, round(rate * size))
        drawn = FixedBatch(
            records=size, batch=batch, sigma=sigma, adjacency=adjacency, records_per_user=records_per_user
        )
        return drawn, steps
    per_epoch, begun = _epochs(steps, rate)
    if sampling == ShuffledEpochs.label:
        # Opacus does not say whether the last batch of an epoch is smaller: only full batches count.
        return ShuffledEpochs(steps=max(1, per_epoch - 1), sigma=sigma, adjacency=adjacency), begun
    if sampling == BallsAndBins.label:
        return BallsAndBins(bins=per_epoch, sigma=sigma, adjacency=adjacency), begun
    return LocalGaussian(sigma=sigma, adjacency=adjacency), begun


SEQUENTIAL = "sequential"
SAMPLINGS = (PoissonSampling.label, FixedBatch.label, ShuffledEpochs.label, BallsAndBins.label, SEQUENTIAL)
"""How a run may draw its batches; `sequential` means the same order in every epoch."""


class CentralAccountant(_HistoryAccountant):
    """Opacus' accountant of the run itself; `register_central` makes subclasses."""

    sampling: ClassVar[str]
    records: ClassVar[int | None]
    adjacency: ClassVar[Adjacency]
    records_per_user: ClassVar[int]
    made_by: ClassVar[str] = "use register_central"

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Return what the class fixes, as plain data."""
        fixed = {"sampling": cls.sampling, "records": cls.records, "adjacency": cls.adjacency}
        # Left out where it is 1, so that states of before can be read.
        return fixed if cls.records_per_user == 1 else {**fixed, "records_per_user": cls.records_per_user}

    @classmethod
    def _rounds(cls, noise_multiplier: float, sample_rate: float, steps: int) -> tuple[Mechanism, int]:
        sigma = _validate.sigma(noise_multiplier, "noise_multiplier")
        return _central(cls.sampling, sigma, sample_rate, steps, cls.records, cls.adjacency, cls.records_per_user)

    def _check(self, optimizer: Any, sample_rate: float) -> None:
        if self.records is not None:
            _check_batch_size(optimizer, sample_rate, "records", self.records)


def register_central(
    name: str = "shoal-central",
    *,
    sampling: str = PoissonSampling.label,
    records: int | None = None,
    adjacency: Adjacency = "zero-out",
    records_per_user: int = 1,
    force: bool = False,
) -> type[CentralAccountant]:
    """Register an accountant of DP-SGD itself, for `PrivacyEngine(accountant=name)`.

    Args:
      name: The name that Opacus uses for it.
      sampling: How batches are drawn: `"poisson"` (the default of `make_private`), or with `poisson_sampling=False`
        `"shuffled-epochs"` (a loader with `shuffle=True`), `"sequential"` (a loader without), `"fixed-batch"` (your own
        sampler, which draws anew without replacement at each step; needs `records`), `"balls-and-bins"`.
      records: The size of the data set; if given, a step whose batch size contradicts it is refused.
      adjacency: Which data sets are compared, see `shoal.mechanisms`.
      records_per_user: The most records of one person, for `"poisson"` and `"fixed-batch"`: the person is protected.
      force: Whether a name that is registered for something else may be taken.

    Returns:
      The registered subclass of `CentralAccountant`.

    Raises:
      InvalidInput: If the name is taken and `force` is false, or an argument is out of its range.

    >>> accountant = register_central("shoal-central-doctest")()
    >>> accountant.history = [(1.0, 0.01, 1_000)]
    >>> 2.124 < accountant.get_epsilon(1e-6) < 2.125
    True
    """
    if not isinstance(name, str) or not name:
        raise InvalidType(f"name must be a non-empty string, got {name!r}")
    fixed = {
        "sampling": _validate.choice("sampling", sampling, SAMPLINGS),
        "records": None if records is None else _validate.users("records", records),
        "adjacency": _validate.choice("adjacency", adjacency, get_args(Adjacency)),
        "records_per_user": _validate.users("records_per_user", records_per_user),
    }
    if records_per_user > 1 and sampling not in (PoissonSampling.label, FixedBatch.label):
        raise InvalidInput(f"records_per_user must be 1 for {sampling}, got {records_per_user}")
    if sampling == FixedBatch.label and records is None:
        raise InvalidInput("records, the size of the data set, must be given for fixed-batch")
    if sampling == BallsAndBins.label and adjacency != "zero-out":
        raise InvalidInput(f"adjacency must be zero-out for balls-and-bins, got {adjacency!r}")
    accountant_class = type("CentralAccountant", (CentralAccountant,), {"__module__": __name__, "name": name, **fixed})
    return _register(name, accountant_class, force)


_SEED_MIN = 2**32
"""Seeds below it can all be tried, and are what people write into scripts."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a data loader draws its batches: a mechanism, and the number of its rounds in an epoch."""

    name: str
    """One of `SAMPLINGS`, for `register_central`."""
    mechanism: Mechanism
    rounds: int
    reason: str = ""
    """Why an order that looks shuffled is not counted as a fresh, secret one; empty if it is."""

    def epsilon(self, *, delta: float, epochs: int = 1, **options: Any) -> Interval:
        """Return epsilon of a number of epochs.

        Args:
          delta: The delta of all epochs together.
          epochs: The number of epochs.
          **options: Passed to `Mechanism.epsilon`: `method`, `orders`, `accuracy`.

        Returns:
          The interval.
        """
        number = _validate.rounds(epochs, "epochs")
        if isinstance(self.mechanism, ShuffledEpochs):
            return self.mechanism.replace(epochs=number).epsilon(delta=delta, rounds=self.rounds, **options)
        return self.mechanism.epsilon(delta=delta, rounds=self.rounds * number, **options)


@dataclass(frozen=True, kw_only=True)
class _Order:
    """In which order a loader goes through its records, and how many of its batches are full."""

    full_batches: int
    shuffles: bool
    is_fresh: bool = True
    reason: str = ""


def _guessable_seed(generator: Generator | None) -> int | None:
    """Return the seed of a generator if anybody can guess it; None if not, or if it has no seed."""
    try:
        seed = (generator or default_generator).initial_seed()
    except RuntimeError:  # a generator that reads from the operating system
        return None
    # A generator that was never seeded has the same seed on every machine.
    return seed if 0 <= seed < _SEED_MIN or seed == Generator().initial_seed() else None


def _public(seed: int, owner: str) -> str:
    return (
        f"the seed {seed} of {owner} can be guessed, so the order is public; draw a secret one, "
        "for instance secrets.randbits(63)"
    )


def _order(batches: BatchSampler, sets_epoch: bool) -> _Order:
    """Return the order of a loader whose batches are cut from a sampler of single records."""
    sampler: Any = batches.sampler
    batch = batches.batch_size
    # By exact type: a subclass may draw as it likes.
    if type(sampler) is SequentialSampler:
        return _Order(full_batches=len(sampler) // batch, shuffles=False)
    if type(sampler) is RandomSampler:
        records = len(sampler.data_source)
        if sampler.replacement:
            raise InvalidInput("sampler must draw without replacement: a record may be in a batch twice otherwise")
        if sampler.num_samples != records:
            raise InvalidInput(
                f"sampler must go through all {records} records once an epoch, got num_samples = {sampler.num_samples}"
            )
        seed = _guessable_seed(sampler.generator)
        owner = "PyTorch's default generator" if sampler.generator is None else "the loader's generator"
        return _Order(
            full_batches=records // batch, shuffles=seed is None, reason="" if seed is None else _public(seed, owner)
        )
    if type(sampler) is DistributedSampler:
        data: Any = sampler.dataset
        records, workers = len(data), sampler.num_replicas
        if records % workers and not sampler.drop_last:
            raise InvalidInput(
                f"sampler must use no record twice an epoch: {records} records for {workers} workers are padded by "
                f"{-records % workers}; use drop_last=True"
            )
        if not sampler.shuffle:
            return _Order(full_batches=sampler.num_samples // batch, shuffles=False)
        secret = sampler.seed >= _SEED_MIN
        is_fresh = sets_epoch or sampler.epoch > 0
        reason = "" if is_fresh else "without set_epoch all epochs have one order"
        return _Order(
            full_batches=sampler.num_samples // batch,
            shuffles=secret,
            is_fresh=is_fresh,
            reason=reason if secret else _public(sampler.seed, "DistributedSampler"),
        )
    raise InvalidInput(
        "loader must draw by Opacus' Poisson sampling, by shuffle=True or in sequence, got " + type(sampler).__name__
    )


def sampling_of(
    loader: DataLoader[Any],
    *,
    sigma: float,
    adjacency: Adjacency = "zero-out",
    accumulation: int = 1,
    sets_epoch: bool = False,
) -> Sampling:
    """Return the mechanism of a data loader, with noise on the sum of each batch.

    Opacus' own loaders use Poisson sampling. A loader with `shuffle=True` goes through the data in a new order every
    epoch (shuffled epochs), a loader without in the same order (sequential: once an epoch, each record is in a batch
    that is known). Other samplers are refused, because nothing is known about them.

    A shuffled order hides a record only while nobody can guess it. What can be seen of that in the loader is looked at:
    an order whose seed can be guessed (`torch.manual_seed(0)`, the default of `DistributedSampler`, a
    `torch.Generator()` that was not seeded) counts as one that is known, an order that `set_epoch` does not change as
    one order for all epochs, and `reason` says so. A sampler that pads, and so uses records twice, is refused. Only
    full batches count. What cannot be seen: who else knows a seed, how sums are divided, what gradients read
    (`docs/howto/dp-sgd.md`).

    Args:
      loader: The data loader.
      sigma: The noise multiplier of the sum of a batch.
      adjacency: Which data sets are compared.
      accumulation: The number of batches whose gradients are added up before noise is added. What is left at the end
        of an epoch must be released or thrown away then, so that no record is in one release twice.
      sets_epoch: Whether the training calls `set_epoch` before every epoch, which only `DistributedSampler` needs. A
        sampler whose epoch is above 0 has been seen to.

    Returns:
      The mechanism, and the number of its rounds in an epoch.

    Raises:
      InvalidInput: If the loader draws in another way, uses a record twice, or has no full batch.

    >>> import secrets, torch
    >>> secret = torch.Generator().manual_seed(secrets.randbits(63))
    >>> sampling_of(DataLoader(list(range(100)), batch_size=10, shuffle=True, generator=secret), sigma=1.0).mechanism
    ShuffledEpochs(sigma=1.0, adjacency='zero-out', steps=10, epochs=1, persistent=False)
    """
    noise, micro_batches = _validate.sigma(sigma), _validate.rounds(accumulation, "accumulation")
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(batches, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)):
        seed = _guessable_seed(getattr(batches, "generator", None))
        if seed is not None:
            raise InvalidInput(f"loader must draw batches that nobody can predict: {_public(seed, 'its generator')}")
        if micro_batches > 1:
            raise InvalidInput(f"accumulation must be 1 for Poisson sampling, got {micro_batches}")
        mechanism, rounds = _central(
            PoissonSampling.label, noise, float(batches.sample_rate), len(loader), None, adjacency
        )
        return Sampling(name=PoissonSampling.label, mechanism=mechanism, rounds=rounds)
    if type(batches) is not BatchSampler:
        raise InvalidInput(
            "loader must draw by Opacus' Poisson sampling, by shuffle=True or in sequence, got "
            + type(getattr(batches, "sampler", batches)).__name__
        )
    order = _order(batches, sets_epoch)
    steps = order.full_batches // micro_batches
    if steps == 0:
        raise InvalidInput(
            f"loader must have at least {micro_batches} full {'batch' if micro_batches == 1 else 'batches'}, got "
            f"{order.full_batches}"
        )
    if not order.shuffles:
        clear = LocalGaussian(sigma=noise, adjacency=adjacency)
        return Sampling(name=SEQUENTIAL, mechanism=clear, rounds=1, reason=order.reason)
    return Sampling(
        name=ShuffledEpochs.label if order.is_fresh else SEQUENTIAL,
        mechanism=ShuffledEpochs(steps=steps, sigma=noise, adjacency=adjacency, persistent=not order.is_fresh),
        rounds=1,
        reason=order.reason,
    )
