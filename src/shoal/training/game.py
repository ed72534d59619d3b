"""The distinguishing game against a real training: a planted user, and how well the server's view reveals it.

The training of a run's configuration is repeated, with its data, its model and its rounds, in
two worlds. User 1 is planted: in one world it sends the zero vector and noise, in the other a crafted gradient,
C u with u a random direction, the same in every round, and noise. All others are the run's own users with
their own clipped gradients at the model of the moment. Who takes part, noise and updates are the protocol's.

The attacker sees every report. Along u the reports of the others lie near their mean (u is random, and real
gradients point elsewhere), and across u nothing differs between the worlds. With y_i the reports along u, in
units of C, and v the mean of the others' gradients along it, the likelihood of user 1 at x is, as if the
others were all at v and up to a factor,

    L_x = n - k + sum_i exp(((y_i - v)(x - v) - (x - v)^2 / 2) / sigma^2),

and the statistic is log L_1 - log L_0, summed over the rounds. What it proves needs no assumption: an event
is chosen on some games, and counted in others (`shoal.audit`).

**What is simulated.** Noise is isotropic: the reports along u get their noise one by one, the rest of their sum
in one draw, which is the law of the sum of all reports.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal import _validate
from shoal.audit import CONFIDENCE, Finding, choose, lower_bound
from shoal.bounds.numeric import FloatArray, IntArray
from shoal.errors import InvalidInput
from shoal.mechanisms import Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.training import protocol
from shoal.training.clipping import trainable
from shoal.training.data import Dataset, Records
from shoal.training.randomness import Source
from shoal.training.run import CHECKPOINT, Config, Run

Played = Callable[[int, int], None]
"""Called after each game with the number of games played and the number of all games."""

TRIALS_MIN = 20
SHAPE = "the run's"


def audit_run(
    config: Config,
    data: Dataset | Records,
    *,
    trials: int,
    rounds: int | None = None,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    claim: float | None = None,
    model: torch.nn.Module | None = None,
    progress: Played | None = None,
) -> Finding:
    """Play the distinguishing game against the training of a configuration.

    Args:
        config: The run's configuration.
        data: The run's data.
        trials: Trainings in each world that measure the rates; half as many more choose the event.
        rounds: Rounds of each training; None plays them all.
        seed: Seed of the games.
        confidence: Confidence of the lower bound.
        claim: An epsilon that somebody claims, for the row.
        model: The model of a run whose network is `own`.
        progress: Called after each game.

    Returns:
        The row, beside the certified epsilon for these rounds at the configuration's delta.

    Raises:
        InvalidInput: If the run's mechanism cannot be audited.
    """
    m = config.mechanism
    if not isinstance(m, (Shuffle, SubsampledShuffle, ShuffledCheckIn)):
        raise InvalidInput(f"run must be of shuffle, subsampled or check-in for an audit, got {m.label}")
    if m.adjacency != "zero-out":
        raise InvalidInput(f"run must be for zero-out adjacency, got {m.adjacency}")
    trials = _validate.integer("trials", trials, minimum=TRIALS_MIN, maximum=10**7)
    confidence = _validate.delta(confidence, "confidence")
    run = Run(dataclasses.replace(config, path="fast", epsilon=None), data, model)
    count = min(config.rounds, config.rounds if rounds is None else _validate.rounds(rounds))
    first = run.state(clean=True)
    choosing = max(trials // 2, TRIALS_MIN // 2)
    total = 2 * (choosing + trials)
    scores: list[FloatArray] = []
    for stream, games in enumerate((choosing, trials)):
        statistics = np.empty((2, games))
        for world in (0, 1):
            for i in range(games):
                key = np.random.SeedSequence([seed, stream, world, i]).generate_state(1, np.uint64)[0]
                statistics[world, i] = _play(run, first, count, planted=float(world), seed=int(key >> np.uint64(1)))
                if progress is not None:
                    progress(len(scores) * 2 * choosing + world * games + i + 1, total)
        scores.append(statistics)
    alpha = 0.5 * (1.0 - confidence)
    event = choose(scores[0][..., None], np.ones(1), config.delta, alpha)
    hits, alarms = event.count(scores[1][..., None])
    certified = m.epsilon(delta=config.delta, rounds=count)
    return Finding(
        shape=SHAPE,
        dimensions=(sum(p.numel() for p in trainable(run.model)),),
        test="likelihood",
        direction="forward" if event.sign > 0 else "reverse",
        trials=trials,
        hits=hits,
        alarms=alarms,
        epsilon=float(lower_bound(hits, alarms, trials, delta=config.delta, alpha=alpha)),
        confidence=confidence,
        any_crowd=certified if m.crowd == "any" else None,
        identical_crowd=certified if m.crowd == "identical" else None,
        claim=claim,
    )


def _play(run: Run, first: bytes, rounds: int, *, planted: float, seed: int) -> float:
    """The statistic of the server's view of one training."""
    run.restore(first, Path(CHECKPOINT))
    size = sum(p.numel() for p in trainable(run.model))
    direction = torch.from_numpy(Source(seed=seed).stream("weights").normals(size)).float()
    direction /= direction.norm()
    score = 0.0
    for number in range(1, rounds + 1):
        total, statistic = _play_round(run, Source(seed=seed, round=number), direction, planted)
        run.update(total / run.expected)
        score += statistic
    return score


def _play_round(run: Run, source: Source, direction: Tensor, planted: float) -> tuple[Tensor, float]:
    """The sum of all reports of a round with user 0 planted, and the statistic."""
    clients, m, clip = run.clients, run.mechanism, run.config.clip
    present = protocol.draw_participants(m, clients.users, source.stream("coins"))
    honest = present[present != 0]
    is_planted = len(honest) < len(present)
    with protocol.drawing(source):
        total, along = _honest_gradients(run, honest, direction)
    mean = float(along.mean()) if len(along) else 0.0
    values = np.append(along, planted) if is_planted else along
    noise = source.stream("noise")
    drawn = noise.normals(len(values))
    reports = values + m.sigma * drawn
    across = torch.from_numpy(noise.normals(len(direction))) * math.sqrt(len(values))
    wide = direction.double()
    across += (float(drawn.sum()) - across @ wide) * wide
    total = total + clip * (planted * wide if is_planted else 0.0 * wide)
    return total + clip * m.sigma * across, _log_ratio(reports, mean, m.sigma, clients.users)


def _honest_gradients(run: Run, users: IntArray, direction: Tensor) -> tuple[Tensor, FloatArray]:
    """The sum of some users' clipped gradients, and each of them along the direction in units of C."""
    total = torch.zeros(len(direction), dtype=torch.float64)
    along = [np.zeros(0)]
    clip = run.config.clip
    for batch in run.clients.gradients(run.model, users, clip=clip):
        rows = batch.cpu()
        total += rows.sum(dim=0)
        along.append((rows @ direction).double().numpy() / clip)
    return total, np.concatenate(along)


def _log_ratio(reports: FloatArray, mean: float, sigma: float, users: int) -> float:
    """log L_1 - log L_0 of one round."""
    logs = [((reports - mean) * (x - mean) - 0.5 * (x - mean) ** 2) / sigma**2 for x in (0.0, 1.0)]
    with np.errstate(divide="ignore"):
        absent = float(np.log(users - len(reports)))
    low, high = (float(np.logaddexp.reduce(np.append(values, absent))) for values in logs)
    return high - low
