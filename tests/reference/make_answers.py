"""Writes answers.json: answers over all mechanisms, methods and crowds, to the last digit.

    python tests/reference/make_answers.py          # adds the answers to new questions
    python tests/reference/make_answers.py --all    # computes all of them again (a minute)

A new mechanism gets a generator below and a row in `SERIES`; earlier answers stay as they are.
`tests/mechanisms/test_kept_answers.py` compares the present code with some of them, so that a change of structure
cannot change a number unseen. A change of the mathematics computes all of them again, and says so in the changelog.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import shoal

FILE = pathlib.Path(__file__).with_name("answers.json")


def mechanisms(rng: random.Random) -> Iterator[shoal.Mechanism]:
    """Every kind in turn, its parameters drawn on logarithmic scales."""
    while True:
        sigma, users = round(10 ** rng.uniform(-0.1, 1.3), 3), round(10 ** rng.uniform(0.5, 5.0))
        crowd, adjacency = rng.choice(["identical", "identical", "any"]), rng.choice(["zero-out", "replace"])
        common: dict[str, Any] = {"sigma": sigma, "adjacency": adjacency}
        yield shoal.LocalGaussian(**common)
        yield shoal.Shuffle(users=users, crowd=crowd, **common)
        yield shoal.SubsampledShuffle(users=users, sample=max(1, users // rng.choice([2, 10])), crowd=crowd, **common)
        yield shoal.ShuffledCheckIn(users=users, rate=rng.choice([0.01, 0.1, 0.5]), crowd=crowd, **common)
        yield shoal.BallsAndBins(bins=users, sigma=sigma)


def samplers(rng: random.Random) -> Iterator[shoal.Mechanism]:
    """How DP-SGD draws its batches, every kind in turn."""
    while True:
        sigma, steps = round(10 ** rng.uniform(-0.1, 0.7), 3), round(10 ** rng.uniform(0.7, 3.0))
        adjacency = rng.choice(["zero-out", "replace"])
        yield shoal.PoissonSampling(sigma=sigma, rate=1 / steps, adjacency=adjacency)
        yield shoal.FixedBatch(sigma=sigma, records=10 * steps, batch=10, adjacency=adjacency)
        yield shoal.RandomAllocation(sigma=sigma, steps=steps, picks=rng.choice([1, 3]))
        yield shoal.ShuffledEpochs(sigma=sigma, steps=steps, adjacency=adjacency)


def ordered(rng: random.Random) -> Iterator[shoal.Mechanism]:
    """A secret order of steps, whoever adds the noise."""
    while True:
        sigma, steps = round(10 ** rng.uniform(0.0, 0.9), 3), round(10 ** rng.uniform(0.5, 4.0))
        adjacency, crowd = rng.choice(["zero-out", "replace"]), rng.choice(["identical", "any"])
        epochs = rng.choice([1, 3])
        yield shoal.SequentialShuffle(sigma=sigma, users=steps, adjacency=adjacency, crowd=crowd)
        yield shoal.ShuffledEpochs(sigma=sigma, steps=steps, adjacency=adjacency, epochs=epochs, persistent=True)


def persons(rng: random.Random) -> Iterator[shoal.Mechanism]:
    """Several records or reports of one person, secure sums and corrupt users."""
    while True:
        sigma, size = round(10 ** rng.uniform(0.0, 0.7), 3), round(10 ** rng.uniform(1.0, 2.5))
        common: dict[str, Any] = {"sigma": sigma, "adjacency": rng.choice(["zero-out", "replace"])}
        several = rng.choice([2, 5])
        yield shoal.PoissonSampling(rate=1 / size, records_per_user=several, **common)
        yield shoal.FixedBatch(records=10 * size, batch=10, records_per_user=several, **common)
        yield shoal.Shuffle(users=size, reports_per_user=several, crowd="identical", **common)
        yield shoal.ShuffledCheckIn(users=size, rate=0.5, corrupt=size // 3, crowd="identical", **common)
        yield shoal.SecureSum(users=size, survivors=size - size // 5, corrupt=size // 3, **common)
        yield shoal.SecureSum(users=min(size, 30), rate=0.4, **common)


def asked(rng: random.Random, m: shoal.Mechanism) -> dict[str, Any]:
    kind = rng.choice(["epsilon", "epsilon", "epsilon by rdp", "delta", "rdp", "tradeoff", "advantage"])
    rounds = rng.choice([1, 1, 7, 100])
    given: dict[str, Any] = {"rounds": rounds}
    if kind.startswith("epsilon"):
        given["delta"] = rng.choice([1e-3, 1e-6, 1e-9])
    elif kind == "delta":
        given["epsilon"] = rng.choice([0.1, 1.0])
    elif kind == "rdp":
        given["orders"] = [1.5, 2.0, 8.0, 40.0]
    elif kind == "tradeoff":
        given["fpr"] = rng.choice([0.01, 0.1])
    return {"mechanism": m.to_dict(), "question": kind, **given}


def answer(question: dict[str, Any]) -> list[float]:
    """The numbers that answer a question of the list."""
    from shoal.mechanisms import from_dict

    m, kind, rounds = from_dict(question["mechanism"]), question["question"], question["rounds"]
    if kind == "rdp":
        both = [m.rdp(question["orders"], rounds=rounds, direction=way) for way in ("forward", "reverse")]
        return [float(x) for way in both for x in way]
    if kind.startswith("epsilon"):
        method = "rdp" if kind.endswith("rdp") else "tight"
        found = m.epsilon(delta=question["delta"], rounds=rounds, method=method)
    elif kind == "delta":
        found = m.delta(epsilon=question["epsilon"], rounds=rounds)
    elif kind == "tradeoff":
        found = m.tradeoff(question["fpr"], rounds=rounds)
    else:
        found = m.advantage(rounds=rounds)
    return [found.lower, found.upper]


SERIES = ((1, mechanisms, 300), (2, samplers, 40), (3, ordered, 10), (4, persons, 18))
"""Seed, generator and number of questions of each series."""


def key(line: dict[str, Any]) -> str:
    """The question of a line as text; parameters younger than the line are filled in."""
    from shoal.mechanisms import from_dict

    question = {name: value for name, value in line.items() if name != "answer"}
    return json.dumps({**question, "mechanism": from_dict(line["mechanism"]).to_dict()}, sort_keys=True)


def main() -> None:
    questions = []
    for seed, kinds, number in SERIES:
        rng = random.Random(seed)
        drawn = kinds(rng)
        questions += [asked(rng, next(drawn)) for _ in range(number)]
    before = [] if "--all" in sys.argv else json.loads(FILE.read_text())
    kept = {key(line): line for line in before}
    lines = [kept.get(key(q)) or {**q, "answer": answer(q)} for q in questions]
    FILE.write_text(json.dumps(lines).replace("}, {", "},\n{") + "\n")


if __name__ == "__main__":
    main()
