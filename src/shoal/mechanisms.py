"""The mechanisms: frozen descriptions of one round, of which questions are asked.

Common to all of them. User i holds a vector x_i of norm at most C (clipped to it) and a *report* is
`x_i + N(0, (C sigma)^2 I)`, of any dimension; sigma is the noise multiplier. Nobody but the user
sees x_i or the noise. The *adjacency* says which two data sets must be hard to tell apart:

- `"zero-out"`: one user's vector is replaced by the zero vector, a move of at most 1 (in units of C);
- `"replace"`: one user's vector is replaced by any other, a move of at most 2.

The *crowd* says what is assumed about the vectors of everybody else:

- `"any"` (default): nothing. The bound of `anycrowd.exchange` holds whatever vectors the others hold, and
  still gains from their number. Its lower end comes from a crowd that really is bad
  (`anycrowd.opposite`: everybody else opposite to the user), so the truth lies between.
- `"identical"`: all others hold one and the same vector, the one that the moved user holds in Q and
  departs from in P (for zero-out, the zero vector). This is assumed "w.l.o.g." in Liew and Takahashi
  (2022), but it is an assumption: crowds exist that hide a user less. The results are exact for it.

Several rounds are composed adaptively: the server may choose what it asks next from all it has
seen. Every number covers both directions, D(P||Q) and D(Q||P).
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args, overload

from shoal import _extras, _validate
from shoal._validate import Numbers, WholeNumbers
from shoal.bounds import certify
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.opposite import Opposite
from shoal.bounds.anycrowd.replace import Replace
from shoal.bounds.numeric import FloatArray
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round
from shoal.errors import InvalidInput, InvalidType
from shoal.interval import Interval, short
from shoal.query import (
    ADVANTAGE,
    DELTA,
    EPSILON,
    Asked,
    Bounds,
    How,
    Intervals,
    Method,
    Rounds,
    Statement,
    ask_delta,
    ask_epsilon,
    ask_power,
    ask_rdp,
    which_asked,
)

Adjacency = Literal["zero-out", "replace"]
Crowd = Literal["any", "identical"]
Self = TypeVar("Self", bound="Mechanism")


def parameter(words: str, *, metavar: str, help: str, default: Any = dataclasses.MISSING) -> Any:
    """A field of a mechanism: what it is called in sentences, and its option in the command."""
    return field(default=default, metadata={"words": words, "metavar": metavar, "help": help})


def _told(name: str, value: Any) -> str:
    """The value of a parameter in a sentence."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    # More noise is more private, so sigma may be rounded up; a larger rate is less private: it is written in full.
    return repr(value) if name == "rate" else short(value, 10)


