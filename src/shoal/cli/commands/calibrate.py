"""The commands `shoal calibrate sigma`, `rounds` and `users`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from shoal import _validate, calibrate
from shoal._written import number
from shoal.calibrate.target import Target
from shoal.cli import options as opt
from shoal.cli import screen, view
from shoal.cli.mechanism_options import Described, Description, MechanismOffer, describes_mechanism
from shoal.errors import InvalidInput, Unreachable
from shoal.formatting import rounded, short
from shoal.mechanisms import Mechanism
from shoal.query import EPSILON, Method, Options

TARGET_PARTS = ("epsilon", "delta", "tpr", "fpr", "advantage")
"""What describes a target, in the order of the options."""


@dataclass(frozen=True, kw_only=True)
class CalibrationTarget:
    """What is to be met after a number of rounds."""

    numbers: Mapping[str, float]
    target: Target
    rounds: int

    @property
    def arguments(self) -> dict[str, Any]:
        """What is to be met, as arguments of `shoal.calibrate`."""
        options = self.target.options
        return {**self.numbers, "method": options.method, "accuracy": options.accuracy}


def _target(parts: Mapping[str, str | None], rounds: str, method: Method, accuracy: float) -> CalibrationTarget:
    if all(parts[name] is None for name in TARGET_PARTS):
        raise InvalidInput("a target must be given: add --epsilon and --delta, --tpr and --fpr, or --advantage")
    numbers = {name: number(name, text) for name, text in parts.items() if text is not None}
    return CalibrationTarget(
        numbers=numbers,
        target=Target.of(options=Options(method=method, accuracy=accuracy), **numbers),
        rounds=_validate.rounds(number("rounds", rounds)),
    )


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """What a calibration looks for: its name, the head of its column, its search, and its value in a table."""

    name: str
    head: str
    search: Callable[[Mechanism, CalibrationTarget], float | int]
    written: Callable[[Any], str]


def _least_sigma(m: Mechanism, target: CalibrationTarget) -> float:
    return calibrate.sigma(m, rounds=target.rounds, **target.arguments)


def _most_rounds(m: Mechanism, target: CalibrationTarget) -> int:
    return calibrate.rounds(m, **target.arguments)


def _fewest_users(m: Mechanism, target: CalibrationTarget) -> int:
    return calibrate.users(m, rounds=target.rounds, at_least=getattr(m, "sample", 1), **target.arguments)


# The least noise is rounded up: what is printed meets the target too.
SIGMA = Unknown(name="sigma", head="least σ", search=_least_sigma, written=lambda sigma: rounded(sigma, digits=7))
ROUNDS = Unknown(name="rounds", head="most rounds", search=_most_rounds, written="{:,}".format)
USERS = Unknown(name="users", head="fewest users", search=_fewest_users, written="{:,}".format)


@describes_mechanism
def sigma_command(
    *,
    epsilon: opt.TargetEpsilon = None,
    delta: opt.TargetDelta = None,
    tpr: opt.TargetTpr = None,
    fpr: opt.TargetFpr = None,
    advantage: opt.TargetAdvantage = None,
    described: Annotated[Description, MechanismOffer(solved_for="sigma")],
    rounds: opt.RoundsOption = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    method: opt.MethodOption = "tight",
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
) -> None:
    """The least noise multiplier that meets a target.

    Example:

    \b
    shoal calibrate sigma shuffle --users 500 --rounds 20 --epsilon 0.5 \\
        --delta 1e-6 --crowd any --accuracy 0.01
    """
    # A placeholder for what is looked for; every trial replaces it.
    variants = described.variants(crowd, adjacency, sigma=1.0)
    parts = {"epsilon": epsilon, "delta": delta, "tpr": tpr, "fpr": fpr, "advantage": advantage}
    _answer(SIGMA, variants, _target(parts, rounds, method, accuracy), as_json=as_json)


@describes_mechanism
def rounds_command(
    *,
    epsilon: opt.TargetEpsilon = None,
    delta: opt.TargetDelta = None,
    tpr: opt.TargetTpr = None,
    fpr: opt.TargetFpr = None,
    advantage: opt.TargetAdvantage = None,
    described: Described,
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    method: opt.MethodOption = "tight",
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
) -> None:
    """The largest number of rounds that meets a target.

    Example:

    \b
    shoal calibrate rounds check-in --users 60000 --rate 0.1 --sigma 5 \\
        --epsilon 0.05 --delta 1e-5
    """
    variants = described.variants(crowd, adjacency)
    parts = {"epsilon": epsilon, "delta": delta, "tpr": tpr, "fpr": fpr, "advantage": advantage}
    _answer(ROUNDS, variants, _target(parts, "1", method, accuracy), as_json=as_json)


@describes_mechanism
def users_command(
    *,
    epsilon: opt.TargetEpsilon = None,
    delta: opt.TargetDelta = None,
    tpr: opt.TargetTpr = None,
    fpr: opt.TargetFpr = None,
    advantage: opt.TargetAdvantage = None,
    described: Annotated[Description, MechanismOffer(having="users", solved_for="users")],
    rounds: opt.RoundsOption = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    method: opt.MethodOption = "tight",
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
) -> None:
    """The smallest number of users that meets a target.

    Example:

    \b
    shoal calibrate users shuffle --sigma 5 --rounds 20 --epsilon 0.5 \\
        --delta 1e-6 --accuracy 0.01
    """
    parts = {"epsilon": epsilon, "delta": delta, "tpr": tpr, "fpr": fpr, "advantage": advantage}
    target = _target(parts, rounds, method, accuracy)
    if "users" not in described.parameters:
        raise InvalidInput(f"users is not a parameter of {described.label}")
    variants = described.variants(crowd, adjacency, users=_users_to_start_with(described))
    _answer(USERS, variants, target, as_json=as_json)


def _users_to_start_with(described: Description) -> int:
    """Return enough users for the sample, if there is one: the mechanism is checked before the search begins."""
    sample = described.texts.get("sample")
    if "sample" in described.parameters and isinstance(sample, str):
        return _validate.users("sample", number("sample", sample))
    return _validate.USERS_MAX


def _answer(unknown: Unknown, variants: list[Mechanism], target: CalibrationTarget, *, as_json: bool) -> None:
    """Search for each crowd, and show the answers."""
    rows = [_calibrated_row(unknown, m, target) for m in variants]
    # One crowd may have no answer where the other has: that is an answer, too.
    if all(row[unknown.name] is None for row in rows):
        raise InvalidInput(rows[0]["reason"])
    name = target.target.name
    symbols = {"epsilon": "ε", "delta": "δ", "tpr": "TPR", "fpr": "FPR"}

    def value(row: Mapping[str, Any]) -> str:
        return "not reachable" if row[unknown.name] is None else unknown.written(row[unknown.name])

    def reached(row: Mapping[str, Any]) -> str:
        return rounded(row[name]["upper"]) if name in row else "–"

    aims = ", ".join(f"{symbols.get(part, part)} = {short(limit)}" for part, limit in target.numbers.items())
    view.View(
        title=f"{variants[0].label}: target {aims}",
        columns=[
            view.CROWD_COLUMN,
            view.ViewColumn(head=unknown.head, text=value),
            view.ViewColumn(head=f"{symbols.get(name, name)} reached", text=reached),
        ],
        rows=rows,
        sentences=[row.get("guarantee") or f"{str(row['crowd']).capitalize()} crowd: {row['reason']}." for row in rows],
        payload={"target": dict(target.numbers), "rows": rows},
    ).show(as_json=as_json)


def _calibrated_row(unknown: Unknown, m: Mechanism, target: CalibrationTarget) -> dict[str, Any]:
    """Return the value that meets the target and the guarantee it gives, or why there is none."""
    crowd, aim = m.crowd, target.target
    try:
        with screen.working(m.label):
            value = unknown.search(m, target)
    # This error alone means that nothing meets the target; any other is a bad argument or a bug, and reported so.
    except Unreachable as error:
        return {"crowd": crowd, unknown.name: None, "reason": str(error)}
    solved = m if unknown is ROUNDS else m.replace(**{unknown.name: value})
    rounds = int(value) if unknown is ROUNDS else target.rounds
    answer = solved.answer(aim.question, aim.value, rounds=rounds, options=aim.options)
    if aim.question is EPSILON:
        sentence = solved.state(answer, rounds=rounds).sentence()
    else:
        # A rate of attacks is not stated as (epsilon, delta).
        sentence = f"Assuming that {solved.protocol}, and {solved.assumption}; {solved.trust}."
    return {"crowd": crowd, unknown.name: value, aim.name: view.ends(answer.interval), "guarantee": sentence}
