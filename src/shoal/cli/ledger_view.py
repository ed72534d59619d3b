"""The ledger of an analyst as a table, sentences and JSON."""

from __future__ import annotations

from typing import get_args

from shoal.cli import view
from shoal.deployment.analyst import Analyst
from shoal.formatting import short
from shoal.mechanisms import Crowd


def ledger_view(analyst: Analyst) -> view.View:
    """Return what an analyst's ledger holds: rounds, users, and epsilon for both crowds."""
    task = analyst.settings.task
    # Of one state: an analyst that serves may close a round meanwhile.
    with analyst.database.snapshot():
        rounds, next_round, accountant = analyst.rounds(), analyst.next_round, analyst.accountant()
        ledgers = {crowd: analyst.accountant(crowd) for crowd in reversed(get_args(Crowd))}
    rows = [{**row, "epsilon": row["answer"]["epsilon"], "refusals": sum(row["refused"].values())} for row in rounds]
    sentences = []
    for crowd, ledger in ledgers.items():
        sentence = ledger.statement(delta=task.delta).sentence() if rounds else "nothing is spent yet."
        sentences.append(f"{crowd.capitalize()} crowd: {sentence}")
    return view.View(
        title=f"{task.name}: δ = {short(task.delta)}, {task.crowd} crowd, so far",
        columns=[
            view.text_column("round", "round"),
            view.count_column("users", "users"),
            view.count_column("refused", "refusals"),
            *view.interval_columns("ε", "epsilon"),
        ],
        rows=rows,
        sentences=[*sentences, f"Budget: ε = {short(task.epsilon)} for {task.crowd} crowd."],
        payload={
            "task": task.name,
            "next_round": next_round,
            "delta": task.delta,
            "budget": {"epsilon": task.epsilon, "crowd": task.crowd},
            "epsilon": {crowd: view.ends(ledger.epsilon(delta=task.delta)) for crowd, ledger in ledgers.items()},
            "rounds": rounds,
            "ledger": accountant.state_dict(),
        },
    )
