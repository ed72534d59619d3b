"""Sealed reports: what is inside, what they are bound to, what is refused."""

import json
import warnings

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from shoal.deployment.errors import RefusedReportError
from shoal.deployment.packing import packed_model, unpacked_model
from shoal.deployment.report import SUITE, seal, unseal
from shoal.deployment.task import PROTOCOL
from shoal.errors import DataError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import TASK, TOKEN, opened, task


def test_a_report_comes_back_as_it_was(key):
    values = np.linspace(-3, 3, 12)
    token, found = opened(
        seal(values, task=TASK, round_number=7, key=key.public_key(), token=TOKEN), task=TASK, round_number=7, key=key
    )
    assert token == TOKEN
    np.testing.assert_array_equal(found, values.astype(np.float32))


def test_reports_and_dummies_have_one_length_and_nothing_in_common(key):
    pub = key.public_key()
    sealed = [
        seal(v, task=TASK, round_number=1, key=pub, token=TOKEN) for v in (None, None, np.zeros(12), np.full(12, 4.0))
    ]
    assert {len(s) for s in sealed} == {TASK.length} == {48 + 1 + 16 + 48}
    assert len({s[i : i + 8] for s in sealed for i in range(0, TASK.length - 8)}) == 4 * (TASK.length - 8)
    assert opened(sealed[0], round_number=1, key=key)[1] is None


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"clip": 2.0},
        {"sigma": 1.9},
        {"rate": 0.51},
        {"minimum": 1_000},
        {"epsilon": 1.0},
        {"delta": 1e-6},
        {"crowd": "any"},
        {"corrupt": 1},
        {"noise": "simulation"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_a_report_is_bound_to_every_parameter(key, change):
    sealed = seal(np.ones(12), task=task(**change), round_number=1, key=key.public_key(), token=TOKEN)
    with pytest.raises(RefusedReportError, match="seal"):
        unseal(sealed, task=TASK, round_number=1, key=key)


def test_a_report_is_bound_to_its_round_and_key(key):
    sealed = seal(np.ones(12), task=TASK, round_number=3, key=key.public_key(), token=TOKEN)
    for number, opener in ((4, key), (3, X25519PrivateKey.generate())):
        with pytest.raises(RefusedReportError, match="seal"):
            unseal(sealed, task=TASK, round_number=number, key=opener)


def test_every_flipped_bit_is_refused(key):
    sealed = seal(np.ones(12), task=TASK, round_number=1, key=key.public_key(), token=TOKEN)
    opened = 0
    for place in range(0, 8 * len(sealed), 5):
        bad = bytearray(sealed)
        bad[place // 8] ^= 1 << place % 8
        with pytest.raises(RefusedReportError, match="seal"):
            unseal(bytes(bad), task=TASK, round_number=1, key=key)
        opened += 1
    assert opened > 100


@pytest.mark.parametrize("length", [0, 1, 48, TASK.length - 1, TASK.length + 1])
def test_wrong_lengths_are_refused(key, length):
    with pytest.raises(RefusedReportError, match="length"):
        unseal(b"x" * length, task=TASK, round_number=1, key=key)


@pytest.mark.parametrize("inside", [b"\x02" + bytes(64), b"\x01" + bytes(16) + np.full(12, np.nan, "<f4").tobytes()])
def test_nonsense_inside_a_good_seal_is_refused(key, inside):
    sealed = SUITE.encrypt(inside, key.public_key(), info=TASK.info(1))
    with pytest.raises(RefusedReportError, match="content"):
        opened(sealed, round_number=1, key=key)


def test_info_says_what_a_report_is_bound_to():
    said = json.loads(TASK.info(9))
    assert said == {
        "protocol": PROTOCOL,
        "name": "test",
        "dimension": 12,
        "clip": 1.0,
        "sigma": 2.0,
        "rate": 0.5,
        "minimum": 3,
        "epsilon": 50.0,
        "delta": 1e-5,
        "crowd": "identical",
        "corrupt": 0,
        "noise": "secure",
        "round": 9,
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "A b"}, "name must be"),
        ({"dimension": 0}, "dimension must be at least 1, got 0"),
        ({"clip": -1.0}, "clip must lie between"),
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"rate": 1.5}, "rate must be above 0 and at most 1"),
        ({"minimum": 1}, "minimum must be at least 2, got 1"),
        ({"minimum": 4, "corrupt": 3}, "minimum must be at least 5, got 4"),
        ({"noise": "none"}, "noise must be one of secure, simulation"),
    ],
)
def test_bad_tasks_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        task(**fields)


def test_a_model_travels_as_one_record_and_comes_back_as_it_was():
    """Flower would request each array by itself; a hundred layers are one record here."""
    arrays = {f"layer {i}": np.random.default_rng(i).normal(size=(i % 3, 2)).astype("f4") for i in range(100)}
    arrays |= {"number": np.array(0.5), "double": np.arange(3.0)}
    config = packed_model(ArrayRecord({name: Array(a) for name, a in arrays.items()}))
    sent = Message(RecordDict({"config": ConfigRecord(config)}), dst_node_id=1, message_type="train")
    assert len(get_all_nested_objects(sent)) == 3  # the message, its content, and the one record of it
    found = {name: array.numpy() for name, array in unpacked_model(sent.content["config"]).items()}
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    "layout",
    [
        "",
        "{}",
        "7",
        '[["w", [3], "float32"]]',
        '[["w", [-1, -4], "float32"]]',
        '[["w", [4], "object"]]',
        '[["w", [4]]]',
    ],
)
def test_a_layout_that_is_not_that_of_the_model_is_refused(layout):
    with pytest.raises(DataError):
        unpacked_model({"model": bytes(16), "layout": layout})
    with pytest.raises(DataError):
        unpacked_model({"model": bytes(15), "layout": '[["w", [4], "float32"]]'})
    with pytest.raises(DataError):
        unpacked_model({})
