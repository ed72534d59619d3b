"""The mechanisms: frozen descriptions of one round, of which questions are asked.

Common to all of them. User i holds a vector x_i of norm at most C (clipped to it) and a *report* is
`x_i + N(0, (C sigma)^2 I)`, of any dimension; sigma is the noise multiplier. Nobody but the user
sees x_i or the noise. The *adjacency* says which two data sets must be hard to tell apart:

- `"zero-out"`: one user's vector is replaced by the zero vector, a move of at most 1 (in units of C);
- `"replace"`: one user's vector is replaced by any other, a move of at most 2.

The *crowd* says what is assumed about the vectors of everybody else:

- `"any"` (default): nothing. The guarantee is the local one: it holds for the user's own report
  (and the coin that decides whether there is one) seen in the clear, and shuffling with others'
  reports is post-processing of that. Amplification by the crowd is not counted.
- `"identical"`: all others hold one and the same vector, the one that the moved user holds in Q and
  departs from in P (for zero-out, the zero vector). This is assumed "w.l.o.g." in Liew and Takahashi
  (2022), but it is an assumption: crowds exist that hide a user less. The results are exact for it.

Several rounds are composed adaptively: the server may choose what it asks next from all it has
seen. Every number covers both directions, D(P||Q) and D(Q||P).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np

from shoal import _validate, pld, rdp
from shoal._validate import FloatArray
from shoal.interval import Interval
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

    def round(self) -> MeanRatio:
        """The likelihood ratio of one round, from which every number is computed."""
        raise NotImplementedError

    def witness(self) -> MeanRatio:
        """The ratio of a round that can really happen, from which lower bounds are computed."""
        return self.round()

    def _parts(self, count: int) -> Bounds:
        return Bounds(upper=((self.round(), count),), lower=((self.witness(), count),))

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
        the truth to a relative width of `accuracy`, or says by its width what it reached.
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
        """The delta of `rounds` rounds at `epsilon`, as an `Interval`; arguments as for `epsilon`."""
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
        parts = self._parts(_validate.rounds(rounds))
        found = parts.bracket(lambda p: pld.tradeoff(p, _validate.each("fpr", fpr), accuracy))
        return found[0] if _validate.is_scalar(fpr) else _array(found)

    def advantage(self, *, rounds: int = 1, accuracy: float = pld.ACCURACY) -> Interval:
        """The largest true positive rate minus false positive rate that any attack reaches."""
        return self._parts(_validate.rounds(rounds)).bracket(lambda p: [pld.advantage(p, accuracy)])[0]

    def pld(self, *, step: float = 1e-4) -> Any:
        """One round as a dp_accounting `PrivacyLossDistribution`, a pessimistic one.

        `step` is its discretisation of losses. dp_accounting's own composition is not tilted, and
        below delta = 1e-9 its answers can be too small: use `epsilon(rounds=...)` there.
        """
        return pld.to_dp_accounting(self.round(), step=step)

    def rdp(
        self, orders: Any, *, rounds: int = 1, direction: Literal["worse", "forward", "reverse"] = "worse"
    ) -> FloatArray:
        """Rényi DP at the given orders: D(P||Q), D(Q||P), or the worse of the two."""
        return ask_rdp(((self.round(), _validate.rounds(rounds)),), orders, direction)

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain data; `from_dict` reads it back."""
        return {"mechanism": type(self).__name__, **dataclasses.asdict(self)}


class _Crowded:
    """What mechanisms share in which the other users' reports hide a user's own.

    The fields `crowd` and `users` belong to the subclasses.
    """

    crowd: Crowd

    @property
    def assumption(self) -> str:
        if self.crowd == "identical":
            return "all other users hold one vector, from which the moved user's departs (the paper's idealised crowd)"
        return "nothing about other users' vectors (local guarantee: shuffling is post-processing)"

    def _round(self, scale: float, users: int, rate: float, weight: float) -> MeanRatio:
        if self.crowd == "identical":
            return MeanRatio(ratio=Ratio(scale=scale, rate=rate), users=users, weight=weight)
        # The user's own report and coin in the clear; all else is post-processing.
        return MeanRatio(ratio=Ratio(scale=scale, rate=rate * weight), users=1)

    def witness(self) -> MeanRatio:
        """The identical crowd: one of those that "any" speaks of, so no guarantee can go below it."""
        return self.replace(crowd="identical").round()  # type: ignore[attr-defined, no-any-return]


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

    def round(self) -> MeanRatio:
        return MeanRatio(ratio=Ratio(scale=self.scale), users=1)


