"""What the page is told: settings from texts, numbers of the library on the safe side, calls that give the same."""

import contextlib
import io
import json
import math
import pathlib
import re
import shlex
import sys
import warnings
from urllib.parse import parse_qsl

import numpy as np
import pytest
from typer.testing import CliRunner

import shoal
from shoal import Accountant, BallsAndBins, LocalGaussian, Shuffle, ShuffledCheckIn, SubsampledShuffle, calibrate
from shoal.cli.app import app
from shoal.formatting import rounded
from shoal.web import budget, calls, fields, setting, tasks, utility

SMALL = {
    "users": "1,000",
    "sample": "100",
    "bins": "50",
    "sigma": "3",
    "rounds": "10",
    "delta": "1e-6",
    "batch": "10",
    "records": "1,000",
    "steps": "50",
    "rate": "0.1",
}
KINDS = tuple(setting.KINDS)


def pieces(task, **data):
    return list(tasks.answer(task, data))


def only(found, **wanted):
    (one,) = [piece for piece in found if all(piece.get(k) == v for k, v in wanted.items())]
    return one


# Texts


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10,000", 10_000),
        ("1_000_000", 10**6),
        ("5540", 5_540),
        (" 0.1 ", 0.1),
        ("1e-5", 1e-5),
        ("1/60,000", 1 / 60_000),
    ],
)
def test_numbers_as_people_write_them(text, value):
    assert setting.number("x", text) == value


@pytest.mark.parametrize("text", ["", "abc", "1/0", "1/2/3", "1,00", "10,0000", "1e-5e", "1e999/1e999x"])
def test_what_is_no_number_is_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match=r"^users must be a number such as .*, got '"):
        setting.number("users", text)


def test_every_link_of_the_docs_and_the_help_is_a_state_of_the_page():
    root = pathlib.Path(__file__).parents[2]
    files = [*root.glob("docs/**/*.md"), root / "src" / "shoal" / "cli" / "commands" / "explore.py"]
    found = [link for file in files for link in re.findall(r"shoal explore '([^']+)'", file.read_text())]
    assert len(found) >= 2
    for link in found:
        state = dict(parse_qsl(link.rpartition("#")[2], strict_parsing=True))
        known = {
            *setting.FIELDS,
            *(name for kind in KINDS for name in setting.fields(kind)),
            "mechanism",
            "adjacency",
            "crowd",
            "axis",
            "hold",
            "keep",
            "odds",
            "local",
            "tab",
        }
        assert set(state) <= known, link
        setting.read(state)


def test_every_stop_of_every_slider_is_the_value_that_it_shows():
    for kind in KINDS:
        for name, field in {**setting.FIELDS, **setting.fields(kind)}.items():
            data = field.to_dict()
            assert [float(setting.number(name, stop)) for stop in field.stops] == data["values"]
            assert data["values"] == sorted(set(data["values"]))
            assert not field.stops or field.start in field.stops
            slider = setting.parameters(kind)[name].slider if name in setting.parameters(kind) else None
            if slider:
                assert slider[0] <= data["values"][0] <= data["values"][-1] <= slider[1]


def test_every_mechanism_has_its_fields_and_a_situation():
    """Fields follow from the parameters: of a mechanism that is new, too."""
    data = fields.page_data()
    assert set(data["kinds"]) == set(setting.KINDS)
    for kind, cls in setting.KINDS.items():
        listed = data["kinds"][kind]
        assert list(listed["fields"]) == [*(p.name for p in cls.parameters()), "rounds", "delta"]
        for parameter in cls.parameters():
            field = listed["fields"][parameter.name]
            assert (field["label"], field["help"]) == (parameter.label, parameter.help.removesuffix("."))
        assert listed["description"] == cls.__doc__.splitlines()[0]
    assert data["kinds"]["poisson"]["fields"]["rate"]["label"] == "Sampling rate"
    assert data["kinds"]["check-in"]["fields"]["rate"]["label"] == "Check-in rate"
    for situation in data["situations"]:
        assert data["kinds"][situation["lead"]]["situation"] == situation["value"]
    assert data["situations"][0]["lead"] == "shuffled-epochs"


