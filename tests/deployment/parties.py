"""Registrar, nodes, shuffler and analyst of the tests: each alone and all in one process."""

import json
import mmap
import secrets
import warnings

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from typer.testing import CliRunner

from shoal.cli.app import app as command
from shoal.deployment import files, tokens
from shoal.deployment.analyst import Analyst, Settings
from shoal.deployment.analyst.service import analyst_app
from shoal.deployment.analyst_client import AnalystClient
from shoal.deployment.client import sealed_reports
from shoal.deployment.journal import Journal
from shoal.deployment.node import REFUSALS, Node, endorsement_terms, settings_digest, settings_fingerprint
from shoal.deployment.packing import packed_model
from shoal.deployment.report import opening_terms, report_values, seal, unseal
from shoal.deployment.shuffler import Shuffler
from shoal.deployment.state import join_task
from shoal.deployment.task import Task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet
    from fastapi.testclient import TestClient


def task(**fields):
    terms = {"minimum": 3, "epsilon": 50.0, "delta": 1e-5, "crowd": "identical"}
    return Task(**{"name": "test", "dimension": 12, "clip": 1.0, "sigma": 2.0, "rate": 0.5, **terms, **fields})


TASK = task()


TOKEN = b"t" * 16


def token_of(secret, *, task, round_number):
    """The token of a node in a round, from the secret that the registrar handed out."""
    return tokens.token(tokens.later_secret(secret, rounds=round_number - 1), task=task, round_number=round_number)


def opened(sealed, *, task=TASK, round_number, key, longest=None):
    """Token and numbers of a sealed report, None for a dummy's."""
    token, content = unseal(sealed, task=task, round_number=round_number, key=key)
    report, values = report_values(content, longest=task.longest if longest is None else longest)
    assert report or not values.any()
    return token, values if report else None


def signed(desk, number, *, size=12, signer=None, key=None, model=1.0):
    """The analyst's signature under a round whose model is all ones."""
    content = opening_terms(desk.node.fingerprint, number, np.full(size, model), (key or desk.key).public_key())
    return (signer or desk.signer).sign(content)


def endorsed(signer, options):
    """The signer's endorsement of settings."""
    digest = settings_digest(options["task"], epoch=options["epoch"], sealing=options["keys"])
    return signer.sign(endorsement_terms(settings_fingerprint(options["signer"], digest)))


class Desk:
    """One node, with a Flower context, and an app that returns what a test wants."""

    def __init__(self, folder, *, home=None, member=0, terms=TASK, joined=True, **fields):
        self.key, self.signer = X25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        self.secret = secrets.token_bytes(32) if home is None else home.secrets[member]
        given = folder / f"{secrets.token_hex(4)}.secret"
        given.write_text(tokens.secret_text(self.secret))
        if home is None:
            pub, signer = (self.key.public_key(),), self.signer.public_key()
            options = {
                "task": terms,
                "keys": pub,
                "epoch": 100,
                "signer": signer,
                "rounds": 5,
                "state": folder / "state",
            }
            options |= {"secret": given, **fields}
            self.node = Node(**options, endorsement=endorsed(self.signer, options))
        else:
            self.node = home.node(secret=given, **fields)
        self.path = folder / f"node-{secrets.token_hex(4)}.toml"
        self.path.write_text(self.node.to_toml())
        self.node = Node.read(self.path)
        if joined:
            join_task(self.node)
        self.context = Context(
            run_id=1, node_id=77, node_config={"shoal": str(self.path)}, state=RecordDict(), run_config={}
        )
        self._trained = mmap.mmap(-1, 1)  # shared with the process in which a training runs

    @property
    def trained(self):
        """How often the app was called."""
        return self._trained[0]

    @trained.setter
    def trained(self, count):
        self._trained[0] = count

    def ask(self, number, *, update=0.0, app=None, kind="train", size=12, signature=None, **config):
        signature = signed(self, number, size=size) if signature is None else signature
        sent = RecordDict(
            {
                "config": ConfigRecord(
                    {
                        **packed_model(ArrayRecord({"w": Array(np.ones(size, np.float32))})),
                        **{"round": number, "opening": signature, "fingerprint": self.node.fingerprint, **config},
                    }
                ),
            }
        )
        message = Message(sent, dst_node_id=77, message_type=kind)
        message.metadata.__dict__["_message_id"] = "1"

        def train(message, context):
            self.trained += 1
            arrays = ArrayRecord({"w": Array((np.ones(size) + update).astype(np.float32))})
            return Message(
                RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1234, "loss": 0.5})}),
                reply_to=message,
            )

        return sealed_reports(message, self.context, app or train)

    def sealed(self, *args, **kwargs):
        reply = self.ask(*args, **kwargs)
        assert not reply.has_error(), reply.error
        assert list(reply.content) == ["report"]
        assert list(reply.content["report"]) == ["sealed"]
        return reply.content["report"]["sealed"]

    def refused(self, *args, **kwargs):
        """The code by which a node refuses; its words are always those of the table."""
        reply = self.ask(*args, **kwargs)
        assert reply.has_error()
        assert reply.error.reason == REFUSALS[reply.error.code]
        return reply.error.code

    def opened(self, number, **kwargs):
        return opened(self.sealed(number, **kwargs), task=self.node.task, round_number=number, key=self.key)[1]


