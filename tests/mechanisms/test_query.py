"""Whole answers: statements of mechanisms and accountants, arrays of intervals, types that users see."""

import json
import math
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import shoal
from shoal import calibrate
from shoal.formatting import outwards, rounded, short
from shoal.interval import Interval
from shoal.query import EPSILON, Intervals
from shoal.statement import Rounds, Statement

CHECK_IN = shoal.ShuffledCheckIn(users=1_000, rate=0.1, sigma=4.0, crowd="identical")
MECHANISMS = [
    shoal.LocalGaussian(sigma=3.0),
    shoal.Shuffle(users=500, sigma=2.0),
    shoal.Shuffle(users=500, sigma=2.0, crowd="identical", adjacency="replace"),
    shoal.SubsampledShuffle(users=100, sample=10, sigma=2.0, crowd="identical"),
    CHECK_IN,
    shoal.BallsAndBins(bins=50, sigma=1.0),
]


@pytest.mark.parametrize("m", MECHANISMS, ids=lambda m: f"{m.label} {m.adjacency}")
@pytest.mark.parametrize("asked", ["epsilon", "delta"])
def test_a_statement_says_everything(m, asked):
    given = {"delta": 1e-5} if asked == "epsilon" else {"epsilon": 0.5}
    said = m.statement(**given, rounds=3)
    answer = getattr(m, asked)(**given, rounds=3)
    assert said.answer == answer
    assert getattr(said, asked) == answer.upper
    text = said.sentence()
    for part in (
        m.label,
        m.adjacency,
        m.assumption,
        m.protocol,
        m.trust,
        "3 rounds",
        rounded(answer.upper),
        m.settings,
    ):
        assert part in text
    data = json.loads(json.dumps(said.to_dict()))
    assert data["guarantee"] == text
    assert data[asked] == {"lower": answer.lower, "upper": answer.upper}
    assert data["runs"] == [{**m.to_dict(), "rounds": 3}]
    assert data["crowd"] == getattr(m, "crowd", None)
    assert data["accuracy"]["reached"] == said.reached
    assert text in said._repr_markdown_()
    assert "<table>" in said._repr_html_()
    assert str(said) == text


def test_printed_numbers_of_a_statement_are_on_the_safe_side():
    for delta in (1e-5, 1 / 60_000, 1 / 3):
        said = CHECK_IN.statement(delta=delta, rounds=7)
        epsilon, printed = (float(x) for x in re.search(r"\(([\d.e-]+), ([\d.e-]+)\)-diff", said.sentence()).groups())
        assert epsilon >= said.answer.upper
        assert printed >= delta


def test_a_statement_of_an_accountant_names_every_mechanism():
    a = shoal.Accountant().compose(CHECK_IN, rounds=20).compose(shoal.LocalGaussian(sigma=30.0))
    said = a.statement(delta=1e-6)
    assert said.answer == a.epsilon(delta=1e-6)
    assert said.crowd == "identical"
    assert "20 rounds of check-in" in said.sentence()
    assert "one round of local (σ = 30) together are" in said.sentence()
    assert CHECK_IN.trust in said.trust
    assert "nobody is trusted" in said.trust
    mixed = shoal.Accountant().compose(CHECK_IN).compose(shoal.Shuffle(users=50, sigma=9.0)).statement(epsilon=0.1)
    assert mixed.crowd == "mixed"
    assert mixed.asked == "delta"
    with pytest.raises(ValueError, match="nothing to state"):
        shoal.Accountant().statement(delta=1e-5)


def test_one_of_epsilon_and_delta_is_given():
    for given in ({}, {"epsilon": 1.0, "delta": 1e-5}):
        with pytest.raises(TypeError, match="either delta or epsilon must be given"):
            CHECK_IN.statement(**given)


