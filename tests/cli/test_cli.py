"""The command: tables, JSON, pictures, help that teaches, and refusals with exit code 2."""

import dataclasses
import importlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
from typer.testing import CliRunner

import shoal
from helpers import run
from shoal import LocalGaussian, Shuffle, ShuffledCheckIn, noise_check
from shoal.cli import parse
from shoal.cli.app import COMMANDS, app
from shoal.formatting import rounded, short
from shoal.mechanisms import COUNT, FLAG, MECHANISMS, PROBABILITY, Mechanism, Parameter, labelled

CHECK_IN = ["check-in", "--users", "60000", "--rate", "0.1", "--sigma", "5"]
SHUFFLE = ["shuffle", "--users", "60000", "--sigma", "9.48"]


def rows(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["rows"]


def test_epsilon_json_equals_the_python_interface():
    found = rows("epsilon", *CHECK_IN, "--delta", "1e-5", "--rounds", "1,100,5540")
    assert [(r["crowd"], r["rounds"]) for r in found] == [(c, t) for c in ("identical", "any") for t in (1, 100, 5540)]
    m = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
    for row in found:
        exact = m.replace(crowd=row["crowd"]).epsilon(delta=1e-5, rounds=row["rounds"])
        assert row["epsilon"] == {"lower": exact.lower, "upper": exact.upper}


def test_both_crowds_are_the_default_and_the_sentence_says_everything():
    result = run("epsilon", *CHECK_IN, "--delta", "1e-5", "--rounds", "5540")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "0.0567" in text
    assert "zero-out adjacency" in text
    assert "idealised crowd" in text
    assert "nothing about other users' vectors" in text
    assert "the shuffler is trusted, the server is not" in text
    assert "5,540 rounds together" in text
    assert "1e-05" in text
    assert text.count("certified, within") == 2


def test_delta_and_fractions():
    found = rows("delta", *SHUFFLE, "--epsilon", "0.0014063", "--crowd", "identical")
    m = Shuffle(users=60_000, sigma=9.48, crowd="identical")
    assert found[0]["delta"]["upper"] == m.delta(epsilon=0.0014063).upper
    found = rows("epsilon", *SHUFFLE, "--delta", "1/60000", "--crowd", "identical")
    assert found[0]["epsilon"]["lower"] < 0.00059456 < found[0]["epsilon"]["upper"] < 0.0005952
    found = rows("epsilon", *SHUFFLE, "--delta", "1/60000", "--crowd", "identical", "--method", "rdp")
    assert round(found[0]["epsilon"]["upper"], 7) == 0.0014063
    assert found[0]["epsilon"]["lower"] == 0.0


def test_renyi_dp_shows_both_crowds_and_the_best_order_of_each():
    result = run("rdp", "shuffle", "--users", 100, "--sigma", 3, "--orders", "2", "--delta", "1e-5", "--json")
    shown = json.loads(result.stdout)
    assert [r["crowd"] for r in shown["rows"]] == [b["crowd"] for b in shown["best"]] == ["identical", "any"]
    ideal, safe = shown["rows"]
    assert all(ideal[way] < safe[way] < 1 / 9 for way in ("forward", "reverse", "worse"))
    m = Shuffle(users=100, sigma=3.0)  # any crowd
    for other in (0.5, 2.0):
        order = max(2, round(other * shown["best"][1]["order"]))
        assert m.epsilon(delta=1e-5, method="rdp", orders=[order]).upper >= shown["best"][1]["epsilon"]["upper"]


def test_rdp_reports_both_directions():
    found = rows("rdp", "shuffle", "--users", 10, "--sigma", 1, "--orders", "2,8", "--crowd", "identical")
    for row in found:
        assert row["worse"] == max(row["forward"], row["reverse"])
        assert row["forward"] > row["reverse"]


def test_tradeoff():
    found = rows("tradeoff", "shuffle", "--users", 1000, "--sigma", 2, "--fpr", "0.01,0.1", "--crowd", "identical")
    for row in found:
        assert row["fpr"] < row["tpr"]["lower"] <= row["tpr"]["upper"] < row["fpr"] + row["advantage"]["upper"]


def test_replace_and_local():
    found = rows("epsilon", "local", "--sigma", 4, "--delta", "1e-6", "--adjacency", "replace")
    assert found[0]["epsilon"]["upper"] == LocalGaussian(sigma=2.0).epsilon(delta=1e-6).upper
    assert found[0]["crowd"] is None


def test_calibrate():
    target = ["--epsilon", "0.01", "--delta", "1e-5"]
    found = rows("calibrate", "sigma", "check-in", "--users", 60000, "--rate", 0.1, "--rounds", 50, *target)
    assert found[0]["sigma"] < found[1]["sigma"]
    for row in found:
        m = ShuffledCheckIn(users=60_000, rate=0.1, sigma=row["sigma"], crowd=row["crowd"])
        assert m.epsilon(delta=1e-5, rounds=50).upper <= 0.01
    found = rows("calibrate", "rounds", *CHECK_IN, *target, "--accuracy", 0.01)
    assert found[0]["rounds"] > found[1]["rounds"] >= 1
    few = ("--sigma", 5, "--rounds", 100, "--epsilon", 0.5, "--delta", "1e-6")
    found = rows("calibrate", "users", "shuffle", *few, "--crowd", "identical")
    assert found[0]["users"] > 1
    found = rows(
        "calibrate",
        "users",
        "subsampled",
        "--sample",
        50,
        "--sigma",
        5,
        "--epsilon",
        1,
        "--delta",
        "1e-6",
        "--crowd",
        "identical",
    )
    assert found[0]["users"] >= 50


def test_calibrated_sigma_is_printed_rounded_up():
    result = run("calibrate", "sigma", "local", "--epsilon", 1, "--delta", "1e-5")
    printed = float(re.search(r"none needed │ ([\d.]+)", result.stdout).group(1))
    assert LocalGaussian(sigma=printed).epsilon(delta=1e-5).upper <= 1.0


def test_compare_puts_every_method_side_by_side():
    found = rows("compare", *SHUFFLE, "--delta", "1/60000", "--rounds", 7)
    by_method = {r["method"]: r for r in found}
    assert round(by_method["paper, Theorem 1"]["epsilon"], 5) == 0.22822
    assert round(by_method["Rényi DP, all orders"]["epsilon"], 7) == 0.0025118
    assert by_method["clones"]["crowd"] == "any"
    assert by_method["tight, no shuffler"]["epsilon"] > 1
    ideal, safe = (next(r for r in found if r["method"] == "tight" and r["crowd"] == c) for c in ("identical", "any"))
    assert ideal["lower"] < 0.0020473 < ideal["epsilon"] < 0.00205
    assert ideal["ratio"] == 1.0
    witness = by_method["attack on a bad crowd"]
    assert ideal["epsilon"] < witness["epsilon"] < safe["epsilon"] < by_method["tight, no shuffler"]["epsilon"]
    assert by_method["paper, Theorem 1"]["ratio"] == pytest.approx(0.22822 / ideal["epsilon"], rel=1e-3)
    found = rows("compare", *CHECK_IN, "--delta", "1/60000", "--rounds", 5540)
    assert round(next(r["epsilon"] for r in found if "Theorem 3" in r["method"]), 3) == 9.617
    few = run("compare", "shuffle", "--users", 10, "--sigma", 1, "--delta", "1e-5")
    assert re.search(r"clones +│ +any │ +– │", few.stdout)
    assert witness["side"] == "lower"
    assert "≥ 0.0021026" in run("compare", *SHUFFLE, "--delta", "1/60000", "--rounds", 7).stdout  # rounded down
    sampled = run("compare", "subsampled", "--users", 100, "--sample", 10, "--sigma", 3, "--delta", "1e-5")
    assert "Left out: clones" in sampled.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("epsilon", *CHECK_IN, "--delta", "1e-5", "--rounds", "1-4@2"),
        ("epsilon", *SHUFFLE, "--delta", "1e-5,1e-6", "--crowd", "identical"),
        ("delta", *SHUFFLE, "--epsilon", "0.1,0.5", "--crowd", "identical"),
        ("delta", "local", "--sigma", 3, "--epsilon", "0"),
        ("rdp", *SHUFFLE),
        ("tradeoff", "shuffle", "--users", 1000, "--sigma", 2, "--crowd", "identical"),
        ("compare", *SHUFFLE, "--delta", "1e-5", "--rounds", 2),
    ],
)
def test_pictures(words, tmp_path):
    path = tmp_path / "deep" / f"a.{'svg' if words[0] == 'rdp' else 'png'}"
    result = run(*words, "--plot", path)
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"<?xml" if path.suffix == ".svg" else b"\x89PNG")
    assert path.stat().st_size > 5000
    assert str(path) in result.stdout.replace("\n", "")


