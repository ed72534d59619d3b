"""The accountant with Flower's shape, and Flower's own noise."""

import json
import math
import warnings

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from shoal import LocalGaussian, ShuffledCheckIn
from shoal.deployment.budget import BudgetAccountant

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet


def test_the_accountant_has_flowers_shape():
    from flwr.supercore.privacy_accounting import PrivacyAccountant

    for name in (
        "compose",
        "get_epsilon",
        "get_delta",
        "would_exceed",
        "state_dict",
        "load_state_dict",
        "num_releases",
    ):
        assert hasattr(PrivacyAccountant, name)
        assert hasattr(BudgetAccountant, name)


def test_the_accountant_agrees_with_the_mechanism():
    m = ShuffledCheckIn(users=200, rate=0.2, sigma=2.0, crowd="identical")
    a = BudgetAccountant(target_delta=1e-5, max_epsilon=1.0)
    a.compose(m, count=7)
    assert a.get_epsilon(1e-5) == float(m.epsilon(delta=1e-5, rounds=7))
    assert a.get_delta(0.1) == float(m.delta(epsilon=0.1, rounds=7))
    limit = float(m.epsilon(delta=1e-5, rounds=9))
    assert [a.would_exceed(m, max_epsilon=limit, count=c) for c in (1, 2, 3)] == [False, False, True]
    assert a.num_releases == 7
    b = BudgetAccountant(target_delta=1e-5)
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    assert b.state_dict() == a.state_dict()
    with pytest.raises(ValueError, match="max_epsilon must be given"):
        b.would_exceed(m)


@pytest.mark.parametrize("clip", [1.0, 10.0])
def test_flowers_local_dp_noise_is_what_the_page_says(clip):
    """Noise from the classical formula, whatever the clipping norm: see docs/explanation/trust.md."""
    from flwr.clientapp.mod import LocalDpMod

    asked = Message(
        RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(40_000))})}), dst_node_id=77, message_type="train"
    )
    asked.metadata.__dict__["_message_id"] = "1"
    mod = LocalDpMod(clip, 1.0, 10.0, 1e-5)  # clipping norm, sensitivity, epsilon, delta
    update = RecordDict({"arrays": ArrayRecord({"w": Array(np.full(40_000, 1e-9))})})  # it cannot clip zero
    reply = mod(asked, None, lambda m, c: Message(update, reply_to=m))
    found = float(reply.content["arrays"]["w"].numpy().std())
    assert found == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 10.0, rel=0.02)
    assert float(LocalGaussian(sigma=found * 0.98 / clip).epsilon(delta=1e-5)) > 10.0
