"""One round of a protocol: who takes part, clients, shuffler, server.

The faithful simulation sends each report through the shuffler. The fast one draws only the sum that the server
computes: the sum of K reports `g_i + N(0, (C sigma)^2 I)` is `sum_i g_i + N(0, K (C sigma)^2 I)`, so
one sum of clipped gradients and one draw of noise have the same law, and so does the update that follows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shoal.bounds.numeric import IntArray
from shoal.mechanisms import (
    LocalGaussian,
    Mechanism,
    PoissonSampling,
    Shuffle,
    ShuffledCheckIn,
    SubsampledShuffle,
)
from shoal.run_folder import Simulation
from shoal.training import randomness as rand
from shoal.training.clipping import ClippedSum, clipped_each, clipped_sum
from shoal.training.randomness import Randomness

REPORTS_AT_ONCE = 512
"""Users whose gradients are held in memory together where each is needed."""

PROTOCOLS: dict[str, type[Mechanism]] = {
    "central": PoissonSampling,  # for reference: DP-SGD with a trusted server
    **{cls.label: cls for cls in (LocalGaussian, Shuffle, SubsampledShuffle, ShuffledCheckIn)},
}


def expected_reports(mechanism: Mechanism, users: int) -> float:
    """The expected number of reports of a round, by which the server divides.

    Args:
        mechanism: What is run in the round.
        users: Number of users.

    Returns:
        The number, which is public.
    """
    return mechanism.expected_reports(users)


def draw_participants(mechanism: Mechanism, users: int, randomness: Randomness) -> IntArray:
    """The users who take part in a round.

    Args:
        mechanism: What is run in the round: everybody takes part, a sample, or each user by its own coin.
        users: Number of users.
        randomness: Where coins and samples come from.

    Returns:
        The users' numbers, in rising order.
    """
    if mechanism.sampling == "drawn":
        return np.sort(rand.permutation(randomness, users)[: round(mechanism.expected_reports(users))])
    if mechanism.participation == 1.0:
        return np.arange(users)
    return np.flatnonzero(rand.uniforms(randomness, users) < mechanism.participation)


@dataclass(frozen=True, kw_only=True)
class Clients:
    """The users' records: inputs and labels, one record for each user unless `owners` is set.

    With several records for a user, `owners` holds each record's user: 0, 1, 2, ... in this order.
    """

    inputs: Tensor
    labels: Tensor
    owners: Tensor | None = None

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.inputs) if self.owners is None else int(self.owners[-1]) + 1

    def records(self, users: IntArray) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, labels and owners (counted from 0) of some users' records."""
        if len(users) == self.users:  # nothing to copy
            return self.inputs, self.labels, self.owners
        if self.owners is None:
            index = torch.from_numpy(users).to(self.inputs.device)
            return self.inputs[index], self.labels[index], None
        chosen = torch.zeros(self.users, dtype=torch.bool, device=self.owners.device)
        chosen[torch.from_numpy(users).to(self.owners.device)] = True
        index = chosen[self.owners].nonzero().flatten()
        return self.inputs[index], self.labels[index], (chosen.cumsum(0) - 1)[self.owners[index]]

    def gradients(self, model: nn.Module, users: IntArray, *, clip: float) -> Iterator[Tensor]:
        """Clipped gradients of some users, in batches of `REPORTS_AT_ONCE` rows at most.

        Args:
            model: The present model.
            users: The users' numbers.
            clip: The clipping norm C.

        Yields:
            Gradients, a row for each user.
        """
        for batch in np.split(users, range(REPORTS_AT_ONCE, len(users), REPORTS_AT_ONCE)):
            inputs, labels, owners = self.records(batch)
            yield clipped_each(model, inputs, labels, owners=owners, clip=clip)

    def reports(
        self, model: nn.Module, users: IntArray, randomness: Randomness, *, clip: float, sigma: float
    ) -> Iterator[Tensor]:
        """Reports of some users: `clip(g_i) + N(0, (C sigma)^2 I)`.

        Args:
            model: The present model.
            users: The users' numbers.
            randomness: Where the noise comes from.
            clip: The clipping norm C.
            sigma: The noise multiplier.

        Yields:
            The report of each user, in this order.
        """
        for batch in self.gradients(model, users, clip=clip):
            for gradient in batch:
                noise = torch.from_numpy(randomness.normals(gradient.numel())).to(gradient)
                yield gradient + (clip * sigma) * noise

    def clipped_sum(self, model: nn.Module, users: IntArray, *, clip: float) -> ClippedSum:
        """The sum of some users' clipped gradients.

        Args:
            model: The present model.
            users: The users' numbers.
            clip: The clipping norm C.

        Returns:
            The sum, with each user's norm and loss.
        """
        inputs, labels, owners = self.records(users)
        return clipped_sum(model, inputs, labels, owners=owners, clip=clip)