def test_demo(tmp_path):
    result = run("demo", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for number in ("171.69", "0.0013684", "0.053819"):  # local, shuffle and check-in, at one sigma
        assert number in result.stdout
    assert "In plain words" in result.stdout
    assert (tmp_path / "epsilon_vs_rounds.png").exists()


BAD = [
    (("epsilon", "shuffle", "--users", 10, "--sigma", -1, "--delta", "1e-5"), "sigma must be positive, got -1.0"),
    (("epsilon", "shuffle", "--users", 10, "--sigma", "nan", "--delta", "1e-5"), "sigma must be finite, got nan"),
    (("epsilon", "shuffle", "--users", 10, "--sigma", "inf", "--delta", "1e-5"), "sigma must be finite, got inf"),
    (("epsilon", "shuffle", "--users", 0, "--sigma", 1, "--delta", "1e-5"), "users must be at least 1, got 0"),
    (("epsilon", "shuffle", "--users", 2.5, "--sigma", 1, "--delta", "1e-5"), "users must be a whole number, got 2.5"),
    (("epsilon", "shuffle", "--users", "many", "--sigma", 1, "--delta", "1e-5"), "users must be a number such as"),
    (("epsilon", "shuffle", "--sigma", 1, "--delta", "1e-5"), "users must be given for shuffle: add --users"),
    (
        ("epsilon", "local", "--users", 3, "--sigma", 1, "--delta", "1e-5"),
        "users is not a parameter of local, which has sigma",
    ),
    (
        ("epsilon", "local", "--sigma", 1, "--delta", "1e-5", "--crowd", "any"),
        "crowd is not a parameter of local: its guarantee holds whatever the others hold",
    ),
    (
        ("epsilon", "check-in", "--users", 9, "--rate", 0, "--sigma", 1, "--delta", 0.1),
        "rate must be above 0 and at most 1, got 0.0",
    ),
    (
        ("epsilon", "check-in", "--users", 9, "--rate", 1.5, "--sigma", 1, "--delta", 0.1),
        "rate must be above 0 and at most 1, got 1.5",
    ),
    (
        ("epsilon", "subsampled", "--users", 9, "--sample", 10, "--sigma", 1, "--delta", 0.1),
        "sample must be at most users (9), got 10",
    ),
    (("epsilon", "local", "--sigma", 1, "--delta", 0), "delta must lie strictly between 0 and 1, got 0.0"),
    (("epsilon", "local", "--sigma", 1, "--delta", 1), "delta must lie strictly between 0 and 1, got 1.0"),
    (("epsilon", "local", "--sigma", 1, "--delta", "1/0"), "delta must be a number such as"),
    (("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--rounds", 0), "rounds must be at least 1, got 0"),
    (("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--rounds", "9-1"), "rounds must be a range from low to high"),
    (("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--rounds", "1,,2"), "rounds must be a number such as"),
    (("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--plot", "x.txt"), "plot must be a .png, .svg or .pdf file"),
    (("delta", "local", "--sigma", 1, "--epsilon", -1), "epsilon must be at least 0, got -1.0"),
    (("rdp", "local", "--sigma", 1, "--orders", "1"), "order must be above 1 and at most 1e+09, got 1.0"),
    (
        ("epsilon", "balls-and-bins", "--bins", 9, "--sigma", 1, "--delta", 0.1, "--adjacency", "replace"),
        "adjacency must be zero-out for BallsAndBins",
    ),
    (("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--rounds", "1-1e12"), "rounds must have at most 10000 values"),
    (("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--rounds", "1-"), "rounds must be a range such as"),
    (("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--rounds", "1-7:0"), "must be at least 1, got 0"),
    (("epsilon", "local", "--sigma", "9" * 400, "--delta", 0.1), "sigma must be a number of at most 60 characters"),
    (("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--accuracy", 0), "accuracy must be above 0 and at most 1"),
    (("tradeoff", "local", "--sigma", 1, "--fpr", 2), "fpr must lie strictly between 0 and 1, got 2.0"),
    (
        ("calibrate", "users", "subsampled", "--sample", "inf", "--sigma", 1, "--epsilon", 1, "--delta", 0.1),
        "sample must be finite",
    ),
    (("calibrate", "sigma", "local", "--epsilon", 0, "--delta", 0.1), "epsilon must be positive, got 0.0"),
    (
        ("calibrate", "users", "local", "--sigma", 1, "--epsilon", 1, "--delta", 0.1),
        "users is not a parameter of local",
    ),
    (
        ("calibrate", "rounds", "local", "--sigma", 1, "--epsilon", 0.01, "--delta", "1e-6"),
        "epsilon must be at least",
    ),
    (("epsilon", "magic", "--sigma", 1, "--delta", 0.1), "magic"),
    (("epsilon", "shuffle", "--users", 9, "--sigma", 1, "--delta", 0.1, "--crowd", "friendly"), "friendly"),
    (("fly",), "fly"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[b[1][:50] for b in BAD])
def test_bad_input_is_refused_with_exit_code_2(words, message):
    result = run(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_an_unwritable_picture_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    result = run("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--plot", tmp_path / "file" / "a.png")
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_an_unwritable_picture_is_refused_before_the_computation(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalGaussian, "answer", lambda *a, **k: pytest.fail("computed first"))
    (tmp_path / "a.png").mkdir()
    result = run("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--plot", tmp_path / "a.png")
    assert result.exit_code == 2
    assert result.output == f"shoal: '{tmp_path / 'a.png'}' cannot be used: Is a directory\n"


def test_a_number_of_users_may_have_commas():
    found = rows("epsilon", "shuffle", "--users", "10,000", "--sigma", 5, "--delta", "1e-6", "--crowd", "identical")
    assert found[0]["epsilon"]["upper"] == Shuffle(users=10_000, sigma=5.0, crowd="identical").epsilon(delta=1e-6).upper
    assert parse.number("users", "1,234,567") == 1_234_567
    assert parse.number("delta", "1/60,000") == 1 / 60_000
    assert parse.whole_numbers("rounds", "1,100") == [1, 100]  # in a list a comma is a comma
    for text in ("10,00", "1,0000", ",100", "1,000.5"):
        with pytest.raises(ValueError, match="users must be a number such as"):
            parse.number("users", text)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("epsilo", "local"), "No such command 'epsilo'. Did you mean 'epsilon'?"),
        (("calibrate", "sgima", "local"), "No such command 'sgima'. Did you mean 'sigma'?"),
        (("epsilon", "shufle", "--delta", 0.1), "Did you mean 'shuffle'?"),
        (("epsilon", "local", "--sgma", 1, "--delta", 0.1), "Did you mean '--sigma'?"),
        (("epsilon", "local", "--noise", 1, "--delta", 0.1), "No such option '--noise'. Did you mean '--sigma'?"),
        (("epsilon", "local", "--noise-multiplier", 1, "--delta", 0.1), "Did you mean '--sigma'?"),
        (("epsilon", "local", "--sigma", 1, "--delta", 0.1, "--method", "tigth"), "Did you mean 'tight'?"),
    ],
)
def test_a_typo_is_answered_with_what_was_meant(words, meant):
    result = run(*words)
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert meant in text
    assert text.count("Did you mean") == 1


