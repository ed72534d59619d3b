"""The protocol as real processes on loopback: killed in the middle, simulated, and fuzzed."""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
import types

import httpx
import numpy as np
import pytest
import schemathesis
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi.checks import positive_data_acceptance

from deployment.parties import token_of
from shoal import Accountant, ShuffledCheckIn
from shoal.deployment import digits, files, gate, keys, link, local_machine, tokens
from shoal.deployment.analyst import Analyst, Settings
from shoal.deployment.analyst import service as service_module
from shoal.deployment.analyst.service import ImpatientProtocol, analyst_app
from shoal.deployment.report import seal
from shoal.deployment.task import Task


def setup(*, minimum, dimension=None, **fields):
    size = digits.dimension() if dimension is None else dimension
    terms = {"minimum": minimum, "epsilon": 1e4, "delta": 1e-5, "clip": 1.0, "sigma": 0.5, "rate": 0.75}
    task = Task(**{"name": "digits", "dimension": size, **terms, **fields})
    return Settings(task=task, rounds=6, epoch=2)


def wait_for(what, condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} seconds"
        time.sleep(0.05)
    return found


def processes(word, machine):
    """Processes of a machine (they share Flower's home) whose command line names `word`."""
    found, mark = [], f"FLWR_HOME={machine.folder / 'flwr'}".encode()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if any(w.endswith(word.encode()) for w in words) and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def closed(machine):
    with contextlib.closing(Analyst.read(machine.analyst_home)) as analyst:
        return analyst.rounds()


def answered(machine):
    """The last round that each node has answered."""
    found = [path.read_bytes() for path in (machine.folder / "state").glob("*/digits.state")]
    return [json.loads(content.partition(b"\n")[0])["last"] for content in found]


def expected(rounds):
    """What the accountant says of the rounds that happened."""
    total = Accountant()
    for row in rounds:
        total.compose(ShuffledCheckIn(users=row["users"], rate=0.75, sigma=0.5))
    return total


def test_a_deployment_survives_kill_9_of_analyst_serverapp_and_client(tmp_path):
    machine = local_machine.Machine(folder=tmp_path / "d", rounds=3, timeout=240.0)
    with local_machine.deployment(machine, setup(minimum=2), nodes=3):
        first = machine.submit()

        # The analyst dies in round 2, which is then collected and cannot be delivered ...
        wait_for("a node's answer in round 2", lambda: 2 in answered(machine))
        machine.stop("analyst", kill=True)
        journal = machine.folder / "journal" / "round-0000000002.batch"
        wait_for("the batch of round 2", journal.exists)
        batch = journal.read_bytes()[: -files.SUM_BYTES]

        # ... then the ServerApp dies with the batch in its journal.
        (server,) = processes("flwr-serverapp", machine)
        os.kill(server, signal.SIGKILL)
        assert len(closed(machine)) == 1
        machine.enough, machine.grace = 0.6, 1.0  # two of three will do, and the third is not waited for
        machine.set_up(setup(minimum=2), nodes=3)
        machine.start_analyst()
        second = machine.submit()
        wait_for("round 2", lambda: len(closed(machine)) == 2)

        # A client dies in round 3 and stays away.
        machine.stop("node-2", kill=True)
        rounds = local_machine.follow(machine, second, lambda row: None)
        assert machine.run_status(first) != "finished:completed"

        # The one that was killed does not get into the way of the rest: nothing lost, nothing twice.
        assert [r["round"] for r in rounds] == [1, 2, 3]
        assert [r["users"] for r in rounds] == [3, 3, 2]
        assert all(sum(r["refused"].values()) == 0 for r in rounds)
        with contextlib.closing(Analyst.read(machine.analyst_home)) as analyst:
            stored = dict(analyst.database.execute("SELECT round, batch FROM rounds"))
            model, ledger = analyst.present()[1], analyst.accountant()
        assert stored[2] == hashlib.sha256(batch).digest()  # round 2 is the batch that was journalled, in its order
        assert not list((machine.folder / "journal").glob("round-*"))

        # The ledger is the accountant's account of exactly these rounds.
        assert ledger.state_dict() == expected(rounds).state_dict()
        assert rounds[-1]["answer"]["epsilon"]["upper"] == float(expected(rounds).epsilon(delta=1e-5))
        assert rounds[-1]["answer"]["crowd"] == "any"
        assert np.isfinite(model).all()
        assert model.any()

        assert sorted(answered(machine))[1:] == [3, 3]
        # All that listens, listens on loopback and speaks TLS; Flower sends nothing home.
        assert machine.environment()["FLWR_TELEMETRY_ENABLED"] == "0"
        assert machine.environment()["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        for port in machine.ports.values():
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).raise_for_status()
        listening = addresses(machine)
        assert {port for _, port in listening} > set(machine.ports.values())  # and the nodes' own
        assert {ip for ip, _ in listening} == {"127.0.0.1"}
        check_traces(machine, batch)
        # The analyst's log names nobody.
        said = machine.log("analyst").read_text()
        ids = re.findall(r"SuperNode ID: (\d+)", "".join(machine.log(f"node-{i}").read_text() for i in range(3)))
        assert len(ids) == 3
        said += machine.log("superlink").read_text() + machine.log("proxy").read_text()  # nor do the shuffler's
        assert not [i for i in ids if i in said]
        assert "any crowd" in said

        check_restart(machine)
        check_app(machine)
    assert not machine.processes