def test_an_empty_field_is_the_default():
    state = {**SMALL, "mechanism": "secure-sum", "survivors": "", "corrupt": ""}
    m = setting.read(state).mechanism
    assert (m.survivors, m.corrupt) == (None, 0)
    assert "--survivors" not in calls.shell(setting.read(state))
    assert setting.read({**state, "survivors": "900"}).mechanism.survivors == 900
    (refused,) = pieces("first", state={**state, "users": ""})
    assert (refused["piece"], refused["field"]) == ("error", "users")


def test_a_flag_is_yes_or_no():
    for text, value in (("yes", True), ("", False)):
        state = {**SMALL, "mechanism": "shuffled-epochs", "epochs": "3", "persistent": text}
        assert setting.read(state).mechanism.persistent is value
        assert ("--persistent" in calls.shell(setting.read(state))) is value


def test_every_mark_of_an_axis_is_written_as_it_is():
    for tick in fields.ticks():
        assert float(tick["text"].replace(",", "")) == tick["value"]


@pytest.mark.parametrize(
    ("state", "field", "words"),
    [
        ({"sigma": "-1"}, "sigma", "must be positive, got -1.0"),
        ({"users": "2.5"}, "users", "must be a whole number"),
        ({"mechanism": "subsampled", "sample": "70000"}, "sample", "at most users"),
        ({"rate": "2"}, "rate", "at most 1"),
        ({"delta": "1"}, "delta", "strictly between 0 and 1"),
        ({"rounds": "x"}, "rounds", "must be a number such as"),
        ({"clip": "0"}, "clip", "must be positive"),
        ({"dimension": "0"}, "dimension", "at least 1"),
        ({"mechanism": "balls-and-bins", "adjacency": "replace"}, "adjacency", "zero-out"),
        ({"mechanism": "nonsense"}, None, "must be one of"),
        ({"crowd": "odd"}, None, "crowd must be one of"),
    ],
)
def test_an_error_names_its_field(state, field, words):
    (found,) = pieces("first", state=state)
    assert found["piece"] == "error"
    assert found["field"] == field
    assert words in found["text"]


# Numbers


def needed(kind):
    return {p.name for p in setting.KINDS[kind].parameters() if p.is_required}


def small(kind, **texts):
    """A state with values for what the mechanism needs; the rest is where its fields start."""
    own = {name: text for name, text in SMALL.items() if name in {*needed(kind), *setting.SHARED}}
    return {**own, "mechanism": kind, **texts}


def mechanism(kind, **changes):
    known = {"users": 1_000, "sample": 100, "rate": 0.1, "bins": 50, "sigma": 3.0}
    known |= {"records": 1_000, "batch": 10, "steps": 50}
    cls = setting.KINDS[kind]
    values = {**{k: v for k, v in known.items() if k in needed(kind)}, **changes}
    return cls(**{k: v for k, v in values.items() if k in cls.__dataclass_fields__})


@pytest.mark.parametrize("kind", KINDS)
def test_first_numbers_are_the_library_s_and_safe(kind):
    found = pieces("first", state=small(kind))
    crowd = "identical" if setting.read(small(kind)).has_crowd else "only"
    m = mechanism(kind, crowd="identical")
    one, truth = only(found, piece="epsilon", crowd=crowd), m.epsilon(delta=1e-6, rounds=10)
    assert (one["epsilon"]["lower"], one["epsilon"]["upper"]) == (truth.lower, truth.upper)
    assert float(one["epsilon"]["text"]["upper"]) >= truth.upper
    assert float(one["epsilon"]["text"]["lower"]) <= truth.lower
    assert one["sentence"] == m.statement(delta=1e-6, rounds=10).sentence()
    (attack,) = pieces("attack", state=small(kind), crowd=crowd)
    for case, odds in zip(attack["cases"], tasks.ODDS, strict=True):
        assert float(case["right"]) / odds >= m.tradeoff(1 / odds, rounds=10).upper * (1.0 - 1e-15)
    if crowd == "identical":
        local = LocalGaussian(sigma=3.0).epsilon(delta=1e-6, rounds=10)
        assert only(found, piece="epsilon", crowd="local")["epsilon"]["upper"] == local.upper


