"""What the page asks for: words, fields and ticks, as data."""

from __future__ import annotations

from typing import Any

from shoal.web import setting


def page_data() -> dict[str, Any]:
    """All that does not depend on an answer."""
    kinds = {
        label: {"parameters": setting.parameters(label), "trust": cls.trust, "name": cls.__name__,
                "crowded": cls.crowd_matters}
        for label, cls in setting.KINDS.items()
    }  # fmt: skip
    return {
        "fields": {name: field.to_dict() for name, field in setting.FIELDS.items()},
        "kinds": kinds,
        "questions": QUESTIONS,
        "found": setting.FOUND,
        "ticks": ticks(),
    }


QUESTIONS = [
    {
        "name": "sends",
        "ask": "Who sends?",
        "choices": [
            {
                "value": "users",
                "text": "Each user",
                "more": "clips a vector, adds Gaussian noise and sends the report.",
            },
            {
                "value": "server",
                "text": "A trusted server",
                "more": "holds all data and adds noise to each batch’s sum.",
            },
        ],
    },
    {
        "name": "sees",
        "ask": "Who sees?",
        "choices": [
            {"value": "mixed", "text": "A shuffler in between", "more": "mixes the reports; the server sees no names."},
            {"value": "named", "text": "The server at once", "more": "with the name of who sent it."},
        ],
    },
    {
        "name": "sampled",
        "ask": "Who is sampled?",
        "choices": [
            {"value": "all", "text": "Nobody: all report", "more": "in every round."},
            {"value": "coin", "text": "Each tosses a coin", "more": "of its own, in secret, and may stay out."},
            {"value": "drawn", "text": "A fixed number", "more": "is drawn in secret by a sampler that is trusted."},
        ],
    },
]
"""In words first: the answers lead to the mechanism."""


def ticks() -> list[dict[str, Any]]:
    """Where an axis may be marked, and how it is written there: 1, 2 and 5 of every power of ten."""
    found = []
    for exponent in range(-16, 16):
        for digit in (1, 2, 5):
            value = float(f"{digit}e{exponent}")
            if 1.0 <= value < 1e6:
                text = f"{int(value):,}"
            elif 1e-3 <= value < 1.0:
                text = f"{value:.{-exponent}f}"
            else:
                text = f"{digit}e{exponent}"
            found.append({"value": value, "text": text, "digit": digit})
    return found
