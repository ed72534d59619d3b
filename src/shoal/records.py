"""Records of a guarantee that others can check: an entry for a public registry, and a checklist.

Both are made from what a `Statement` knows, in Markdown, LaTeX, YAML or JSON. What only people know (what the data is
for, who reviewed the code) stays open and says so: nothing is invented.

**Registry.** The Differential Privacy Deployments Registry of OpenDP, which NIST has proposed to host, holds one YAML
file for each deployment. `registry_entry` writes one in the layout of its entries of 2026: `basic`, `dp_variant`,
`privacy_loss`, `deployment_model`, `implementation` and `administrative`.

**Checklist.** What a report on differential privacy should say, after NIST SP 800-226 ("Guidelines for Evaluating
Differential Privacy Guarantees", 2025) and section 5.3 of "How to DP-fy ML" (Ponomareva et al. 2023, arXiv:2303.00654).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shoal import _validate
from shoal.errors import InvalidInput, InvalidType
from shoal.formatting import rounded, short

Model = Literal["Local", "Shuffle", "Central", "Federated", "Varies"]
"""Names of deployment models in the registry; the last one for rounds of several models."""

Document = Literal["statement", "registry", "checklist"]
"""The guarantee alone, an entry for the registry, or the checklist."""

Format = Literal["markdown", "latex", "yaml", "json"]

OPEN = "To be filled in: "
"""What every field begins with that only people can fill."""

PRODUCT_TYPES = (
    "Summary statistics",
    "Machine learning model",
    "Dataset",
    "Synthetic data",
    "Interactive API",
    "SQL queries",
)
CURATOR_TYPES = ("Industry", "Government", "Academia", "Nonprofit")
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy")
_CHOICES = {
    "data_product_type": PRODUCT_TYPES,
    "data_curator_type": CURATOR_TYPES,
    "data_product_sector": SECTORS,
    "data_source_type": ("Static", "Dynamic"),
    "access_type": ("Interactive", "Non-interactive"),
}
"""Details of which the registry knows a few values only."""

DETAILS = {
    "name": "the name of the data product",
    "data_curator_name": "who publishes the data product",
    "data_curator_type": "the kind of organisation",
    "description": "what the data product is",
    "intended_use": "what it is for",
    "data_product_type": "the kind of data product",
    "data_product_region": "which region the data describes",
    "data_product_sector": "which sector it belongs to",
    "publication_date": "when it was first published, as YYYY-MM-DD",
    "data_domain": "which data sets are protected",
    "unprotected_quantities": "what is published without noise",
    "data_source_type": "whether new data come in over time",
    "access_type": "whether analysts may ask questions of their own",
    "preprocessing_and_hyperparameter_tuning": "what was looked at before, and whether its privacy loss is counted",
    "justification": "why these parameters were chosen, and by whom",
    "registry_author": "who wrote this entry",
}
"""What only people know, by the name of the field."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The parts of a guarantee that records state."""

    epsilon: float
    delta: float
    model: Model
    unit: str
    """Who is protected: a user or a record."""

    adjacency: str
    person: str
    """The person whose data is adjacent, in words; empty where that is one vector."""

    assumption: str
    protocol: str
    trust: str
    method: str
    runs: str
    rounds: int
    sentence: str
    plain: str
    software: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question of the checklist; an answer of None is open."""

    topic: str
    question: str
    answer: str | None


_MODELS = {
    "Local": "Each user adds noise before its vector leaves the device; nobody else is trusted.",
    "Shuffle": "Each user adds noise on its device; a shuffler removes names and order before the server sees reports.",
    "Central": "A trusted server holds the data and adds noise to what it publishes.",
    "Federated": "Each user sends a noisy share; the server sees their sum only.",
    "Varies": "Rounds of several deployment models were run.",
}

_NEIGHBOURS = {
    "zero-out": "Two data sets are adjacent if the vector of one {unit} is replaced by the zero vector.",
    "replace": "Two data sets are adjacent if the vector of one {unit} is replaced by any other.",
}


_NEIGHBOURS_OF_PERSON = {
    "zero-out": "Two data sets are adjacent if all vectors of {person} are replaced by the zero vector.",
    "replace": "Two data sets are adjacent if all vectors of {person} are replaced by any others.",
}


def _neighbours(claim: Claim) -> str:
    """When two data sets are adjacent, in a sentence."""
    if claim.person:
        return _NEIGHBOURS_OF_PERSON[claim.adjacency].format(person=claim.person)
    return _NEIGHBOURS[claim.adjacency].format(unit=claim.unit)


def _known(details: Mapping[str, Any]) -> dict[str, str]:
    """The details that were given, checked; the others say what is to be filled in."""
    unknown = sorted(set(details) - set(DETAILS))
    if unknown:
        raise InvalidInput(f"{unknown[0]} is not a detail of a registry entry, which are {', '.join(DETAILS)}")
    for name, value in details.items():
        if not isinstance(value, str) or not value.strip():
            raise InvalidType(f"{name} must be a text, got {value!r}")
        if name in _CHOICES:
            _validate.choice(name, value, _CHOICES[name])
    if "publication_date" in details:
        _check_date(details["publication_date"])
    return {name: details.get(name, f"{OPEN}{words}") for name, words in DETAILS.items()}


def _check_date(text: str) -> None:
    import datetime

    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"publication_date must be a date as YYYY-MM-DD, got {text!r}") from None


def registry_entry(claim: Claim, details: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of the Differential Privacy Deployments Registry.

    Args:
        claim: What the guarantee says.
        details: What only people know, by the names in `DETAILS`; what is left out is marked as open.

    Returns:
        The entry as plain data; `as_yaml` writes the file.

    Raises:
        InvalidInput: If a detail is unknown or not allowed.
        InvalidType: If a detail is no text.
    """
    facts = _known(details)
    slug = "-".join("".join(c if c.isalnum() else " " for c in facts["name"].lower()).split())
    return {
        "url_slug": slug if "name" in details else facts["name"],
        "deployment": {
            "basic": {
                "name": facts["name"],
                "data_curators": [
                    {"data_curator_name": facts["data_curator_name"], "data_curator_type": facts["data_curator_type"]}
                ],
                "description": facts["description"],
                "intended_use": facts["intended_use"],
                "data_product_type": facts["data_product_type"],
                "data_product_region": facts["data_product_region"],
                "data_product_sector": facts["data_product_sector"],
                "publication_date": facts["publication_date"],
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": facts["data_domain"],
                "unprotected_quantities": facts["unprotected_quantities"],
            },
            "privacy_loss": {
                "privacy_unit": claim.unit.capitalize(),
                "privacy_unit_details": _neighbours(claim),
                "privacy_parameters": {"epsilon": claim.epsilon, "delta": claim.delta},
                "privacy_parameters_details": f"{claim.sentence} {claim.plain}",
            },
            "deployment_model": {
                "model_name": claim.model,
                "model_name_details": _MODELS[claim.model],
                "actors": f"Trust: {claim.trust}. Assumed: {claim.protocol}. Assumed of others: {claim.assumption}.",
                "release_type": "One release" if claim.rounds == 1 else "Many releases",
                "release_type_details": f"The parameters above cover {claim.runs}.",
                "data_source_type": facts["data_source_type"],
                "access_type": facts["access_type"],
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": facts["preprocessing_and_hyperparameter_tuning"],
                "mechanisms": f"Gaussian noise: {claim.runs}.",
                "composition": _composition(claim),
                "justification": facts["justification"],
            },
            "administrative": {
                "status": "Draft",
                "registry_authors": [facts["registry_author"]],
                "tier": 3 if set(details) == set(DETAILS) else 2,
            },
        },
    }


