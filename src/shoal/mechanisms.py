"""The mechanisms: frozen descriptions of one round, of which questions are asked.

Common to all of them. User i holds a vector x_i of norm at most C (clipped to it) and a *report* is
`x_i + N(0, (C sigma)^2 I)`, of any dimension; sigma is the noise multiplier. Nobody but the user
sees x_i or the noise. The *adjacency* says which two data sets must be hard to tell apart:

- `"zero-out"`: one user's vector is replaced by the zero vector, a move of at most 1 (in units of C);
- `"replace"`: one user's vector is replaced by any other, a move of at most 2.

The *crowd* says what is assumed about the vectors of everybody else:

- `"any"` (default): nothing. The bound of `shoal.exchange` holds whatever vectors the others hold, and
  still gains from their number. Its lower end comes from a crowd that really is bad
  (`shoal.opposite`: everybody else opposite to the user), so the truth lies between.
- `"identical"`: all others hold one and the same vector, the one that the moved user holds in Q and
  departs from in P (for zero-out, the zero vector). This is assumed "w.l.o.g." in Liew and Takahashi
  (2022), but it is an assumption: crowds exist that hide a user less. The results are exact for it.

Several rounds are composed adaptively: the server may choose what it asks next from all it has
seen. Every number covers both directions, D(P||Q) and D(Q||P).
"""

from __future__ import annotations

import dataclasses
import html
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np

from shoal import _validate, crowd, pld, rdp
from shoal._validate import FloatArray
from shoal.compose import Parts, Round
from shoal.crowd import Replace
from shoal.exchange import Exchange
from shoal.interval import Interval, outwards
from shoal.opposite import Opposite
from shoal.ratio import MeanRatio, Ratio

Adjacency = Literal["zero-out", "replace"]
Crowd = Literal["any", "identical"]
Method = Literal["tight", "rdp"]
Answer = TypeVar("Answer")
Self = TypeVar("Self", bound="Mechanism")

