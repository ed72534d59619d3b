"""The gate before the SuperLink, its signatures under apps, and SuperNodes that start again."""

import base64
import datetime
import json
import signal
import subprocess
import sys
import types

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.start_client_internal import _verify_fab

from shoal.deployment import gate, keys, template
from shoal.deployment.supernode import supernode_command


def headers_of(private):
    request = httpx.Request("POST", "https://x")
    NodeAuthHttpInterceptor(private, private.public_key()).intercept(
        types.SimpleNamespace(request=request), lambda context: None
    )
    return dict(request.headers)


@pytest.fixture
def fleet(tmp_path):
    """A folder with one node's key, and that key."""
    known = gate.NodeKeys(tmp_path / "nodes")
    keys.make_node_key(tmp_path / "node.key")
    (tmp_path / "node.key.pub").rename(tmp_path / "nodes" / "node.pub")
    return known, load_ssh_private_key((tmp_path / "node.key").read_bytes(), password=None)


def test_who_has_signed_a_short_time_ago_may_pass_and_nobody_else(fleet):
    known, private = fleet
    good = headers_of(private)
    now = datetime.datetime.now(datetime.timezone.utc)
    assert known.signer(good, now=now) is not None
    for seconds in (-6.0, 306.0):  # a clock that is wrong, or a request that was recorded
        assert known.signer(good, now=now + datetime.timedelta(seconds=seconds)) is None
    other = headers_of(ec.generate_private_key(ec.SECP384R1()))
    assert known.signer(other, now=now) is None
    assert known.signer(good | {"flwr-signature": other["flwr-signature"]}, now=now) is None
    for name in gate.IDENTITY:
        for wrong in ("", "x", "é", "2026-01-01T00:00:00", base64.b64encode(b"x" * 99).decode(), "9" * 5_000):
            assert known.signer(good | {name: wrong}, now=now) is None
        assert known.signer({n: v for n, v in good.items() if n != name}, now=now) is None