def test_methods_in_words():
    common = {
        "runs": (Rounds(label="x", settings="", rounds=1, mechanism={}),),
        "adjacency": "zero-out",
        "crowd": None,
        "assumption": "nothing",
        "protocol": "all send",
        "trust": "nobody",
        "question": EPSILON,
        "value": 1e-5,
        "accuracy": 1e-3,
    }

    def how(lower, upper, method="tight"):
        return Statement(answer=Interval(lower=lower, upper=upper), method=method, **common).how()

    assert how(0.0, 1.0, "rdp") == "Rényi DP, an upper bound"
    assert how(1.0, 1.0) == "certified, exact"
    assert how(0.999, 1.0) == "certified, within 0.0011 (relative) of the truth"
    assert how(0.5, 1.0) == "certified; no analysis can go below 0.50000"
    assert how(0.0, 1.0) == "certified upper bound" == how(0.0, math.inf)


@pytest.mark.parametrize("sigma", [0.02, 0.5, 1.0, 3.0, 50.0])
def test_plain_words_never_promise_more_than_the_guarantee(sigma):
    """The best attack with 1% false positives finds no more than is said; weak guarantees are called so."""
    m = shoal.LocalGaussian(sigma=sigma)
    said = m.statement(delta=1e-5)
    text = said.plain()
    if said.epsilon > 700.0:
        assert text == "In plain words: this protects nobody."
        assert said.in_short() == "this protects nobody."
        return
    assert all(sentence in text for sentence in re.split(r"(?<=\.) ", said.in_short()))
    assert not re.search(r"\d", said.in_short())
    found = float(re.search(r"with probability at most ([\d.]+)%", text).group(1))
    assert found >= min(100.0, 100.0 * (math.exp(said.epsilon) * 0.01 + 1e-5)) - 1e-12
    assert 100.0 * m.tradeoff(0.01).lower <= found
    assert ("Few would accept" in text) == (found >= 10.0) == ("may well tell" in text)


def test_arrays_of_intervals_have_arrays_of_ends():
    found = CHECK_IN.epsilon(delta=[1e-5, 1e-6], rounds=[1, 10])
    assert isinstance(found, Intervals)
    assert found.shape == (2,)
    np.testing.assert_array_equal(found.upper, [i.upper for i in found])
    np.testing.assert_array_equal(found.lower, [i.lower for i in found])
    assert found[1] == CHECK_IN.epsilon(delta=1e-6, rounds=10)
    assert found[:1].upper.shape == (1,)
    assert shoal.LocalGaussian(sigma=2.0).tradeoff([0.1, 0.2]).lower.dtype == float


def test_accountants_answer_what_mechanisms_answer():
    a = shoal.Accountant().compose(CHECK_IN, rounds=5)
    assert a.tradeoff(0.05) == CHECK_IN.tradeoff(0.05, rounds=5)
    assert a.advantage() == CHECK_IN.advantage(rounds=5)


def test_an_unreachable_target_is_its_own_error():
    with pytest.raises(shoal.Unreachable, match="the cost of one round"):
        calibrate.rounds(shoal.LocalGaussian(sigma=1.0), epsilon=0.1, delta=1e-5)
    with pytest.raises(shoal.Unreachable, match=r"got 0\.1, which even 1,000,000,000,000,000 users do not meet"):
        calibrate.users(
            lambda users: shoal.Shuffle(users=users, sigma=1e-4, crowd="identical"), epsilon=0.1, delta=1e-9
        )
    assert issubclass(shoal.Unreachable, ValueError)


def test_a_bug_in_the_maker_is_not_called_unreachable():
    def broken(users):
        raise ValueError("something else")

    with pytest.raises(ValueError, match=r"^something else$") as caught:
        calibrate.users(broken, epsilon=1.0, delta=1e-5)
    assert not isinstance(caught.value, shoal.Unreachable)


@pytest.mark.parametrize("digits", [1, 2, 5, 9])
def test_rounding_goes_outwards(digits):
    rng = np.random.default_rng(5)
    for value in [*(10.0 ** rng.uniform(-12, 9, 300)), 1.0, 0.1, 1e-4, 9.9999999, 99999.6, 1e7, 12345678.0]:
        up, down = rounded(float(value), "up", digits), rounded(float(value), "down", digits)
        assert float(down) <= value <= float(up)
        assert float(up) <= value * (1 + 1.1 * 10.0 ** (1 - digits))
        assert float(short(float(value), digits)) >= value
    assert rounded(0.0) == "0"
    assert rounded(math.inf) == "inf"
    assert outwards(0.123451, ".3f", 1.0) == "0.124"


