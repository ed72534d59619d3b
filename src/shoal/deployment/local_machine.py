"""The whole protocol on one machine, as real processes: for trials and for tests.

Both ways start an analyst and a SuperLink with TLS on loopback. `deployment` adds SuperNodes, each with its
own settings, secret and key, and the proxy through which they come, if nginx is installed; `simulation` leaves
the nodes to Flower's simulation engine. Telemetry and update checks of Flower are off. Everything is kept in one
folder, where a second call goes on with the same analyst. All parties on one machine: for a real deployment each
has its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from shoal import __version__
from shoal.deployment import gate, keys, link, tokens
from shoal.deployment.analyst import Analyst, Settings
from shoal.deployment.analyst.analyst import DATABASE
from shoal.deployment.analyst.keystore import PASSWORD
from shoal.deployment.client import NODE_FILE
from shoal.deployment.errors import RunError
from shoal.deployment.gate import POLLS
from shoal.deployment.node import Node
from shoal.deployment.state import join_task
from shoal.deployment.supernode import free_port
from shoal.errors import InvalidInput

APP = "shoal.deployment.digits"
START_SECONDS = 180.0
STATUS_SECONDS = 5.0
"""How often the status of a run without progress is read: each time starts a command of Flower's."""


@dataclass
class Machine:
    """A folder with keys, settings and logs, and the processes that run on it."""

    folder: Path
    rounds: int
    timeout: float = 60.0
    enough: float = 0.9
    grace: float = 60.0
    app: Path | None = None
    """The app to run; one on the embedded digits if there is none."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    polls: float = POLLS
    """Polls a second that reach the SuperLink."""
    connections: int = 200
    """Connections of all nodes, which share one address."""
    registered: set[str] = field(default_factory=set)
    trusted: Path | None = None
    """Whose signature an app must carry, for `flower-supernode --trusted-entities`; any app runs if there is none."""

    def __post_init__(self) -> None:
        # Processes run in folders of their own: relative paths would lead elsewhere for each.
        self.folder = self.folder.resolve()
        self.app = None if self.app is None else self.app.resolve()
        self.ports = {"analyst": free_port(), "superlink": free_port()}
        if nginx():
            self.ports |= {"proxy": free_port(), "gate": free_port()}
        self.tls = self.folder / "tls"
        for name in ("logs", "flwr", "app"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def analyst_home(self) -> Path:
        return self.folder / "analyst"

    def set_up(self, settings: Settings, *, nodes: int) -> None:
        """Make keys, certificates, the analyst, its roster and the shuffler's settings; what exists is kept.

        Args:
            settings: the analyst's.
            nodes: the number of nodes that are enrolled.

        Raises:
            InvalidInput: the folder belongs to an analyst with other settings or fewer nodes.
        """
        if not (self.tls / "server.key").exists():
            keys.make_certificates(self.tls)
        if (self.analyst_home / DATABASE).exists():
            with contextlib.closing(Analyst.read(self.analyst_home)) as analyst:
                if analyst.settings != settings:
                    raise InvalidInput(f"{self.folder} must be a new folder: its analyst has other settings")
                if len(analyst.enrolled(1)) < nodes:
                    raise InvalidInput(
                        f"nodes must be at most {len(analyst.enrolled(1))}, who are enrolled, got {nodes}"
                    )
        else:
            registrar = self.folder / "registrar"
            # All parties on one machine: what each would hand to the next is moved, and forgotten where it came from.
            with contextlib.closing(Analyst.create(self.analyst_home, settings)) as analyst:
                last = settings.rounds
                roster, _ = tokens.enrol_nodes(registrar, task=settings.task, nodes=nodes, first=1, last=last)
                analyst.admit(roster)
                roster.unlink()
            (registrar / tokens.REGISTRAR).unlink()  # nobody is to be enrolled later
        self._write(
            "shuffler.toml",
            {
                "url": f"https://127.0.0.1:{self.ports['analyst']}",
                "authority": str(self.tls / "ca.pem"),
                "password": str(self.analyst_home / PASSWORD),
                "journal": str(self.folder / "journal"),
                "minimum": settings.task.minimum,
                "timeout": self.timeout,
                "enough": self.enough,
                "grace": self.grace,
            },
        )
        superlink = {"address": f"127.0.0.1:{self.ports['superlink']}", "root-certificates": str(self.tls / "ca.pem")}
        self._write("flwr/config.toml", superlink, head="[superlink.shoal]\n")
        if self.app is None:
            head = (
                f'[project]\nname = "shoal-digits"\nversion = "{__version__}"\nlicense = "Apache-2.0"\n\n'
                '[tool.flwr.app]\npublisher = "shoal"\n\n'
                f'[tool.flwr.app.components]\nserverapp = "{APP}:server_app"\nclientapp = "{APP}:client_app"\n\n'
                "[tool.flwr.app.config]\n"
            )
            self._write("app/pyproject.toml", self._run_config(), head)

    def _run_config(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "shuffler": str(self.folder / "shuffler.toml")}

    def _write(self, name: str, values: Mapping[str, Any], head: str = "") -> Path:
        path = self.folder / name
        path.write_text(head + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items()))
        return path

    def join_deployed(self, place: int) -> Path:
        """The settings of one node, as its owner would have them; its state is made."""
        path = self._node_file(f"node-{place}")
        node = Node.read(path)
        if not node.state_path(None).exists():
            join_task(node, source=self._secret(place))
        return path

    def join_simulated(self, nodes: int) -> Path:
        """The settings that all simulated nodes share; a state is made for each."""
        path = self._node_file("nodes")
        node = Node.read(path)
        for place in range(nodes):
            if not node.state_path(place).exists():
                join_task(node, member=place, source=self._secret(place))
        return path

    def _node_file(self, name: str) -> Path:
        path = self.folder / f"{name}.toml"
        if not path.exists():
            with contextlib.closing(Analyst.read(self.analyst_home)) as analyst:
                path.write_text(analyst.node(state=self.folder / "state" / name).to_toml())
        return path

    def _secret(self, place: int) -> Path:
        return self.folder / "registrar" / "secrets" / f"{place + 1:06d}.secret"

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment of a process, with these variables added."""
        # The commands of this environment, also where it is not activated; no reports about use to anybody.
        scripts = sysconfig.get_path("scripts")
        return {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            **variables,
        }

    def start(self, name: str, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own; its output goes to a log.

        Args:
            name: the name of the process and its log.
            command: what is run.
            environment: variables to add.

        Returns:
            The process.
        """
        with open(self.log(name), "ab") as log:
            self.processes[name] = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(**environment),
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the command, which ends them in order
            )
        return self.processes[name]

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.folder / "logs" / f"{name}.log"

    def wait_until(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a process is ready; `RunError` if it ends, or takes too long.

        Args:
            name: the process.
            ready: whether it is.
        """
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            # A process that has ended will never be ready: say so at once, not after a minute.
            if self.processes[name].poll() is not None:
                raise RunError(f"{name} ended with code {self.processes[name].returncode}, see {self.log(name)}")
            if time.monotonic() > deadline:
                raise RunError(f"{name} was not ready within {START_SECONDS:g} seconds, see {self.log(name)}")
            time.sleep(0.1)

    def _answers(self, port: int, path: str) -> bool:
        context = httpx.create_ssl_context(verify=str(self.tls / "ca.pem"))
        with contextlib.suppress(httpx.HTTPError):
            url = f"https://127.0.0.1:{port}{path}"
            return httpx.get(url, verify=context, timeout=5.0, trust_env=False).is_success
        return False

    def start_analyst(self) -> None:
        """Start the analyst's service, and wait for it."""
        command = ["shoal", "analyst", "serve", str(self.analyst_home), "--port", str(self.ports["analyst"])]
        command += ["--certificate", str(self.tls / "server.pem"), "--key", str(self.tls / "server.key")]
        self.start("analyst", command)
        self.wait_until("analyst", lambda: self._answers(self.ports["analyst"], "/v1/health"))

    def start_superlink(self, *options: str, **environment: str) -> None:
        """Start a SuperLink, and wait for it.

        Args:
            options: of its command.
            environment: variables to add.
        """
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.ports["superlink"])]
        command += ["--ssl-ca-certfile", str(self.tls / "ca.pem")]
        command += ["--ssl-certfile", str(self.tls / "server.pem"), "--ssl-keyfile", str(self.tls / "server.key")]
        self.start("superlink", [*command, "--disable-runtime-dependency-installation", *options], **environment)
        self.wait_until("superlink", lambda: self._answers(self.ports["superlink"], "/health"))

    @property
    def gate_home(self) -> Path:
        return self.folder / "gate"

    def start_gate(self) -> None:
        """Start the gate, which nginx asks about each request, if nginx is installed."""
        if "gate" not in self.ports:
            return
        command = ["shoal", "flower", "gate", str(self.gate_home), "--port", str(self.ports["gate"])]
        command += ["--superlink", str(self.ports["superlink"]), "--authority", str(self.tls / "ca.pem")]
        command += ["--polls", str(self.polls)]
        self.start("gate", command)
        self.wait_until("gate", lambda: _listens(self.ports["gate"]))

    def start_proxy(self) -> None:
        """Start nginx between the nodes and the SuperLink, if it is installed."""
        program = nginx()
        if program is None:
            return
        home = self.folder / "proxy"
        path = link.write_proxy(
            home,
            host="127.0.0.1",
            port=self.ports["proxy"],
            superlink=self.ports["superlink"],
            gate=self.ports["gate"],
            certificate=self.tls / "server.pem",
            key=self.tls / "server.key",
            authority=self.tls / "ca.pem",
            connections=self.connections,
            rate=max(100, self.connections),
        )
        self.start("proxy", [program, "-e", "stderr", "-p", str(home), "-c", str(path), "-g", "daemon off;"])
        self.wait_until("proxy", lambda: _listens(self.ports["proxy"]))

    def start_supernode(self, place: int, *, nodes: int) -> None:
        """Start a SuperNode with its own settings and its own key, which the SuperLink knows.

        Args:
            place: which of the nodes it is.
            nodes: the number of nodes.
        """
        name = f"node-{place}"
        key = self.folder / f"{name}.key"
        if not key.exists():
            keys.make_node_key(key)
        public = Path(f"{key}.pub")
        if "gate" in self.ports:  # which registers it with any SuperLink that does not know it
            node_keys = self.gate_home / gate.NODE_KEYS
            node_keys.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copy(public, node_keys)
        elif name not in self.registered:  # with this SuperLink, which remembers nothing of an earlier one
            self.flwr("supernode", "register", str(public), "shoal")
            self.registered.add(name)
        command = ["shoal", "flower", "node", str(self.join_deployed(place)), "--key", str(key)]
        command += ["--superlink", f"127.0.0.1:{self.ports.get('proxy', self.ports['superlink'])}"]
        command += ["--authority", str(self.tls / "ca.pem"), "--part", str(place), "--parts", str(nodes)]
        if self.trusted is not None:
            command += ["--trusted", str(self.trusted)]
        self.start(name, command)

    def sign_app(self) -> None:
        """Sign the app, and let nodes that start from now on run no other; without a gate they could run none."""
        if "gate" not in self.ports:
            return
        key = self.folder / "app.key"
        if not key.exists():
            keys.make_app_key(key)
        signature = gate.sign_app(self.app or self.folder / "app", key, signed_at=int(time.time()))
        folder = self.gate_home / gate.SIGNATURES
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "app.json").write_text(signature.to_json())
        self.trusted = self.folder / "trusted.yaml"
        self.trusted.write_text(signature.trust + "\n")

    def flwr(self, *words: str) -> dict[str, Any]:
        """The answer of a command of Flower's; `RunError` if it fails."""
        done = subprocess.run(
            ["flwr", *words, "--format", "json"],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        with open(self.log("flwr"), "a") as log:
            log.write(f"flwr {' '.join(words)}\n{done.stdout}{done.stderr}\n")
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        if done.returncode or not answer.get("success", True):
            raise RunError(f"flwr {words[0]} failed, see {self.log('flwr')}: {done.stdout or done.stderr}")
        return answer

    def submit(self, *options: str) -> str:
        """Start a run of the app, and return its number."""
        config = " ".join(f"{k}={json.dumps(v)}" for k, v in self._run_config().items())
        app = self.app or self.folder / "app"
        return str(self.flwr("run", str(app), "shoal", "--run-config", config, *options)["run-id"])

    def run_status(self, run: str) -> str:
        """The status of a run, such as `finished:completed`."""
        (row,) = self.flwr("list", "shoal", "--run-id", run)["runs"]
        return str(row["status"])

    def stop(self, *names: str, kill: bool = False) -> None:
        """End processes and everything that they started.

        Args:
            names: the processes.
            kill: whether they are killed at once.
        """
        # All get the signal before any is waited for; then whatever is left of their groups is killed.
        ending = [self.processes.pop(name) for name in names]
        for process in ending:
            _signal(process, signal.SIGKILL if kill else signal.SIGTERM)
        for process in ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            _signal(process, signal.SIGKILL)
            process.wait()

    def stop_all(self) -> None:
        """End everything, nodes first: they take their leave of the SuperLink."""
        self.stop(*(name for name in self.processes if name.startswith("node-")))
        self.stop(*self.processes)


def nginx() -> str | None:
    """The path of nginx, wherever Debian has put it; None if it is not installed."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _signal(process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    """Signal the whole group of a process, if any of it is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, kind)


