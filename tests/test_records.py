"""Records: a registry entry that fits the registry's layout, and a checklist that invents nothing."""

import json

import jsonschema
import pytest
import yaml

import shoal
from helpers import ROOT
from shoal import records
from shoal.formatting import rounded

DETAILS = {
    "name": "Screen time, weekly",
    "data_curator_name": "A company",
    "data_curator_type": "Industry",
    "description": "Means of usage: 100 apps & 7 days.",
    "intended_use": "Planning",
    "data_product_type": "Summary statistics",
    "data_product_region": "Global",
    "data_product_sector": "Technology",
    "publication_date": "2026-11-19",
    "data_domain": "Vectors of minutes",
    "unprotected_quantities": "none",
    "preprocessing_and_hyperparameter_tuning": "none",
    "data_source_type": "Dynamic",
    "access_type": "Non-interactive",
    "justification": "Chosen with the works council.",
    "registry_author": "A. Person",
}
MECHANISMS = [
    shoal.LocalGaussian(sigma=3.0),
    shoal.Shuffle(users=1_000, sigma=3.0),
    shoal.ShuffledCheckIn(users=1_000, rate=0.1, sigma=3.0, adjacency="replace"),
    shoal.PoissonSampling(rate=0.01, sigma=1.0),
]
MODELS = ["Local", "Shuffle", "Shuffle", "Central"]


@pytest.fixture(scope="module")
def schema():
    return json.loads((ROOT / "tests" / "reference" / "registry_schema.json").read_text())


@pytest.mark.parametrize(("mechanism", "model"), zip(MECHANISMS, MODELS, strict=True), ids=lambda v: str(v)[:12])
def test_an_entry_fits_the_schema_of_the_registry(mechanism, model, schema):
    statement = mechanism.statement(delta=1e-6, rounds=10)
    entry = statement.to_registry(**DETAILS)
    jsonschema.validate(entry, schema)
    assert yaml.safe_load(records.as_yaml(entry)) == json.loads(records.as_json(entry)) == entry
    assert records.OPEN not in records.as_yaml(entry)
    deployment = entry["deployment"]
    assert deployment["deployment_model"]["model_name"] == model
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": statement.epsilon, "delta": statement.delta}
    assert statement.sentence() in deployment["privacy_loss"]["privacy_parameters_details"]


def test_the_schema_bites(schema):
    entry = MECHANISMS[1].statement(delta=1e-6).to_registry(**DETAILS)
    entry["deployment"]["deployment_model"]["model_name"] = "Shuffled"
    with pytest.raises(jsonschema.ValidationError, match="Shuffled"):
        jsonschema.validate(entry, schema)


def test_what_only_people_know_stays_open():
    entry = MECHANISMS[1].statement(delta=1e-6).to_registry(name="Screen time")
    assert entry["url_slug"] == "screen-time"
    text = records.as_yaml(entry)
    assert text.count(records.OPEN) == len(records.DETAILS) - 1
    assert entry["deployment"]["administrative"]["tier"] == 2


@pytest.mark.parametrize(
    ("details", "message"),
    [
        ({"title": "x"}, r"^title is not a detail of a registry entry, which are name, "),
        ({"name": 3}, r"^name must be a text, got 3$"),
        ({"data_product_type": "Statistics"}, r"^data_product_type must be one of Summary statistics, "),
        ({"publication_date": "19.11.2026"}, r"^publication_date must be a date as YYYY-MM-DD, got '19\.11\.2026'$"),
    ],
)
def test_bad_details_are_named(details, message):
    with pytest.raises(shoal.ShoalError, match=message):
        MECHANISMS[0].statement(delta=1e-6).to_registry(**details)


def test_the_checklist_answers_what_is_known_and_leaves_the_rest_open():
    ledger = shoal.Accountant()
    for mechanism in MECHANISMS[:2]:
        ledger.compose(mechanism, rounds=3)
    statement = ledger.statement(delta=1e-6)
    items = statement.checklist()
    assert statement.claim().model == "Varies"
    answered, unanswered = ([i for i in items if (i.answer is None) is is_open] for is_open in (False, True))
    assert len(answered) >= 10
    assert len(unanswered) >= 8
    text = records.render_checklist(items, "markdown")
    assert text.count("- [x] ") == len(answered)
    assert text.count("- [ ] ") == len(unanswered)
    assert statement.plain() in text
    rows = [{"topic": i.topic, "question": i.question, "answer": i.answer} for i in items]
    assert yaml.safe_load(records.render_checklist(items, "yaml")) == {"checklist": rows}
    assert json.loads(records.render_checklist(items, "json")) == {"checklist": rows}
    with pytest.raises(shoal.ShoalError, match=r"^format must be one of markdown, latex, yaml, json, got 'pdf'$"):
        records.render_checklist(items, "pdf")


def test_latex_escapes_what_it_must():
    item = records.Item(topic="A & B", question="50% of #1?", answer="x_i ≤ 3, ε ~ {σ}^2 \\ …")
    text = records.render_checklist([item], "latex")
    assert r"\section*{A \& B}" in text
    assert r"\item[50\% of \#1?]" in text
    assert (
        r"x\_i $\le$ 3, $\varepsilon$ \textasciitilde{} \{$\sigma$\}\textasciicircum{}2 \textbackslash{} \dots{}"
        in text
    )


def test_numbers_survive_yaml():
    values = [1e-05, 1.5e-05, 0.1, 1e22, 3.0, 2.0**-1074]
    assert yaml.safe_load(records.as_yaml({"values": values})) == {"values": values}


@pytest.mark.parametrize("format", ["markdown", "latex", "yaml", "json"])
@pytest.mark.parametrize("document", ["statement", "registry", "checklist"])
def test_a_record_in_every_format_holds_the_guarantee(document, format):
    statement = MECHANISMS[1].statement(delta=1e-6, rounds=10)
    text = statement.record(document, format, **(DETAILS if document == "registry" else {}))
    if format in ("yaml", "json"):
        data = yaml.safe_load(text) if format == "yaml" else json.loads(text)
        numbers = {
            "statement": lambda: data["epsilon"]["upper"],
            "registry": lambda: data["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"],
            "checklist": lambda: float(data["checklist"][3]["answer"].split()[2]),
        }
        assert statement.epsilon <= numbers[document]() <= statement.epsilon * 1.001
    else:
        assert statement.plain() in text or rounded(statement.epsilon) in text
        assert format == "markdown" or (text.isascii() and text.count("{") == text.count("}"))
    if document == "registry":
        assert r"100 apps \& 7 days" in text or (format != "latex" and "100 apps & 7 days" in text)


def test_details_belong_to_the_registry_entry():
    with pytest.raises(shoal.ShoalError, match="details belong to a registry entry, got name for a checklist"):
        MECHANISMS[1].statement(delta=1e-6).record("checklist", name="x")
    with pytest.raises(shoal.ShoalError, match="document must be one of statement, registry, checklist, got 'note'"):
        MECHANISMS[1].statement(delta=1e-6).record("note")


def test_an_infinite_bound_is_a_word_in_json_and_yaml():
    data = {"epsilon": [float("inf"), 1.0]}
    assert json.loads(records.as_json(data)) == yaml.safe_load(records.as_yaml(data)) == {"epsilon": ["infinity", 1.0]}