def test_nobody_is_right_more_often_than_always():
    (sure,) = pieces("attack", state={**SMALL, "mechanism": "local", "sigma": "0.05"}, crowd="only")
    assert [case["right"] for case in sure["cases"]] == [case["odds"] for case in sure["cases"]]


def test_any_crowd_follows_and_json_takes_everything():
    found = pieces("any", state={**SMALL, "mechanism": "shuffle"})
    truth = Shuffle(users=1_000, sigma=3.0).epsilon(delta=1e-6, rounds=10)
    assert only(found, piece="epsilon")["epsilon"]["upper"] == truth.upper
    first = found[0]
    assert (first["piece"], first["upper"], first["text"]["upper"]) == ("bound", truth.upper, rounded(truth.upper))
    assert pieces("any", state={**SMALL, "mechanism": "local"}) == []
    endless = tasks.bracket(shoal.Interval(lower=1.0, upper=math.inf))
    assert endless == {"lower": 1.0, "upper": None, "text": {"lower": "1.0000", "upper": "inf"}}
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("axis", ["users", "rate", "sigma", "rounds", "delta"])
def test_curves_pass_through_the_present_point(axis):
    state = {**SMALL, "mechanism": "check-in", "axis": axis}
    points = [p for piece in pieces("curve", state=state, crowd="identical") for p in piece["points"]]
    now = setting.read(state).value(axis)
    (here,) = [p for p in points if p["x"] == now]
    truth = mechanism("check-in", crowd="identical").epsilon(delta=1e-6, rounds=10)
    assert here["upper"] == pytest.approx(truth.upper, rel=1e-3)
    ordered = [p["upper"] for p in sorted(points, key=lambda p: p["x"])]
    rises = axis in ("rate", "rounds")
    assert ordered == sorted(ordered, reverse=not rises)
    assert len(ordered) > 15


def test_the_same_noise_under_other_trust():
    state = {**SMALL, "mechanism": "shuffle"}
    deployed = only(pieces("any", state=state), piece="deployments")["rows"]
    assert [row["name"] for row in deployed] == ["no shuffler", "shuffled", "secure sum", "central noise"]
    assert deployed[1]["upper"] == rounded(Shuffle(users=1_000, sigma=3.0).epsilon(delta=1e-6, rounds=10).upper)
    summed = shoal.SecureSum(users=1_000, sigma=3.0).epsilon(delta=1e-6, rounds=10)
    assert deployed[2]["upper"] == deployed[3]["upper"] == rounded(summed.upper)
    assert all("trusted" in row["trust"] for row in deployed)
    drawn = only(pieces("any", state={**SMALL, "mechanism": "subsampled", "sample": "100"}), piece="deployments")
    assert drawn["rows"] == []


def test_without_a_shuffler_all_reports_of_a_user_are_seen():
    state = {**SMALL, "mechanism": "shuffle", "reports_per_user": "4", "axis": "reports_per_user"}
    local = only(pieces("first", state=state), piece="epsilon", crowd="local")
    assert local["epsilon"]["upper"] == LocalGaussian(sigma=1.5).epsilon(delta=1e-6, rounds=10).upper
    points = {p["x"]: p["upper"] for piece in pieces("curve", state=state, crowd="local") for p in piece["points"]}
    assert points[4.0] == local["epsilon"]["upper"]
    assert points[min(points)] < points[4.0] < points[max(points)]


