"""A training before it starts: what the plan chose and why, and how long it would take."""

from __future__ import annotations

import time

from shoal.cli import screen
from shoal.formatting import short
from shoal.mechanisms import Mechanism
from shoal.training import Config, Dataset, Plan, Records
from shoal.training.plan import REPORTS
from shoal.training.run import Run

TIMED_ROUNDS_MAX, TIMED_SECONDS = 20, 2.0
"""Two seconds are enough to tell minutes from hours."""


def print_plan(config: Config, plan: Plan) -> None:
    """Print what was chosen for the budget, and why.

    Args:
      config: The configuration that follows from the plan.
      plan: The plan.
    """
    m = config.mechanism
    crowd = f", {m.crowd} crowd" if m.crowd_matters else ""
    if plan.weighed:
        cells = [
            [
                f"{candidate.rounds:,}",
                f"{candidate.mechanism.participation:.4g}",
                f"{candidate.mechanism.sigma:.4g}",
                f"{candidate.noise / candidate.floor:.2f}",
                "chosen"
                if candidate.rounds == plan.rounds and candidate.mechanism.participation == m.participation
                else "",
            ]
            for candidate in plan.weighed
        ]
        heads = ["rounds", "rate", "σ", "noise of the mean / trusted server's", ""]
        screen.print_table("Candidates", heads, cells)
    screen.print_text(
        f"For ε ≤ {config.epsilon:g} at δ = {short(config.delta)} ({m.adjacency} adjacency{crowd}): "
        f"σ = {m.sigma:.5g} over {plan.rounds:,} rounds, learning rate {config.learning_rate:.4g}. "
        f"The mean of all reports then has {plan.noise / plan.floor:.2f} times the noise that a trusted server would "
        f"add once; {_reason(plan, m)}."
    )


def _reason(plan: Plan, m: Mechanism) -> str:
    """Return why the plan has no more reports than it has."""
    if not plan.weighed:
        return "rounds and rate were given"
    if plan.gain is not None:
        return f"four times the reports would lower that noise by only {plan.gain:.0%}"
    if plan.rounds * m.participation >= REPORTS[-1]:
        return f"more reports would lower it further, but the rule stops at {REPORTS[-1]} a user: --rounds sets more"
    return "everybody reports in every round, and the rounds were given"


def print_time(config: Config, data: Dataset | Records, plan: Plan | None, *, as_json: bool) -> None:
    """Print how long the run would take, from a few rounds of it that are thrown away.

    Args:
      config: The configuration.
      data: The data.
      plan: The plan, if there is one.
      as_json: Whether to print JSON.
    """
    run = Run(config, data)
    run.step()  # the first one is slow: memory, threads, compiled kernels
    start, rounds = time.perf_counter(), 0
    while rounds < TIMED_ROUNDS_MAX and time.perf_counter() - start < TIMED_SECONDS:
        result = run.step()
        rounds += 1
    seconds_per_round = (time.perf_counter() - start) / rounds
    start = time.perf_counter()
    run.evaluate(result)
    evaluations = run.rounds / config.evaluate_every * (time.perf_counter() - start)
    seconds = run.rounds * seconds_per_round + evaluations
    if as_json:
        noise = {"noise": plan.noise, "trusted_server": plan.floor} if plan else None
        screen.print_json({**config.to_dict(), "seconds": seconds, "noise_of_the_mean": noise})
        return
    screen.print_text(
        f"{run.rounds:,} rounds of {run.expected:,.0f} reports on {run.device.type}, {seconds_per_round:.3g} s each: "
        f"about {_duration(seconds)}. Nothing was written."
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        count = max(1, round(seconds))
        return f"{count} second{'s' if count > 1 else ''}"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
