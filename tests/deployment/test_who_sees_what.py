"""What shuffler and analyst see in a whole run."""

import hashlib
import json
import sqlite3
import warnings

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats

from shoal.deployment.errors import RefusedReportError
from shoal.deployment.report import SUITE, unseal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
from deployment.parties import TASK, TEMPLATE, LocalAnalyst, federation, opened, shuffler


def everything(value, depth=0):
    """All bytes and texts in a message: what a curious shuffler could look at."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, str):
        yield value.encode()
    elif isinstance(value, dict) or hasattr(value, "items"):
        for k, v in value.items():
            yield from everything(k)
            yield from everything(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from everything(v)
    else:
        yield repr(value).encode()


@pytest.mark.usefixtures("forgetful_disk", "in_one_process")
def test_the_shuffler_sees_nothing_that_opens_or_tells_who_checked_in(tmp_path, home):
    nodes = federation(tmp_path, home, 40)
    strategy = shuffler(tmp_path, LocalAnalyst(home))
    strategy.start(nodes, TEMPLATE, num_rounds=2)
    strategy.journal.close()
    by_coin = {True: [], False: []}
    for number, replies in ((1, nodes.received[:40]), (2, nodes.received[40:])):
        for reply in replies:
            sealed = reply.content["report"]["sealed"]
            # All there is in a reply, beside what Flower writes about every message.
            assert sorted(everything(reply.content)) == sorted([b"report", b"sealed", sealed])
            right = home.key(number)
            for other in (X25519PrivateKey.generate(), right):
                for wrong in (number, 3 - number):
                    if other is right and wrong == number:
                        continue
                    with pytest.raises(RefusedReportError):
                        unseal(sealed, task=TASK, round_number=wrong, key=other)
            by_coin[opened(sealed, round_number=number, key=home.key(number))[1] is not None].append(reply)
    assert min(map(len, by_coin.values())) > 10
    for coin in by_coin.values():
        assert {len(r.content["report"]["sealed"]) for r in coin} == {TASK.length}
        assert {r.metadata.message_type for r in coin} == {"train"}
        counts = np.bincount(
            np.frombuffer(b"".join(r.content["report"]["sealed"] for r in coin), np.uint8), minlength=256
        )
        assert stats.chisquare(counts).pvalue > 1e-6  # bytes look the same: uniform
    answers = json.dumps([r["answer"] for r in home.rounds()])
    assert "reports" not in answers


@pytest.mark.usefixtures("forgetful_disk", "in_one_process")
def test_the_analyst_sees_and_stores_no_name_no_time_no_order(tmp_path, home):
    nodes = federation(tmp_path, home, 30)
    analyst = LocalAnalyst(home)
    requests = []
    analyst._http.event_hooks["request"].append(lambda r: requests.append((r.method, str(r.url), dict(r.headers))))
    strategy = shuffler(tmp_path, analyst)
    strategy.start(nodes, TEMPLATE, num_rounds=2)
    strategy.journal.close()
    arrived = [r.content["report"]["sealed"] for r in nodes.received]
    length = TASK.length
    for number, body in enumerate(analyst.bodies, 1):
        got = [body[i : i + length] for i in range(0, len(body), length)]
        sent = arrived[30 * (number - 1) : 30 * number]
        assert got != sent
        assert sorted(got) == sorted(sent)
        inside = [SUITE.decrypt(s, home.key(number), info=TASK.info(number)) for s in got]
        assert len({i[1:17] for i in inside}) == 30
        assert all(len(i) == 1 + 16 + 4 * 12 for i in inside)
    # Requests: a method, a path and headers that say nothing about nodes or times.
    allowed = {"host", "accept", "accept-encoding", "connection", "user-agent", "authorization", "content-type"}
    for _, url, headers in requests:
        assert set(headers) <= allowed | {"content-length", "transfer-encoding"}
        assert url.split("/v1/")[1].rstrip("0123456789") in {"rounds", "rounds/1/model", "rounds/1/reports"} | {
            f"rounds/{n}/{w}" for n in (2, 3) for w in ("model", "reports")
        }
    # The whole database: these tables and columns, and nothing in them of a node, a report or a moment.
    home.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db = sqlite3.connect(home.folder / "analyst.db")
    columns = {
        name: [c[1] for c in db.execute(f"PRAGMA table_info({name})")]
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    assert columns == {
        "settings": ["version", "settings"],
        "models": ["round", "vector"],
        "rounds": ["round", "batch", "users", "reports", "refused", "entry", "answer", "model", "chain"],
        "rosters": ["name", "digest", "place"],
    }
    for _, digest, *_ in db.execute("SELECT * FROM rounds"):
        assert digest in {hashlib.sha256(b).digest() for b in analyst.bodies}
    db.close()
    stored = b"".join(p.read_bytes() for p in home.folder.rglob("*") if p.is_file())
    for number, body in enumerate(analyst.bodies, 1):
        for i in range(0, len(body), length):
            inside = SUITE.decrypt(body[i : i + length], home.key(number), info=TASK.info(number))
            assert inside[1:17] not in stored
            assert body[i : i + 32] not in stored
    for node in nodes.desks:
        assert str(node).encode() not in stored
    assert {p.name for p in home.folder.iterdir()} <= {
        "analyst.db",
        "analyst.db-wal",
        "analyst.db-shm",
        "head",
        "keys",
        "lock",
        "password",
        "rosters",
        "sign.key",
    }