def _composition(claim: Claim) -> str:
    note = f" {claim.note[:1].upper()}{claim.note[1:]}." if claim.note else ""
    return (
        f"All rounds are composed together; method: {claim.method}. This holds if parameters and the number of rounds "
        f"were fixed beforehand. Computed by {claim.software}.{note}"
    )


def checklist(claim: Claim) -> tuple[Item, ...]:
    """The checklist for a report on differential privacy: known answers and open questions."""
    setting, definition, accounting, practice = (
        "Setting",
        "What is claimed",
        "How it was computed",
        "What no formula can show",
    )
    answers = [
        (setting, "Which deployment model is it, and who sees what?", _MODELS[claim.model]),
        (setting, "Who is trusted?", f"{claim.trust[:1].upper()}{claim.trust[1:]}."),
        (setting, "What must the participants do?", f"{claim.protocol[:1].upper()}{claim.protocol[1:]}."),
        (definition, "What are the privacy parameters?", f"ε ≤ {rounded(claim.epsilon)} at δ = {short(claim.delta)}."),
        (definition, "What is the unit of privacy?", f"{(claim.person or f'one {claim.unit}').capitalize()}."),
        (definition, "When are two data sets adjacent?", _neighbours(claim)),
        (definition, "What is assumed about everybody else?", f"{claim.assumption[:1].upper()}{claim.assumption[1:]}."),
        (definition, "What does it mean for one person?", claim.plain),
        (accounting, "Which data accesses are covered?", f"{claim.runs[:1].upper()}{claim.runs[1:]}."),
        (accounting, "How were they composed, and with which software?", _composition(claim)),
    ]
    unknown = [
        (definition, "Which outputs does the guarantee cover: the final model, all iterates, reported metrics?"),
        (accounting, "Was the privacy loss of tuning and of choosing the model counted?"),
        (accounting, "Does the sampling that ran match the sampling that was accounted for?"),
        (accounting, "Which quantities were published without noise?"),
        (practice, "Is the sensitivity enforced in code, for every user and every message?"),
        (practice, "Is the noise drawn from a cryptographic generator, and safe against floating-point attacks?"),
        (practice, "Which side channels exist (time, memory, failures, sizes of messages)?"),
        (practice, "How are raw data and keys protected, and when are they deleted?"),
        (practice, "Was the claim tested by an audit, and can others run the code?"),
        (practice, "Was the harm to small groups, and the usefulness of the result, examined?"),
    ]
    items = [Item(topic=topic, question=question, answer=answer) for topic, question, answer in answers]
    items += [Item(topic=topic, question=question, answer=None) for topic, question in unknown]
    return tuple(sorted(items, key=lambda item: (setting, definition, accounting, practice).index(item.topic)))


