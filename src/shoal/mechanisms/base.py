"""`Mechanism`: a frozen description of one round, and the questions that are asked of it.

A mechanism is a dataclass whose fields are `Parameter`s. It computes nothing: it names the rounds that bound it, and
`shoal.query` answers questions about those. What distinguishes mechanisms is data on the class (`label`, `trust`,
`noise_by`, `sampling` ...), so that no other file has to know their names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_args, overload

from shoal import _extras, _moved, _validate
from shoal._validate import Numbers, WholeNumbers
from shoal.bounds import certify
from shoal.bounds.numeric import FloatArray
from shoal.bounds.round import Round
from shoal.errors import InvalidType
from shoal.formatting import html_table, markdown_table
from shoal.interval import Interval
from shoal.mechanisms.parameter import NOISE, Parameter, choice_of, meant_by, named, parameters_of
from shoal.query import (
    ADVANTAGE,
    DELTA,
    EPSILON,
    POWER,
    QUESTIONS,
    Answer,
    Bounds,
    Intervals,
    Method,
    Options,
    Question,
    QuestionName,
    divergences,
    intervals,
    solve,
)
from shoal.records import Model
from shoal.statement import Rounds, Statement, question_for

Adjacency = Literal["zero-out", "replace"]
Crowd = Literal["any", "identical"]
NoiseBy = Literal["users", "server"]
SamplingScheme = Literal["all", "coin", "drawn", "allocated"]
Self = TypeVar("Self", bound="Mechanism")

MOVE: dict[Adjacency, float] = {"zero-out": 1.0, "replace": 2.0}
"""How far one vector can move under each adjacency, in units of the clipping norm."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One round of a protocol. Use a subclass; `shoal.mechanisms` defines the common terms."""

    sigma: float = Parameter(
        domain=NOISE,
        words="σ",
        metavar="X",
        help="Noise multiplier: standard deviation / clipping norm.",
        title="Noise σ",
        example=5.0,
        slider=(0.1, 1e3),
    ).field()
    adjacency: Adjacency = Parameter(domain=choice_of(*get_args(Adjacency)), default="zero-out").field()

    # What a class says about itself. Others read these, and never ask which class it is.

    label: ClassVar[str] = ""
    """The name of the mechanism in the command line."""

    trust: ClassVar[str] = ""
    """Whom the guarantee relies on."""

    protocol: ClassVar[str] = ""
    """Who must follow the protocol, and in what."""

    model: ClassVar[Model] = "Local"
    """The deployment model, as registries call it."""

    noise_by: ClassVar[NoiseBy] = "users"
    """Whether each user adds noise to its own vector, or a trusted server adds it to a sum."""

    is_shuffled: ClassVar[bool] = False
    """Whether reports lose their names before the server sees them."""

    sampling: ClassVar[SamplingScheme] = "all"
    """Who takes part in a round: all, each on its own coin, a fixed number drawn; or each is allocated to steps."""

    zero_is_absent: ClassVar[bool] = False
    """Whether zero-out is the same as adding or removing a record, because nobody can count the records."""

    crowd_matters: ClassVar[bool] = False
    """Whether other users' vectors matter; the mechanism then has a field `crowd`."""

    def __new__(cls, *values: Any, **fields: Any) -> Any:
        # Before `__init__`, whose own message would not say how the call should be written.
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = next((name for name in fields if name not in names), None)
        if values or unknown is not None:
            raise InvalidType(_corrected_call(cls, values, fields, unknown))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if type(self) is Mechanism:
            raise InvalidType("Mechanism is abstract: use one of its subclasses in shoal.mechanisms")
        for name, parameter in named(parameters_of(type(self))).items():
            object.__setattr__(self, name, parameter.domain.check(name, getattr(self, name)))
        # sigma / 2 must stay in the range too, or a valid sigma would fail for "replace" only later.
        _validate.sigma(self.scale, name="sigma / 2" if self.adjacency == "replace" else "sigma")

    @classmethod
    def parameters(cls) -> tuple[Parameter, ...]:
        """The parameters that describe what is run, the noise last."""
        described = [parameter for parameter in parameters_of(cls) if parameter.words]
        return tuple(sorted(described, key=lambda parameter: parameter.name == "sigma"))

    @property
    def scale(self) -> float:
        """s = sigma / (how far the user moves): all that matters of the two."""
        return self.sigma / MOVE[self.adjacency]

    @property
    def crowd(self) -> Crowd | None:
        """The assumption about other users' vectors, in one word; None if they do not matter."""
        return None

    @property
    def assumption(self) -> str:
        """The assumption about other users' vectors, in words."""
        return "no other user matters"

    @property
    def participation(self) -> float:
        """The probability that a user (or a record) takes part in a round."""
        return 1.0

    def expected_reports(self, users: int) -> float:
        """The expected number of vectors in a round, by which the server divides.

        Args:
            users: How many users (or records) there are.

        Returns:
            The number, which is public.
        """
        return users * self.participation

    @property
    def settings(self) -> str:
        """The parameters in words."""
        values = ((parameter, getattr(self, parameter.name)) for parameter in self.parameters())
        return ", ".join(f"{p.words} = {p.written(value)}" for p, value in values if p.is_written(value))

    @property
    def person(self) -> str:
        """The protected person in words; empty if it is one vector (a record, or a report)."""
        return ""

    # The rounds that bound it: a mechanism defines `upper_round` (and `attack_rounds`), or `bounds`.

    def upper_round(self) -> Round:
        """The round from which upper bounds are computed."""
        raise NotImplementedError

    def attack_rounds(self) -> tuple[Round, ...]:
        """Attacks for lower bounds: rounds that can really happen; the first is quick to evaluate."""
        return (self.upper_round(),)

    def bounds(self, rounds: int) -> Bounds:
        """The bounds of a number of rounds.

        A mechanism whose round consists of several overrides this in the place of `upper_round`.

        Args:
            rounds: The number of rounds.

        Returns:
            The rounds that bound them from above, and attacks.
        """
        return Bounds(
            upper=((self.upper_round(), rounds),),
            attacks=tuple(((attack, rounds),) for attack in dict.fromkeys(self.attack_rounds())),
        )

    # Questions

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

        Args:
            delta: One delta, or several.
            rounds: One number of rounds, or several.
            method: "tight" brackets the truth; "rdp" goes through Rényi DP and bounds from above.
            orders: The Rényi orders for "rdp"; all by default.
            accuracy: The relative width for "tight"; an `AccuracyWarning` says where it was not reached.

        Returns:
            An interval, or an array of them where there are several deltas or numbers of rounds.

        Raises:
            InvalidInput: Where an argument is not allowed.
        """
        return intervals(EPSILON, self.bounds, delta, rounds, Options(method=method, orders=orders, accuracy=accuracy))

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
        """The delta of `rounds` rounds at `epsilon`, as an `Interval`.

        Args:
            epsilon: One epsilon, or several.
            rounds: One number of rounds, or several.
            method: "tight" brackets the truth; "rdp" goes through Rényi DP and bounds from above.
            orders: The Rényi orders for "rdp"; all by default.
            accuracy: The relative width that epsilon should have. Delta is bracketed as tightly as an epsilon of that
                width would be, which is wider in relative terms where delta falls steeply.

        Returns:
            An interval, or an array of them where there are several epsilons or numbers of rounds.

        Raises:
            InvalidInput: Where an argument is not allowed.
        """
        return intervals(DELTA, self.bounds, epsilon, rounds, Options(method=method, orders=orders, accuracy=accuracy))

    @overload
    def tradeoff(self, fpr: float, *, rounds: int = ..., accuracy: float = ...) -> Interval: ...
    @overload
    def tradeoff(self, fpr: Numbers, *, rounds: int = ..., accuracy: float = ...) -> Intervals: ...
    def tradeoff(self, fpr: Any, *, rounds: int = 1, accuracy: float = certify.ACCURACY) -> Any:
        """The largest true positive rate of an attacker at a false positive rate.

        The attacker sees everything the server sees and knows all but whether the user moved.

        Args:
            fpr: One false positive rate, or several.
            rounds: The number of rounds.
            accuracy: The relative width that an interval should have.

        Returns:
            An interval, or an array of them where there are several rates.

        Raises:
            InvalidInput: Where an argument is not allowed.

        >>> from shoal import LocalGaussian
        >>> power = LocalGaussian(sigma=5.0).tradeoff(0.01)
        >>> 0.016 < power.lower <= power.upper < 0.017
        True
        """
        return intervals(POWER, self.bounds, fpr, _validate.rounds(rounds), Options(accuracy=accuracy))

    def advantage(self, *, rounds: int = 1, accuracy: float = certify.ACCURACY) -> Interval:
        """The largest true positive rate minus false positive rate that any attack reaches.

        Args:
            rounds: The number of rounds.
            accuracy: The relative width that the interval should have.

        Returns:
            The interval.

        Raises:
            InvalidInput: Where an argument is not allowed.
        """
        return intervals(ADVANTAGE, self.bounds, 0.0, _validate.rounds(rounds), Options(accuracy=accuracy))

    def answer(self, question: Question, value: float, *, rounds: int = 1, options: Options | None = None) -> Answer:
        """The answer to any question: the interval, and what its width is due to.

        Args:
            question: `EPSILON`, `DELTA`, `POWER` or `ADVANTAGE` of `shoal.query`.
            value: At which delta, epsilon or false positive rate.
            rounds: The number of rounds.
            options: By which method, and how exactly.

        Returns:
            The answer, of which `stated` makes a statement.

        Raises:
            InvalidInput: Where an argument is not allowed.
        """
        bounds = self.bounds(_validate.rounds(rounds))
        return solve(question, bounds, question.check(value), options or Options())

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
        """The guarantee with all that it assumes: epsilon at `delta`, or delta at `epsilon`.

        Args:
            delta: Where epsilon is wanted; one of `delta` and `epsilon` must be given.
            epsilon: Where delta is wanted.
            rounds: The number of rounds.
            method: "tight", or "rdp" for an upper bound through Rényi DP.
            orders: The Rényi orders for "rdp"; all by default.
            accuracy: The relative width that epsilon should have.

        Returns:
            The statement.

        Raises:
            InvalidInput: Where an argument is not allowed.
            InvalidType: Unless one of `delta` and `epsilon` is given.

        >>> from shoal import LocalGaussian
        >>> print(LocalGaussian(sigma=2.0).statement(delta=1e-5))  # doctest: +ELLIPSIS
        One round of local (σ = 2) is (1.9931, 1e-05)-differentially private for zero-out adjacency, assuming that ...
        """
        question, value = question_for(epsilon=epsilon, delta=delta)
        options = Options(method=method, orders=orders, accuracy=accuracy)
        return self.state(self.answer(question, value, rounds=rounds, options=options), rounds=rounds)

    def state(self, answer: Answer, *, rounds: int = 1, note: str = "") -> Statement:
        """The statement of an answer about this mechanism.

        Args:
            answer: An epsilon or a delta.
            rounds: The number of rounds that it is about.
            note: What else the number rests on, if anything.

        Returns:
            The statement.
        """
        return Statement.of(
            answer,
            runs=(self.run(rounds),),
            adjacency=self.adjacency,
            person=self.person,
            crowd=self.crowd,
            assumption=self.assumption,
            protocol=self.protocol,
            trust=self.trust,
            note=note,
        )

    def stated(
        self,
        question: QuestionName,
        value: Any,
        answer: Interval,
        rounds: int,
        method: Method = "tight",
        accuracy: float = certify.ACCURACY,
    ) -> Statement:
        """The statement of an interval; deprecated: use `answer` and `state`.

        Args:
            question: "epsilon" or "delta".
            value: The value of the other one.
            answer: The interval.
            rounds: The number of rounds.
            method: The method that was used.
            accuracy: The accuracy that was requested.

        Returns:
            The statement.
        """
        _moved.warn_of_call("Mechanism.stated(...)", "Mechanism.state(Mechanism.answer(...))")
        options = Options(method=method, accuracy=accuracy)
        solved = self.answer(QUESTIONS[question], value, rounds=rounds, options=options)
        return self.state(dataclasses.replace(solved, interval=answer), rounds=rounds)

    def run(self, rounds: int) -> Rounds:
        """Some rounds of this mechanism, for a `Statement`."""
        return Rounds(
            label=self.label, settings=self.settings, rounds=rounds, mechanism=self.to_dict(), model=self.model
        )

    def caution(self, *, delta: float, epsilon: Interval, rounds: int = 1) -> str:
        """A sentence about a number that others would give for this mechanism and that is wrong.

        Args:
            delta: The delta of the guarantee.
            epsilon: Its epsilon.
            rounds: The number of rounds.

        Returns:
            The sentence; empty for most mechanisms.
        """
        return ""

    def pld(self, *, rounds: int = 1, step: float = 1e-4) -> Any:
        """Rounds as a dp_accounting `PrivacyLossDistribution`, a pessimistic one.

        Several rounds are composed here. dp_accounting's own composition of single rounds is not tilted, and below
        delta = 1e-9 its answers can be too small.

        Args:
            rounds: The number of rounds.
            step: The discretisation of losses.

        Returns:
            The distribution.
        """
        return _extras.integration("dp_accounting").distribution(self, rounds=rounds, step=step)

    def rdp(self, orders: Any, *, rounds: int = 1, direction: certify.DirectionChoice = "worse") -> FloatArray:
        """Rényi DP at the orders, an upper bound for each.

        Args:
            orders: One Rényi order or several, above 1.
            rounds: The number of rounds.
            direction: "forward" for D(P||Q), "reverse" for D(Q||P), or the worse of the two.

        Returns:
            The bounds, always an array.

        Raises:
            InvalidInput: Where an argument is not allowed.
        """
        return divergences(self.bounds(_validate.rounds(rounds)), orders, direction)

    # As data

    def replace(self: Self, **changes: Any) -> Self:
        """A copy with some fields changed.

        >>> from shoal import Shuffle
        >>> Shuffle(users=10, sigma=2.0).replace(crowd="identical").crowd
        'identical'
        """
        names = [field.name for field in dataclasses.fields(self)]
        unknown = sorted(set(changes) - set(names))
        if unknown:
            raise InvalidType(f"{unknown[0]} is not a field of {type(self).__name__}, which has {', '.join(names)}")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain data; `from_dict` reads it back."""
        return {"mechanism": type(self).__name__, **dataclasses.asdict(self)}

    def _facts(self) -> list[tuple[str, str]]:
        """The rows that a notebook shows."""
        fields = {k: f"{v:,}" if isinstance(v, int) else str(v) for k, v in dataclasses.asdict(self).items()}
        return [*fields.items(), ("assumes", self.assumption), ("trust", self.trust)]

    def _repr_markdown_(self) -> str:
        return markdown_table((f"**{type(self).__name__}**", ""), self._facts())

    def _repr_html_(self) -> str:
        return html_table((type(self).__name__, ""), self._facts())


