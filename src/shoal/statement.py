"""Statements: a guarantee with everything it rests on, as a sentence and as plain data.

A number without its adjacency, crowd, trust and method means nothing. A `Statement` has all of them, and is the only
author of guarantees: the command, the analyst, reports, notebooks and the page print it, and write no such sentences
themselves. It is made from an `Answer`, and computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from shoal import __version__, _validate, records
from shoal.errors import InvalidInput, InvalidType
from shoal.formatting import count_of, html_table, markdown_table, rounded, short
from shoal.interval import Interval
from shoal.query import DELTA, EPSILON, Answer, Method, Question, QuestionName

_RUNS_IN_FULL = 4
"""A sentence spells out at most this many runs; the data has all of them."""

_WEAK_PERCENT = 10.0
"""A guarantee is called weak if a test with 1% false positives can reach this true-positive rate, in percent."""

_WEAK_WORDS = " Few would accept that as protection."

_SIZES = {"users": "users", "sample": "sampled a round"}
"""The fields in which runs may differ that a sentence merges, and their words there."""

_EXPONENT_MAX = 700.0
"""e to this power is near the largest double."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Some rounds of one mechanism, in words and as data."""

    label: str
    settings: str
    rounds: int
    mechanism: Mapping[str, Any]
    model: records.Model = "Central"
    """The deployment model, as registries call it."""

    def __str__(self) -> str:
        return f"{count_of(self.rounds, 'round')} of {self.label} ({self.settings})"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A guarantee: what was run, what is claimed, and what the claim rests on.

    `question` is epsilon or delta, asked at `value`. `assumption`, `protocol` and `trust` have a part for each
    different one among the runs. `note` says what else the number rests on, if anything.
    """

    runs: tuple[Rounds, ...]
    adjacency: str
    person: str = ""
    """The person whose data is adjacent, in words; empty where that is one vector."""

    crowd: str | None
    assumption: str
    protocol: str
    """Who must follow the protocol, and in what."""

    trust: str
    method: Method
    question: Question
    value: float
    answer: Interval
    accuracy: float
    numerical: float = 0.0
    """The estimated part of the width that is due to resolution, for any crowd; the rest is the gap of the theorem."""

    note: str = ""

    @classmethod
    def of(
        cls,
        answer: Answer,
        *,
        runs: tuple[Rounds, ...],
        adjacency: str,
        crowd: str | None,
        assumption: str,
        protocol: str,
        trust: str,
        person: str = "",
        note: str = "",
    ) -> Statement:
        """The statement of an answer.

        Args:
            answer: An epsilon or a delta.
            runs: What was run.
            adjacency: Which two data sets are hard to tell apart.
            crowd: What is assumed about other users' vectors, in one word; None if none matters.
            assumption: The crowd in words.
            protocol: Who must follow the protocol, and in what.
            trust: Whom the guarantee relies on.
            person: The person whose data is adjacent, in words; empty where that is one vector.
            note: Further conditions.

        Returns:
            The statement.
        """
        return cls(
            runs=runs,
            adjacency=adjacency,
            person=person,
            crowd=crowd,
            assumption=assumption,
            protocol=protocol,
            trust=trust,
            method=answer.options.method,
            question=answer.question,
            value=answer.value,
            answer=answer.interval,
            accuracy=answer.options.accuracy,
            numerical=answer.numerical,
            note=note,
        )

    @property
    def asked(self) -> QuestionName:
        """The one of "epsilon" and "delta" that was computed."""
        return self.question.name

    @property
    def given(self) -> float:
        """The value of the other one."""
        return self.value

    @property
    def gap(self) -> float:
        """The width between theorem and best attack: all of it that is not numerical."""
        return max(0.0, self.answer.width - self.numerical)

    @property
    def epsilon(self) -> float:
        """The epsilon of the guarantee."""
        return self.answer.upper if self.question is EPSILON else self.value

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        return self.answer.upper if self.question is DELTA else self.value

    @property
    def reached(self) -> float:
        """The relative width of the interval: 0 if exact, 1 if one end says nothing."""
        if math.isinf(self.answer.upper):
            return 1.0
        return self.answer.width / self.answer.upper if self.answer.upper > 0.0 else 0.0

    def _relative(self, width: float) -> float:
        return width / self.answer.upper if 0.0 < self.answer.upper < math.inf else 0.0

    def how(self) -> str:
        """The method, and what the interval says, in words."""
        if self.method == "rdp":
            return "Rényi DP, an upper bound"
        # Up to a tenth the width is called what it is; beyond, the lower end alone is of use.
        if self.reached <= 0.1:
            if not self.reached:
                return "certified, exact"
            within = f"certified, within {rounded(self.reached, digits=2)} (relative) of the truth"
            part = rounded(self._relative(self.numerical), digits=1)
            return f"{within}, of which about {part} is numerical" if self.numerical else within
        if self.answer.lower > 0.0:
            return f"certified; no analysis can go below {rounded(self.answer.lower, 'down')}"
        return "certified upper bound"

    def sentence(self) -> str:
        """The guarantee in one sentence, every number rounded to the safe side."""
        epsilon, delta = (
            rounded(self.answer.upper) if question is self.question else short(self.value)
            for question in (EPSILON, DELTA)
        )
        total = sum(run.rounds for run in self.runs)
        runs = _merged_runs(self.runs)
        count = count_of(total, "round") if total == 1 else f"{count_of(total, 'round')} together"
        if len(runs) == 1:
            subject = f"{count} of {runs[0].label} ({runs[0].settings})"
        elif len(runs) <= _RUNS_IN_FULL:
            subject = f"{', '.join(map(str, runs[:-1]))} and {runs[-1]} together"
        else:
            labels = " and ".join(dict.fromkeys(run.label for run in runs))
            subject = f"{count} of {labels} (with {len(self.runs)} different settings)"
        return (
            f"{subject[0].upper()}{subject[1:]} {'is' if total == 1 else 'are'} "
            f"({epsilon}, {delta})-differentially private for {self._neighbours()}, "
            f"assuming that {self.protocol}, and {self.assumption}; {self.trust}; method: {self.how()}"
            f"{'; ' if self.note else ''}{self.note}."
        )

    def _neighbours(self) -> str:
        return f"{self.adjacency} adjacency{' of ' if self.person else ''}{self.person}"

    def plain(self) -> str:
        """The guarantee in words, for people who do not know epsilon.

        By (epsilon, delta)-differential privacy a test with false positive rate f has a true positive rate of at most
        `e^epsilon f + delta`. Every number is rounded up.
        """
        percent, text = self._detected_percent(), f"In plain words: {self.in_short()}"
        if percent is None:
            return text
        before, weak, after = text.partition(_WEAK_WORDS)
        use = "was used" if self.adjacency == "zero-out" else "was used, and no other in its place,"
        return (
            f"{before} A test with a 1% false-positive rate detects that the data {use} with probability at most "
            f"{rounded(percent, digits=3)}% (guessing: 1%).{weak}{after}"
        )

    def in_short(self) -> str:
        """The guarantee without numbers: what can be learned about one user."""
        percent = self._detected_percent()
        if percent is None:
            return "this protects nobody."
        can, verdict = ("may well", _WEAK_WORDS) if percent >= _WEAK_PERCENT else ("can hardly", "")
        otherwise = "left out" if self.adjacency == "zero-out" else "replaced by other data"
        return f"someone who sees the whole output {can} tell whether one user's data was used or {otherwise}.{verdict}"

    def _detected_percent(self) -> float | None:
        """The largest true positive rate at a false positive rate of 1%, in percent; None if it may be 100%."""
        if math.isinf(self.epsilon) or self.epsilon > _EXPONENT_MAX:
            return None
        ratio = math.nextafter(math.exp(self.epsilon) * (1.0 + 1e-15), math.inf)
        return min(100.0, ratio + 100.0 * self.delta)

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain data (JSON will do): numbers as they are, with the sentences."""
        return {
            "runs": [{**run.mechanism, "rounds": run.rounds} for run in self.runs],
            "adjacency": self.adjacency,
            "person": self.person,
            "crowd": self.crowd,
            "assumption": self.assumption,
            "protocol": self.protocol,
            "trust": self.trust,
            "method": self.method,
            "asked": self.question.name,
            self.question.dual: self.value,
            self.question.name: {"lower": self.answer.lower, "upper": self.answer.upper},
            "accuracy": {
                "asked": self.accuracy,
                "reached": self.reached,
                "numerical": self._relative(self.numerical),
                "gap": self._relative(self.gap),
            },
            "note": self.note,
            "guarantee": self.sentence(),
            "plain": self.plain(),
        }

    def claim(self) -> records.Claim:
        """The guarantee as records state it."""
        models = list(dict.fromkeys(run.model for run in self.runs))
        model = models[0] if len(models) == 1 else "Varies"
        return records.Claim(
            epsilon=self.epsilon,
            delta=self.delta,
            model=model,
            unit="record" if model == "Central" and not self.person else "user",
            person=self.person,
            adjacency=self.adjacency,
            assumption=self.assumption,
            protocol=self.protocol,
            trust=self.trust,
            method=self.how(),
            runs="; ".join(map(str, _merged_runs(self.runs))),
            rounds=sum(run.rounds for run in self.runs),
            sentence=self.sentence(),
            plain=self.plain(),
            software=f"shoal {__version__}",
            note=self.note,
        )

    def to_registry(self, **details: str) -> dict[str, Any]:
        """An entry for the Differential Privacy Deployments Registry of OpenDP.

        `details` are what only people know, by the names in `shoal.records.DETAILS`; those left out are marked as open.

        >>> from shoal import Shuffle
        >>> entry = Shuffle(users=1_000, sigma=2.0).statement(delta=1e-6).to_registry(name="Screen time")
        >>> entry["deployment"]["deployment_model"]["model_name"]
        'Shuffle'
        >>> entry["deployment"]["basic"]["intended_use"]
        'To be filled in: what it is for'
        """
        return records.registry_entry(self.claim(), details)

    def checklist(self) -> tuple[records.Item, ...]:
        """The checklist for a report on this guarantee: known answers and open questions."""
        return records.checklist(self.claim())

    def record(self, document: records.Document = "registry", format: records.Format = "yaml", **details: str) -> str:
        """The guarantee as a document that others can check.

        Args:
            document: "statement", "registry" (an entry for the deployments registry) or "checklist".
            format: "markdown", "latex", "yaml" or "json".
            details: For the registry, what only people know, by the names in `shoal.records.DETAILS`.

        Returns:
            The text.

        Raises:
            InvalidInput: If the document, the format or a detail is unknown.

        >>> from shoal import Shuffle
        >>> print(Shuffle(users=1_000, sigma=2.0).statement(delta=1e-6).record("checklist", "markdown")[:10])
        ## Setting
        """
        _validate.choice("document", document, get_args(records.Document))
        if details and document != "registry":
            raise InvalidInput(f"details belong to a registry entry, got {', '.join(sorted(details))} for a {document}")
        if document == "registry":
            return records.render_registry(self.to_registry(**details), format)
        if document == "checklist":
            return records.render_checklist(self.checklist(), format)
        return records.render_statement(self.sentence(), self.facts(), self.to_dict(), format)

    def __str__(self) -> str:
        return self.sentence()

    def facts(self) -> list[tuple[str, str]]:
        """The statement row by row, for a notebook or a page."""
        return [
            ("rounds", "; ".join(map(str, _merged_runs(self.runs)))),
            (self.question.dual_symbol, short(self.value)),
            (self.question.symbol, f"at most {rounded(self.answer.upper)}"),
            ("adjacency", self._neighbours().replace(" adjacency", "")),
            ("assumes", self.assumption),
            ("protocol", self.protocol),
            ("trust", self.trust),
            ("method", self.how()),
            *([("note", self.note)] if self.note else []),
        ]

    def _repr_markdown_(self) -> str:
        return f"{self.sentence()}\n\n{markdown_table(('', ''), self.facts())}"

    def _repr_html_(self) -> str:
        return html_table((), self.facts(), caption=self.sentence())