def test_sentences_and_tables_fit_into_80_columns():
    for words in (
        ("epsilon", *CHECK_IN, "--delta", "1e-5", "--crowd", "identical"),
        ("compare", "shuffle", "--users", 100, "--sigma", 3, "--delta", "1e-5"),
        ("worth", "flower", "--clipping-norm", 1, "--sensitivity", 1, "--epsilon", 1, "--delta", "1e-5"),
    ):
        result = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "80"})
        assert result.exit_code == 0, result.output
        assert max(map(len, result.stdout.splitlines())) <= 80
    assert " ".join(result.stdout.split()).count("Two clipped vectors can be 2 apart") == 1


def test_worth_equals_the_python_interface():
    words = ("--clipping-norm", 1, "--sensitivity", 2, "--epsilon", 0.5, "--delta", "1e-5", "--rounds", 3, "--json")
    found = json.loads(run("worth", "flower", *words).stdout)
    expected = noise_check.flower(clipping_norm=1, sensitivity=2, epsilon=0.5, delta=1e-5, rounds=3)
    assert found == json.loads(json.dumps(expected.to_dict()))
    refused = run("worth", "flower", "--clipping-norm", 1)
    assert refused.exit_code == 2
    assert "sensitivity must be given for flower: add --sensitivity" in refused.output
    refused = run("worth", "gaussian", "--clipping-norm", 1, "--deviation", 1, "--delta", 0.1, "--gamma", 1)
    assert "gamma is not a parameter of gaussian" in refused.output