# As text


def render_statement(sentence: str, facts: Sequence[tuple[str, str]], data: Mapping[str, Any], format: Format) -> str:
    """A guarantee as a document.

    Args:
        sentence: The guarantee in one sentence.
        facts: What it rests on, row by row.
        data: The same as plain data, for YAML and JSON.
        format: "markdown", "latex", "yaml" or "json".

    Returns:
        The text.

    Raises:
        InvalidInput: If the format is unknown.
    """
    _validate.choice("format", format, get_args(Format))
    if format in ("yaml", "json"):
        return as_yaml(data) if format == "yaml" else as_json(data)
    if format == "markdown":
        rows = "".join(f"| {name} | {value.replace('|', chr(92) + '|')} |\n" for name, value in facts)
        return f"# Privacy statement\n\n{sentence}\n\n| | |\n|---|---|\n{rows}"
    rows = "".join(f"  {_latex(name)} & {_latex(value)} \\\\\n" for name, value in facts)
    return (
        f"\\paragraph{{Privacy statement.}}\n{_latex(sentence)}\n\n"
        f"\\begin{{tabular}}{{lp{{0.75\\linewidth}}}}\n{rows}\\end{{tabular}}\n"
    )


def render_registry(entry: Mapping[str, Any], format: Format) -> str:
    """An entry for the registry as a document; the registry itself takes YAML.

    Args:
        entry: The entry.
        format: "markdown", "latex", "yaml" or "json".

    Returns:
        The text.

    Raises:
        InvalidInput: If the format is unknown.
    """
    _validate.choice("format", format, get_args(Format))
    if format in ("yaml", "json"):
        return as_yaml(entry) if format == "yaml" else as_json(entry)
    chapters = []
    for section, fields in entry["deployment"].items():
        title = _heading(section)
        rows = [(_heading(name), value) for name, value in _leaves(fields)]
        if format == "markdown":
            chapters.append(f"## {title}\n\n" + "".join(f"- **{name}:** {value}\n" for name, value in rows))
        else:
            items = "".join(f"  \\item[{_latex(name)}] {_latex(value)}\n" for name, value in rows)
            chapters.append(f"\\section*{{{_latex(title)}}}\n\\begin{{description}}\n{items}\\end{{description}}\n")
    return "\n".join(chapters)