TYPED = """
import numpy as np
import shoal

m = shoal.Shuffle(users=10, sigma=2.0)
one: shoal.Interval = m.epsilon(delta=1e-5)
many: shoal.Intervals = m.epsilon(delta=[1e-5, 1e-6])
curve: shoal.Intervals = m.delta(epsilon=1.0, rounds=np.arange(1, 5))
power: shoal.Interval = m.tradeoff(0.1)
total: shoal.Interval = shoal.Accountant().compose(m).epsilon(delta=1e-5)
wrong: float = m.epsilon(delta=1e-5)
"""


def test_a_users_type_checker_knows_the_answers(tmp_path):
    (tmp_path / "use.py").write_text(TYPED)
    home = pathlib.Path(shoal.__file__).parents[1]
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path), "use.py"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=tmp_path, env={"MYPYPATH": str(home)})
    errors = [line for line in done.stdout.splitlines() if line.startswith("use.py")]
    assert len(errors) == 1
    assert 'has type "Interval", variable has type "float"' in errors[0]


def test_a_sentence_spells_out_a_few_runs_and_counts_many():
    ledger = shoal.Accountant()
    for users in range(100, 104):
        ledger.compose(shoal.Shuffle(users=users, sigma=2.0, crowd="identical"), rounds=2)
    assert "users = 103" in ledger.statement(delta=1e-5).sentence()
    ledger.compose(shoal.ShuffledCheckIn(users=50, rate=0.5, sigma=2.0, crowd="identical"))
    whole = ledger.statement(delta=1e-5)
    assert whole.sentence().startswith(
        "8 rounds of shuffle (users = 100 to 103, σ = 2) and one round of check-in (users = 50, check-in rate = 0.5, "
        "σ = 2) together are ("
    )
    assert [r["rounds"] for r in whole.to_dict()["runs"]] == [2, 2, 2, 2, 1]
    for sigma in range(3, 7):
        ledger.compose(shoal.LocalGaussian(sigma=float(sigma)))
    text = ledger.statement(delta=1e-5).sentence()
    assert text.startswith("13 rounds together of shuffle and check-in and local (with 9 different settings) are (")


def test_which_part_of_the_width_is_numerical() -> None:
    m = shoal.Shuffle(users=100, sigma=5.0)
    quick, fine = m.statement(delta=1e-5), m.statement(delta=1e-5, accuracy=2.5e-4)
    assert fine.answer.upper < quick.answer.upper
    assert fine.answer.lower == quick.answer.lower
    assert 0.0 < fine.numerical < 0.5 * quick.numerical
    # An estimate: of the size of what a finer law gains.
    gained = quick.answer.upper - fine.answer.upper
    assert 0.3 * gained < quick.numerical < 3.0 * gained
    for said in (quick, fine):
        assert said.numerical + said.gap == pytest.approx(said.answer.width)
        parts = said.to_dict()["accuracy"]
        assert parts["numerical"] + parts["gap"] == pytest.approx(parts["reached"])
    assert "is numerical" in m.replace(users=1_000).statement(delta=1e-5).sentence()


def test_delta_for_any_crowd_is_refined_as_epsilon_would_be() -> None:
    m = shoal.ShuffledCheckIn(users=1_000, rate=0.1, sigma=5.0)
    quick, fine = (m.delta(epsilon=0.005, accuracy=accuracy) for accuracy in (1e-3, 2.5e-4))
    assert quick.lower == fine.lower < fine.upper < quick.upper


def test_nothing_is_numerical_where_nothing_is_estimated() -> None:
    assert shoal.Shuffle(users=100, sigma=5.0, crowd="identical").statement(delta=1e-5).numerical == 0.0
    assert shoal.Shuffle(users=100, sigma=5.0).statement(delta=1e-5, method="rdp").numerical == 0.0
    together = shoal.Accountant().compose(shoal.Shuffle(users=100, sigma=5.0), rounds=2).statement(delta=1e-5)
    assert 0.0 < together.numerical < together.answer.width
