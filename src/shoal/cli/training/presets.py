"""What is run unless an option says otherwise."""

from __future__ import annotations

from typing import Any

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
"""The settings of each preset."""

RECIPES: dict[str, dict[str, Any]] = {"histograms": {"clip": 0.1, "learning_rate": None}}
"""Settings of a network that differ from the preset's; a learning rate of None is chosen by rule."""

AUTO = "auto"
"""The value of an option that is chosen by a plan."""
