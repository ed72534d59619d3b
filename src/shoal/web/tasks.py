"""The answers of the page, piece by piece: what can be computed at once first, what takes long last.

A task is a generator of pieces (plain data, JSON will do). It runs in a process of its own (`lanes`), which may be
ended between two pieces or within one. Every number goes as it is and as a text, rounded here to the safe side.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shoal import calibrate
from shoal.errors import Unreachable
from shoal.formatting import rounded, short
from shoal.interval import Interval
from shoal.mechanisms import LocalGaussian, Mechanism
from shoal.query import EPSILON, AccuracyWarning, Intervals, Options, guarantee
from shoal.statement import Statement
from shoal.web import budget, calls, fields, papers, setting, utility
from shoal.web.setting import Setting

Piece = dict[str, Any]

ODDS = (10, 100, 1_000, 10_000)
"""An attacker who is wrong in one of so many cases."""
RATES = tuple(sorted({*(10 ** (-4 + i / 8) for i in range(32)), *(1 / odds for odds in ODDS)}))
"""False positive rates of the picture."""
SPAN = {"users": 30.0, "sample": 30.0, "rate": 10.0, "bins": 30.0, "sigma": 6.0, "rounds": 30.0, "delta": 1e4}
"""How far the picture goes to either side of the present value, as a factor."""
LIMITS = {
    "users": (1, 10**9), "sample": (1, 10**9), "rate": (1e-6, 1.0), "bins": (1, 10**9), "sigma": (0.05, 1e4),
    "rounds": (1, 10**8), "delta": (1e-15, 0.3),
}  # fmt: skip
WHOLE = ("users", "sample", "bins", "rounds")
FINE, COARSE = 24, 8
"""Steps of the picture for a crowd that is quick, and for any crowd."""


def answer(task: str, data: Mapping[str, Any]) -> Iterator[Piece]:
    """The pieces of a task; what is wrong becomes a piece too, with the field that it is about."""
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", AccuracyWarning)
        warnings.showwarning = lambda message, *_: notes.append(f"{message}.")
        try:
            for piece in TASKS[task](data):
                yield piece
                while notes:
                    yield {"piece": "note", "text": notes.pop()}
        except (ValueError, TypeError) as error:
            text = str(error)
            field = "epsilon" if isinstance(error, Unreachable) else setting.field_of(text)
            yield {"piece": "error", "field": field, "text": text}


# Pieces


def bracket(found: Interval) -> Piece:
    """A bracket: numbers as they are (nothing for infinity, which JSON does not know) and as texts."""
    upper = found.upper if math.isfinite(found.upper) else None
    texts = {"lower": rounded(found.lower, "down"), "upper": rounded(found.upper)}
    if found.lower == 0.0:
        texts["lower"] = "0"
    return {"lower": found.lower, "upper": upper, "text": texts}


def stated(statement: Statement) -> Piece:
    data = statement.to_dict()
    if not math.isfinite(statement.answer.upper):
        data["epsilon"]["upper"] = None
    return {
        "epsilon": bracket(statement.answer), "sentence": statement.sentence(), "how": statement.how(), "data": data,
        "short": f"{statement.in_short()[0].upper()}{statement.in_short()[1:]}",
        "markdown": papers.markdown(statement), "latex": papers.latex(statement),
    }  # fmt: skip


def _statement(asked: Setting) -> Statement:
    return asked.mechanism.statement(delta=asked.delta, rounds=asked.rounds)


def _local(asked: Setting) -> Setting:
    """The same noise without a shuffler: every round's report is seen with its name."""
    m = LocalGaussian(sigma=asked.mechanism.sigma, adjacency=asked.mechanism.adjacency)
    return Setting(
        mechanism=m, rounds=asked.rounds, delta=asked.delta, clip=asked.clip, dimension=asked.dimension, axis=asked.axis
    )