def setup(terms=TASK, **fields):
    return Settings(**{"task": terms, "rounds": 12, "epoch": 4, **fields})


def settle(folder, settings, *, nodes=80, model=None):
    """An analyst with a roster; `secrets` are those of its nodes."""
    made = Analyst.create(folder, settings, model=model)
    registrar = folder.with_name(folder.name + "-registrar")
    roster, given = tokens.enrol_nodes(registrar, task=settings.task, nodes=nodes, first=1, last=settings.rounds)
    made.admit(roster)
    made.secrets = [tokens.read_secret(path) for path in given]
    return made


def sealed_by(analyst, member, number, value, *, terms=None, key=None, token=None):
    """The sealed report of one of the nodes, or what somebody else has made of it."""
    own = analyst.settings.task if terms is None else terms
    pub = (analyst.key(number) if key is None else key).public_key()
    token = token_of(analyst.secrets[member], task=own, round_number=number) if token is None else token
    return seal(value, task=own, round_number=number, key=pub, token=token)


def batch(analyst, number, values, *, bad=()):
    return b"".join([*(sealed_by(analyst, i, number, v) for i, v in enumerate(values)), *bad])


def close_round(analyst, number, body, step=1000):
    receiving = analyst.receive(number)
    try:
        for start in range(0, len(body), step):
            receiving.feed(body[start : start + step])
        return json.loads(receiving.finish())
    finally:
        receiving.abandon()


def vectors(*numbers):
    return [None if n is None else np.full(12, float(n)) for n in numbers]


OCTETS = {"Content-Type": "application/octet-stream"}


class LocalAnalyst(AnalystClient):
    """The shuffler's client on a service in this process; the first `fail` requests do not get through."""

    def __init__(self, home, fail=0, patience=30.0):
        super().__init__(url="https://analyst", password=home.password, patience=patience)
        self._http = TestClient(analyst_app(home), headers={"Authorization": f"Bearer {home.password}"})
        self.fail = fail
        self.bodies = []

    def _ask(self, request, allowed=(200,)):
        def unreliable():
            if self.fail > 0:
                self.fail -= 1
                raise httpx.ConnectError("no analyst")
            return request()

        return super()._ask(unreliable, allowed)

    def deliver(self, number, batch):
        self.bodies.append(batch.read_bytes()[: -files.SUM_BYTES])
        return super().deliver(number, batch)


class Federation:
    """Flower's grid with nodes in this process; some never answer, some answer with an error."""

    FIRST = 7_309_155_001_778_312_001  # Flower's node ids have 64 bits

    def __init__(self, desks, silent=(), broken=()):
        self.desks = dict(enumerate(desks, self.FIRST))
        self.silent, self.broken = ([self.FIRST + i for i in places] for places in (silent, broken))
        self.received, self.waiting = [], {}

    def get_node_ids(self):
        return list(self.desks)

    def push_messages(self, messages):
        ids = []
        for m in messages:
            name = f"m{len(self.waiting)}"
            m.metadata.__dict__["_message_id"] = name
            self.waiting[name] = m
            ids.append(name)
        return ids

    def pull_messages(self, ids):
        found = []
        for name in ids:
            m = self.waiting[name]
            node = m.metadata.dst_node_id
            if node in self.silent:
                continue
            if node in self.broken:
                reply = Message(Error(code=3, reason="gone"), reply_to=m)
            else:
                config = m.content["config"]
                desk = self.desks[node]
                reply = sealed_reports(m, desk.context, lambda message, _: Message(message.content, reply_to=message))
                assert config["round"] >= 1
            reply.metadata.__dict__["_reply_to_message_id"] = name
            self.received.append(reply)
            found.append(reply)
        return found


TEMPLATE = ArrayRecord({"w": Array(np.zeros((3, 4), np.float32))})


def federation(tmp_path, home, nodes, **kwargs):
    return Federation([Desk(tmp_path, home=home, member=i, state=tmp_path / f"s{i}") for i in range(nodes)], **kwargs)


def shuffler(tmp_path, analyst, **kwargs):
    options = {"minimum": 3, "timeout": 0.5, "poll": 0.01, **kwargs}
    return Shuffler(analyst=analyst, journal=Journal(tmp_path / "journal"), **options)


def invoke(*words):
    result = CliRunner().invoke(command, [str(w) for w in words])
    assert result.exit_code == 0, result.output
    return result.output
