"""The mechanisms: frozen descriptions of one round, with methods that answer questions about it.

    base.py        `Mechanism`: its questions, and what a class says about itself
    parameter.py   `Parameter`: the name, domain, words, option and slider of a field, declared once
    summed.py      users add the noise, and the server sees the sum alone: `SecureSum`
    shuffled.py    users add the noise: `LocalGaussian`, `Shuffle`, `SequentialShuffle` ...
    ordered.py     the rounds of an epoch in a secret order, for both
    central.py     a trusted server adds it: `BallsAndBins`, `PoissonSampling`, `FixedBatch`, `RandomAllocation` ...
    registry.py    `MECHANISMS`, the one list of them, and `from_dict`

*Reports.* User i holds a vector x_i of norm at most C (clipped to it) and a *report* is `x_i + N(0, (C sigma)^2 I)`,
of any dimension; sigma is the noise multiplier. Nobody but the user sees x_i or the noise.

*Adjacency* says which two data sets must be hard to tell apart:

- `"zero-out"`: one user's vector is replaced by the zero vector, a move of at most 1 (in units of C);
- `"replace"`: one user's vector is replaced by any other, a move of at most 2.

*Crowd* says what is assumed about the vectors of everybody else:

- `"any"` (default): nothing. The bound of `anycrowd.exchange` holds whatever vectors the others hold, and
  still gains from their number. Its lower end comes from a crowd that really is bad
  (`anycrowd.opposite`: everybody else opposite to the user), so the truth lies between.
- `"identical"`: all others hold one and the same vector, the one that the moved user holds in Q and
  departs from in P (for zero-out, the zero vector). This is assumed "w.l.o.g." in Liew and Takahashi
  (2022), but it is an assumption: crowds exist that hide a user less. The results are exact for it.

*Rounds* are composed adaptively in vectors and questions, and in nothing else:

- The server may choose what it asks next (a model, a query) from all that it has seen, and a user's vector may depend
  on it.
- The parameters are fixed beforehand: sigma, users, rate, sample and the number of rounds. Where they are chosen from
  outputs, only the statement for the worst of them holds (the smallest number of users, the largest number of rounds).
- A user's later vector must not depend on the noise of its own earlier reports (as error feedback or a local momentum
  of noisy updates would): that reveals which report was its own.
- A vector must not depend on other reports of the same round.

Every number covers both directions, D(P||Q) and D(Q||P).

*Corrupt users* add no noise and tell the server what they hold: they hide nobody. `users` counts all, and `corrupt`
those among them; only the rest, `honest`, counts. Users whose noise has another sigma count as corrupt, because the
bounds here are for one sigma. Where a trusted server adds the noise no other record is relied upon, so none can be
corrupt.
"""

from typing import Any

from shoal import _moved
from shoal.mechanisms.base import MOVE, Adjacency, Crowd, Mechanism, NoiseBy, SamplingScheme, bounds
from shoal.mechanisms.central import (
    BallsAndBins,
    CentralMechanism,
    FixedBatch,
    PoissonSampling,
    RandomAllocation,
    ShuffledEpochs,
)
from shoal.mechanisms.parameter import (
    COUNT,
    FLAG,
    NOISE,
    PROBABILITY,
    ROUND_COUNT,
    Domain,
    Parameter,
    choice_of,
    parameters_of,
)
from shoal.mechanisms.registry import MECHANISMS, from_dict, labelled
from shoal.mechanisms.shuffled import (
    LocalGaussian,
    SequentialShuffle,
    Shuffle,
    ShuffledCheckIn,
    ShuffledMechanism,
    SubsampledShuffle,
)
from shoal.mechanisms.summed import SecureSum

__all__ = [
    "COUNT",
    "FLAG",
    "MECHANISMS",
    "MOVE",
    "NOISE",
    "PROBABILITY",
    "ROUND_COUNT",
    "Adjacency",
    "BallsAndBins",
    "CentralMechanism",
    "Crowd",
    "Domain",
    "FixedBatch",
    "LocalGaussian",
    "Mechanism",
    "NoiseBy",
    "Parameter",
    "PoissonSampling",
    "RandomAllocation",
    "SamplingScheme",
    "SecureSum",
    "SequentialShuffle",
    "Shuffle",
    "ShuffledCheckIn",
    "ShuffledEpochs",
    "ShuffledMechanism",
    "SubsampledShuffle",
    "bounds",
    "choice_of",
    "from_dict",
    "labelled",
    "parameters_of",
]


def __getattr__(name: str) -> Any:
    """An object under its old name."""
    return _moved.old_attribute(__name__, name)