def known(machine):
    """The nodes that the SuperLink knows, and whether they are online."""
    return {node["node-id"]: node["status"] for node in machine.flwr("supernode", "list", "shoal")["nodes"]}


def check_restart(machine):
    """A SuperLink that is started anew knows no node; each ends, starts again, and is let in by the gate."""
    assert "Traceback" not in machine.log("analyst").read_text()
    before = known(machine)
    machine.stop("superlink", kill=True)
    machine.start_superlink("--enable-supernode-auth", FLWR_LOG_LEVEL="WARNING")
    assert known(machine) == {}
    wait_for("the nodes", lambda: list(known(machine).values()) == ["online"] * 2)
    assert not set(known(machine)) & set(before)


def check_app(machine):
    """The operator's own app takes what it likes from nodes that run it: the nodes run the agreed one only."""
    agreed, other = machine.folder / "app", machine.folder / "other"
    shutil.copytree(agreed, other)
    (other / "thief.py").write_text(
        f"from {local_machine.APP} import client_app\nprint('this app runs', flush=True)\n__all__ = ['client_app']\n"
    )
    project = (other / "pyproject.toml").read_text()
    mine = project.replace(f'clientapp = "{local_machine.APP}:', 'clientapp = "thief:')
    assert mine != project
    (other / "pyproject.toml").write_text(mine)
    machine.rounds, machine.app = 4, other
    refused = machine.submit()
    wait_for("the end of the run", lambda: machine.run_status(refused).startswith("finished"))
    for place in (0, 1):
        said = machine.log(f"node-{place}").read_text()
        assert "could not be verified" in said
        assert "this app runs" not in said
    assert len(closed(machine)) == 3
    machine.app = agreed
    rounds = local_machine.follow(machine, machine.submit(), lambda row: None)
    assert [r["users"] for r in rounds] == [3, 3, 2, 2]


def check_traces(machine, batch):
    """Nothing of a sealed report is left with SuperLink, proxy, shuffler or analyst; nothing secret is said aloud."""
    length = setup(minimum=2).task.length
    secret = [(machine.analyst_home / "password").read_bytes().strip(), *secrets_of(machine)]
    assert len(secret) == 7
    for path in machine.folder.rglob("*"):
        if path.is_file() and (machine.folder / "state") not in path.parents:
            content = path.read_bytes()
            assert not [i for i in range(0, len(batch), length) if batch[i : i + 32] in content], path
            assert path.name == "password" or not [s for s in secret if s in content], path
    for pid in of(machine):
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            assert not [s for s in secret if s in words]


def of(machine):
    """All processes that a machine has started, by their sessions."""
    sessions = {process.pid for process in machine.processes.values()}
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) in sessions:
                found.append(int(folder.name))
    return found


def addresses(machine):
    """Where the processes of a machine listen."""
    inodes = set()
    for pid in of(machine):
        for entry in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(entry))
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = pathlib.Path("/proc/net") / name
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                raw, port = fields[1].split(":")
                words = [bytes.fromhex(raw[i : i + 8])[::-1] for i in range(0, len(raw), 8)]  # in the machine's order
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