def test_a_curve_without_a_shuffler_is_flat_in_the_users():
    state = {**SMALL, "mechanism": "shuffle", "axis": "users"}
    (piece,) = pieces("curve", state=state, crowd="local")
    assert len({p["upper"] for p in piece["points"]}) == 1


@pytest.mark.parametrize("find", ["sigma", "rounds", "users"])
def test_what_is_found_meets_the_target_as_it_is_printed(find):
    state = {**SMALL, "mechanism": "shuffle", "crowd": "identical", "hold": find, "epsilon": "0.05"}
    (found,) = pieces("solve", state=state)
    solved = setting.read({**state, find: found["text"], "solved": "yes"})
    met = solved.mechanism.epsilon(delta=1e-6, rounds=solved.rounds).upper
    assert met <= 0.05
    worse = {"sigma": 0.999, "rounds": 1.001, "users": 0.999}[find]
    missed = solved.moved(find, solved.value(find) * worse + (find == "rounds"))
    assert missed.mechanism.epsilon(delta=1e-6, rounds=missed.rounds).upper > 0.05


def test_what_cannot_be_met_is_said_at_the_target():
    state = {**SMALL, "mechanism": "shuffle", "crowd": "identical", "hold": "rounds", "epsilon": "1e-6"}
    (found,) = pieces("solve", state=state)
    assert (found["piece"], found["field"]) == ("error", "epsilon")


def test_a_wide_bracket_makes_a_note(monkeypatch):
    def warned(_):
        warnings.warn("accuracy 0.001 was not reached: it is wide", shoal.AccuracyWarning, stacklevel=1)
        yield {"piece": "epsilon"}

    monkeypatch.setitem(tasks.TASKS, "first", warned)
    note = {"piece": "note", "text": "accuracy 0.001 was not reached: it is wide."}
    assert pieces("first") == [{"piece": "epsilon"}, note]


# What the noise costs


@pytest.mark.parametrize("kind", ["shuffle", "subsampled", "check-in"])
def test_the_error_of_the_mean_is_that_of_a_simulation(kind):
    """Users at the worst place for sampling (plus or minus one vector, half each): the bound is nearly reached."""
    rng = np.random.default_rng(7)
    n, m, rate, sigma, clip, d, times = 40, 10, 0.3, 0.2, 2.0, 5, 4_000
    vectors = np.zeros((n, d))
    vectors[:, 0] = clip * np.where(np.arange(n) % 2, 1.0, -1.0)
    off = []
    for _ in range(times):
        chosen = {
            "shuffle": np.ones(n, bool),
            "check-in": rng.random(n) < rate,
            "subsampled": np.isin(np.arange(n), rng.choice(n, m, replace=False)),
        }[kind]
        total = vectors[chosen].sum(0) + clip * sigma * rng.standard_normal((chosen.sum(), d)).sum(0)
        size = {"shuffle": n, "subsampled": m, "check-in": rate * n}[kind]
        off.append(np.sum((total / size - vectors.mean(0)) ** 2))
    described = mechanism(kind, users=n, sample=m, rate=rate, sigma=sigma)
    bound = utility.error(described, clip=clip, dimension=d)
    assert math.sqrt(np.mean(off)) == pytest.approx(bound.total, rel=0.06)


def test_the_error_in_closed_form():
    """One user: its own noise. Everybody sampled: as without sampling. Four times the users: half the error."""
    one = utility.error(Shuffle(users=1, sigma=3.0), clip=2.0, dimension=16)
    assert one.total == pytest.approx(24.0)
    assert one.total >= 24.0
    assert utility.error(LocalGaussian(sigma=3.0), clip=2.0, dimension=16).total == one.total
    whole = utility.error(SubsampledShuffle(users=9, sample=9, sigma=3.0), clip=1.0, dimension=4)
    assert whole.sampling == 0.0
    assert whole.total == pytest.approx(
        utility.error(ShuffledCheckIn(users=9, rate=1.0, sigma=3.0), clip=1.0, dimension=4).total
    )
    few, many = (
        utility.error(ShuffledCheckIn(users=n, rate=0.2, sigma=3.0), clip=1.0, dimension=4) for n in (100, 400)
    )
    assert few.total == pytest.approx(2.0 * many.total)
    assert utility.error(BallsAndBins(bins=9, sigma=3.0), clip=1.0, dimension=4).noise == pytest.approx(6.0)


