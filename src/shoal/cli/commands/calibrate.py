"""The commands `shoal calibrate sigma`, `rounds` and `users`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from shoal import _validate, calibrate
from shoal._written import number
from shoal.cli import options as opt
from shoal.cli import screen, view
from shoal.cli.mechanism_options import Described, Description, MechanismOffer, describes_mechanism
from shoal.errors import InvalidInput, Unreachable
from shoal.formatting import rounded, short
from shoal.mechanisms import Mechanism
from shoal.query import EPSILON, Method, Options


@dataclass(frozen=True, kw_only=True)
class CalibrationTarget:
    """The epsilon and delta to meet after a number of rounds, and how they are computed."""

    epsilon: float
    delta: float
    rounds: int
    method: Method
    accuracy: float

    @property
    def arguments(self) -> dict[str, Any]:
        """What is to be met, as arguments of `shoal.calibrate`."""
        return {"epsilon": self.epsilon, "delta": self.delta, "method": self.method, "accuracy": self.accuracy}


def _target(epsilon: str, delta: str, rounds: str, method: Method, accuracy: float) -> CalibrationTarget:
    return CalibrationTarget(
        epsilon=_validate.epsilon(number("epsilon", epsilon)),
        delta=_validate.delta(number("delta", delta)),
        rounds=_validate.rounds(number("rounds", rounds)),
        method=method,
        accuracy=accuracy,
    )


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """What a calibration looks for: its name, the head of its column, its search, and its value in a table."""

    name: str
    head: str
    search: Callable[[Mechanism, CalibrationTarget], float | int]
    written: Callable[[Any], str]


def _least_sigma(m: Mechanism, target: CalibrationTarget) -> float:
    return calibrate.sigma(lambda sigma: m.replace(sigma=sigma), rounds=target.rounds, **target.arguments)


def _most_rounds(m: Mechanism, target: CalibrationTarget) -> int:
    return calibrate.rounds(m, **target.arguments)


def _fewest_users(m: Mechanism, target: CalibrationTarget) -> int:
    make: Callable[[int], Mechanism] = lambda users: m.replace(users=users)  # noqa: E731  # its type helps mypy
    return calibrate.users(make, rounds=target.rounds, at_least=getattr(m, "sample", 1), **target.arguments)


# The least noise is rounded up: what is printed meets the target too.
SIGMA = Unknown(name="sigma", head="least σ", search=_least_sigma, written=lambda sigma: rounded(sigma, digits=7))
ROUNDS = Unknown(name="rounds", head="most rounds", search=_most_rounds, written="{:,}".format)
USERS = Unknown(name="users", head="fewest users", search=_fewest_users, written="{:,}".format)


@describes_mechanism
def sigma_command(
    *,
    epsilon: opt.Epsilon,
    delta: opt.Delta,
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
    _answer(SIGMA, variants, _target(epsilon, delta, rounds, method, accuracy), as_json=as_json)


@describes_mechanism
def rounds_command(
    *,
    epsilon: opt.Epsilon,
    delta: opt.Delta,
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
    _answer(ROUNDS, variants, _target(epsilon, delta, "1", method, accuracy), as_json=as_json)


@describes_mechanism
def users_command(
    *,
    epsilon: opt.Epsilon,
    delta: opt.Delta,
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
    target = _target(epsilon, delta, rounds, method, accuracy)
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

    def value(row: Mapping[str, Any]) -> str:
        return "not reachable" if row[unknown.name] is None else unknown.written(row[unknown.name])

    def reached(row: Mapping[str, Any]) -> str:
        return rounded(row["epsilon"]["upper"]) if "epsilon" in row else "–"

    view.View(
        title=f"{variants[0].label}: target ε = {short(target.epsilon)}, δ = {short(target.delta)}",
        columns=[
            view.CROWD_COLUMN,
            view.ViewColumn(head=unknown.head, text=value),
            view.ViewColumn(head="ε reached", text=reached),
        ],
        rows=rows,
        sentences=[row.get("guarantee") or f"{str(row['crowd']).capitalize()} crowd: {row['reason']}." for row in rows],
        payload={"target": {"epsilon": target.epsilon, "delta": target.delta}, "rows": rows},
    ).show(as_json=as_json)


def _calibrated_row(unknown: Unknown, m: Mechanism, target: CalibrationTarget) -> dict[str, Any]:
    """Return the value that meets the target and the guarantee it gives, or why there is none."""
    crowd = m.crowd
    try:
        with screen.working(m.label):
            value = unknown.search(m, target)
    # This error alone means that nothing meets the target; any other is a bad argument or a bug, and reported so.
    except Unreachable as error:
        return {"crowd": crowd, unknown.name: None, "reason": str(error)}
    solved = m if unknown is ROUNDS else m.replace(**{unknown.name: value})
    rounds = int(value) if unknown is ROUNDS else target.rounds
    options = Options(method=target.method, accuracy=target.accuracy)
    answer = solved.answer(EPSILON, target.delta, rounds=rounds, options=options)
    sentence = solved.state(answer, rounds=rounds).sentence()
    return {"crowd": crowd, unknown.name: value, "epsilon": view.ends(answer.interval), "guarantee": sentence}
