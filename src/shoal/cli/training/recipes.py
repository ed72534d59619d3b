"""From the options of `shoal train` to the configuration of a run: the preset, the options, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal import _validate, calibrate
from shoal._written import number
from shoal.cli import screen
from shoal.cli.training.presets import AUTO, PRESETS, RECIPES
from shoal.errors import InvalidInput
from shoal.mechanisms import Mechanism
from shoal.training import Config, Dataset, Plan, Records, plan
from shoal.training.ledger import share_of_delta
from shoal.training.plan import linear_rate
from shoal.training.protocol import PROTOCOLS


def choose(preset: str, options: Mapping[str, Any], epsilon: str | None) -> dict[str, Any]:
    """Return the settings of a run: the options, then those of the network, then the preset's.

    Args:
      preset: The preset's name.
      options: What was typed; None for options that were left out.
      epsilon: The budget, if there is one.

    Returns:
      The settings, as texts or numbers.

    Raises:
      InvalidInput: If a setting is missing.
    """
    typed = {name: value for name, value in options.items() if value is not None}
    settings = {"sigma": None, "rate": None, **PRESETS[preset], **typed}
    recipe = RECIPES.get(settings["network"], {})
    settings.update({name: value for name, value in recipe.items() if name not in typed})
    for name in ("clip", "learning_rate"):
        if name not in settings:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidInput(f"{name} must be given for the network {settings['network']}: add {flag}")
    if epsilon is None:
        if AUTO in (settings["rate"], settings["rounds"]):
            raise InvalidInput("epsilon must be given for rounds or rate to be chosen: add --epsilon")
        if settings["sigma"] is None:
            raise InvalidInput("epsilon or sigma must be given: add --epsilon")
    # An epsilon takes the place of the preset's sigma, not of one that was typed.
    elif "sigma" not in typed:
        settings["sigma"] = None
    return settings


def configure(
    settings: Mapping[str, Any],
    data: Dataset | Records,
    users: str | None,
    epsilon: str | None,
    crowd: str,
    **unchanged: Any,
) -> tuple[Config, Plan | None]:
    """Return the configuration of a run, and the plan if its noise was chosen by one.

    Args:
      settings: What `choose` returned.
      data: The data of the run.
      users: The number of users, if not all.
      epsilon: The budget, if there is one.
      crowd: The crowd for which the budget must hold.
      unchanged: Settings that pass into the configuration as they are.

    Returns:
      The configuration, and the plan or None.

    Raises:
      InvalidInput: If a setting has a value that is not allowed.
    """
    count = _user_count(users, data)
    m = _mechanism(settings, count, crowd)
    rounds = None if settings["rounds"] == AUTO else _validate.rounds(number("rounds", settings["rounds"]))
    delta = _validate.delta(number("delta", settings["delta"]))
    budget = None if epsilon is None else _validate.epsilon(number("epsilon", epsilon))
    chosen = None
    # A budget without noise asks for a plan; a budget with noise asks how many rounds that allows.
    # A run that may stop early makes several claims, each at a part of delta.
    claim_delta = delta if unchanged.get("stop_early") is None else share_of_delta(delta)
    if budget is not None and settings["sigma"] is None:
        auto_rate = settings["rate"] == AUTO
        with screen.working(m.label):
            chosen = plan(m, users=count, epsilon=budget, delta=claim_delta, rounds=rounds, auto_rate=auto_rate)
        m, rounds = chosen.mechanism, chosen.rounds
    elif budget is not None and rounds is None:
        rounds = calibrate.rounds(m, epsilon=budget, delta=claim_delta)
    assert rounds is not None  # without a budget, auto was refused before
    config = Config(
        mechanism=m,
        data=settings["data"],
        users=count,
        rounds=rounds,
        delta=delta,
        epsilon=budget,
        clip=settings["clip"],
        learning_rate=_learning_rate(settings, m, count, rounds),
        network=settings["network"],
        **unchanged,
    )
    return config, chosen


def _user_count(users: str | None, data: Dataset | Records) -> int:
    count = data.users if users is None else _validate.users("users", number("users", users))
    if count > data.users:
        raise InvalidInput(f"users must be at most {data.users} (the images of {data.name}), got {count}")
    return count


def _mechanism(settings: Mapping[str, Any], users: int, crowd: str) -> Mechanism:
    """Return the mechanism of the settings; what is to be planned is 1 until then."""
    protocol = settings["protocol"]
    auto_rate = settings["rate"] == AUTO
    cls = PROTOCOLS[protocol]
    names = cls.__dataclass_fields__
    values: dict[str, Any] = {"sigma": 1.0 if settings["sigma"] is None else number("sigma", settings["sigma"])}
    if "crowd" in names:
        values.update(users=users, crowd=crowd)
    if "rate" in names:
        if settings["rate"] is None:
            raise InvalidInput(f"rate must be given for {protocol}: add --rate")
        values["rate"] = 1.0 if auto_rate else number("rate", settings["rate"])
    elif auto_rate:
        raise InvalidInput(f"rate must not be auto for {protocol}, which has no rate")
    if "sample" in names:
        if settings.get("sample") is None:
            raise InvalidInput(f"sample must be given for {protocol}: add --sample")
        values["sample"] = _validate.users("sample", number("sample", settings["sample"]))
    elif settings.get("sample") is not None:
        raise InvalidInput(f"sample is not a parameter of {protocol}")
    if settings["sigma"] is not None and auto_rate:
        raise InvalidInput("rate must be a number where sigma is given, got 'auto'")
    return cls(**values)


def _learning_rate(settings: Mapping[str, Any], m: Mechanism, users: int, rounds: int) -> float:
    if settings["learning_rate"] is not None:
        return float(settings["learning_rate"])
    # Four digits: the number stands in the configuration, to be read and typed again.
    return float(f"{linear_rate(m, users=users, rounds=rounds, clip=settings['clip']):.4g}")