def _attack(mechanism: Mechanism, rounds: int) -> Piece:
    """What the best attack reaches at each false positive rate, and in words of cases."""
    found: Intervals = mechanism.tradeoff(list(RATES), rounds=rounds)
    points = [{"x": x, "xtext": short(x, 3), **bracket(tpr)} for x, tpr in zip(RATES, found, strict=True)]
    by_rate = dict(zip(RATES, found, strict=True))
    cases = [
        # A product of two doubles may be half a unit below the truth; but nobody is right more often than always.
        {
            "odds": f"{odds:,}",
            "right": f"{odds:,}" if upper >= 1.0 else rounded(math.nextafter(odds * upper, math.inf)),
        }
        for odds, upper in ((odds, by_rate[1 / odds].upper) for odds in ODDS)
    ]
    return {"points": points, "cases": cases}


# Tasks


def page(_: Mapping[str, Any]) -> Iterator[Piece]:
    """What the page is made of, whatever is asked on it."""
    yield {"piece": "page", **fields.page_data()}


def first(data: Mapping[str, Any]) -> Iterator[Piece]:
    """What comes at once: the calls, what the noise costs, without a shuffler, and the identical crowd."""
    asked = setting.read(data["state"])
    named = setting.parameters(asked.mechanism.label)
    off = utility.error(asked.mechanism, clip=asked.clip, dimension=asked.dimension)
    yield {
        "piece": "setting", "python": calls.python(asked), "shell": calls.shell(asked), "axis": asked.axis,
        "now": _written(asked.value(asked.axis)),
        "whole": {name: _written(asked.value(name)) for name in WHOLE if name in named},
        "crowded": asked.crowded, "trust": asked.mechanism.trust, "crowd": asked.mechanism.crowd or "only",
        "error": {
            "total": rounded(off.total, digits=4), "noise": rounded(off.noise, digits=4),
            "sampling": rounded(off.sampling, digits=4) if off.sampling else "0", "estimate": off.estimate,
            "relative": rounded(off.total / asked.clip * (1.0 + 1e-15), digits=4),
        },
    }  # fmt: skip
    if asked.crowded:
        yield {"piece": "epsilon", "crowd": "local", **stated(_statement(_local(asked)))}
        asked = asked.with_crowd("identical")
    crowd = "identical" if asked.crowded else "only"
    yield {"piece": "epsilon", "crowd": crowd, **stated(_statement(asked))}


def any_crowd(data: Mapping[str, Any]) -> Iterator[Piece]:
    """The guarantee for any crowd: the number first, then what is known from below, in words, and of attacks."""
    asked = setting.read(data["state"])
    if asked.crowded:
        asked = asked.with_crowd("any")
        upper = guarantee(EPSILON, asked.mechanism.bounds(asked.rounds), asked.delta, Options())
        yield {"piece": "bound", "crowd": "any", **bracket(Interval(lower=0.0, upper=upper))}
        yield {"piece": "epsilon", "crowd": "any", **stated(_statement(asked))}
        yield {"piece": "attack", "crowd": "any", **_attack(asked.mechanism, asked.rounds)}


def _for(crowd: str, asked: Setting) -> Setting:
    """The setting for a crowd, for "local" (without a shuffler), or as it is ("only")."""
    if crowd == "local":
        return _local(asked)
    return asked if crowd == "only" else asked.with_crowd(crowd)


def attack(data: Mapping[str, Any]) -> Iterator[Piece]:
    """What an attacker can do against a crowd."""
    crowd = data["crowd"]
    asked = _for(crowd, setting.read(data["state"]))
    yield {"piece": "attack", "crowd": crowd, **_attack(asked.mechanism, asked.rounds)}