def _corrected_call(cls: type[Mechanism], values: Sequence[Any], fields: Mapping[str, Any], unknown: str | None) -> str:
    """The answer to a call with values that have no names, or with a name that is no field: the call that was meant."""
    parameters = parameters_of(cls)
    by_name = named(parameters)
    corrected = {name: value for name, value in fields.items() if name in by_name}
    for name in (name for name in fields if name not in by_name):
        meant = meant_by(name, [parameter for parameter in parameters if parameter.name not in corrected])
        if meant is not None:
            corrected[meant.name] = fields[name]
    # Values without names are taken in the order in which the parameters are listed, the noise last; but first those
    # that must be given.
    listed = sorted(cls.parameters(), key=lambda parameter: not parameter.is_required)
    free = [parameter.name for parameter in listed if parameter.name not in corrected]
    corrected |= dict(zip(free, values, strict=False))
    order = [parameter.name for parameter in cls.parameters() if parameter.is_required]
    order += [name for name in by_name if name in corrected and name not in order]
    call = ", ".join(f"{name}={corrected[name]!r}" if name in corrected else f"{name}=..." for name in order)
    problem = (
        f"{cls.__name__} takes its parameters by name" if values else f"{unknown} is not a field of {cls.__name__}"
    )
    return f"{problem}: write {cls.__name__}({call})"


def bounds(runs: Iterable[tuple[Mechanism, int]]) -> Bounds:
    """The bounds of several mechanisms run together, each for a number of rounds."""
    return Bounds.together(mechanism.bounds(rounds) for mechanism, rounds in runs)
