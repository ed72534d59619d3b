"""Answers that were written down: a change of structure changes none of them.

`reference/answers.json` holds answers over all mechanisms, questions, methods and crowds; one of each kind is computed
again here. If the mathematics changes on purpose, make the file anew and say so in the changelog:

    python tests/reference/make_answers.py --all
"""

import runpy

import pytest

import shoal
from helpers import ROOT, reference
from shoal.mechanisms import MECHANISMS

KEPT = reference("answers")
MAKER = runpy.run_path(str(ROOT / "tests" / "reference" / "make_answers.py"))
answer = MAKER["answer"]


def kind(kept):
    m = kept["mechanism"]
    return m["mechanism"], m.get("crowd", "no crowd"), kept["question"]


SOME = {kind(kept): kept for kept in sorted(KEPT, key=lambda k: -k["mechanism"].get("users", 0))}  # the cheapest


def test_they_are_of_every_kind():
    assert len(KEPT) == sum(number for *_, number in MAKER["SERIES"])
    assert {name for name, *_ in SOME} >= {name for name, cls in MECHANISMS.items() if hasattr(shoal, name)}
    assert {crowd for _, crowd, _ in SOME} == {"identical", "any", "no crowd"}
    assert len(SOME) >= 60


@pytest.mark.filterwarnings("ignore::shoal.AccuracyWarning")
@pytest.mark.parametrize("kept", SOME.values(), ids=[" ".join(name) for name in SOME])
def test_an_answer_is_the_one_of_before(kept):
    """To nine digits; for any crowd, and any other records, to six, or a narrower bracket."""
    found, before = answer(kept), kept["answer"]
    tiny = 1e-15  # digits of a smaller delta are round-off
    if "any" not in kind(kept) and kept["mechanism"]["mechanism"] != "ShuffledEpochs":
        assert found == pytest.approx(before, rel=1e-9, abs=tiny)
        return
    lower, upper = (found[:1], found[1:]) if kept["question"] != "rdp" else ([], found)
    assert all(new >= old * (1 - 1e-6) - tiny for new, old in zip(lower, before, strict=False))
    assert all(new <= old * (1 + 1e-6) + tiny for new, old in zip(upper, before[len(lower) :], strict=True))