_MOVE: dict[str, float] = {"zero-out": 1.0, "replace": 2.0}
"""How far one vector can move under each adjacency, in units of the clipping norm."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One round of a protocol. Use a subclass; see the module's text for the common terms."""

    sigma: float
    adjacency: Adjacency = "zero-out"

    label: ClassVar[str] = ""
    """The name of the mechanism in the command line."""

    trust: ClassVar[str] = ""
    """Whom the guarantee relies on."""

    def __post_init__(self) -> None:
        if type(self) is Mechanism:
            raise TypeError(f"Mechanism is abstract: use one of {', '.join(MECHANISMS)}")
        self._set("sigma", _validate.sigma(self.sigma))
        _validate.choice("adjacency", self.adjacency, get_args(Adjacency))
        # sigma / 2 must stay in the range too, or a valid sigma would fail for "replace" only later.
        _validate.sigma(
            self.sigma / _MOVE[self.adjacency], name="sigma / 2" if self.adjacency == "replace" else "sigma"
        )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def scale(self) -> float:
        """s = sigma / (how far the user moves): all that matters of the two."""
        return self.sigma / _MOVE[self.adjacency]

    def round(self) -> MeanRatio | Round:
        """One round, from which upper bounds are computed: a likelihood ratio, or that of any crowd."""
        return self.witness()

    def witness(self) -> MeanRatio:
        """The ratio of a round that can really happen, from which lower bounds are computed."""
        raise NotImplementedError

    def opposite(self) -> MeanRatio | Opposite:
        """Another such round, with a worse crowd if there is one."""
        return self.witness()

    def _parts(self, count: int) -> Bounds:
        return Bounds.of([(self, count)])

    @property
    def assumption(self) -> str:
        """What the numbers assume about the other users, in words."""
        return "no other user matters"

    def replace(self: Self, **changes: Any) -> Self:
        """A copy with some fields changed.

        >>> Shuffle(users=10, sigma=2.0).replace(crowd="identical").crowd
        'identical'
        """
        unknown = sorted(set(changes) - {f.name for f in dataclasses.fields(self)})
        if unknown:
            known = ", ".join(f.name for f in dataclasses.fields(self))
            raise TypeError(f"{unknown[0]} is not a field of {type(self).__name__}, which has {known}")
        return dataclasses.replace(self, **changes)

    def epsilon(
        self,
        *,
        delta: Any,
        rounds: Any = 1,
        method: Method = "tight",
        orders: Any = None,
        accuracy: float = pld.ACCURACY,
    ) -> Any:
        """The epsilon of `rounds` rounds at `delta`, as an `Interval`.

        Arrays (or lists) of `delta` or `rounds` give an array of intervals. `method="tight"` brackets
        the truth to a relative width of `accuracy`, or an `AccuracyWarning` says what was reached.
        `method="rdp"` goes through Rényi DP with all orders, or with those in `orders` only; it
        bounds from above.
        """
        asked = Settings.checked(method, orders, accuracy)
        return ask_epsilon(self._parts, delta, rounds, asked)

    def delta(
        self,
        *,
        epsilon: Any,
        rounds: Any = 1,
        method: Method = "tight",
        orders: Any = None,
        accuracy: float = pld.ACCURACY,
    ) -> Any:
        """The delta of `rounds` rounds at `epsilon`, as an `Interval`; arguments as for `epsilon`.

        `accuracy` is still that of epsilon: delta is bracketed as tightly as an epsilon of that width would be,
        which is wider in relative terms where delta falls steeply.
        """
        asked = Settings.checked(method, orders, accuracy)
        return ask_delta(self._parts, epsilon, rounds, asked)

    def tradeoff(self, fpr: Any, *, rounds: int = 1, accuracy: float = pld.ACCURACY) -> Any:
        """What an attacker can do: the largest true positive rate at each false positive rate.

        The attacker sees everything the server sees and knows all but whether the user moved. One
        `Interval`, or an array of them for an array of rates.

        >>> power = LocalGaussian(sigma=5.0).tradeoff(0.01)
        >>> 0.016 < power.lower <= power.upper < 0.017
        True
        """
        parts, asked = self._parts(_validate.rounds(rounds)), Settings.checked("tight", None, accuracy)
        found = [asked.answer(parts, _validate.delta(f, "fpr"), POWER) for f in _validate.each("fpr", fpr)]
        return found[0] if _validate.is_scalar(fpr) else _array(found)

    def advantage(self, *, rounds: int = 1, accuracy: float = pld.ACCURACY) -> Interval:
        """The largest true positive rate minus false positive rate that any attack reaches."""
        asked = Settings.checked("tight", None, accuracy)
        return asked.answer(self._parts(_validate.rounds(rounds)), 0.0, ADVANTAGE)

    def pld(self, *, step: float = 1e-4) -> Any:
        """One round as a dp_accounting `PrivacyLossDistribution`, a pessimistic one.

        `step` is its discretisation of losses. dp_accounting's own composition is not tilted, and below
        delta = 1e-9 its answers can be too small: use `epsilon(rounds=...)` there.
        """
        step = _validate.real("step", step)
        if not 0.0 < step <= 1.0:
            raise ValueError(f"step must be above 0 and at most 1, got {step}")
        return pld.to_dp_accounting(self.round(), step=step)

    def rdp(
        self, orders: Any, *, rounds: int = 1, direction: Literal["worse", "forward", "reverse"] = "worse"
    ) -> FloatArray:
        """Rényi DP at the given orders: D(P||Q), D(Q||P), or the worse of the two."""
        return ask_rdp(self._parts(_validate.rounds(rounds)), orders, direction)

    def _facts(self) -> list[tuple[str, str]]:
        """What a notebook shows of it."""
        fields = {k: f"{v:,}" if isinstance(v, int) else str(v) for k, v in dataclasses.asdict(self).items()}
        return [*fields.items(), ("assumes", self.assumption), ("trust", self.trust)]

    def _repr_markdown_(self) -> str:
        rows = "".join(f"| {name} | {value} |\n" for name, value in self._facts())
        return f"| **{type(self).__name__}** | |\n|---|---|\n{rows}"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{html.escape(value)}</td></tr>" for name, value in self._facts())
        return f'<table><tr><th colspan="2">{type(self).__name__}</th></tr>{rows}</table>'

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain data; `from_dict` reads it back."""
        return {"mechanism": type(self).__name__, **dataclasses.asdict(self)}


class _Crowded(Mechanism):
    """What mechanisms share in which the other users' reports hide a user's own.

    The field `crowd` belongs to the subclasses.
    """

    crowd: Crowd

    @property
    def assumption(self) -> str:
        if self.crowd == "identical":
            return "all other users hold one vector, from which the moved user's departs (the paper's idealised crowd)"
        return "nothing about other users' vectors"

    def round(self) -> MeanRatio | Round:
        if self.crowd == "identical":
            return self.witness()
        # The theorem moves user 1 to zero or from it.
        step = self._among()
        return step if self.adjacency == "zero-out" else Replace(step=step)

    def _among(self) -> Exchange:
        raise NotImplementedError

    def opposite(self) -> MeanRatio | Opposite:
        """Everybody else opposite to where the user goes from zero."""
        mean = self.witness()
        if self.crowd == "identical":
            return mean
        # Going from zero is one of the moves of "replace" as well.
        mean = replace(mean, ratio=replace(mean.ratio, scale=self.sigma))
        return Opposite(mean=mean) if Opposite(mean=mean).is_in_range else self.witness()


@dataclass(frozen=True, kw_only=True)
class LocalGaussian(Mechanism):
    """Every user sends its report to the server under its own name: no shuffler.

    Who sends what: each user its report, each round. Who sees what: the server sees every report
    and whose it is. Who is trusted: nobody.

    >>> m = LocalGaussian(sigma=2.0)
    >>> m.rdp([2, 8]).round(6).tolist()
    [0.25, 1.0]
    """

    label: ClassVar[str] = "local"
    trust: ClassVar[str] = "nobody is trusted"

    def witness(self) -> MeanRatio:
        return MeanRatio(ratio=Ratio(scale=self.scale), users=1)


@dataclass(frozen=True, kw_only=True)
class Shuffle(_Crowded):
    """All `users` send a report to a shuffler, which permutes them uniformly for the server.

    Who sends what: each user its report, each round. Who sees what: the shuffler passes on the
    reports (sealed, it need not read them); the server sees the multiset of reports and no names,
    times or order. Who is trusted: the shuffler, to permute and not to collude with the server.
    If users drop out, `users` is the smallest number of reports that are sure to arrive.

    >>> m = Shuffle(users=60_000, sigma=9.48, crowd="identical")
    >>> eps = m.epsilon(delta=1 / 60_000)
    >>> eps.lower < 0.00059456 < eps.upper < 0.00059516
    True
    >>> f"{float(m.epsilon(delta=1 / 60_000, method='rdp')):.7f}"
    '0.0014063'
    """

    users: int
    crowd: Crowd = "any"

    label: ClassVar[str] = "shuffle"
    trust: ClassVar[str] = "the shuffler is trusted, the server is not"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("users", _validate.users("users", self.users))
        _validate.choice("crowd", self.crowd, get_args(Crowd))

    def witness(self) -> MeanRatio:
        return MeanRatio(ratio=Ratio(scale=self.scale), users=self.users)

    def _among(self) -> Exchange:
        return Exchange(ratio=Ratio(scale=self.sigma), users=self.users)


@dataclass(frozen=True, kw_only=True)
class SubsampledShuffle(_Crowded):
    """Each round, `sample` of the `users`, drawn without replacement, send a report; then as `Shuffle`.

    Who sends what: each sampled user its report. Who sees what: the server sees the multiset of
    `sample` reports, not who was sampled. Who is trusted: the shuffler, and whoever draws the
    sample, to draw it uniformly and to keep it secret.

    >>> m = SubsampledShuffle(users=60_000, sample=6_000, sigma=5.0, crowd="identical")
    >>> m.epsilon(delta=1e-5, rounds=100).upper < 0.02
    True
    """

    users: int
    sample: int
    crowd: Crowd = "any"

    label: ClassVar[str] = "subsampled"
    trust: ClassVar[str] = "the shuffler and the sampler are trusted, the server is not"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("users", _validate.users("users", self.users))
        self._set("sample", _validate.users("sample", self.sample))
        if self.sample > self.users:
            raise ValueError(f"sample must be at most users ({self.users}), got {self.sample}")
        _validate.rate(self.sample / self.users, name="sample / users")
        _validate.choice("crowd", self.crowd, get_args(Crowd))

    def witness(self) -> MeanRatio:
        return MeanRatio(ratio=Ratio(scale=self.scale), users=self.sample, weight=self.sample / self.users)

    def _among(self) -> Exchange:
        return Exchange(ratio=Ratio(scale=self.sigma), users=self.users, sample=self.sample)


@dataclass(frozen=True, kw_only=True)
class ShuffledCheckIn(_Crowded):
    """Each of the `users` takes part with probability `rate`, on its own secret coin; then as `Shuffle`.

    Who sends what: each user tosses its coin each round, and sends its report if it comes up. Who
    sees what: the server sees the multiset of reports, and so their number, not whose they are.
    Who is trusted: the shuffler, which must hide who took part; each user tosses for itself.

    >>> m = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
    >>> eps = m.epsilon(delta=1 / 60_000, rounds=5_540)
    >>> eps.lower < 0.05381 < eps.upper < 0.05387
    True
    """

    users: int
    rate: float
    crowd: Crowd = "any"

    label: ClassVar[str] = "check-in"
    trust: ClassVar[str] = "the shuffler is trusted, the server is not"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("users", _validate.users("users", self.users))
        self._set("rate", _validate.rate(self.rate))
        _validate.choice("crowd", self.crowd, get_args(Crowd))

    def witness(self) -> MeanRatio:
        return MeanRatio(ratio=Ratio(scale=self.scale, rate=self.rate), users=self.users)

    def _among(self) -> Exchange:
        return Exchange(ratio=Ratio(scale=self.sigma, rate=self.rate), users=self.users)


@dataclass(frozen=True, kw_only=True)
class BallsAndBins(Mechanism):
    """DP-SGD where each example falls into one of `bins` batches of an epoch, with central noise.

    A trusted server puts each example into one of the `bins` batches uniformly at random, and
    publishes each batch's sum of clipped gradients plus `N(0, (C sigma)^2 I)`. One round is one
    epoch. Who sees what: the public sees all `bins` noisy sums. Who is trusted: the server that
    holds the data. Q is the law without the example, P with it. The ratio is that of `Shuffle` with
    `users=bins`; here it is the true worst case, for zero-out adjacency only, and needs no
    assumption on other examples.

    >>> BallsAndBins(bins=1_000, sigma=1.0).epsilon(delta=1e-6).upper < 2.0
    True
    """

    bins: int

    label: ClassVar[str] = "balls-and-bins"
    trust: ClassVar[str] = "the server that holds the data is trusted, the public is not"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("bins", _validate.users("bins", self.bins))
        if self.adjacency != "zero-out":
            raise ValueError(f"adjacency must be zero-out for BallsAndBins, got {self.adjacency!r}")

    def witness(self) -> MeanRatio:
        return MeanRatio(ratio=Ratio(scale=self.scale), users=self.bins)


MECHANISMS: dict[str, type[Mechanism]] = {
    cls.__name__: cls for cls in (LocalGaussian, Shuffle, SubsampledShuffle, ShuffledCheckIn, BallsAndBins)
}


def from_dict(data: Mapping[str, Any]) -> Mechanism:
    """The mechanism that `Mechanism.to_dict` wrote."""
    if not isinstance(data, Mapping):
        raise TypeError(f"a mechanism must be a mapping, got {data!r}")
    name = data.get("mechanism")
    if not isinstance(name, str) or name not in MECHANISMS:
        raise ValueError(f"mechanism must be one of {', '.join(MECHANISMS)}, got {name!r}")
    cls = MECHANISMS[name]
    fields = {k: v for k, v in data.items() if k != "mechanism"}
    known = {f.name for f in dataclasses.fields(cls)}
    if set(fields) != known:
        raise ValueError(
            f"{name} must have the fields {', '.join(sorted(known))}, got {', '.join(sorted(map(str, fields)))}"
        )
    return cls(**fields)


class AccuracyWarning(UserWarning):
    """A bracket is wider than was asked. It is valid all the same: the truth lies in it."""


# ---------------------------------------------------------------------------------------------
# Questions: shared by mechanisms and accountants, which differ only in the rounds they consist of.


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of rounds: how to answer it exactly, for any crowd, and by Rényi DP if that knows it."""

    tight: Callable[[Parts, float, float], Interval]
    any_crowd: Callable[[Parts, float, float], float]
    name: str
    """What is asked, in words, with a place for its value."""
    by_rdp: Callable[[tuple[rdp.Part, ...], float, FloatArray | None], float] | None = None
    threshold: Callable[[float, float], float] = lambda value, answer: 0.0
    """The loss at which the best attack on one round decides, from the question and its answer."""


