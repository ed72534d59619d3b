"""The analyst as a web service."""

import base64
import collections
import re
import threading

import numpy as np
import pytest

from deployment.parties import OCTETS, TestClient, batch, close_round, settle, setup, task, vectors
from shoal.deployment import keys
from shoal.deployment.analyst.service import Waiting, analyst_app
from shoal.deployment.node import settings_fingerprint
from shoal.deployment.report import opening_terms


def test_the_service_closes_a_round(web, home):
    asked = web.post("/v1/rounds").json()
    signature = base64.b64decode(asked.pop("opening"))
    signer = keys.signing_key(asked.pop("signer"))
    assert settings_fingerprint(signer, bytes.fromhex(asked.pop("settings"))) == home.fingerprint
    assert asked == {"round": 1, "length": 113, "dimension": 12, "minimum": 3, "maximum": 1_000_000}
    signer.verify(signature, opening_terms(home.fingerprint, 1, np.zeros(12), home.key(1).public_key()))
    assert signer == home.signer.public_key()
    assert web.get("/v1/rounds/1/model").content == bytes(48)
    body = batch(home, 1, vectors(1, 2, 3))
    first = web.put("/v1/rounds/1/reports", content=body, headers=OCTETS)
    assert first.status_code == 200
    assert first.json()["users"] == 3
    assert "reports" not in first.json()  # how many checked in is not the shuffler's business
    assert web.put("/v1/rounds/1/reports", content=body, headers=OCTETS).content == first.content
    refused = web.put("/v1/rounds/1/reports", content=batch(home, 1, vectors(1, 2, 3)), headers=OCTETS)
    assert (refused.status_code, refused.json()["detail"]) == (409, "round 1 is closed, with another batch")
    assert web.get("/v1/rounds/1/model").status_code == 409
    np.testing.assert_allclose(np.frombuffer(web.get("/v1/rounds/2/model").content, "<f4"), np.full(12, 4.0))


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic abc", "Bearer "])
def test_only_the_shuffler_may_ask(home, given):
    web = TestClient(analyst_app(home), headers={} if given is None else {"Authorization": given})
    for method, path in (("POST", "/v1/rounds"), ("GET", "/v1/rounds/1/model"), ("PUT", "/v1/rounds/1/reports")):
        assert web.request(method, path, headers=OCTETS).status_code == 401
    assert web.get("/v1/health").status_code == 204


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/rounds/1/reports", b"x" * 113, 422),
        ("/v1/rounds/1/reports", b"x" * 400, 422),
        ("/v1/rounds/1/reports", b"x" * 113 * 5, 422),
        ("/v1/rounds/2/reports", b"x" * 113 * 5, 409),
        ("/v1/rounds/0/reports", b"x" * 113 * 5, 422),
        ("/v1/rounds/99999999999999/reports", b"", 422),
        ("/v1/rounds/one/reports", b"", 422),
    ],
)
def test_refusals_are_clear(web, path, content, status):
    answer = web.put(path, content=content, headers=OCTETS)
    assert answer.status_code == status
    assert re.search("must|expected", answer.json()["detail"])


def test_a_batch_that_is_too_large_is_refused_with_and_without_its_length(tmp_path):
    home = settle(tmp_path / "small", setup(maximum=4))
    web = TestClient(analyst_app(home), headers={"Authorization": f"Bearer {home.password}", **OCTETS})
    body = batch(home, 1, vectors(1, 2, 3, 4, 5))
    assert web.put("/v1/rounds/1/reports", content=body).status_code == 413
    assert web.put("/v1/rounds/1/reports", content=iter([body[:300], body[300:]])).status_code == 413
    assert web.put("/v1/rounds/1/reports", content=body[: 113 * 4]).status_code == 200
    home.close()


def test_strangers_are_answered_a_few_at_a_time_and_the_shuffler_always(home):
    app = analyst_app(home)
    stranger, known = TestClient(app), TestClient(app, headers={"Authorization": f"Bearer {home.password}"})
    seen = collections.Counter(stranger.get("/v1/health").status_code for _ in range(300))
    assert seen[429] > 100
    assert seen[204] >= 50
    assert {known.post("/v1/rounds").status_code for _ in range(100)} == {200}


def test_one_batch_at_a_time(web, home):
    receiving = home.receive(1)
    answer = web.put("/v1/rounds/1/reports", content=b"", headers=OCTETS)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    receiving.abandon()
    assert web.put("/v1/rounds/1/reports", content=batch(home, 1, vectors(1, 2, 3)), headers=OCTETS).is_success


def test_an_exhausted_budget_is_a_refusal(tmp_path):
    home = settle(tmp_path / "poor", setup(task(epsilon=0.01)))
    web = TestClient(analyst_app(home), headers={"Authorization": f"Bearer {home.password}", **OCTETS})
    assert web.post("/v1/rounds").status_code == 403
    assert web.put("/v1/rounds/1/reports", content=batch(home, 1, vectors(1, 2, 3))).status_code == 403
    assert "could exceed the budget of epsilon = 0.01" in web.post("/v1/rounds").json()["detail"]
    home.close()


def test_a_folder_that_is_damaged_meanwhile_is_said_in_the_analysts_own_log(web, home, capsys):
    close_round(home, 1, batch(home, 1, vectors(1, 2, 3)))
    home.database.execute("UPDATE rounds SET users = 9")
    answer = web.put("/v1/rounds/2/reports", content=batch(home, 2, vectors(1, 2, 3)), headers=OCTETS)
    assert answer.status_code == 500
    assert answer.json() == {"detail": "the analyst's folder is damaged, its own log says how"}
    assert "line for round 1 is not as it was written; restore" in capsys.readouterr().err


def test_deliveries_at_once_count_once(web, home):
    body = batch(home, 1, vectors(*range(40)))
    answers = []

    def deliver():
        answers.append(web.put("/v1/rounds/1/reports", content=body, headers=OCTETS))

    threads = [threading.Thread(target=deliver) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {a.status_code for a in answers} <= {200, 503}
    assert len({a.content for a in answers if a.is_success}) == 1
    assert len(home.rounds()) == 1


class Line:
    """A connection as far as the service's doorkeeper knows it."""

    def __init__(self, address):
        self.address, self.closed = address, False

    def get_extra_info(self, name):
        return (self.address, 1) if name == "peername" and not self.closed else None

    def abort(self):
        self.closed = True


def test_who_has_many_connections_closes_their_own_and_nobody_elses():
    waiting, shuffler = Waiting(64), Line("10.0.0.1")
    waiting.add(shuffler)
    flood = [Line("10.0.0.2") for _ in range(5_000)]
    for line in flood:
        waiting.add(line)
    assert not shuffler.closed
    assert [line.closed for line in flood] == [True] * (5_000 - 63) + [False] * 63
    assert len(waiting) == 64
    for line in [shuffler, *flood]:  # in whatever state they are
        line.closed = True
        waiting.remove(line)
    assert len(waiting) == 0
