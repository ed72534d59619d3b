"""The protocol as real processes on loopback: killed in the middle, simulated, and fuzzed."""

import contextlib
import hashlib
import os
import pathlib
import re
import signal
import socket
import sys
import threading
import time

import numpy as np
import pytest

if sys.version_info < (3, 11):
    pytest.skip("Flower needs Python 3.11", allow_module_level=True)

import httpx
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi.checks import positive_data_acceptance

from shoal import Accountant, ShuffledCheckIn
from shoal.integrations.flower import digits, run
from shoal.integrations.flower.analyst import Analyst, Budget, Settings
from shoal.integrations.flower.client import Node
from shoal.integrations.flower.report import Task
from shoal.integrations.flower.service import make_app


def setup(*, minimum, dimension=None, **fields):
    size = digits.dimension() if dimension is None else dimension
    task = Task(**{"name": "digits", "dimension": size, "clip": 1.0, "sigma": 0.5, "rate": 0.75, **fields})
    return Settings(task=task, budget=Budget(epsilon=1e4, delta=1e-5), minimum=minimum)


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
    with contextlib.closing(Analyst(machine.analyst_home)) as analyst:
        return analyst.rounds()


def answered(machine):
    """The last round that each node has answered."""
    found = [path.read_bytes() for path in (machine.folder / "state").glob("*/digits.report")]
    return [int.from_bytes(content[32:40], "big") for content in found]


def expected(rounds):
    """What the accountant says of the rounds that happened."""
    total = Accountant()
    for row in rounds:
        total.compose(ShuffledCheckIn(users=row["users"], rate=0.75, sigma=0.5))
    return total


def test_a_deployment_survives_kill_9_of_analyst_serverapp_and_client(tmp_path):
    machine = run.Machine(folder=tmp_path / "d", rounds=3, timeout=240.0)
    with run.deployment(machine, setup(minimum=2), nodes=3):
        first = machine.submit()

        # The analyst dies in round 2, which is then collected and cannot be delivered ...
        wait_for("a node's answer in round 2", lambda: 2 in answered(machine))
        machine.stop("analyst", kill=True)
        journal = machine.folder / "journal" / "round-0000000002.batch"
        wait_for("the batch of round 2", journal.exists)
        batch = journal.read_bytes()

        # ... then the ServerApp dies with the batch in its journal.
        (server,) = processes("flwr-serverapp", machine)
        os.kill(server, signal.SIGKILL)
        assert len(closed(machine)) == 1
        machine.timeout = 15.0
        machine.set_up(setup(minimum=2))
        machine.start_analyst()
        second = machine.submit()
        wait_for("round 2", lambda: len(closed(machine)) == 2)

        # A client dies in round 3 and stays away.
        machine.stop("node-2", kill=True)
        rounds = run.follow(machine, second, lambda row: None)
        assert machine.run_status(first) != "finished:completed"

        # The one that was killed does not get into the way of the rest: nothing lost, nothing twice.
        assert [r["round"] for r in rounds] == [1, 2, 3]
        assert [r["users"] for r in rounds] == [3, 3, 2]
        assert all(sum(r["refused"].values()) == 0 for r in rounds)
        with contextlib.closing(Analyst(machine.analyst_home)) as analyst:
            stored = dict(analyst._db.execute("SELECT round, batch FROM rounds").fetchall())
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
        assert not listens_elsewhere(machine.ports.values())
        # The analyst's log names nobody.
        said = machine.log("analyst").read_text()
        ids = re.findall(r"SuperNode ID: (\d+)", "".join(machine.log(f"node-{i}").read_text() for i in range(3)))
        assert len(ids) == 3
        assert not [i for i in ids if i in said]
        assert "any crowd" in said
    assert not machine.processes


def listens_elsewhere(ports):
    """Whether one of the ports can be reached other than on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address = probe.getsockname()[0]
        except OSError:
            return False
    for port in ports:
        with socket.socket() as s:
            s.settimeout(1.0)
            if address != "127.0.0.1" and s.connect_ex((address, port)) == 0:
                return True
    return False


def test_a_simulation_with_flowers_engine(tmp_path):
    machine = run.Machine(folder=tmp_path / "s", rounds=2, timeout=120.0)
    with run.simulation(machine, setup(minimum=10)):
        made = machine.submit("--federation-config", "num-supernodes=12 client-resources-num-cpus=1")
        seen = []
        rounds = run.follow(machine, made, seen.append)
    assert [r["users"] for r in rounds] == [12, 12]
    assert seen == rounds
    assert float(expected(rounds).epsilon(delta=1e-5)) == rounds[-1]["answer"]["epsilon"]["upper"]
    assert Node.read(machine.folder / "nodes.toml").noise == "simulation"


# ------------------------------------------------------------------------------------ fuzzing


pytestmark = pytest.mark.xdist_group("flower_runs")  # what the tests share is made once


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A real server with a real analyst, without TLS, on loopback."""
    analyst = Analyst.create(tmp_path_factory.mktemp("fuzz") / "a", setup(minimum=2, dimension=4))
    server = uvicorn.Server(
        uvicorn.Config(make_app(analyst), port=run.free_port(), log_level="error", access_log=False)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for("the server", lambda: server.started)
    yield analyst, f"http://127.0.0.1:{server.config.port}"
    server.should_exit = True
    thread.join(10)
    analyst.close()


def test_no_request_crashes_the_analyst(service):
    analyst, url = service
    document = httpx.get(f"{url}/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/health",
        "/v1/rounds",
        "/v1/rounds/{number}/model",
        "/v1/rounds/{number}/reports",
    }
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    answers = []
    for operation in schema.get_all_operations():
        for mode in schemathesis.GenerationMode:

            @given(case=operation.ok().as_strategy(generation_mode=mode))
            @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
            def fuzz(case):
                answer = case.call(headers={"Authorization": f"Bearer {analyst.token}"})
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
    machine = run.Machine(folder=tmp_path / "m", rounds=1)
    machine.set_up(setup(minimum=2, dimension=25_000))
    with contextlib.closing(Analyst(machine.analyst_home)) as analyst:
        length, token = analyst.settings.task.length, analyst.token
    try:
        machine.start_analyst()
        status = pathlib.Path(f"/proc/{machine.processes['analyst'].pid}/status")

        def peak():
            return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024

        before = peak()
        answer = httpx.put(
            f"https://127.0.0.1:{machine.ports['analyst']}/v1/rounds/1/reports",
            content=(os.urandom(length) for _ in range(2_000)),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/octet-stream"},
            verify=httpx.create_ssl_context(verify=str(machine.tls / "ca.pem")),
            timeout=120,
            trust_env=False,
        )
        assert answer.status_code == 422
        assert answer.json() == {"detail": "a batch must have a report that can be opened, got none"}
        assert peak() - before < 60.0  # MiB
    finally:
        machine.stop_all()