def _heading(field: str) -> str:
    """The name of a field in words: "Privacy unit details", "DP variant"."""
    words = field.replace("_", " ")
    return f"{words[:1].upper()}{words[1:]}".replace("Dp ", "DP ")


def _leaves(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields of a section that hold one value, each with its text."""
    for name, value in fields.items():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Mapping):
                yield from _leaves(part)
            else:
                yield name, str(part)


def render_checklist(items: Sequence[Item], format: Format) -> str:
    """A checklist as a document.

    Args:
        items: The checklist.
        format: "markdown", "latex", "yaml" or "json".

    Returns:
        The text.

    Raises:
        InvalidInput: If the format is unknown.
    """
    _validate.choice("format", format, get_args(Format))
    if format in ("yaml", "json"):
        rows = [{"topic": item.topic, "question": item.question, "answer": item.answer} for item in items]
        return as_yaml({"checklist": rows}) if format == "yaml" else as_json({"checklist": rows})
    topics = dict.fromkeys(item.topic for item in items)
    chapters = ((topic, [item for item in items if item.topic == topic]) for topic in topics)
    return "\n".join(_markdown_chapter(*c) if format == "markdown" else _latex_chapter(*c) for c in chapters)


def _markdown_chapter(topic: str, items: Sequence[Item]) -> str:
    lines = [f"- [{' ' if item.answer is None else 'x'}] **{item.question}** {item.answer or '…'}" for item in items]
    return f"## {topic}\n\n" + "\n".join(lines) + "\n"


def _latex_chapter(topic: str, items: Sequence[Item]) -> str:
    rows = [f"  \\item[{_latex(item.question)}] {_latex(item.answer or '…')}" for item in items]
    return f"\\section*{{{_latex(topic)}}}\n\\begin{{description}}\n" + "\n".join(rows) + "\n\\end{description}\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "σ": r"$\sigma$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "é": r"\'e",
    "–": "--",
    "·": r"$\cdot$",
    "…": r"\dots{}",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def as_json(data: Any) -> str:
    """Plain data as JSON, indented; an infinite bound, which JSON cannot hold, is the text "infinity"."""
    return json.dumps(_with_finite_numbers(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _with_finite_numbers(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: _with_finite_numbers(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_with_finite_numbers(value) for value in data]
    return "infinity" if isinstance(data, float) and math.isinf(data) else data


def as_yaml(data: Any) -> str:
    """Plain data as YAML; texts are quoted, so that none becomes a number or a date."""
    return "\n".join(_yaml_lines(_with_finite_numbers(data), "")) + "\n"


def _yaml_lines(data: Any, indent: str) -> Iterator[str]:
    if isinstance(data, Mapping):
        for name, value in data.items():
            if isinstance(value, (Mapping, list, tuple)):
                yield f"{indent}{name}:"
                yield from _yaml_lines(value, indent + "  ")
            else:
                yield f"{indent}{name}: {_yaml_scalar(value)}"
        return
    for value in data:
        if isinstance(value, Mapping):
            first, *rest = _yaml_lines(value, indent + "  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{indent}- {_yaml_scalar(value)}"


def _yaml_scalar(value: Any) -> str:
    if not isinstance(value, float):
        return json.dumps(value, ensure_ascii=False)
    # YAML 1.1 reads 1e-05 as a text: a number needs a point before its exponent.
    mantissa, mark, exponent = repr(value).partition("e")
    return f"{mantissa}.0e{exponent}" if mark and "." not in mantissa else repr(value)