def curve(data: Mapping[str, Any]) -> Iterator[Piece]:
    """Epsilon against one parameter around the present point, for a crowd."""
    here, crowd = setting.read(data["state"]), data["crowd"]
    asked, axis = _for(crowd, here), here.axis
    places = xs(here, COARSE if crowd == "any" else FINE)
    if crowd == "local" and axis not in asked.mechanism.to_dict() and axis not in setting.SHARED:
        found = _statement(asked).answer
        yield {"piece": "curve", "crowd": crowd, "points": [_point(x, found) for x in (places[0], places[-1])]}
    elif axis in setting.SHARED:
        # Many rounds or deltas are one question.
        many: dict[str, Any] = {"rounds": asked.rounds, "delta": asked.delta}
        many[axis] = [int(x) for x in places] if axis == "rounds" else places
        every = asked.mechanism.epsilon(**many)
        yield {
            "piece": "curve", "crowd": crowd, "points": [_point(x, one) for x, one in zip(places, every, strict=True)]
        }  # fmt: skip
    else:
        # From the present point outwards, so that the picture grows around it.
        now = here.value(axis)
        for x in sorted(places, key=lambda x: abs(math.log(x / now))):
            yield {
                "piece": "curve", "crowd": crowd, "points": [_point(x, _statement(asked.moved(axis, x)).answer)]
            }  # fmt: skip


def xs(asked: Setting, steps: int) -> list[float]:
    """About `steps` values of the axis, evenly spaced on a logarithmic scale, and the present one."""
    axis, now = asked.axis, asked.value(asked.axis)
    low, high = LIMITS[axis]
    if axis == "sample":
        high = asked.value("users")
    if axis == "users" and asked.mechanism.sampling == "drawn":
        low = asked.value("sample")
    low, high = max(min(low, now), now / SPAN[axis]), min(max(high, now), now * SPAN[axis])
    found = {low * (high / low) ** (i / steps) for i in range(steps + 1)}
    if axis in WHOLE:
        found = {float(round(x)) for x in found}
    else:
        found = {min(max(float(f"{x:.4g}"), LIMITS[axis][0]), LIMITS[axis][1]) for x in found}
    near = [x for x in found if abs(math.log(x / now)) > 0.3 * math.log(high / low) / steps]
    return sorted({*near, now})


def _point(x: float, found: Interval) -> Piece:
    return {"x": x, "xtext": _written(x), **bracket(found)}


def _written(x: float) -> str:
    """A value of an axis, as people write it."""
    return f"{int(x):,}" if x == int(x) and x < 1e15 else short(x, 10)


def solve(data: Mapping[str, Any]) -> Iterator[Piece]:
    """The third parameter, where epsilon and the others are held: as it is printed it meets the target."""
    asked = setting.read(data["state"])
    assert asked.find is not None  # the server asks for nothing else
    assert asked.epsilon is not None
    m: Any = asked.mechanism
    target: dict[str, Any] = {"epsilon": asked.epsilon, "delta": asked.delta}
    if asked.find == "rounds":
        text, words = f"{calibrate.rounds(m, **target):,}", "the most that meet it"
    elif asked.find == "users":
        least = m.to_dict().get("sample", 1)
        found = calibrate.users(lambda n: m.replace(users=n), rounds=asked.rounds, at_least=least, **target)
        text, words = f"{found:,}", "the fewest that meet it"
    else:
        sigma = calibrate.sigma(lambda s: m.replace(sigma=s), rounds=asked.rounds, **target)
        text, words = rounded(sigma, digits=6), "the least that meets it"
        # More noise is more private; that the printed one meets the target was still computed, not concluded.
        if m.replace(sigma=float(text)).epsilon(delta=asked.delta, rounds=asked.rounds).upper > asked.epsilon:
            text = repr(sigma)
    yield {"piece": "found", "field": asked.find, "text": text, "words": words, "crowd": m.crowd or "only"}


def spent(data: Mapping[str, Any]) -> Iterator[Piece]:
    """A ledger against its budget: what is listed, what it has cost, what is left, and how many rounds more."""
    yield from budget.pieces(data, bracket=bracket, stated=stated)


TASKS: dict[str, Callable[[Mapping[str, Any]], Iterator[Piece]]] = {
    "page": page, "first": first, "any": any_crowd, "attack": attack, "curve": curve, "solve": solve, "spent": spent,
}  # fmt: skip


def warm_up() -> None:
    """One small answer, so that the first real one does not pay for what is set up once."""
    LocalGaussian(sigma=1.0).epsilon(delta=1e-5)
    for piece in first({"state": {"users": "70", "rounds": "3"}}):
        del piece