def shuffled(reports: Iterable[Tensor], randomness: Randomness) -> list[Tensor]:
    """Reports in uniformly random order, as the shuffler passes them on.

    Args:
        reports: All reports of the round; the shuffler waits for the last before the first leaves.
        randomness: Where the order comes from.

    Returns:
        The reports.
    """
    held = list(reports)
    return [held[i] for i in rand.permutation(randomness, len(held))]


def total(reports: Iterable[Tensor], size: int) -> Tensor:
    """The server's sum of reports, in double precision.

    Args:
        reports: The reports.
        size: Numbers in a report.

    Returns:
        The sum.
    """
    added = torch.zeros(size, dtype=torch.float64)
    for report in reports:
        added += report.cpu()
    return added


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The result of a round: the server's noisy sum, and the number of reports.

    `loss` (mean) and `clipped` (share of users) are known to the simulation only: no report reveals them.
    """

    total: Tensor
    reports: int
    loss: float | None
    clipped: float | None


@contextlib.contextmanager
def drawing(source: rand.Source) -> Iterator[None]:
    """Seed PyTorch's generators, from which dropout draws, by a round's source; restore them afterwards."""
    seed = int(source.stream("model").words(1)[0] >> np.uint64(1))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def run_round(
    mechanism: Mechanism,
    clients: Clients,
    model: nn.Module,
    source: rand.Source,
    *,
    clip: float,
    path: Simulation = "fast",
) -> Collected:
    """Simulate one round of a protocol.

    Args:
        mechanism: What is run; its sigma is the noise multiplier.
        clients: The users' records.
        model: The present model.
        source: Where coins, noise and order come from.
        clip: The clipping norm C.
        path: Whether each report goes through the shuffler (`faithful`) or only their sum is drawn (`fast`).

    Returns:
        The server's noisy sum.
    """
    with drawing(source):
        return _simulate(mechanism, clients, model, source, clip, path)


def _simulate(
    mechanism: Mechanism, clients: Clients, model: nn.Module, source: rand.Source, clip: float, path: Simulation
) -> Collected:
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    users = draw_participants(mechanism, clients.users, source.stream("coins"))
    is_central = mechanism.noise_by == "server"
    noise = source.stream("noise")
    if path == "faithful" and not is_central:
        sent: Iterable[Tensor] = clients.reports(model, users, noise, clip=clip, sigma=mechanism.sigma)
        if mechanism.is_shuffled:
            sent = shuffled(sent, source.stream("shuffle"))
        return Collected(total=total(sent, size), reports=len(users), loss=None, clipped=None)
    clipped = clients.clipped_sum(model, users, clip=clip)
    deviation = clip * mechanism.sigma * (1.0 if is_central else math.sqrt(len(users)))
    drawn = torch.from_numpy(noise.normals(size)) * deviation
    count = max(1, len(users))
    return Collected(
        total=clipped.total.cpu().to(torch.float64) + drawn,
        reports=len(users),
        loss=float(clipped.losses.sum()) / count,
        clipped=int((clipped.norms > clip).sum()) / count,
    )
