"""One round of a protocol in plain pieces: who takes part, clients, shuffler, server.

The faithful path sends every single report through the shuffler. The fast path draws what the server
sees of them: the sum of K reports `g_i + N(0, (C sigma)^2 I)` is `sum_i g_i + N(0, K (C sigma)^2 I)`, so
one sum of clipped gradients and one draw have the same law, and the update that follows is the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from shoal.bounds.numeric import IntArray
from shoal.mechanisms import LocalGaussian, Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.sampling import PoissonSampling
from shoal.training import randomness as rand
from shoal.training.clipping import MICROBATCH, ClippedSum, clipped_each, clipped_sum
from shoal.training.randomness import Randomness

Path = Literal["fast", "faithful"]


PROTOCOLS: dict[str, type[Mechanism]] = {
    "central": PoissonSampling,  # for reference: DP-SGD with a trusted server
    **{cls.label: cls for cls in (LocalGaussian, Shuffle, SubsampledShuffle, ShuffledCheckIn)},
}


def expected_reports(mechanism: Mechanism, users: int) -> float:
    """How many reports a round has on average; public, so the server may divide by it."""
    if isinstance(mechanism, SubsampledShuffle):
        return float(mechanism.sample)
    return users * float(getattr(mechanism, "rate", 1.0))


def participants(mechanism: Mechanism, users: int, randomness: Randomness) -> IntArray:
    """Who takes part in a round: everybody, a fixed number drawn without replacement, or each on its own coin."""
    if isinstance(mechanism, SubsampledShuffle):
        return np.sort(rand.permutation(randomness, users)[: mechanism.sample])
    rate = float(getattr(mechanism, "rate", 1.0))
    if rate == 1.0:
        return np.arange(users)
    return np.flatnonzero(rand.uniforms(randomness, users) < rate)


@dataclass(frozen=True, kw_only=True)
class Clients:
    """Users with a record and a label each, or several: local gradient, clipping, own noise.

    With several records `owners` gives each record's user, 0, 1, 2, ... in this order.
    """

    inputs: Tensor
    labels: Tensor
    clip: float
    sigma: float
    owners: Tensor | None = None

    @property
    def users(self) -> int:
        return len(self.inputs) if self.owners is None else int(self.owners[-1]) + 1

    def records(self, who: IntArray) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs and labels of some users, and whose they are, counted from 0."""
        if len(who) == self.users:  # nothing to copy
            return self.inputs, self.labels, self.owners
        if self.owners is None:
            index = torch.from_numpy(who).to(self.inputs.device)
            return self.inputs[index], self.labels[index], None
        chosen = torch.zeros(self.users, dtype=torch.bool, device=self.owners.device)
        chosen[torch.from_numpy(who).to(self.owners.device)] = True
        index = chosen[self.owners].nonzero().flatten()
        return self.inputs[index], self.labels[index], (chosen.cumsum(0) - 1)[self.owners[index]]

    def reports(self, model: nn.Module, who: IntArray, randomness: Randomness) -> Iterator[Tensor]:
        """The report of each user in `who`: `clip(g_i) + N(0, (C sigma)^2 I)`."""
        for batch in np.split(who, range(MICROBATCH, len(who), MICROBATCH)):
            inputs, labels, owners = self.records(batch)
            for gradient in clipped_each(model, inputs, labels, owners=owners, clip=self.clip):
                noise = torch.from_numpy(randomness.normals(gradient.numel())).to(gradient)
                yield gradient + (self.clip * self.sigma) * noise

    def clipped_sum(self, model: nn.Module, who: IntArray) -> ClippedSum:
        inputs, labels, owners = self.records(who)
        return clipped_sum(model, inputs, labels, owners=owners, clip=self.clip)


def shuffled(reports: Iterable[Tensor], randomness: Randomness) -> list[Tensor]:
    """What the shuffler hands on: it takes all reports before the first leaves, in uniformly random order."""
    held = list(reports)
    return [held[i] for i in rand.permutation(randomness, len(held))]


def total(reports: Iterable[Tensor], size: int) -> Tensor:
    """What the server makes of the reports: their sum, in double precision."""
    added = torch.zeros(size, dtype=torch.float64)
    for report in reports:
        added += report.cpu()
    return added


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a round gave: the server's noisy sum, the number of reports, and the simulator's own view.

    `loss` and `clipped` are known to the simulation only: no report reveals them.
    """

    total: Tensor
    reports: int
    loss: float | None
    clipped: float | None


@contextlib.contextmanager
def drawing(source: rand.Source) -> Iterator[None]:
    """PyTorch's own generators, from which dropout draws, begin where a round's source says; then they are put back."""
    seed = int(source.stream("model").words(1)[0] >> np.uint64(1))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def run_round(
    mechanism: Mechanism, clients: Clients, model: nn.Module, source: rand.Source, *, path: Path = "fast"
) -> Collected:
    """One round of the protocol with the present model."""
    with drawing(source):
        return _run_round(mechanism, clients, model, source, path)


def _run_round(mechanism: Mechanism, clients: Clients, model: nn.Module, source: rand.Source, path: Path) -> Collected:
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    who = participants(mechanism, clients.users, source.stream("coins"))
    central = isinstance(mechanism, PoissonSampling)
    noise = source.stream("noise")
    scale = clients.clip * clients.sigma
    if path == "faithful" and not central:
        sent: Iterable[Tensor] = clients.reports(model, who, noise)
        if not isinstance(mechanism, LocalGaussian):
            sent = shuffled(sent, source.stream("shuffle"))
        return Collected(total=total(sent, size), reports=len(who), loss=None, clipped=None)
    found = clients.clipped_sum(model, who)
    deviation = scale * (1.0 if central else math.sqrt(len(who)))
    drawn = torch.from_numpy(noise.normals(size)) * deviation
    count = max(1, len(who))
    return Collected(
        total=found.total.cpu().to(torch.float64) + drawn,
        reports=len(who),
        loss=float(found.losses.sum()) / count,
        clipped=int((found.norms > clients.clip).sum()) / count,
    )