MOVE: dict[Adjacency, float] = {"zero-out": 1.0, "replace": 2.0}
"""How far one vector can move under each adjacency, in units of the clipping norm."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One round of a protocol. Use a subclass; see the module's text for the common terms."""

    sigma: float = parameter("σ", metavar="X", help="Noise multiplier: standard deviation / clipping norm.")
    adjacency: Adjacency = "zero-out"

    label: ClassVar[str] = ""
    """The name of the mechanism in the command line."""

    trust: ClassVar[str] = ""
    """Whom the guarantee relies on."""

    def __post_init__(self) -> None:
        if type(self) is Mechanism:
            raise InvalidType(f"Mechanism is abstract: use one of {', '.join(MECHANISMS)}")
        self._set("sigma", _validate.sigma(self.sigma))
        _validate.choice("adjacency", self.adjacency, get_args(Adjacency))
        # sigma / 2 must stay in the range too, or a valid sigma would fail for "replace" only later.
        _validate.sigma(self.sigma / MOVE[self.adjacency], name="sigma / 2" if self.adjacency == "replace" else "sigma")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def scale(self) -> float:
        """s = sigma / (how far the user moves): all that matters of the two."""
        return self.sigma / MOVE[self.adjacency]

    # What the engine computes with: a new mechanism defines `_identical`, and the other two where they differ from it.

    def _identical(self) -> Round:
        """A round that can really happen: the identical crowd's, or the mechanism's where none matters."""
        raise NotImplementedError

    def _above(self) -> Round:
        """One round, from which upper bounds are computed: a likelihood ratio, or that of any crowd."""
        return self._identical()

    def _opposite(self) -> Round:
        """Another round that can really happen, with a worse crowd if there is one."""
        return self._identical()

    def _bounds(self, count: int) -> Bounds:
        """What bounds that many rounds; a mechanism whose round consists of several says so here."""
        return Bounds(
            upper=((self._above(), count),), identical=((self._identical(), count),),
            opposite=((self._opposite(), count),),
        )  # fmt: skip

    @property
    def assumption(self) -> str:
        """What the numbers assume about the other users, in words."""
        return "no other user matters"

    @property
    def settings(self) -> str:
        """The parameters in words."""
        named = [f for f in dataclasses.fields(self) if "words" in f.metadata]
        named.sort(key=lambda f: f.name == "sigma")  # the noise comes last, though every class inherits it first
        return ", ".join(f"{f.metadata['words']} = {_told(f.name, getattr(self, f.name))}" for f in named)

    def replace(self: Self, **changes: Any) -> Self:
        """A copy with some fields changed.

        >>> Shuffle(users=10, sigma=2.0).replace(crowd="identical").crowd
        'identical'
        """
        unknown = sorted(set(changes) - {f.name for f in dataclasses.fields(self)})
        if unknown:
            known = ", ".join(f.name for f in dataclasses.fields(self))
            raise InvalidType(f"{unknown[0]} is not a field of {type(self).__name__}, which has {known}")
        return dataclasses.replace(self, **changes)

    @overload
    def epsilon(
        self, *, delta: float, rounds: int = ..., method: Method = ..., orders: Any = ..., accuracy: float = ...
    ) -> Interval: ...
    @overload
    def epsilon(
        self,
        *,
        delta: Numbers,
        rounds: int | WholeNumbers = ...,
        method: Method = ...,
        orders: Any = ...,
        accuracy: float = ...,
    ) -> Intervals: ...
    @overload
    def epsilon(
        self, *, delta: float, rounds: WholeNumbers, method: Method = ..., orders: Any = ..., accuracy: float = ...
    ) -> Intervals: ...
    def epsilon(
        self,
        *,
        delta: Any,
        rounds: Any = 1,
        method: Method = "tight",
        orders: Any = None,
        accuracy: float = certify.ACCURACY,
    ) -> Any:
        """The epsilon of `rounds` rounds at `delta`, as an `Interval`.

        Arrays (or lists) of `delta` or `rounds` give an array of intervals. `method="tight"` brackets
        the truth to a relative width of `accuracy`, or an `AccuracyWarning` says what was reached.
        `method="rdp"` goes through Rényi DP with all orders, or with those in `orders` only; it
        bounds from above.
        """
        asked = How.checked(method, orders, accuracy)
        return ask_epsilon(self._bounds, delta, rounds, asked)

    @overload
    def delta(
        self, *, epsilon: float, rounds: int = ..., method: Method = ..., orders: Any = ..., accuracy: float = ...
    ) -> Interval: ...
    @overload
    def delta(
        self,
        *,
        epsilon: Numbers,
        rounds: int | WholeNumbers = ...,
        method: Method = ...,
        orders: Any = ...,
        accuracy: float = ...,
    ) -> Intervals: ...
    @overload
    def delta(
        self, *, epsilon: float, rounds: WholeNumbers, method: Method = ..., orders: Any = ..., accuracy: float = ...
    ) -> Intervals: ...
    def delta(
        self,
        *,
        epsilon: Any,
        rounds: Any = 1,
        method: Method = "tight",
        orders: Any = None,
        accuracy: float = certify.ACCURACY,
    ) -> Any:
        """The delta of `rounds` rounds at `epsilon`, as an `Interval`; arguments as for `epsilon`.

        `accuracy` is still that of epsilon: delta is bracketed as tightly as an epsilon of that width would be,
        which is wider in relative terms where delta falls steeply.
        """
        asked = How.checked(method, orders, accuracy)
        return ask_delta(self._bounds, epsilon, rounds, asked)

    @overload
    def tradeoff(self, fpr: float, *, rounds: int = ..., accuracy: float = ...) -> Interval: ...
    @overload
    def tradeoff(self, fpr: Numbers, *, rounds: int = ..., accuracy: float = ...) -> Intervals: ...
    def tradeoff(self, fpr: Any, *, rounds: int = 1, accuracy: float = certify.ACCURACY) -> Any:
        """What an attacker can do: the largest true positive rate at each false positive rate.

        The attacker sees everything the server sees and knows all but whether the user moved. One
        `Interval`, or an array of them for an array of rates.

        >>> power = LocalGaussian(sigma=5.0).tradeoff(0.01)
        >>> 0.016 < power.lower <= power.upper < 0.017
        True
        """
        return ask_power(self._bounds(_validate.rounds(rounds)), fpr, accuracy)

    def advantage(self, *, rounds: int = 1, accuracy: float = certify.ACCURACY) -> Interval:
        """The largest true positive rate minus false positive rate that any attack reaches."""
        asked = How.checked("tight", None, accuracy)
        return asked.answer(self._bounds(_validate.rounds(rounds)), 0.0, ADVANTAGE)

    def statement(
        self,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        rounds: int = 1,
        method: Method = "tight",
        orders: Any = None,
        accuracy: float = certify.ACCURACY,
    ) -> Statement:
        """The whole answer, with all that it assumes: epsilon at `delta`, or delta at `epsilon`.

        >>> print(LocalGaussian(sigma=2.0).statement(delta=1e-5))  # doctest: +ELLIPSIS
        One round of local (σ = 2) is (1.9931, 1e-05)-differentially private for zero-out adjacency, assuming no ...
        """
        # Not by `or`: an epsilon of 0 is a question, too.
        asked, given = which_asked(epsilon, delta), next(value for value in (delta, epsilon) if value is not None)
        how: dict[str, Any] = {"rounds": rounds, "method": method, "orders": orders, "accuracy": accuracy}
        answer = self.epsilon(delta=given, **how) if asked == "epsilon" else self.delta(epsilon=given, **how)
        return self.stated(asked, given, answer, rounds, method, accuracy)

    def stated(
        self,
        asked: Asked,
        given: Any,
        answer: Interval,
        rounds: int,
        method: Method = "tight",
        accuracy: float = certify.ACCURACY,
    ) -> Statement:
        """The statement of an answer that is known already."""
        how, question = How.checked(method, None, accuracy), EPSILON if asked == "epsilon" else DELTA
        return Statement(
            runs=(run(self, rounds),), adjacency=self.adjacency, crowd=getattr(self, "crowd", None),
            assumption=self.assumption, trust=self.trust, method=method, asked=asked, given=float(given), answer=answer,
            accuracy=accuracy, numerical=how.numerical(self._bounds(rounds), float(given), question, answer.upper),
        )  # fmt: skip

    def caution(self, *, delta: float, epsilon: Interval, rounds: int = 1) -> str:
        """A sentence about a number that others would give for this mechanism and that is wrong; mostly none."""
        return ""

    def pld(self, *, step: float = 1e-4) -> Any:
        """One round as a dp_accounting `PrivacyLossDistribution`, a pessimistic one.

        `step` is its discretisation of losses. dp_accounting's own composition is not tilted, and below
        delta = 1e-9 its answers can be too small: use `epsilon(rounds=...)` there.
        """
        return _extras.integration("dp_accounting").distribution(self, step=step)

    def rdp(
        self, orders: Any, *, rounds: int = 1, direction: Literal["worse", "forward", "reverse"] = "worse"
    ) -> FloatArray:
        """Rényi DP at the given orders: D(P||Q), D(Q||P), or the worse of the two."""
        return ask_rdp(self._bounds(_validate.rounds(rounds)), orders, direction)

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

    def _identical(self) -> Identical:
        raise NotImplementedError

    @property
    def assumption(self) -> str:
        if self.crowd == "identical":
            return "all other users hold one vector, from which the moved user's departs (the paper's idealised crowd)"
        return "nothing about other users' vectors"

    def _above(self) -> Round:
        if self.crowd == "identical":
            return self._identical()
        # The theorem moves user 1 to zero or from it.
        step = self._among()
        return step if self.adjacency == "zero-out" else Replace(step=step)

    def _among(self) -> Exchange:
        raise NotImplementedError

    def _opposite(self) -> Round:
        """Everybody else opposite to where the user goes from zero."""
        mean = self._identical()
        if self.crowd == "identical":
            return mean
        # Going from zero is one of the moves of "replace" as well.
        worst = Opposite(mean=replace(mean, ratio=Lognormal(scale=self.sigma, rate=mean.ratio.rate)))
        # Too many users or too little noise for that attack: the identical crowd can really happen, too.
        return worst if worst.is_worth_computing else mean


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

    def _identical(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale), users=1)


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

    users: int = parameter("users", metavar="N", help="Number of users.")
    crowd: Crowd = "any"

    label: ClassVar[str] = "shuffle"
    trust: ClassVar[str] = "the shuffler is trusted, the server is not"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("users", _validate.users("users", self.users))
        _validate.choice("crowd", self.crowd, get_args(Crowd))

    def _identical(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale), users=self.users)

    def _among(self) -> Exchange:
        return Exchange(ratio=Lognormal(scale=self.sigma), users=self.users)


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

    users: int = parameter("users", metavar="N", help="Number of users.")
    sample: int = parameter("sampled a round", metavar="M", help="Users sampled each round.")
    crowd: Crowd = "any"

    label: ClassVar[str] = "subsampled"
    trust: ClassVar[str] = "the shuffler and the sampler are trusted, the server is not"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("users", _validate.users("users", self.users))
        self._set("sample", _validate.users("sample", self.sample))
        if self.sample > self.users:
            raise InvalidInput(f"sample must be at most users ({self.users}), got {self.sample}")
        # The identical crowd's law has the sample as a coin of this rate, which has limits of its own.
        _validate.rate(self.sample / self.users, name="sample / users")
        _validate.choice("crowd", self.crowd, get_args(Crowd))

    def _identical(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale), users=self.sample, weight=self.sample / self.users)

    def _among(self) -> Exchange:
        return Exchange(ratio=Lognormal(scale=self.sigma), users=self.users, sample=self.sample)


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

    users: int = parameter("users", metavar="N", help="Number of users.")
    rate: float = parameter("check-in rate", metavar="P", help="Probability of checking in.")
    crowd: Crowd = "any"

    label: ClassVar[str] = "check-in"
    trust: ClassVar[str] = "the shuffler is trusted, the server is not"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("users", _validate.users("users", self.users))
        self._set("rate", _validate.rate(self.rate))
        _validate.choice("crowd", self.crowd, get_args(Crowd))

    def _identical(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale, rate=self.rate), users=self.users)

    def _among(self) -> Exchange:
        return Exchange(ratio=Lognormal(scale=self.sigma, rate=self.rate), users=self.users)


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

    bins: int = parameter("bins", metavar="N", help="Number of batches per epoch.")

    label: ClassVar[str] = "balls-and-bins"
    trust: ClassVar[str] = "the server that holds the data is trusted, the public is not"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("bins", _validate.users("bins", self.bins))
        if self.adjacency != "zero-out":
            raise InvalidInput(f"adjacency must be zero-out for BallsAndBins, got {self.adjacency!r}")

    def _identical(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale), users=self.bins)