def test_the_guarantee_in_plain_words_is_that_of_the_last_row():
    shown = run("epsilon", "local", "--sigma", 5, "--delta", "1e-5").stdout
    said = LocalGaussian(sigma=5.0).statement(delta=1e-5).plain()
    assert " ".join(said.split()) in " ".join(shown.split())


def test_the_real_command_in_a_real_shell():
    words = [sys.executable, "-c", "from shoal.cli import main; main()", "epsilon", "shuffle", "--users", "0"]
    bad = subprocess.run([*words, "--sigma", "1", "--delta", "0.1"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stderr) == (2, "shoal: users must be at least 1, got 0\n")


def test_help_teaches_with_examples():
    top = run("--help").stdout
    assert "check-in" in top
    for command in ("epsilon", "delta", "rdp", "tradeoff", "compare", "demo", "calibrate"):
        assert command in top
        assert run(command, "--help").exit_code == 0
    assert "shoal epsilon check-in --users 60000" in " ".join(run("epsilon", "--help").stdout.split())


def test_version():
    from shoal import __version__

    assert run("--version").stdout.strip() == __version__


def test_given_numbers_are_never_printed_smaller():
    result = run("epsilon", "local", "--sigma", 5, "--delta", "1/30000")
    assert "3.33334e-5" in result.stdout
    assert short(1e-5) == "1e-05"
    assert short(0.1) == "0.1"


def test_shell_completion_is_offered():
    assert "--install-completion" in run("--help").stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", [5]),
        ("1,100,5_540", [1, 100, 5540]),
        ("1-4", [1, 2, 3, 4]),
        ("10-30:10,99", [10, 20, 30, 99]),
        ("1-1000@4", [1, 10, 100, 1000]),
        ("7-7", [7]),
    ],
)
def test_lists_and_ranges(text, expected):
    assert parse.whole_numbers("rounds", text) == expected