EPSILON = Question(
    tight=lambda p, d, a: pld.epsilons(p, [d], a)[0], name="epsilon at delta = {:g}",
    any_crowd=crowd.epsilon, by_rdp=rdp.epsilon, threshold=lambda delta, epsilon: epsilon,
)  # fmt: skip
DELTA = Question(
    tight=lambda p, e, a: pld.deltas(p, [e], a)[0], name="delta at epsilon = {:g}",
    any_crowd=crowd.delta, by_rdp=rdp.delta, threshold=lambda epsilon, delta: epsilon,
)  # fmt: skip
POWER = Question(
    tight=lambda p, f, a: pld.tradeoff(p, [f], a)[0], name="the true positive rate at {:g}", any_crowd=crowd.power
)
ADVANTAGE = Question(
    tight=lambda p, _, a: pld.advantage(p, a), name="the advantage", any_crowd=lambda p, _, a: crowd.advantage(p, a)
)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The rounds that bound the truth from above, and those that bound it from below.

    They are all the same where the mechanism is analysed exactly.
    """

    upper: Parts
    lower: Parts
    opposite: Parts

    @classmethod
    def of(cls, rounds: Iterable[tuple[Mechanism, int]]) -> Bounds:
        every = list(rounds)
        return cls(
            upper=tuple((m.round(), count) for m, count in every),
            lower=tuple((m.witness(), count) for m, count in every),
            opposite=tuple((m.opposite(), count) for m, count in every),
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a question is to be answered."""

    method: Method
    orders: FloatArray | None
    accuracy: float
    ends: Literal["both", "upper"] = "both"

    @classmethod
    def checked(cls, method: Any, orders: Any, accuracy: Any, ends: Literal["both", "upper"] = "both") -> Settings:
        _validate.choice("method", method, get_args(Method))
        if orders is not None and method != "rdp":
            raise ValueError(f"orders must be left out for method {method!r}: they belong to 'rdp'")
        width = _validate.real("accuracy", accuracy)
        if not 0.0 < width <= 1.0:
            raise ValueError(f"accuracy must be above 0 and at most 1, got {width}")
        chosen = None if orders is None else _validate.orders(orders)
        return cls(method=method, orders=chosen, accuracy=width, ends=ends)

    def answer(self, parts: Bounds, value: float, question: Question) -> Interval:
        """One answer. Where the tight one falls short of its accuracy, Rényi DP may be better still."""
        if not parts.upper:
            return Interval(lower=0.0, upper=0.0)
        if self.method == "rdp":
            if question.by_rdp is None:
                raise ValueError("method must be 'tight' for this question, got 'rdp'")
            return Interval(lower=0.0, upper=question.by_rdp(parts.upper, value, self.orders))
        if crowd.is_any(parts.upper):
            upper = question.any_crowd(parts.upper, value, self.accuracy)
            lower = self._below(parts, value, question, upper) if self.ends == "both" else 0.0
            return Interval(lower=min(lower, upper), upper=upper)
        found = question.tight(parts.lower, value, self.accuracy)
        if found.width <= self.accuracy * found.upper:
            return found
        if question.by_rdp is not None:
            upper = min(found.upper, question.by_rdp(parts.upper, value, None))
            found = Interval(lower=min(found.lower, upper), upper=upper)
        if self.ends == "both":
            self._tell(found, value, question, parts)
        return found

    def _tell(self, found: Interval, value: float, question: Question, parts: Bounds) -> None:
        """Warn of a bracket that is wider than asked."""
        wanted = self.accuracy
        if question is DELTA:
            if found.upper <= 1e-15:
                return  # nobody asks for its digits
            # It is asked to be as narrow as epsilon would be.
            before = question.tight(parts.lower, value / 1.001, self.accuracy).upper
            wanted *= max(1.0, 1e3 * math.log(before / found.upper)) if found.lower > 0.0 else 1.0
        if found.width <= 1.01 * wanted * found.upper:
            return
        warnings.warn(
            f"accuracy {self.accuracy:g} was not reached: {question.name.format(value)} is certified to lie in "
            f"{found:.6g}, which is {outwards(found.width / found.upper, '.1e', 1.0)} of it wide",
            AccuracyWarning,
            stacklevel=_outside(),
        )

    def _below(self, parts: Bounds, value: float, question: Question, upper: float) -> float:
        """The better of two crowds that can really happen."""
        attack, lower = parts.opposite, 0.0
        # Of the same move the opposite crowd shows more than the identical one, but for its round-off with many users.
        if not all(_shows_more(*pair) for pair in zip(attack, parts.lower, strict=True)):
            lower = question.tight(parts.lower, value, max(self.accuracy, 1e-2)).lower
        if attack == parts.lower:
            return lower
        # An attack has the resolution it has: no accuracy is asked for.
        if len(attack) > 1 or attack[0][1] > 1:
            return max(lower, question.tight(attack, value, 1.0).lower)
        # The best test of one round is known once the answer is: from above first, then from what that finds.
        guess = upper
        for _ in range(6):
            loss = min(question.threshold(value, guess), 20.0)
            best = replace(attack[0][0], loss=loss)  # type: ignore[type-var]
            before, guess = lower, question.tight(((best, 1),), value, 1.0).lower
            lower = max(lower, guess)
            if lower <= 1.002 * before or guess >= 0.995 * upper:
                break
        return lower