MECHANISMS: dict[str, type[Mechanism]] = {
    cls.__name__: cls for cls in (LocalGaussian, Shuffle, SubsampledShuffle, ShuffledCheckIn, BallsAndBins)
}


def from_dict(data: Mapping[str, Any]) -> Mechanism:
    """The mechanism that `Mechanism.to_dict` wrote."""
    if not isinstance(data, Mapping):
        raise InvalidType(f"a mechanism must be a mapping, got {data!r}")
    name = data.get("mechanism")
    if not isinstance(name, str) or name not in MECHANISMS:
        raise InvalidInput(f"mechanism must be one of {', '.join(MECHANISMS)}, got {name!r}")
    cls = MECHANISMS[name]
    fields = {k: v for k, v in data.items() if k != "mechanism"}
    known = {f.name for f in dataclasses.fields(cls)}
    # All fields, also those with a default: a default that changes must not change what was written down.
    if set(fields) != known:
        raise InvalidInput(
            f"{name} must have the fields {', '.join(sorted(known))}, got {', '.join(sorted(map(str, fields)))}"
        )
    return cls(**fields)


def bounds(rounds: Iterable[tuple[Mechanism, int]]) -> Bounds:
    """What bounds these rounds from above and from below, for the engine."""
    every = [m._bounds(count) for m, count in rounds]
    upper, identical, opposite = (
        tuple(part for one in every for part in getattr(one, name)) for name in ("upper", "identical", "opposite")
    )
    return Bounds(upper=upper, identical=identical, opposite=opposite)


def run(mechanism: Mechanism, rounds: int) -> Rounds:
    """Some rounds of a mechanism, for a `Statement`."""
    return Rounds(label=mechanism.label, settings=mechanism.settings, rounds=rounds, mechanism=mechanism.to_dict())
