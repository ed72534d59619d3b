"""The answers of the page, piece by piece: what can be computed at once first, what takes long last.

A task is a generator of pieces (plain data, JSON will do). It runs in a process of its own (`workers`), which may be
ended between two pieces or within one. Every number goes as it is and as a text, rounded here to the safe side.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shoal import calibrate
from shoal.errors import InvalidInput, ShoalError, Unreachable
from shoal.formatting import rounded, short
from shoal.interval import Interval
from shoal.literature.compare import deployments
from shoal.mechanisms import LocalGaussian, Mechanism
from shoal.query import EPSILON, AccuracyWarning, Intervals, Options, guarantee
from shoal.statement import Statement
from shoal.web import budget, calls, fields, setting, utility
from shoal.web.setting import SHARED, Setting

Piece = dict[str, Any]

ODDS = (10, 100, 1_000, 10_000)
"""An attacker who is wrong in one of these numbers of cases."""

RATES = tuple(sorted({*(10 ** (-4 + i / 8) for i in range(32)), *(1 / odds for odds in ODDS)}))
"""False positive rates of the picture."""

STEPS, STEPS_ANY_CROWD = 40, 16
"""Steps of the picture: where a point is quick, and for any crowd, of which each takes some tenths of a second."""


def answer(task: str, data: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the pieces of a task; what is wrong becomes a piece too, with the field that it is about."""
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", AccuracyWarning)
        warnings.showwarning = lambda message, *_: notes.append(f"{message}.")
        try:
            for piece in TASKS[task](data):
                yield piece
                while notes:
                    yield {"piece": "note", "text": notes.pop()}
        except ShoalError as error:
            text = str(error)
            field = "epsilon" if isinstance(error, Unreachable) else setting.field_in(text)
            yield {"piece": "error", "field": field, "text": text}


# Pieces


def bracket(interval: Interval) -> Piece:
    """Return a bracket: numbers as they are (nothing for infinity, which JSON does not know) and as texts."""
    upper = interval.upper if math.isfinite(interval.upper) else None
    lower = "0" if interval.lower == 0.0 else rounded(interval.lower, "down")
    return {"lower": interval.lower, "upper": upper, "text": {"lower": lower, "upper": rounded(interval.upper)}}


def stated(statement: Statement) -> Piece:
    """Return a guarantee: the bracket, the sentences, and row by row what it rests on."""
    data = statement.to_dict()
    if not math.isfinite(statement.answer.upper):
        data["epsilon"]["upper"] = None
    short_words = statement.in_short()
    return {
        "epsilon": bracket(statement.answer),
        "sentence": statement.sentence(),
        "how": statement.how(),
        "data": data,
        "short": f"{short_words[0].upper()}{short_words[1:]}",
        "facts": statement.facts(),
    }


def _statement(state: Setting) -> Statement:
    return state.mechanism.statement(delta=state.delta, rounds=state.rounds)


def _without_shuffler(state: Setting) -> Setting:
    """Return the same noise without a shuffler: each round's report is seen with its name."""
    return Setting(
        mechanism=deployments(state.mechanism)["no shuffler"],
        rounds=state.rounds,
        delta=state.delta,
        clip=state.clip,
        dimension=state.dimension,
        axis=state.axis,
    )


def _attack(mechanism: Mechanism, rounds: int) -> Piece:
    """Return what the best attack reaches at each false positive rate, and in words of cases."""
    powers: Intervals = mechanism.tradeoff(list(RATES), rounds=rounds)
    points = [{"x": x, "xtext": short(x, 3), **bracket(power)} for x, power in zip(RATES, powers, strict=True)]
    by_rate = dict(zip(RATES, powers, strict=True))
    cases = []
    for odds in ODDS:
        upper = by_rate[1 / odds].upper
        # A product of two doubles may be half a unit below the truth; but nobody is right more often than always.
        right = f"{odds:,}" if upper >= 1.0 else rounded(math.nextafter(odds * upper, math.inf))
        cases.append({"odds": f"{odds:,}", "right": right})
    return {"points": points, "cases": cases}


# Tasks


