"""From the options of `shoal train` to the configuration of a run: presets, what was given, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal._written import number
from shoal.errors import InvalidInput

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism
    from shoal.training import Config, Dataset, Plan, Records

PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        "data": "digits",
        "protocol": "check-in",
        "rate": "0.5",
        "sigma": "2",
        "clip": 0.01,
        "rounds": "300",
        "delta": "1e-5",
        "learning_rate": 10.0,
        "network": "small",
    },
    "paper": {
        "data": "mnist",
        "protocol": "check-in",
        "rate": "0.1",
        "sigma": "5",
        "clip": 0.01,
        "rounds": "5540",
        "delta": "1/60000",
        "learning_rate": 3.0,
        "network": "small",
    },
    "mnist": {
        "data": "mnist",
        "protocol": "shuffle",
        "rounds": "auto",
        "delta": "1/60000",
        "network": "histograms",
    },
}
"""What is run unless an option says otherwise."""

RECIPES: dict[str, dict[str, Any]] = {"histograms": {"clip": 0.1, "learning_rate": None}}
"""What a network needs that is not the preset's; a learning rate of None is chosen by rule."""

AUTO = "auto"


def choose(preset: str, given: dict[str, Any], epsilon: str | None) -> dict[str, Any]:
    """The preset's settings, those of the network, and what was given, the later before the earlier."""
    # What was typed counts before what a network needs, and that before the preset.
    told = {k: v for k, v in given.items() if v is not None}
    chosen = {"sigma": None, "rate": None, **PRESETS[preset], **told}
    recipe = RECIPES.get(chosen["network"], {})
    chosen.update({k: v for k, v in recipe.items() if k not in told})
    for name in ("clip", "learning_rate"):
        if name not in chosen:
            raise InvalidInput(
                f"{name} must be given for the network {chosen['network']}: add --{name.replace('_', '-')}"
            )
    if epsilon is None:
        if AUTO in (chosen["rate"], chosen["rounds"]):
            raise InvalidInput("epsilon must be given for rounds or rate to be chosen: add --epsilon")
        if chosen["sigma"] is None:
            raise InvalidInput("epsilon or sigma must be given: add --epsilon")
    # An epsilon takes the place of the preset's sigma, not of one that was typed.
    elif "sigma" not in told:
        chosen["sigma"] = None
    return chosen


def configure(
    chosen: dict[str, Any], data: Dataset | Records, users: str | None, epsilon: str | None, crowd: str, **rest: Any
) -> tuple[Config, Plan | None]:
    """The configuration, and the plan if one was needed to choose its noise."""
    from shoal import _validate, calibrate
    from shoal.cli import show
    from shoal.training import Config, plan

    count = _users(users, data)
    m = _mechanism(chosen, count, crowd)
    rounds = None if chosen["rounds"] == AUTO else _validate.rounds(number("rounds", chosen["rounds"]))
    delta = _validate.delta(number("delta", chosen["delta"]))
    budget = None if epsilon is None else _validate.epsilon(number("epsilon", epsilon))
    found = None
    # A budget without noise asks for a plan; a budget with noise asks how many rounds that allows.
    if budget is not None and chosen["sigma"] is None:
        auto_rate = chosen["rate"] == AUTO
        with show.busy(m):
            found = plan(m, users=count, epsilon=budget, delta=delta, rounds=rounds, auto_rate=auto_rate)
        m, rounds = found.mechanism, found.rounds
    elif budget is not None and rounds is None:
        rounds = calibrate.rounds(m, epsilon=budget, delta=delta)
    assert rounds is not None  # without a budget auto was refused before
    config = Config(
        mechanism=m,
        data=chosen["data"],
        users=count,
        rounds=rounds,
        delta=delta,
        epsilon=budget,
        clip=chosen["clip"],
        learning_rate=_learning_rate(chosen, m, count, rounds),
        network=chosen["network"],
        **rest,
    )
    return config, found


def _users(users: str | None, data: Dataset | Records) -> int:
    from shoal import _validate

    count = data.users if users is None else _validate.users("users", number("users", users))
    if count > data.users:
        raise InvalidInput(f"users must be at most {data.users} (the images of {data.name}), got {count}")
    return count


def _mechanism(chosen: dict[str, Any], users: int, crowd: str) -> Mechanism:
    """The protocol with what was chosen for it; a field that is to be planned holds 1 until then."""
    from shoal import _validate
    from shoal.cli import options as opt
    from shoal.training.protocol import PROTOCOLS

    kind = chosen["protocol"]
    auto_rate = chosen["rate"] == AUTO
    cls = PROTOCOLS[kind]
    fields: dict[str, Any] = {"sigma": 1.0 if chosen["sigma"] is None else number("sigma", chosen["sigma"])}
    if opt.has(cls, "crowd"):
        fields.update(users=users, crowd=crowd)
    if opt.has(cls, "rate"):
        if chosen["rate"] is None:
            raise InvalidInput(f"rate must be given for {kind}: add --rate")
        fields["rate"] = 1.0 if auto_rate else number("rate", chosen["rate"])
    elif auto_rate:
        raise InvalidInput(f"rate must not be auto for {kind}, which has no rate")
    if opt.has(cls, "sample"):
        if chosen.get("sample") is None:
            raise InvalidInput(f"sample must be given for {kind}: add --sample")
        fields["sample"] = _validate.users("sample", number("sample", chosen["sample"]))
    elif chosen.get("sample") is not None:
        raise InvalidInput(f"sample is not a parameter of {kind}")
    if chosen["sigma"] is not None and auto_rate:
        raise InvalidInput("rate must be a number where sigma is given, got 'auto'")
    return cls(**fields)


def _learning_rate(chosen: dict[str, Any], m: Mechanism, users: int, rounds: int) -> float:
    from shoal.training.plan import linear_rate

    if chosen["learning_rate"] is not None:
        return float(chosen["learning_rate"])
    # Four digits: the number stands in the configuration, to be read and typed again.
    return float(f"{linear_rate(m, users=users, rounds=rounds, clip=chosen['clip']):.4g}")
