"""The commands `shoal calibrate sigma`, `rounds` and `users`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from shoal._written import number
from shoal.cli import options as opt
from shoal.errors import InvalidInput, Unreachable

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism
    from shoal.query import Method

HEAD = {"sigma": "least σ", "rounds": "most rounds", "users": "fewest users"}
"""What is looked for, as the head of a column."""


def sigma(
    *,
    epsilon: opt.Epsilon,
    delta: opt.Delta,
    described: Annotated[opt.Description, opt.Offer(but="sigma")],
    rounds: opt.RoundsOption = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = opt.AdjacencyChoice.zero_out,
    method: opt.MethodOption = opt.MethodChoice.tight,
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
) -> None:
    """The least noise multiplier that meets a target.

    Example:

    \b
    shoal calibrate sigma shuffle --users 500 --rounds 20 --epsilon 0.5 \\
        --delta 1e-6 --crowd any --accuracy 0.01
    """
    target = Target.read(epsilon, delta, rounds, method, accuracy)
    # A placeholder for the field that is looked for; every trial replaces it.
    variants = described.variants(crowd, adjacency, sigma=1.0)
    _show("sigma", target, [_found("sigma", target, *v) for v in variants], described.kind, as_json)


def rounds(
    *,
    epsilon: opt.Epsilon,
    delta: opt.Delta,
    described: opt.Described,
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = opt.AdjacencyChoice.zero_out,
    method: opt.MethodOption = opt.MethodChoice.tight,
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
) -> None:
    """The largest number of rounds that meets a target.

    Example:

    \b
    shoal calibrate rounds check-in --users 60000 --rate 0.1 --sigma 5 \\
        --epsilon 0.05 --delta 1e-5
    """
    target = Target.read(epsilon, delta, "1", method, accuracy)
    variants = described.variants(crowd, adjacency)
    _show("rounds", target, [_found("rounds", target, *v) for v in variants], described.kind, as_json)


def users(
    *,
    epsilon: opt.Epsilon,
    delta: opt.Delta,
    described: Annotated[opt.Description, opt.Offer(of="users", but="users")],
    rounds: opt.RoundsOption = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = opt.AdjacencyChoice.zero_out,
    method: opt.MethodOption = opt.MethodChoice.tight,
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
) -> None:
    """The fewest users that meet a target.

    Example:

    \b
    shoal calibrate users shuffle --sigma 5 --rounds 20 --epsilon 0.5 \\
        --delta 1e-6 --accuracy 0.01
    """
    target = Target.read(epsilon, delta, rounds, method, accuracy)
    if "users" not in described.fields:
        raise InvalidInput(f"users is not a parameter of {described.kind}")
    variants = described.variants(crowd, adjacency, users=_users_to_start_with(described))
    _show("users", target, [_found("users", target, *v) for v in variants], described.kind, as_json)


def _users_to_start_with(described: opt.Description) -> int:
    """Enough for the sample, if there is one: the description is checked before the search begins."""
    from shoal import _validate

    sample = described.given.get("sample")
    if "sample" in described.fields and isinstance(sample, str):
        return _validate.users("sample", number("sample", sample))
    return _validate.USERS_MAX


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is to be met, after how many rounds, and how it is computed."""

    epsilon: float
    delta: float
    rounds: int
    method: Method
    accuracy: float

    @classmethod
    def read(cls, epsilon: str, delta: str, rounds: str, method: opt.MethodChoice, accuracy: float) -> Target:
        from shoal import _validate

        return cls(
            epsilon=_validate.epsilon(number("epsilon", epsilon)),
            delta=_validate.delta(number("delta", delta)),
            rounds=_validate.rounds(number("rounds", rounds)),
            method=method.value,
            accuracy=accuracy,
        )

    @property
    def how(self) -> dict[str, Any]:
        return {"method": self.method, "accuracy": self.accuracy}


def _found(what: str, target: Target, crowd: str | None, m: Mechanism) -> dict[str, Any]:
    """The value that meets the target and the guarantee it gives, or why there is none."""
    from shoal.cli import show
    from shoal.query import EPSILON, Options

    try:
        with show.busy(m):
            value = _search(what, target, m)
    # This error alone means that nothing meets the target; any other is a bad argument or a bug, and told as such.
    except Unreachable as error:
        return {"crowd": crowd, what: None, "reason": str(error)}
    found = m if what == "rounds" else m.replace(**{what: value})
    count = int(value) if what == "rounds" else target.rounds
    options = Options(method=target.method, accuracy=target.accuracy)
    answer = found.answer(EPSILON, target.delta, rounds=count, options=options)
    text = found.state(answer, rounds=count).sentence()
    return {"crowd": crowd, what: value, "epsilon": show.interval(answer.interval), "guarantee": text}


def _search(what: str, target: Target, m: Mechanism) -> float | int:
    from shoal import calibrate

    common: dict[str, Any] = {"epsilon": target.epsilon, "delta": target.delta, **target.how}
    if what == "rounds":
        return calibrate.rounds(m, **common)
    if what == "sigma":
        return calibrate.sigma(lambda s: m.replace(sigma=s), rounds=target.rounds, **common)
    least = m.to_dict().get("sample", 1)
    return calibrate.users(lambda n: m.replace(users=n), rounds=target.rounds, at_least=least, **common)


def _show(what: str, target: Target, rows: list[dict[str, Any]], kind: str, as_json: bool) -> None:
    from shoal.cli import show

    # One crowd may have no answer where the other has: that is an answer, too.
    if all(row[what] is None for row in rows):
        raise InvalidInput(rows[0]["reason"])
    if as_json:
        show.emit_json({"target": {"epsilon": target.epsilon, "delta": target.delta}, "rows": rows})
        return
    title = f"{kind}: target ε = {show.plain(target.epsilon)}, δ = {show.plain(target.delta)}"
    show.table(title, ["crowd", HEAD[what], "ε reached"], [_cells(what, row) for row in rows])
    for row in rows:
        show.say(row.get("guarantee") or f"Crowd {row['crowd']}: {row['reason']}.")


def _cells(what: str, row: dict[str, Any]) -> list[str]:
    from shoal.cli import show

    crowd, value = show.crowd_name(row["crowd"]), row[what]
    if value is None:
        return [crowd, "not reachable", "–"]
    # The least noise is rounded up: what is printed meets the target too.
    text = show.rounded(value, digits=7) if what == "sigma" else f"{value:,}"
    return [crowd, text, show.rounded(row["epsilon"]["upper"])]