@dataclass(frozen=True, kw_only=True)
class Shuffle(_Crowded, Mechanism):
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

    def round(self) -> MeanRatio:
        return self._round(self.scale, self.users, 1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class SubsampledShuffle(_Crowded, Mechanism):
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

    def round(self) -> MeanRatio:
        return self._round(self.scale, self.sample, 1.0, self.sample / self.users)


@dataclass(frozen=True, kw_only=True)
class ShuffledCheckIn(_Crowded, Mechanism):
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

    def round(self) -> MeanRatio:
        return self._round(self.scale, self.users, self.rate, 1.0)


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

    def round(self) -> MeanRatio:
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


# ---------------------------------------------------------------------------------------------
# Questions: shared by mechanisms and accountants, which differ only in the rounds they consist of.

Parts = tuple[rdp.Part, ...]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The rounds that bound the truth from above, and those that bound it from below.

    They are the same where the mechanism is analysed exactly.
    """

    upper: Parts
    lower: Parts

    def bracket(self, answers: Callable[[Parts], list[Interval]]) -> list[Interval]:
        found = answers(self.upper)
        if self.lower == self.upper:
            return found
        below = answers(self.lower)
        return [Interval(lower=min(b.lower, a.upper), upper=a.upper) for a, b in zip(found, below, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a question is to be answered."""

    method: Method
    orders: FloatArray | None
    accuracy: float

    @classmethod
    def checked(cls, method: Any, orders: Any, accuracy: Any) -> Settings:
        _validate.choice("method", method, get_args(Method))
        if orders is not None and method != "rdp":
            raise ValueError(f"orders must be left out for method {method!r}: they belong to 'rdp'")
        width = _validate.real("accuracy", accuracy)
        if not 0.0 < width <= 1.0:
            raise ValueError(f"accuracy must be above 0 and at most 1, got {width}")
        return cls(method=method, orders=None if orders is None else _validate.orders(orders), accuracy=width)

    def answer(
        self,
        parts: Bounds,
        value: float,
        tight: Callable[[Parts, list[float], float], list[Interval]],
        by_rdp: Callable[[Parts, float, FloatArray | None], float],
    ) -> Interval:
        """One answer. Where the tight one falls short of its accuracy, Rényi DP may be better still."""
        if not parts.upper:
            return Interval(lower=0.0, upper=0.0)
        if self.method == "rdp":
            return Interval(lower=0.0, upper=by_rdp(parts.upper, value, self.orders))

        def best(rounds: Parts) -> list[Interval]:
            found = tight(rounds, [value], self.accuracy)[0]
            if found.width <= self.accuracy * found.upper:
                return [found]
            upper = min(found.upper, by_rdp(rounds, value, None))
            return [Interval(lower=min(found.lower, upper), upper=upper)]

        return parts.bracket(best)[0]


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
    return _ask(
        delta, "delta", _validate.delta, rounds, lambda d, r: asked.answer(parts(r), d, pld.epsilons, rdp.epsilon)
    )


def ask_delta(parts: Callable[[int], Bounds], epsilon: Any, rounds: Any, asked: Settings) -> Any:
    """Delta of `parts(rounds)` for one or many epsilons and rounds."""
    return _ask(
        epsilon, "epsilon", _validate.epsilon, rounds, lambda e, r: asked.answer(parts(r), e, pld.deltas, rdp.delta)
    )


def ask_rdp(parts: Parts, orders: Any, direction: str) -> FloatArray:
    """Rényi DP of `parts` at one or many orders; always an array."""
    _validate.choice("direction", direction, ("worse", *rdp.DIRECTIONS))
    checked = _validate.orders(orders)
    worst: FloatArray = np.max(
        [rdp.rdp(parts, checked, d) for d in rdp.DIRECTIONS if direction in ("worse", d)], axis=0
    )
    return worst