@pytest.mark.parametrize("value", [0.123451, 1.0000001, 9.99999999, 3e-7, 123456.7, 1 / 60_000])
def test_printed_bounds_stay_bounds(value):
    up, down = float(rounded(value)), float(rounded(value, "down"))
    assert down <= value <= up
    assert up - down <= 2e-4 * value


def test_a_wide_bracket_makes_a_note():
    small = ("--users", 10, "--rate", 0.1, "--sigma", 0.05, "--crowd", "identical")
    done = run("epsilon", "check-in", *small, "--delta", 1e-6)
    assert done.exit_code == 0
    assert done.stderr.startswith("Note: accuracy 0.001 was not reached: epsilon at delta = 1e-06")
    assert done.stderr.count("\n") == 1
    done = run("epsilon", "check-in", *small, "--delta", 1e-6, "--rounds", "1-7")
    assert done.stderr.count("\n") == 3
    assert done.stderr.endswith("Note: 5 more intervals are wider than requested.\n")


# ---------------------------------------------------------------------------------------------
# One place to add a mechanism


@dataclass(frozen=True, kw_only=True)
class Echo(Mechanism):
    """Every report is sent several times: as `LocalGaussian` with less noise."""

    echoes_sent: int = Parameter(domain=COUNT, words="echoes", metavar="K", help="How often a report is sent.").field()
    rate: float = Parameter(
        domain=PROBABILITY, words="rate", metavar="Q", help="Chance of an echo.", default=1.0
    ).field()
    loud: bool = Parameter(domain=FLAG, words="loud", help="Shout.", default=False).field()

    label: ClassVar[str] = "echo"
    trust: ClassVar[str] = "nobody is trusted"

    def upper_round(self):
        times = 2 if self.loud else 1
        return LocalGaussian(sigma=self.sigma / (times * self.echoes_sent * self.rate) ** 0.5).upper_round()