_SURE = 10**6
"""Up to so many users times rounds the round-off of an attack is not felt."""


def _shows_more(attack: tuple[MeanRatio | Round, int], ideal: tuple[MeanRatio | Round, int]) -> bool:
    """Whether an attack on the opposite crowd is surely better than one on the identical crowd."""
    worse, rounds = attack
    return isinstance(worse, Opposite) and worse.mean == ideal[0] and worse.users * rounds <= _SURE


def _outside() -> int:
    """The stack level, seen from who calls this, of the first line that is not the package's."""
    home, level = f"{Path(__file__).parent}{os.sep}", 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(home):
        frame, level = frame.f_back, level + 1
    return level


def _array(answers: list[Any]) -> Any:
    result = np.empty(len(answers), dtype=object)
    result[:] = answers
    return result


def _ask(
    values: Any, name: str, check: Callable[[Any], float], rounds: Any, answer: Callable[[float, int], Answer]
) -> Any:
    """One answer, or an array of them: values and rounds are paired as numpy would (one with all)."""
    checked = [check(v) for v in _validate.each(name, values)]
    counts = [_validate.rounds(r) for r in _validate.each("rounds", rounds)]
    size = max(len(checked), len(counts))
    if {len(checked), len(counts)} - {1, size}:
        raise ValueError(f"{name} and rounds must have the same length, got {len(checked)} and {len(counts)}")
    if len(checked) < size:
        checked *= size
    if len(counts) < size:
        counts *= size
    if _validate.is_scalar(values) and _validate.is_scalar(rounds):
        return answer(checked[0], counts[0])
    return _array([answer(v, r) for v, r in zip(checked, counts, strict=True)])


def ask_epsilon(parts: Callable[[int], Bounds], delta: Any, rounds: Any, asked: Settings) -> Any:
    """Epsilon of `parts(rounds)` for one or many deltas and rounds."""
    return _ask(delta, "delta", _validate.delta, rounds, lambda d, r: asked.answer(parts(r), d, EPSILON))


def ask_delta(parts: Callable[[int], Bounds], epsilon: Any, rounds: Any, asked: Settings) -> Any:
    """Delta of `parts(rounds)` for one or many epsilons and rounds."""
    return _ask(epsilon, "epsilon", _validate.epsilon, rounds, lambda e, r: asked.answer(parts(r), e, DELTA))


def ask_rdp(parts: Bounds, orders: Any, direction: str) -> FloatArray:
    """Rényi DP of `parts` at one or many orders; always an array."""
    _validate.choice("direction", direction, ("worse", *rdp.DIRECTIONS))
    checked = _validate.orders(orders)
    worst: FloatArray = np.max(
        [rdp.rdp(parts.upper, checked, d) for d in rdp.DIRECTIONS if direction in ("worse", d)], axis=0
    )
    return worst