@contextlib.contextmanager
def deployment(machine: Machine, settings: Settings, *, nodes: int) -> Iterator[Machine]:
    """Run analyst, SuperLink, proxy and SuperNodes as real processes with TLS on loopback.

    Args:
        machine: the folder.
        settings: the analyst's.
        nodes: the number of nodes.

    Yields:
        The machine, with everything running.
    """
    machine.set_up(settings, nodes=nodes)
    try:
        machine.start_analyst()
        # At Flower's usual level the SuperLink's log names the nodes as their replies come in.
        machine.start_superlink("--enable-supernode-auth", FLWR_LOG_LEVEL="WARNING")
        machine.sign_app()
        machine.start_gate()
        machine.start_proxy()
        # Registration is a command of Flower's, which takes seconds to start: several at a time.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda place: machine.start_supernode(place, nodes=nodes), range(nodes)))
        yield machine
    finally:
        machine.stop_all()


@contextlib.contextmanager
def simulation(machine: Machine, settings: Settings, *, nodes: int) -> Iterator[Machine]:
    """Run analyst and SuperLink as real processes, nodes in Flower's simulation engine, with fast noise.

    Args:
        machine: the folder.
        settings: the analyst's.
        nodes: the number of nodes.

    Yields:
        The machine, with everything running.
    """
    machine.set_up(settings, nodes=nodes)
    try:
        machine.start_analyst()
        machine.start_superlink("--simulation", **{NODE_FILE: str(machine.join_simulated(nodes))})
        yield machine
    finally:
        machine.stop_all()


def follow(machine: Machine, run: str, progress: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Wait for a run to end.

    Args:
        machine: the folder.
        run: the number of the run.
        progress: called with each round as it closes.

    Returns:
        All rounds.

    Raises:
        RunError: the run did not end well.
    """
    shown, checked = 0, time.monotonic()
    with contextlib.closing(Analyst.read(machine.analyst_home)) as analyst:
        while True:
            rows = analyst.rounds()
            for row in rows[shown:]:
                progress(row)
            # The ledger is read often; Flower, whose answer takes a second, when nothing has come for a while.
            fresh, shown = len(rows) > shown, len(rows)
            if shown >= machine.rounds or (not fresh and time.monotonic() > checked + STATUS_SECONDS):
                status, checked = machine.run_status(run), time.monotonic()
                if status.startswith("finished"):
                    if status != "finished:completed":
                        raise RunError(f"the run ended as {status}, see {machine.folder / 'logs'}")
                    return analyst.rounds()
            time.sleep(0.5)