# Calls and papers


@pytest.mark.parametrize("kind", KINDS)
def test_the_calls_give_the_same(kind):
    asked = setting.read(small(kind, crowd="identical"))
    sentence = asked.mechanism.statement(delta=asked.delta, rounds=asked.rounds).sentence()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(calls.python(asked), {})
    assert out.getvalue().strip() == sentence
    shown = CliRunner().invoke(app, shlex.split(calls.shell(asked))[1:])
    assert shown.exit_code == 0, shown.output
    assert re.sub(r"\s+", " ", sentence) in re.sub(r"\s+", " ", shown.output)


@pytest.mark.parametrize("find", ["sigma", "rounds", "users"])
def test_the_calls_of_a_solved_setting_give_the_same(find):
    state = {**SMALL, "mechanism": "subsampled", "crowd": "identical", "hold": find, "epsilon": "0.2"}
    (found,) = pieces("solve", state=state)
    asked = setting.read({**state, find: found["text"], "solved": "yes"})
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(calls.python(asked), {})
    first, second = out.getvalue().strip().split("\n")
    assert float(first) == pytest.approx(float(found["text"].replace(",", "")), rel=1e-5)
    assert second == asked.mechanism.statement(delta=asked.delta, rounds=asked.rounds).sentence()
    for line in calls.shell(asked).splitlines():
        assert CliRunner().invoke(app, shlex.split(line)[1:]).exit_code == 0, line


@pytest.mark.parametrize("format", ["markdown", "latex", "yaml", "json"])
@pytest.mark.parametrize("document", ["statement", "registry", "checklist"])
def test_a_record_is_the_statement_s_own(document, format):
    state = {**SMALL, "mechanism": "check-in", "crowd": "identical"}
    (piece,) = pieces("record", state=state, document=document, format=format)
    statement = mechanism("check-in", crowd="identical").statement(delta=1e-6, rounds=10)
    assert piece == {"piece": "record", "text": statement.record(document, format)}


def test_an_unknown_record_is_refused():
    (refused,) = pieces("record", state=SMALL, document="poem", format="json")
    assert refused["text"] == "document must be one of statement, registry, checklist, got 'poem'"


# Ledgers


def ledger(**more):
    m = ShuffledCheckIn(users=1_000, rate=0.1, sigma=3.0, crowd="identical")
    a = Accountant().compose(m, rounds=10).compose(Shuffle(users=500, sigma=4.0, crowd="identical"), rounds=2)
    return a, json.dumps({**a.state_dict(), **more})


def test_spent_left_and_rounds_to_go():
    a, text = ledger()
    found = pieces("spent", text=text, state={"epsilon": "0.5", "delta": "1e-6"})
    spent, togo = only(found, piece="spent"), only(found, piece="remaining")
    truth = a.epsilon(delta=1e-6).upper
    assert spent["epsilon"]["upper"] == truth
    assert spent["sentence"] == a.statement(delta=1e-6).sentence()
    assert float(spent["left"]) <= 0.5 - truth < float(spent["left"]) + 1e-4
    more, last = int(togo["rounds"].replace(",", "")), a.ledger[-1].mechanism
    for rounds, met in ((more, True), (more + 1, False)):
        after = Accountant().load_state_dict(a.state_dict()).compose(last, rounds=rounds)
        assert (after.epsilon(delta=1e-6).upper <= 0.5) == met
    other = only(pieces("spent", text=text, state={"epsilon": "0.5", "delta": "1e-6"}, next=0), piece="remaining")
    assert other["of"] == f"{a.ledger[0].mechanism.label}: {a.ledger[0].mechanism.settings}"