def secrets_of(machine):
    """The nodes' secrets, in the ways in which they are written."""
    for path in (machine.folder / "state").glob("*/digits.state"):
        text = json.loads(path.read_bytes().partition(b"\n")[0])["secret"]
        yield from (text.encode(), tokens.secret_text(bytes.fromhex(text)).encode())


def test_from_an_empty_folder_to_a_federation_with_ones_own_model(tmp_path):
    """The commands of the how-to, as they stand there: a new app, simulated, then deployed."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "howto" / "flower.md").read_text()
    (block,) = re.findall(r"^```sh\n(shoal flower new.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) <= 10
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind, users, noise in (("simulation", [10, 10], "simulation"), ("deployment", [3], "secure")):
        with contextlib.closing(Analyst.read(tmp_path / "out" / f"flower-{kind}" / "analyst")) as analyst:
            assert [r["users"] for r in analyst.rounds()] == users
            assert analyst.settings.task.noise == noise
            assert analyst.settings.task.dimension == 15
            assert analyst.present()[1].any()


# ------------------------------------------------------------------------------------ strangers


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A SuperLink behind gate and proxy; `outside` is who comes from there, `inside` who is on its machine."""
    if local_machine.nginx() is None:
        pytest.skip("nginx is not installed, and could not be (make test tries apt-get)")
    machine = local_machine.Machine(folder=tmp_path_factory.mktemp("door"), rounds=1)
    machine.set_up(setup(minimum=2), nodes=2)
    context = httpx.create_ssl_context(verify=str(machine.tls / "ca.pem"))
    machine.outside, machine.inside = (
        httpx.Client(base_url=f"https://127.0.0.1:{machine.ports[p]}", verify=context, timeout=60, trust_env=False)
        for p in ("proxy", "superlink")
    )
    try:
        machine.start_superlink("--enable-supernode-auth")
        machine.start_gate()
        machine.start_proxy()
        yield machine
    finally:
        machine.outside.close()
        machine.inside.close()
        machine.stop_all()


KIND = {"Content-Type": "application/protobuf"}


def shown_by(private):
    """The headers by which a node with this key shows who it is."""
    request = httpx.Request("POST", "https://x")
    NodeAuthHttpInterceptor(private, private.public_key()).intercept(
        types.SimpleNamespace(request=request), lambda c: None
    )
    headers = {k: v for k, v in request.headers.items() if k.startswith("flwr-")} | KIND
    assert len(headers) == 4
    return headers


def let_in(machine, name):
    """A key whose public half is in the gate's folder."""
    path = machine.folder / f"{name}.key"
    keys.make_node_key(path)
    shutil.copy(f"{path}.pub", machine.gate_home / gate.NODE_KEYS)
    return load_ssh_private_key(path.read_bytes(), password=None)


def active(machine, private):
    """The node with this key, as the SuperLink knows it after it has been activated through the proxy."""
    sent = ActivateNodeRequest(public_key=public_key_to_bytes(private.public_key()), heartbeat_interval=30)
    answer = machine.outside.post(
        "/v1/fleet/activate-node", content=sent.SerializeToString(), headers=shown_by(private)
    )
    assert answer.status_code == 200
    return NodeProto(node_id=ActivateNodeResponse.FromString(answer.content).node_id)


