"""A node, an analyst with a roster and its service, for the tests of the deployment."""

import os
import sqlite3
import sys

import pytest

OLD = sys.version_info < (3, 11)
"""Flower needs Python 3.11: on an older one nothing here is collected."""
collect_ignore_glob = ["*.py"] if OLD else []

if not OLD:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from flwr.supercore.task_identity import TaskIdentity

    from deployment.parties import Desk, TestClient, settle, setup
    from shoal.deployment import client
    from shoal.deployment.analyst.service import analyst_app


@pytest.fixture(autouse=True)
def inside_a_flower_process(monkeypatch):
    """What Flower sets in the processes that run an app: messages are stamped with it."""
    for name, value in {"_task_id": 5, "_run_id": 1, "_node_id": 77}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture
def forgetful_disk(monkeypatch):
    """Hundreds of files, none of which must last."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def in_one_process(monkeypatch):
    """Hundreds of trainings that harm nobody: a process for each would take its time."""
    monkeypatch.setattr(client, "vector_apart", lambda train, **_: train())


@pytest.fixture
def key():
    return X25519PrivateKey.generate()


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    """All databases, at the end: Python 3.13 complains of one left open, in whichever test it then runs."""
    opened, connect = [], sqlite3.connect

    def kept(*args, **options):
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", kept)
    yield
    for db in opened:
        db.close()


@pytest.fixture
def home(tmp_path):
    made = settle(tmp_path / "analyst", setup())
    yield made
    made.close()


@pytest.fixture
def web(home):
    with TestClient(analyst_app(home), headers={"Authorization": f"Bearer {home.password}"}) as client:
        yield client