def test_an_exceeded_budget_has_nothing_left():
    found = pieces("spent", text=ledger()[1], state={"epsilon": "0.01", "delta": "1e-6"})
    assert only(found, piece="spent")["exceeded"]
    assert only(found, piece="spent")["left"] == "0"
    assert only(found, piece="remaining")["rounds"] == "0"


def test_a_budget_s_rounds_of_the_same_kind_are_what_calibration_finds_less_those_done():
    m = Shuffle(users=500, sigma=4.0, crowd="identical")
    target = {"epsilon": 0.5, "delta": 1e-6}
    assert calibrate.rounds(m, **target, after=Accountant().compose(m, rounds=7)) == calibrate.rounds(m, **target) - 7
    assert calibrate.rounds(m, **target, after=Accountant()) == calibrate.rounds(m, **target)
    with pytest.raises(shoal.Unreachable, match="the rounds so far and one more"):
        calibrate.rounds(m, **target, after=Accountant().compose(m, rounds=10**6))


def test_an_analyst_s_status_brings_its_budget():
    a, _ = ledger()
    status = {"budget": {"epsilon": 0.25, "crowd": "identical"}, "delta": 1e-7, "ledger": a.state_dict()}
    found = only(pieces("spent", text=json.dumps(status)), piece="ledger")
    assert (found["epsilon"], found["delta"], found["rounds"]) == ("0.25", "1e-07", "12")
    (wrong,) = pieces("spent", text=json.dumps({**status, "rounds": [{}] * 13}))
    assert "as many rounds as its ledger (12), got 13" in wrong["text"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "file must be JSON"),
        ("[1", "file must be JSON"),
        ("[]", "state must be a mapping"),
        ("SQLite format 3\0...", "shoal analyst status FOLDER --json"),
        ('{"version": 9, "ledger": []}', "state version must be 1"),
        ('{"version": 1, "ledger": [{"rounds": 1}]}', "ledger entry 0"),
        ('{"budget": 3, "ledger": {}}', "budget must be a mapping with epsilon"),
    ],
)
def test_other_files_are_refused_in_one_sentence(text, words):
    (found,) = pieces("spent", text=text)
    assert found["piece"] == "error"
    assert words in found["text"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Flower needs Python 3.11")
def test_an_analyst_s_folder_brings_its_budget(tmp_path):
    from shoal.deployment.analyst import Analyst, Settings
    from shoal.deployment.task import Task

    terms = {"minimum": 50, "epsilon": 2.0, "delta": 1e-7, "clip": 1.0, "sigma": 3.0, "rate": 0.5}
    task = Task(name="t", dimension=3, **terms)
    Analyst.create(tmp_path / "a", Settings(task=task, rounds=2, epoch=2)).close()
    found = budget.read(budget.text_of(tmp_path / "a"))
    assert (found.epsilon, found.delta, len(found.rounds)) == (2.0, 1e-7, 0)
    with pytest.raises(ValueError, match="shoal analyst init"):
        budget.text_of(tmp_path)


def test_an_empty_ledger_has_cost_nothing():
    (found,) = pieces("spent", text=json.dumps(Accountant().state_dict()))
    assert found["rounds"] == "0"


def test_a_file_on_the_command_line_is_checked_before_the_page_opens(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("no ledger")
    refused = CliRunner().invoke(app, ["explore", "--no-browser", "--budget", str(path)])
    assert refused.exit_code == 2
    assert "file must be JSON" in refused.output
    path.write_text(ledger()[1])
    assert len(budget.read(budget.text_of(path)).rounds) == 12
    missing = CliRunner().invoke(app, ["explore", "--no-browser", "--budget", str(tmp_path / "none")])
    assert missing.exit_code == 2
