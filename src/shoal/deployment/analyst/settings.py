"""What an analyst is set up with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal import _validate
from shoal.deployment.task import CROWD_MAX, ROUND_MAX, Task
from shoal.errors import InvalidInput

EPOCHS_MAX = 10_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of an analyst, fixed for the life of its folder.

    `rounds` is the number of rounds for which there are keys, `epoch` the number of rounds that share a key. `maximum`
    bounds the reports of a batch, `step` scales the mean update, `keep` is the number of models that are kept.
    """

    task: Task
    rounds: int
    epoch: int
    maximum: int = 1_000_000
    step: float = 1.0
    keep: int = 5

    def __post_init__(self) -> None:
        rounds = _validate.integer("rounds", self.rounds, minimum=1, maximum=ROUND_MAX)
        step = _validate.real("step", self.step)
        if step <= 0:
            raise InvalidInput(f"step must be positive, got {step}")
        checked = {
            "rounds": rounds,
            "epoch": _validate.integer("epoch", self.epoch, minimum=-(-rounds // EPOCHS_MAX), maximum=ROUND_MAX),
            "maximum": _validate.integer("maximum", self.maximum, minimum=self.task.minimum, maximum=CROWD_MAX),
            "step": step,
            "keep": _validate.integer("keep", self.keep, minimum=1, maximum=10**6),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Settings:
        """The settings that `dataclasses.asdict` wrote."""
        return cls(**{**data, "task": Task(**data["task"])})

    @property
    def epochs(self) -> int:
        """The number of epochs, each with a key of its own."""
        return -(-self.rounds // self.epoch)

    def epoch_of(self, round_number: int) -> int:
        """The epoch of a round; the first is 1."""
        return (round_number - 1) // self.epoch + 1