def test_a_key_counts_from_when_it_is_in_the_folder_until_it_is_removed(fleet, tmp_path):
    known, private = fleet
    now = datetime.datetime.now(datetime.timezone.utc)
    second = ec.generate_private_key(ec.SECP384R1())
    assert known.signer(headers_of(second), now=now) is None
    path = tmp_path / "nodes" / "second.pub"
    path.write_bytes(second.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    assert known.signer(headers_of(second), now=now) is not None
    path.unlink()
    assert known.signer(headers_of(second), now=now) is None
    assert known.signer(headers_of(private), now=now) is not None
    keys.make_app_key(tmp_path / "nodes" / "app.pub")
    with pytest.raises(ValueError, match=r"app\.pub must hold a public key of 'ssh-keygen -t ecdsa'"):
        known.known()


def rounds_of(nodes, *, waves, seconds, rate=gate.POLLS):
    """Nodes that poll every three seconds; waves of messages, one for each node, come out at given times.

    Returns the polls that were passed on, and when the last node had the message of each wave.
    """
    polls, passed, done = gate.Polls(rate), 0, {}
    has = [set() for _ in range(nodes)]
    moments = sorted((turn * 3.0 + 3.0 * node / nodes, node) for turn in range(seconds // 3) for node in range(nodes))
    for moment, node in moments:
        if not polls.passes(b"%d" % node, nodes=nodes, moment=moment):
            continue
        passed += 1
        out = [(start, wave) for wave, start in enumerate(waves) if start <= moment and wave not in has[node]]
        if out:
            wave = min(out)[1]
            polls.handed(b"%d" % node, run=1, group=str(wave))
            has[node].add(wave)
            if all(wave in seen for seen in has):
                done[wave] = moment
    return passed, done


@pytest.mark.parametrize("nodes", [16, 500, 2_000])
def test_polls_reach_the_superlink_if_something_may_wait(nodes):
    """Idle nodes probe, five polls a second in all; a wave reaches every node, forty a second."""
    idle, _ = rounds_of(nodes, waves=(), seconds=300)
    assert idle <= gate.PROBES * 300 + 1
    passed, done = rounds_of(nodes, waves=(60.0, 180.0), seconds=300)
    assert passed <= idle + 2 * nodes + 1
    for wave, start in enumerate((60.0, 180.0)):
        assert done[wave] - start <= 1.5 * nodes / gate.POLLS + 10.0


def test_polls_of_few_nodes_are_all_passed_on():
    assert rounds_of(gate.NODES_FEW, waves=(10.0,), seconds=60)[0] == gate.NODES_FEW * 20


def test_a_round_that_is_collected_again_is_a_wave_of_its_own():
    polls = gate.Polls(40.0)
    for _ in range(2):
        for node in (b"a", b"b"):
            polls.handed(node, run=1, group="7")
    assert polls.passes(b"a", nodes=100, moment=0.0)
    assert not polls.passes(b"b", nodes=100, moment=0.1)  # both have it: probes
    polls.handed(b"a", run=1, group="7")  # and once more
    assert polls.passes(b"b", nodes=100, moment=0.15)  # whom the new wave has not reached


def test_a_gate_without_polls_is_refused(tmp_path):
    with pytest.raises(ValueError, match="polls must be positive, got 0"):
        gate.Gate(tmp_path, superlink=None, polls=0.0)


def test_a_signed_app_is_the_one_that_flower_verifies(tmp_path):
    template.write_app(tmp_path / "signed-app")
    keys.make_app_key(tmp_path / "key")
    signature = gate.sign_app(tmp_path / "signed-app", tmp_path / "key", signed_at=1_790_000_000)
    assert gate.AppSignature.read(signature.to_json().encode()) == signature
    name, _, public = signature.trust.partition(": ")
    words = json.dumps({"signed_at": signature.signed_at, "signature": signature.signature})
    bundle = build_fab_from_disk(tmp_path / "signed-app")
    assert _verify_fab(Fab(signature.digest, bundle, {gate.LICENSE: "x", name: words}), {name: public})
    assert not _verify_fab(Fab(signature.digest, bundle + b"\0", {gate.LICENSE: "x", name: words}), {name: public})
    (tmp_path / "signed-app" / "signed_app" / "model.py").write_text("")
    assert gate.sign_app(tmp_path / "signed-app", tmp_path / "key", signed_at=1).digest != signature.digest
    keys.make_node_key(tmp_path / "node.key")
    for wrong in (tmp_path / "node.key", tmp_path / "nothing", tmp_path / "signed-app" / "pyproject.toml"):
        with pytest.raises(ValueError, match="key must be a private key of 'ssh-keygen -t ed25519'"):
            gate.sign_app(tmp_path / "signed-app", wrong, signed_at=1)
    with pytest.raises(ValueError, match="a signature must be a file of 'shoal flower sign'"):
        gate.AppSignature.read(b"{}")


KEEPING = """
import sys
from shoal.deployment.supernode import keep_running
words = [sys.executable, "-c", "import sys, time; print('up', flush=True); time.sleep(float(sys.argv[1]))"]
ends = iter(["0", "0", "1000"])
keep_running(lambda: [*words, next(ends)], pause=0.01)
print("over", flush=True)
"""


def test_a_supernode_starts_again_until_it_is_stopped():
    keeper = subprocess.Popen([sys.executable, "-c", KEEPING], stdout=subprocess.PIPE, text=True)
    lines = []
    while sum(line == "up\n" for line in lines) < 3:
        lines.append(keeper.stdout.readline())
        assert lines[-1], lines
    keeper.send_signal(signal.SIGTERM)
    rest = keeper.communicate()[0]
    assert keeper.returncode == 0
    assert rest == "over\n"
    assert sum("ended with code 0. It starts again" in line for line in lines) == 2


def test_the_command_of_a_supernode_names_its_files(tmp_path):
    for name in ("node.toml", "ca.pem", "node.key", "trusted.yaml"):
        (tmp_path / name).write_text("")
    options = {
        "superlink": "a:1",
        "authority": tmp_path / "ca.pem",
        "key": tmp_path / "node.key",
        "part": 0,
        "parts": 1,
    }
    command = supernode_command(tmp_path / "node.toml", trusted=tmp_path / "trusted.yaml", **options)
    assert command[-2:] == ["--trusted-entities", str(tmp_path / "trusted.yaml")]
    assert "--trusted-entities" not in supernode_command(tmp_path / "node.toml", trusted=None, **options)
    with pytest.raises(ValueError, match="trusted must be a file"):
        supernode_command(tmp_path / "node.toml", trusted=tmp_path / "none", **options)