def _merged_runs(runs: tuple[Rounds, ...]) -> tuple[Rounds, ...]:
    """Runs for a sentence: many that differ only in the numbers of users and sampled are one."""
    if len(runs) <= _RUNS_IN_FULL:
        return runs
    families: dict[tuple[Any, ...], list[Rounds]] = {}
    for run in runs:
        rest = tuple((name, value) for name, value in run.mechanism.items() if name not in _SIZES)
        families.setdefault(rest, []).append(run)
    return tuple(_merged(family) for family in families.values())


def _merged(family: list[Rounds]) -> Rounds:
    words = family[0].settings
    for name, title in _SIZES.items():
        values = [run.mechanism.get(name, 0) for run in family]
        smallest, largest = min(values), max(values)
        if smallest < largest:
            merged = f"{title} = {short(smallest)} to {short(largest)}"
            words = words.replace(f"{title} = {short(values[0])}", merged, 1)
    return replace(family[0], settings=words, rounds=sum(run.rounds for run in family))


def question_for(*, epsilon: Any, delta: Any) -> tuple[Question, Any]:
    """The question that a statement answers, and its value.

    Args:
        epsilon: Given if delta is wanted, else None.
        delta: Given if epsilon is wanted, else None.

    Returns:
        `EPSILON` and the delta, or `DELTA` and the epsilon.

    Raises:
        InvalidType: Unless exactly one of them is given.
    """
    # Not by truth: an epsilon of 0 is a question, too.
    if (epsilon is None) == (delta is None):
        raise InvalidType("either delta or epsilon must be given, and not both: the other one is the answer")
    return (EPSILON, delta) if epsilon is None else (DELTA, epsilon)