@pytest.fixture
def echo(monkeypatch):
    # Options are made when a command's file is imported: each is imported anew, and the old ones come back later.
    for name in [name for name in sys.modules if name.startswith("shoal.cli.commands.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(MECHANISMS, "Echo", Echo)


def test_a_new_mechanism_is_known_to_all_commands_by_its_fields(echo):
    for command in (("epsilon",), ("delta",), ("rdp",), ("tradeoff",), ("compare",), ("calibrate", "sigma")):
        text = " ".join(run(*command, "--help").stdout.split())
        assert "or echo." in text
        assert "--echoes-sent K How often a report is sent (echo)." in text
        assert "--loud Shout (echo)." in text
        assert "checking in (check-in, secure-sum)" in text
        assert "chance of an echo (echo)." in text
    assert "--loud" not in run("calibrate", "users", "--help").stdout  # of those with users only
    assert "--loud" not in run("audit", "--help").stdout
    plain = ("epsilon", "echo", "--sigma", 4, "--delta", "1e-5", "--echoes-sent", 2)
    for more, same in ((), (8**0.5)), (("--loud",), 2.0), (("--loud", "--rate", "1/4"), 4.0):
        (row,) = rows(*plain, *more)
        assert row["epsilon"]["upper"] == pytest.approx(LocalGaussian(sigma=same).epsilon(delta=1e-5).upper, rel=1e-9)
    assert "echo (echoes = 2, rate = 0.25, " in run(*plain, "--rate", 0.25).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("echo", "--sigma", 1), "echoes_sent must be given for echo: add --echoes-sent"),
        (("echo", "--sigma", 1, "--echoes-sent", "x"), "echoes_sent must be a number"),
        (
            ("echo", "--sigma", 1, "--users", 2),
            "users is not a parameter of echo, which has echoes_sent, rate, loud",
        ),
        (("local", "--sigma", 1, "--loud"), "loud is not a parameter of local"),
    ],
)
def test_fields_of_a_new_mechanism_are_checked(echo, words, message):
    result = run("epsilon", *words, "--delta", "1e-5")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_every_field_has_its_option():
    """But for those that say what is asked, which are options of their own."""
    for cls in labelled().values():
        assert {*(p.name for p in cls.parameters()), "adjacency", "crowd"} >= {f.name for f in dataclasses.fields(cls)}
    words = ("epsilon", "allocation", "--steps", 100, "--picks", 1, "--epochs", 4, "--sigma", 2, "--delta", "1e-5")
    m = shoal.RandomAllocation(steps=100, picks=1, epochs=4, sigma=2.0)
    for more, persistent, said in ((), False, "no"), (("--persistent",), True, "yes"):
        (row,) = rows(*words, *more)
        assert row["epsilon"]["upper"] == m.replace(persistent=persistent).epsilon(delta=1e-5).upper
        assert f"same picks = {said}" in " ".join(run(*words, *more).stdout.split())