def announced(machine, word, headers, size):
    """The status of a request of which only the head is sent, with the size of its body."""
    context = ssl.create_default_context(cafile=str(machine.tls / "ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", machine.ports["proxy"], context=context, timeout=60)
    try:
        connection.putrequest("POST", f"/v1/fleet/{word}")
        for name, value in {**headers, "Content-Length": str(size)}.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_stranger_with_address_and_certificate_gets_nothing(door, tmp_path):
    """What a stranger did before: register a node, submit an app, read what is there. Now behind gate and proxy."""
    stranger, inside = door.outside, door.inside
    served = set(inside.get("/openapi.json").json()["paths"])
    assert {"/v1/control/start-run", "/v1/control/register-node", "/v1/fleet/pull-messages"} <= served
    passed = {f"/v1/fleet/{word}" for word in link.FLEET}
    assert passed <= served
    tricks = (
        "/v1/fleet/../control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "//v1//control/list-nodes",
        "/v1/fleet/pull-messages;/../control/list-nodes",
        "/v1/CONTROL/list-nodes",
        "/authorise",
        "/openapi.json",
        "/docs",
        "/",
    )
    for path in sorted(served - passed) + list(tricks):
        for method in ("POST", "GET"):
            url = httpx.URL(str(stranger.base_url), raw_path=path.encode())
            assert stranger.request(method, url, content=b"").status_code in (400, 403, 404), path
    # What is passed on is asked for a node's signature, by the gate before the SuperLink.
    own, sent = ec.generate_private_key(ec.SECP384R1()), ActivateNodeRequest(heartbeat_interval=30)
    for path in sorted(passed):
        assert inside.post(path, content=b"", headers=KIND).status_code == 401, path
        assert stranger.post(path, content=b"", headers=KIND).status_code == 401, path
        assert stranger.get(path).status_code == 403
        # A key of the stranger's own, with a good signature, is not one that the operator has let in.
        assert stranger.post(path, content=sent.SerializeToString(), headers=shown_by(own)).status_code == 401

    # Flower's own commands, with a configuration of the stranger's.
    elsewhere = tmp_path / "stranger"
    elsewhere.mkdir()
    (elsewhere / "config.toml").write_text(
        f'[superlink.theirs]\naddress = "127.0.0.1:{door.ports["proxy"]}"\n'
        f'root-certificates = "{door.tls / "ca.pem"}"\n'
    )
    keys.make_node_key(elsewhere / "node.key")
    for words in (
        ["run", str(door.folder / "app"), "theirs"],
        ["supernode", "register", "node.key.pub", "theirs"],
    ):
        done = subprocess.run(
            ["flwr", *words],
            env={**door.environment(), "FLWR_HOME": str(elsewhere)},
            cwd=elsewhere,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0, (words, done.stdout)
    assert door.flwr("list", "shoal")["runs"] == []
    assert door.flwr("supernode", "list", "shoal")["nodes"] == []


def resident(process):
    """The memory of a process, in MiB."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def test_bodies_of_strangers_do_not_reach_the_superlink(door):
    """Forty connections of one stranger, each with an object of some megabytes: Flower would read and parse each."""
    before, statuses = resident(door.processes["superlink"]), []
    context = httpx.create_ssl_context(verify=str(door.tls / "ca.pem"))
    own = ec.generate_private_key(ec.SECP384R1())

    def flood():
        with (
            contextlib.suppress(httpx.TransportError),  # nginx hangs up on who goes on sending
            httpx.Client(base_url=str(door.outside.base_url), verify=context, trust_env=False) as stranger,
        ):
            body = (bytes(1 << 20) for _ in range(8))
            statuses.append(stranger.post("/v1/fleet/push-object", content=body, headers=shown_by(own)).status_code)

    threads = [threading.Thread(target=flood) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {401, 503}
    assert resident(door.processes["superlink"]) - before < 20.0  # MiB, of 320 that were sent


def test_a_node_of_the_folder_is_let_in_and_is_refused_once_its_key_is_removed(door):
    private = let_in(door, "first")
    node = active(door, private)  # the SuperLink, which knew no node, was told of it by the gate
    (listed,) = door.flwr("supernode", "list", "shoal")["nodes"]
    assert listed["node-id"] == str(node.node_id)
    assert active(door, private) == node  # it was killed, and starts again: the SuperLink thinks that it is there
    poll = PullMessagesRequest(node=node).SerializeToString()
    assert door.outside.post("/v1/fleet/pull-messages", content=poll, headers=shown_by(private)).status_code == 200
    # Small bodies for all but objects, and these have an end as well.
    for word, size in (("pull-messages", link.SMALL_BODY), ("get-run", link.SMALL_BODY), ("push-object", 64 << 20)):
        assert announced(door, word, shown_by(private), size + 1) == 413, word
    (door.gate_home / gate.NODE_KEYS / "first.key.pub").unlink()
    for word in link.FLEET:
        answer = door.outside.post(f"/v1/fleet/{word}", content=poll, headers=shown_by(private))
        assert answer.status_code == 401, word


def test_a_node_replies_in_its_own_name_only(door):
    """From the SuperLink to the SuperLink, or as another node: Flower looks at who signs, and not at the message."""
    private = let_in(door, "second")
    node = active(door, private)
    for source, target, answered in ((1, 1, ""), (7, 1, "m"), (node.node_id, 1, ""), (node.node_id, 7, "m")):
        metadata = Metadata(src_node_id=source, dst_node_id=target, reply_to_message_id=answered, run_id=1)
        pushed = PushMessagesRequest(node=node, messages_list=[MessageProto(metadata=metadata)])
        answer = door.outside.post(
            "/v1/fleet/push-messages", content=pushed.SerializeToString(), headers=shown_by(private)
        )
        assert answer.status_code == 403
    answer = door.outside.post("/v1/fleet/push-messages", content=b"\xff", headers=shown_by(private))
    assert answer.status_code == 400


def test_the_proxy_talks_to_nobody_but_the_superlink(door, tmp_path):
    """Not to one with a certificate of another authority."""
    private = let_in(door, "third")
    right = (door.tls / "ca.pem").read_bytes()
    keys.make_certificates(tmp_path / "other")
    (door.tls / "ca.pem").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
    try:
        for name, start in (("gate", door.start_gate), ("proxy", door.start_proxy)):
            door.stop(name)
            start()
        for word in ("get-run", "pull-messages"):  # one that nginx passes on, and one that the gate does
            assert door.outside.post(f"/v1/fleet/{word}", content=b"", headers=shown_by(private)).status_code == 502
        assert "certificate verify" in door.log("proxy").read_text()
    finally:
        (door.tls / "ca.pem").write_bytes(right)
        for name, start in (("gate", door.start_gate), ("proxy", door.start_proxy)):
            door.stop(name)
            start()


@pytest.fixture
def alone(tmp_path):
    """An analyst as a process of its own, with two nodes' secrets."""
    machine = local_machine.Machine(folder=tmp_path / "m", rounds=1)
    machine.set_up(setup(minimum=2, dimension=4, crowd="identical"), nodes=3)
    machine.secrets = [tokens.read_secret(p) for p in sorted((machine.folder / "registrar" / "secrets").iterdir())]
    machine.start_analyst()
    with contextlib.closing(Analyst.read(machine.analyst_home)) as analyst:
        machine.reader = analyst
        yield machine
    machine.stop_all()


def deliver(machine, number, body, **options):
    return httpx.put(
        f"https://127.0.0.1:{machine.ports['analyst']}/v1/rounds/{number}/reports",
        content=body,
        headers={
            "Authorization": f"Bearer {machine.reader.password}",
            "Content-Type": "application/octet-stream",
        },
        verify=httpx.create_ssl_context(verify=str(machine.tls / "ca.pem")),
        timeout=60,
        trust_env=False,
        **options,
    )


def reports(machine, number, values):
    task, key = machine.reader.settings.task, machine.reader.public_keys()[(number - 1) // 2]
    return [
        seal(
            np.full(4, v),
            task=task,
            round_number=number,
            key=key,
            token=token_of(s, task=task, round_number=number),
        )
        for v, s in zip(values, machine.secrets, strict=False)
    ]


def test_two_analysts_cannot_serve_one_folder(alone):
    command = ["shoal", "analyst", "serve", str(alone.analyst_home), "--port", str(local_machine.free_port())]
    command += ["--certificate", str(alone.tls / "server.pem"), "--key", str(alone.tls / "server.key")]
    second = subprocess.run(command, env=alone.environment(), capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == 2
    assert "must belong to one analyst: another process uses it" in " ".join((second.stdout + second.stderr).split())
    assert deliver(alone, 1, b"".join(reports(alone, 1, (0.5, 1, 1.5)))).json()["users"] == 3


def test_silent_connections_neither_block_the_analyst_nor_fill_its_memory(alone):
    """Two thousand strangers: with a handshake and no request, with half a request, and most with nothing at all."""
    context = ssl.create_default_context(cafile=str(alone.tls / "ca.pem"))
    silent, before = [], resident(alone.processes["analyst"])
    try:
        for place in range(2_000):
            raw = socket.create_connection(("127.0.0.1", alone.ports["analyst"]), timeout=60)
            silent.append(raw)
            if place % 20 == 0:
                with contextlib.suppress(OSError):  # it may be the oldest of too many by now
                    silent[-1] = context.wrap_socket(raw, server_hostname="localhost")
                    silent[-1].sendall(b"PUT /v1/rounds/1/reports HTTP/1.1\r\nHost: x\r\nX-"[: place % 7 * 9])
        # A third of a megabyte each: 64 handshakes and 64 quiet connections at a time, in the place of 600 MiB.
        assert resident(alone.processes["analyst"]) - before < 120.0
        assert deliver(alone, 1, b"".join(reports(alone, 1, (0.5, 1, 1.5)))).json()["users"] == 3
        # And they are closed, the last of them too, within the time for a handshake and a request's head.
        for connection in silent[-3:]:
            connection.settimeout(60)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
        assert "Traceback" not in alone.log("analyst").read_text()
    finally:
        for connection in silent:
            connection.close()


def test_kill_9_during_a_delivery_leaves_all_of_a_round_or_nothing(alone):
    for number, pace in ((1, 0.0), (2, 0.05)):
        body = b"".join(reports(alone, number, (0.5, 1, 1.5)))
        answers = []

        def send(number=number, body=body, answers=answers):
            with contextlib.suppress(httpx.HTTPError):
                answers.append(deliver(alone, number, body).json())

        sender = threading.Thread(target=send)
        sender.start()
        time.sleep(pace)
        alone.stop("analyst", kill=True)
        sender.join()
        before = alone.reader.rounds()
        assert len(before) in (number - 1, number)
        if answers:  # what was answered has happened
            assert len(before) == number
        alone.start_analyst()
        again = deliver(alone, number, body).json()
        assert again["users"] == 3
        assert not answers or again == answers[0]
        assert [r["round"] for r in alone.reader.rounds()] == list(range(1, number + 1))
        assert len(alone.reader.accountant()) == number
        np.testing.assert_allclose(alone.reader.present()[1], np.full(4, number * 3 / (0.75 * 3)))


DYING = """
import json, os, pathlib, shutil, signal, sys
from shoal.deployment.analyst import Analyst

home, body = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_bytes()
left = None


def step():
    global left
    if left is not None:
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1


def counted(function):
    def wrapped(*args, **kwargs):
        step()
        return function(*args, **kwargs)
    return wrapped


os.fsync, pathlib.Path.unlink, pathlib.Path.replace = map(
    counted, (os.fsync, pathlib.Path.unlink, pathlib.Path.replace))


class Dying:
    def __init__(self, db):
        self.db = db

    def execute(self, *args):
        step()
        return self.db.execute(*args)

    def __getattr__(self, name):
        return getattr(self.db, name)


def deliver(folder, steps=None):
    global left
    analyst = Analyst.open(folder)
    receiving = analyst.receive(1)
    receiving.feed(body)
    left = steps
    if steps is not None:
        analyst.database.connection = Dying(analyst.database.connection)
    answer = json.loads(receiving.finish())
    left = None
    found = [len(analyst.rounds()), analyst.present()[1].tolist(), analyst.ledger.read_head()[0],
             sorted(p.name for p in (analyst.folder / "keys").glob("*.key")), answer["users"]]
    analyst.close()
    return found


for steps in range(100):
    copy = home.with_name(f"copy-{steps}")
    shutil.copytree(home, copy)
    child = os.fork()
    if child == 0:
        deliver(copy, steps)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    reader = Analyst.read(copy)
    seen = [len(reader.rounds()), reader.next_round, len(reader.accountant())]
    reader.close()
    print(json.dumps([os.WIFSIGNALED(status), seen, deliver(copy)]))
    if not os.WIFSIGNALED(status):
        break
"""


def test_kill_9_at_every_step_of_a_commit_leaves_all_of_a_round_or_nothing(tmp_path):
    """A process that commits a round is killed before each statement, each sync and each removal in turn."""
    terms = Settings(task=setup(minimum=2, dimension=4, crowd="identical").task, rounds=2, epoch=1)
    with contextlib.closing(Analyst.create(tmp_path / "a", terms)) as analyst:
        roster, given = tokens.enrol_nodes(tmp_path / "r", task=terms.task, nodes=3, first=1, last=2)
        analyst.admit(roster)
        key, task = analyst.public_keys()[0], terms.task
        shown = [token_of(tokens.read_secret(path), task=task, round_number=1) for path in given]
        body = b"".join(seal(np.ones(4), task=task, round_number=1, key=key, token=token) for token in shown)
    (tmp_path / "body").write_bytes(body)
    words = [sys.executable, "-c", DYING, str(tmp_path / "a"), str(tmp_path / "body")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert [killed for killed, *_ in runs] == [True] * (len(runs) - 1) + [False]
    happened = [seen for _, seen, _ in runs]
    assert {tuple(seen) for seen in happened} == {(0, 1, 0), (1, 2, 1)}  # none of it or all of it
    assert sorted(happened) == happened
    before, after = happened.count([0, 1, 0]), happened.count([1, 2, 1])
    assert before > 5  # within the transaction
    assert after > 3  # between it, the head and the key that is forgotten
    for _, _, found in runs:  # and delivered once more it has happened once, wherever it broke off
        assert found == [1, [3 / (0.75 * 3)] * 4, 1, ["00002.key"], 3]


# ------------------------------------------------------------------------------------ fuzzing


pytestmark = pytest.mark.xdist_group("flower_runs")  # what the tests share is made once


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A real server with a real analyst, without TLS, on loopback."""
    folder, settings = tmp_path_factory.mktemp("fuzz"), setup(minimum=2, dimension=4)
    analyst = Analyst.create(folder / "a", settings)
    analyst.admit(tokens.enrol_nodes(folder / "r", task=settings.task, nodes=9, first=1, last=6)[0])
    many = pytest.MonkeyPatch()
    many.setattr(service_module, "STRANGERS", 10**6)  # what is fuzzed is the answers, not how many there are
    server = uvicorn.Server(
        uvicorn.Config(
            analyst_app(analyst),
            http=ImpatientProtocol,
            port=local_machine.free_port(),
            log_level="error",
            access_log=False,
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for("the server", lambda: server.started)
    yield analyst, f"http://127.0.0.1:{server.config.port}"
    server.should_exit = True
    thread.join(10)
    many.undo()
    analyst.close()


def test_no_request_crashes_the_analyst(service):
    analyst, url = service
    assert httpx.get(f"{url}/openapi.json").status_code == 404  # strangers need no description of it
    document = analyst_app(analyst).openapi()
    assert set(document["paths"]) == {
        "/v1/health",
        "/v1/rounds",
        "/v1/rounds/{round_number}/model",
        "/v1/rounds/{round_number}/reports",
    }
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    answers = []
    for operation in schema.get_all_operations():
        for mode in schemathesis.GenerationMode:

            @given(case=operation.ok().as_strategy(generation_mode=mode))
            @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
            def fuzz(case):
                answer = case.call(headers={"Authorization": f"Bearer {analyst.password}"})
                # No sealed report is made by chance, so bytes that the description allows may be refused.
                case.validate_response(answer, excluded_checks=[positive_data_acceptance])
                answers.append(answer.status_code)

            with contextlib.suppress(Unsatisfiable):  # some requests cannot be made wrong
                fuzz()
    assert len(answers) > 50
    assert not [a for a in answers if a >= 500 and a != 503]
    assert {200, 422} <= set(answers)
    assert analyst.rounds() == []
    assert analyst.open_round() == 1
    assert httpx.get(f"{url}/v1/health").is_success


def test_two_hundred_megabytes_of_rubbish_do_not_stay_in_memory(tmp_path):
    machine = local_machine.Machine(folder=tmp_path / "m", rounds=1)
    machine.set_up(setup(minimum=2, dimension=25_000), nodes=2)
    with contextlib.closing(Analyst.read(machine.analyst_home)) as analyst:
        length, password = analyst.settings.task.length, analyst.password
    try:
        machine.start_analyst()
        status = pathlib.Path(f"/proc/{machine.processes['analyst'].pid}/status")

        def peak():
            return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024

        before = peak()
        answer = httpx.put(
            f"https://127.0.0.1:{machine.ports['analyst']}/v1/rounds/1/reports",
            content=(os.urandom(length) for _ in range(2_000)),
            headers={"Authorization": f"Bearer {password}", "Content-Type": "application/octet-stream"},
            verify=httpx.create_ssl_context(verify=str(machine.tls / "ca.pem")),
            timeout=120,
            trust_env=False,
        )
        assert answer.status_code == 422
        assert answer.json() == {"detail": "a round must have at least 2 users, got 0"}
        assert peak() - before < 60.0  # MiB
    finally:
        machine.stop_all()