def page(_: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield what the page consists of, whatever is computed on it."""
    yield {"piece": "page", **fields.page_data()}


def first(data: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield what comes at once: the calls, what the noise costs, without a shuffler, and the identical crowd."""
    state = setting.read(data["state"])
    m = state.mechanism
    error = utility.error(m, clip=state.clip, dimension=state.dimension)
    yield {
        "piece": "setting",
        "python": calls.python(state),
        "shell": calls.shell(state),
        "axis": state.axis,
        "now": _written(state.value(state.axis)),
        "whole": {
            name: _written(state.value(name))
            for name, field in setting.fields(state.kind).items()
            if field.kind == "whole" and field.start
        },
        "has_crowd": state.has_crowd,
        "trust": m.trust,
        "crowd": m.crowd or "only",
        "error": {
            "total": rounded(error.total, digits=4),
            "noise": rounded(error.noise, digits=4),
            "sampling": rounded(error.sampling, digits=4) if error.sampling else "0",
            "estimate": error.estimate,
            "relative": rounded(error.total / state.clip * (1.0 + 1e-15), digits=4),
        },
    }
    if state.has_crowd:
        yield {"piece": "epsilon", "crowd": "local", **stated(_statement(_without_shuffler(state)))}
        yield {"piece": "epsilon", "crowd": "identical", **stated(_statement(state.with_crowd("identical")))}
        return
    statement = _statement(state)
    yield {"piece": "epsilon", "crowd": "only", **stated(statement)}
    caution = m.caution(delta=state.delta, epsilon=statement.answer, rounds=state.rounds)
    if caution:
        yield {"piece": "caution", "text": caution}


def any_crowd(data: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the guarantee for any crowd: the number first, then what is known from below, in words, and of attacks."""
    state = setting.read(data["state"])
    if state.has_crowd:
        state = state.with_crowd("any")
        upper = guarantee(EPSILON, state.mechanism.bounds(state.rounds), state.delta, Options())
        yield {"piece": "bound", "crowd": "any", **bracket(Interval(lower=0.0, upper=upper))}
        yield {"piece": "epsilon", "crowd": "any", **stated(_statement(state))}
        yield {"piece": "attack", "crowd": "any", **_attack(state.mechanism, state.rounds)}
        yield {"piece": "deployments", "rows": _deployments(state, upper)}


def _deployments(state: Setting, shuffled: float) -> list[Piece]:
    """Return the same noise in the sum under other trust, with the shuffler's own row; empty where that is unknown."""
    deployed = deployments(state.mechanism)
    if "secure sum" not in deployed:
        return []
    uppers = {name: guarantee(EPSILON, m.bounds(state.rounds), state.delta, Options()) for name, m in deployed.items()}
    trusts = {name: m.trust for name, m in deployed.items()}
    uppers["shuffled"], trusts["shuffled"] = shuffled, state.mechanism.trust
    order = [name for name in ("no shuffler", "shuffled", "secure sum", "central noise") if name in uppers]
    return [{"name": name, "trust": trusts[name], "upper": rounded(uppers[name])} for name in order]


def _for_crowd(crowd: str, state: Setting) -> Setting:
    """Return the setting for a crowd, for "local" (without a shuffler), or as it is ("only")."""
    if crowd == "local":
        return _without_shuffler(state)
    return state if crowd == "only" else state.with_crowd(crowd)


def attack(data: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield what an attacker can do against a crowd."""
    crowd = data["crowd"]
    state = _for_crowd(crowd, setting.read(data["state"]))
    yield {"piece": "attack", "crowd": crowd, **_attack(state.mechanism, state.rounds)}


def curve(data: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield epsilon against one parameter around the present point, for a crowd: every point is certified."""
    present, crowd = setting.read(data["state"]), data["crowd"]
    state, axis = _for_crowd(crowd, present), present.axis
    places = axis_values(present, STEPS_ANY_CROWD if crowd == "any" else STEPS)
    head = {"piece": "curve", "crowd": crowd}
    first_state, last_state = (_for_crowd(crowd, present.moved(axis, x)) for x in (places[0], places[-1]))
    if crowd == "local" and axis not in SHARED and first_state.mechanism == last_state.mechanism:
        answer = _statement(state).answer
        yield {**head, "points": [_point(x, answer) for x in (places[0], places[-1])]}
    elif axis in SHARED:
        # Many rounds or deltas are one question.
        values: dict[str, Any] = {"rounds": state.rounds, "delta": state.delta}
        values[axis] = [int(x) for x in places] if axis == "rounds" else places
        answers = state.mechanism.epsilon(**values)
        yield {**head, "points": [_point(x, answer) for x, answer in zip(places, answers, strict=True)]}
    else:
        # From the present point outwards, so that the picture grows around it.
        now = present.value(axis)
        for x in sorted(places, key=lambda x: abs(math.log(x / now))):
            yield {**head, "points": [_point(x, _statement(_for_crowd(crowd, present.moved(axis, x))).answer)]}


def axis_values(state: Setting, steps: int) -> list[float]:
    """Return about `steps` values of the axis that the mechanism allows, and the present one.

    Args:
      state: The setting.
      steps: The number of steps, evenly spaced on a logarithmic scale.
    """
    axis, now = state.axis, state.value(state.axis)
    limits = setting.axis_range(state.kind, axis)
    low = max(min(limits.low, now), now / limits.factor)
    high = min(max(limits.high, now), now * limits.factor)
    spaced = [low * (high / low) ** (i / steps) for i in range(steps + 1)]
    values = {float(round(x)) if limits.whole else min(max(float(f"{x:.4g}"), low), high) for x in spaced}
    # Two points side by side would show the rounding of the intervals.
    gap = 0.3 * math.log(high / low) / steps
    apart = {x for x in values if abs(math.log(x / now)) > gap and _is_allowed(state, x)}
    return sorted({*apart, now})


def _is_allowed(state: Setting, x: float) -> bool:
    """Return whether the mechanism allows a value of the axis beside its other parameters."""
    try:
        state.moved(state.axis, x)
    except InvalidInput:
        return False
    return True


def _point(x: float, interval: Interval) -> Piece:
    return {"x": x, "xtext": _written(x), **bracket(interval)}


def _written(x: float) -> str:
    """Return a value of an axis, as people write it."""
    return f"{int(x):,}" if x == int(x) and x < 1e15 else short(x, 10)


def solve(data: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the third parameter, where epsilon and the others are held: as it is printed it meets the target."""
    state = setting.read(data["state"])
    if state.unknown is None:
        raise InvalidInput(f"hold must be one of {', '.join(setting.SOLVABLE)}, got ''")
    m: Any = state.mechanism
    target: dict[str, Any] = {"epsilon": state.epsilon, "delta": state.delta}
    if state.unknown == "rounds":
        text, words = f"{calibrate.rounds(m, **target):,}", "the most that meet it"
    elif state.unknown == "users":
        smallest = m.to_dict().get("sample", 1)
        users = calibrate.users(lambda n: m.replace(users=n), rounds=state.rounds, at_least=smallest, **target)
        text, words = f"{users:,}", "the fewest that meet it"
    else:
        sigma = calibrate.sigma(lambda s: m.replace(sigma=s), rounds=state.rounds, **target)
        text, words = rounded(sigma, digits=6), "the least that meets it"
        # More noise is more private; that the printed one meets the target was still computed, not concluded.
        if m.replace(sigma=float(text)).epsilon(delta=state.delta, rounds=state.rounds).upper > target["epsilon"]:
            text = repr(sigma)
    yield {"piece": "solved", "field": state.unknown, "text": text, "words": words, "crowd": m.crowd or "only"}


def record(data: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the guarantee as a document: a statement, a registry entry or a checklist, in one of four formats."""
    statement = _statement(setting.read(data["state"]))
    yield {"piece": "record", "text": statement.record(data.get("document", ""), data.get("format", ""))}


def spent(data: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield a ledger against its budget: what is listed, its cost, what is left, and the rounds that remain."""
    yield from budget.pieces(data, bracket=bracket, stated=stated)


TASKS: dict[str, Callable[[Mapping[str, Any]], Iterator[Piece]]] = {
    "page": page,
    "first": first,
    "any": any_crowd,
    "attack": attack,
    "curve": curve,
    "solve": solve,
    "record": record,
    "spent": spent,
}


def warm_up() -> None:
    """Compute one small answer, so that the first real one does not pay for what is set up once."""
    LocalGaussian(sigma=1.0).epsilon(delta=1e-5)
    for piece in first({"state": {"users": "70", "rounds": "3"}}):
        del piece
