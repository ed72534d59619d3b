"""A ledger and its budget: what was spent, what is left, and how many more rounds can be afforded.

Three things are read: the state of an accountant (`Accountant.state_dict` as JSON), what `shoal analyst status FOLDER
--json` prints, and (by the command, not by the browser) the folder of an analyst. An analyst's database alone is
refused: its newest rounds may stand in the file beside it, and a ledger that lacks rounds would promise too much.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import _validate, calibrate
from shoal._written import number
from shoal.accountant import Accountant
from shoal.errors import InvalidInput, Unreachable
from shoal.formatting import rounded, short

FILE_BYTES_MAX = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Rounds, and the target that they must stay within where the file has one."""

    rounds: Accountant
    epsilon: float | None = None
    delta: float | None = None


def read(text: str) -> Ledger:
    """Return the ledger that a file holds."""
    if text.startswith("SQLite format 3"):
        raise InvalidInput(
            "file must be JSON, not an analyst's database (its newest rounds may be in another file): choose what "
            "'shoal analyst status FOLDER --json' prints, or start 'shoal explore --budget FOLDER'"
        )
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput("file must be JSON: the state of an accountant, or an analyst's status") from None
    if isinstance(data, Mapping) and "budget" in data and "ledger" in data:
        return _status(data)
    return Ledger(rounds=Accountant().load_state_dict(data))


def _status(data: Mapping[str, Any]) -> Ledger:
    """Return the ledger of an analyst's status, with the budget that it was set up with."""
    limit = data["budget"]
    if not isinstance(limit, Mapping) or not {"epsilon"} <= set(limit):
        raise InvalidInput(f"budget must be a mapping with epsilon, got {limit!r}")
    rounds = Accountant().load_state_dict(data["ledger"])
    listed = data.get("rounds")
    if isinstance(listed, list) and len(listed) != len(rounds):
        raise InvalidInput(f"file must list as many rounds as its ledger ({len(rounds)}), got {len(listed)}")
    return Ledger(
        rounds=rounds,
        epsilon=_validate.epsilon(limit["epsilon"], "budget"),
        delta=_validate.delta(data.get("delta"), "delta"),
    )


def text_of(path: Path) -> str:
    """Return what the page shows of a file or an analyst's folder, as the text of a file that `read` takes."""
    if path.is_dir():
        # Here, because only those who run a deployment have installed what it needs.
        from shoal.deployment.analyst import Analyst

        analyst = Analyst.read(path)
        try:
            task = analyst.settings.task
            limit = {"epsilon": task.epsilon, "crowd": task.crowd}
            return json.dumps({"budget": limit, "delta": task.delta, "ledger": analyst.accountant().state_dict()})
        finally:
            analyst.close()
    if path.stat().st_size > FILE_BYTES_MAX:
        raise InvalidInput(f"budget must be a file of at most {FILE_BYTES_MAX} bytes, got {path.stat().st_size}")
    text = path.read_bytes().decode("utf-8", errors="replace")
    read(text)
    return text


def pieces(
    data: Mapping[str, Any], *, bracket: Callable[[Any], dict[str, Any]], stated: Callable[[Any], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the ledger, its cost, and how many more rounds of one of its kinds fit into the budget.

    Args:
      data: The text of the file, the budget that was typed, and which entry the next rounds are of.
      bracket: Makes a piece of an interval.
      stated: Makes a piece of a statement.
    """
    ledger = read(data["text"])
    entries = ledger.rounds.ledger
    typed = data.get("state", {})
    target = _validate.epsilon(_typed_or_saved("epsilon", typed, ledger.epsilon, "1"), positive=True)
    delta = _validate.delta(_typed_or_saved("delta", typed, ledger.delta, "1e-5"))
    rows = [{"label": e.mechanism.label, "settings": e.mechanism.settings, "rounds": f"{e.rounds:,}"} for e in entries]
    yield {
        "piece": "ledger",
        "entries": rows,
        "rounds": f"{len(ledger.rounds):,}",
        "adjacency": entries[0].mechanism.adjacency if entries else "",
        "epsilon": short(target),
        "delta": short(delta),
    }
    if not entries:
        return
    statement = ledger.rounds.statement(delta=delta)
    cost = statement.answer.upper
    yield {
        "piece": "spent",
        **stated(statement),
        "exceeded": cost > target,
        "part": min(1.0, cost / target),
        "percent": rounded(100.0 * cost / target, digits=3),
        "left": rounded(max(0.0, target - cost), "down"),
        "budget": short(target),
    }
    next_entry = _validate.integer("next", data.get("next", len(entries) - 1), minimum=0, maximum=len(entries) - 1)
    try:
        rounds = calibrate.rounds(entries[next_entry].mechanism, epsilon=target, delta=delta, after=ledger.rounds)
    except Unreachable:
        rounds = 0
    row = rows[next_entry]
    yield {
        "piece": "remaining",
        "next": next_entry,
        "rounds": f"{rounds:,}",
        "of": f"{row['label']}: {row['settings']}",
    }


def _typed_or_saved(name: str, typed: Mapping[str, str], saved: float | None, start: str) -> float:
    """Return what was typed into a field, or else the value in the file, or else where the field starts."""
    if not typed.get(name) and saved is not None:
        return saved
    return number(name, typed.get(name) or start)