def test_options_of_a_command_keep_their_help():
    """Also those that may be left out, beside the options of a mechanism (Python 3.10 hides them from typer)."""
    text = " ".join(run("epsilon", "--help").stdout.split())
    assert re.search(r"--crowd [<\[]any\|identical\|both[>\]] What the other users hold", text)
    assert "--plot FILE Also draw a picture" in text


def test_the_first_page_names_every_mechanism():
    text = " ".join(run("--help").stdout.split()).split("Mechanisms:")[1]
    for label in labelled():
        assert label in text, f"{label} is missing in the help of shoal.cli.app"


def every_command(table, *path):
    """The path of each command, what the list says of it, and the function behind it."""
    for name, (place, sentence) in table.items():
        if isinstance(place, str):
            module, _, function = place.partition(":")
            found = getattr(importlib.import_module(f"shoal.cli.commands.{module}"), function)
            yield [*path, name], sentence, found
        else:
            yield from every_command(place, *path, name)


def test_the_list_says_of_each_command_what_its_help_says_first():
    """The list is written by hand, so that it needs no command to be imported."""
    for path, sentence, function in every_command(COMMANDS):
        assert sentence == " ".join(function.__doc__.split("\n\n")[0].split()), path


def test_every_help_page_comes_without_extras():
    """Reading about a command must not need what only running it needs."""
    paths = [path for path, *_ in every_command(COMMANDS)]
    heavy = ("torch", "matplotlib", "flwr", "opacus", "dp_accounting", "cryptography", "fastapi", "starlette", "opendp")
    code = (
        "import json, sys\n"
        f"for name in {heavy}: sys.modules[name] = None\n"
        "from typer.testing import CliRunner\nfrom shoal.cli.app import app\n"
        f"for path in {paths}:\n"
        "    result = CliRunner().invoke(app, [*path, '--help'])\n"
        "    assert result.exit_code == 0, (path, result.output)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_list_of_commands_imports_none_of_them():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom shoal.cli.app import app\n"
        "for words in (['--help'], ['calibrate', '--help'], ['analyst', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "print([name for name in sys.modules if name.startswith('shoal.cli.commands')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_options_for_mechanisms_can_be_completed():
    words = {"COMP_WORDS": "shoal epsilon --us", "COMP_CWORD": "2", "_SHOAL_COMPLETE": "complete_bash"}
    assert CliRunner().invoke(app, [], env=words, prog_name="shoal").stdout.split() == ["--users"]
    words = {"COMP_WORDS": "shoal calibrate ", "COMP_CWORD": "2", "_SHOAL_COMPLETE": "complete_bash"}
    found = CliRunner().invoke(app, [], env=words, prog_name="shoal").stdout.split()
    assert found == ["sigma", "rounds", "users"]


# ---------------------------------------------------------------------------------------------
# Errors


def test_only_a_target_that_cannot_be_met_is_called_not_reachable(monkeypatch):
    words = ("calibrate", "rounds", "shuffle", "--users", 1000, "--sigma", 3, "--epsilon", 0.05, "--delta", "1e-6")
    result = run(*words)
    assert result.exit_code == 0
    assert "not reachable" in result.stdout  # for any crowd, one round costs more
    assert "the cost of one round" in result.stdout
    broken = shoal.calibrate.rounds

    def rounds(m, **asked):
        if m.crowd == "any":
            raise shoal.errors.InvalidInput("an error of another kind")
        return broken(m, **asked)

    monkeypatch.setattr(shoal.calibrate, "rounds", rounds)
    result = run(*words)
    assert result.exit_code == 2
    assert "not reachable" not in result.output
    assert result.stderr == "shoal: an error of another kind\n"


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, ModuleNotFoundError, AssertionError])
def test_a_bug_keeps_its_traceback(monkeypatch, error):
    def broken(*_, **__):
        raise error("a bug")

    monkeypatch.setattr(LocalGaussian, "answer", broken)
    result = run("epsilon", "local", "--sigma", 1, "--delta", "1e-5")
    assert isinstance(result.exception, error)
    assert "shoal:" not in result.output


def test_a_missing_extra_is_told_before_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for words in (
        ("demo",),
        ("epsilon", *SHUFFLE, "--delta", "1e-5", "--plot", "a.png"),
        ("delta", *SHUFFLE, "--epsilon", 1, "--plot", "a.png"),
        ("rdp", *SHUFFLE, "--plot", "a.png"),
        ("tradeoff", *SHUFFLE, "--plot", "a.png"),
        ("compare", *SHUFFLE, "--delta", "1e-5", "--plot", "a.png"),
        ("reproduce", "all"),
    ):
        result = run(*words)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert (
            result.stderr == "shoal: plot needs matplotlib (matplotlib was not found): pip install 'shoal-dp[plot]'\n"
        )


def test_a_trial_on_flower_has_a_budget_for_its_rounds_and_says_what_it_protects():
    pytest.importorskip("flwr")
    from shoal.cli.commands import flower
    from shoal.deployment.task import Task

    agreed = {"clip": 1.0, "sigma": 0.5, "rate": 0.5, "delta": 1e-5, "crowd": "identical"}
    budget = flower.trial_budget(75, 10, agreed)
    assert 10.0 < budget < 100.0
    task = Task(name="digits", dimension=10, minimum=75, epsilon=budget, **agreed)
    assert 10 <= task.rounds(100) < 40
    assert "Nobody should accept that as protection" in flower.protection_words({**agreed, "epsilon": budget})
    protective = flower.trial_budget(75, 10, {**agreed, "sigma": 3.0})
    assert "Nobody" not in flower.protection_words({**agreed, "epsilon": protective})


@pytest.mark.parametrize("kind", labelled())
def test_a_record_of_every_mechanism(kind):
    cls = labelled()[kind]
    values = {"users": 1_000, "sample": 100, "rate": 0.1, "bins": 50, "records": 1_000, "batch": 10, "steps": 50}
    options = [word for p in cls.parameters() if p.name in values for word in (f"--{p.name}", values[p.name])]
    done = run("record", kind, *options, "--sigma", 3, "--delta", 1e-6, "--format", "json", "--detail", "name=Usage: 1")
    assert done.exit_code == 0, done.output
    entry = json.loads(done.stdout)["deployment"]
    assert entry["basic"]["name"] == "Usage: 1"
    m = cls(sigma=3.0, **{p.name: values[p.name] for p in cls.parameters() if p.name in values})
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": m.epsilon(delta=1e-6).upper, "delta": 1e-6}


def test_a_record_is_not_broken_into_lines_and_refuses_unknown_details():
    words = ("record", "local", "--sigma", 3, "--delta", 1e-6)
    shown = run(*words, "--document", "statement", "--format", "markdown")
    assert LocalGaussian(sigma=3.0).statement(delta=1e-6).sentence() in shown.stdout.splitlines()
    for text in ("name", "colour=red"):
        refused = run(*words, "--detail", text)
        assert refused.exit_code == 2
        assert refused.stderr.startswith("shoal: detail must be NAME=TEXT with a NAME of name, data_curator_name")
