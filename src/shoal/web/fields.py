"""What the page consists of before anything is computed: mechanisms, their fields, and the marks of axes, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.mechanisms import LocalGaussian, Mechanism, PoissonSampling, SecureSum, ShuffledCheckIn, ShuffledEpochs
from shoal.web import setting


@dataclass(frozen=True, kw_only=True)
class Situation:
    """An answer to "What do you have?": a name, what it means, and the mechanism that it leads to first."""

    text: str
    more: str
    lead: type[Mechanism]


SITUATIONS = {
    "loader": Situation(
        text="My loader shuffles",
        more="An epoch uses every record, in batches put together at random.",
        lead=ShuffledEpochs,  # what loaders do, and the least private of its kind
    ),
    "drawn": Situation(
        text="Batches are drawn at random",
        more="Each step draws its records anew, as Poisson sampling does.",
        lead=PoissonSampling,
    ),
    "mixed": Situation(
        text="Phones send noisy updates",
        more="Users add the noise; a shuffler removes names before the server looks.",
        lead=ShuffledCheckIn,
    ),
    "summed": Situation(
        text="The server sees sums only",
        more="Users add the noise; a secure aggregation opens nothing but the sum of their updates.",
        lead=SecureSum,
    ),
    "named": Situation(
        text="Each user sends under its own name",
        more="Users add the noise; nobody stands between them and the server.",
        lead=LocalGaussian,
    ),
}
"""Each mechanism belongs to one of them."""


def situation_of(mechanism: type[Mechanism]) -> str:
    """Return the situation in which a mechanism is run, from what its class says about itself."""
    if mechanism.model == "Central":
        return "loader" if mechanism.sampling == "allocated" else "drawn"
    return {"Shuffle": "mixed", "Federated": "summed"}.get(mechanism.model, "named")


def page_data() -> dict[str, Any]:
    """Return all that does not depend on an answer."""
    return {
        "fields": {name: field.to_dict() for name, field in setting.FIELDS.items()},
        "kinds": {label: _kind_data(label, cls) for label, cls in setting.KINDS.items()},
        "situations": [
            {"value": name, "text": situation.text, "more": situation.more, "lead": situation.lead.label}
            for name, situation in SITUATIONS.items()
        ],
        "start": setting.START,
        "unknowns": setting.SOLVABLE,
        "ticks": ticks(),
    }


def _kind_data(label: str, cls: type[Mechanism]) -> dict[str, Any]:
    """Return what the page knows of a mechanism; its description is the first line of its docstring."""
    description = (cls.__doc__ or label).partition("\n")[0]
    return {
        "fields": {name: field.to_dict() for name, field in setting.fields(label).items()},
        "situation": situation_of(cls),
        "description": description,
        "trust": cls.trust,
        "crowd": cls.crowd_matters,
    }


def ticks() -> list[dict[str, Any]]:
    """Return where an axis may be marked, and how it is written there: 1, 2 and 5 of every power of ten."""
    marks = []
    for exponent in range(-16, 16):
        for digit in (1, 2, 5):
            value = float(f"{digit}e{exponent}")
            if 1.0 <= value < 1e6:
                text = f"{int(value):,}"
            elif 1e-3 <= value < 1.0:
                text = f"{value:.{-exponent}f}"
            else:
                text = f"{digit}e{exponent}"
            marks.append({"value": value, "text": text, "digit": digit})
    return marks
