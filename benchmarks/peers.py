"""The brokers that are compared, each configured as its own users would for speed, and said so here.

- mqmesh: as it comes (`mqmesh broker`), every feature in place. In the durable rows it has a data folder (SQLite), and each
  acknowledgement waits for its fsync; the other brokers hold the same sessions and queues in memory.
  In the metabroker's rows it is the community broker, with the metabroker beside it and Mosquitto as the remote broker.
- mqmesh-asyncio: the same without uvloop.
- mqmesh-access: the same with users, passwords and rules: clients say who they are, and each topic is judged.
- mosquitto: TCP_NODELAY on, no limit on messages in flight or queued, persistence and log off, anonymous clients. A chain is
  three brokers with a bridge from each to the next, `topic # both`, MQTT 3.1.1 (a bridge over MQTT 5 has a Receive Maximum);
  beside a metabroker two.
- nats-server: MQTT over JetStream (which MQTT needs there), 65,535 unacknowledged messages for a subscription. Its QoS 1 goes
  through a stream on disk; its QoS 0 does not. No QoS 2 in 2.9.
- amqtt: anonymous clients, no other plugin (its default ones log every packet).
- forward: no broker. It copies bytes from publishers to subscribers and shows what the load generator can reach at most.

With TLS all have the same certificate (P-256), made for the run, and their own defaults otherwise. Over WebSocket publishers send a
frame for each message, as clients do.

Every deployment is fresh: a new process on a free port of 127.0.0.1 and an empty folder. MOSQUITTO and NATS_SERVER may name
other binaries.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from mqmesh.cli.demo.ring import free_ports

from benchmarks.load_generator import wire
from benchmarks.load_generator.tls import make_certificates

ROOT = Path(__file__).resolve().parent.parent
START = 60.0  # seconds that a broker may take to listen


class PeerError(Exception):
    """A broker is not installed or does not start; the text says what to do."""


def free_port() -> int:
    """A TCP port that is free at this moment, and that no outgoing connection takes while its broker starts, or starts again."""
    (port,) = free_ports(1)
    return port


@dataclass
class Deployment:
    """Running brokers. `entry` is where publishers connect, `exit` where subscribers do. tls: folder of certificates, None without.

    remote: the broker to which a metabroker brings the clients of the other one; None where there is no metabroker.
    """

    folder: Path
    tls: Path | None = None
    durable: bool = False  # where a broker can: data folders, acknowledgements behind fsync
    web: bool = False  # listeners for WebSocket
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    remote: tuple[str, int] | None = None

    @property
    def entry(self) -> tuple[str, int]:
        """(host, port) of the first broker."""
        return "127.0.0.1", self.ports[0]

    @property
    def exit(self) -> tuple[str, int]:
        """(host, port) of the last broker."""
        return "127.0.0.1", self.ports[-1]

    @property
    def pids(self) -> list[int]:
        """The brokers' process identifiers, with those of their workers."""
        workers = [child.pid for process in self.processes for child in psutil.Process(process.pid).children()]
        return [process.pid for process in self.processes] + workers

    def start(self, name: str, command: list[str], ready: Callable[[Path], bool]) -> None:
        """Start a process whose output goes to `folder/name.log` and wait until it is `ready`."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)
        self.processes.append(process)
        end = time.monotonic() + START
        while not ready(log):
            if process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise PeerError(f"`{' '.join(command)}` does not start: {last_words(log)}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def last_words(log: Path) -> str:
    """The last lines with words in a log."""
    lines = [line.strip(" │╭╮╰╯─") for line in log.read_text(errors="replace").splitlines()]
    return " / ".join([line for line in lines if line][-3:]) or "it says nothing"


class Peer(ABC):
    """A kind of broker. `qos` is the highest it has, `versions` of MQTT are 4 (3.1.1) and 5, `chains` whether it joins brokers."""

    name = ""
    qos = 2
    versions: tuple[int, ...] = (4,)
    chains = False

    @abstractmethod
    def version(self) -> str:
        """The installed version; PeerError if there is none."""

    @abstractmethod
    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        """Start broker `index` of the deployment on its port; broker i is joined to broker i + 1."""

    def deploy(self, folder: Path, brokers: int, qos: int, tls: bool = False, durable: bool = False, web: bool = False) -> Deployment:
        """Start one broker or a chain of them; tls, web: its clients use TLS, or WebSocket. PeerError if one does not start."""
        folder.mkdir(parents=True)
        deployment = Deployment(folder, folder / "tls" if tls else None, durable, web, ports=[free_port() for _ in range(brokers)])
        if deployment.tls is not None:
            make_certificates(deployment.tls)
        try:
            for index in reversed(range(brokers)):
                self.launch(deployment, index, qos)
        except BaseException:
            deployment.stop()
            raise
        return deployment

    def deploy_gateway(self, folder: Path, direction: str, qos: int, apart: bool = False) -> Deployment:
        """A community broker and a remote one, joined; direction: "out" from the community to the remote, or "in".

        apart: what joins them is a process of its own, where there is a choice.
        """
        deployment = self.deploy(folder, 2, qos)
        if direction == "in":
            deployment.ports.reverse()
        return deployment


def listens(port: int) -> Callable[[Path], bool]:
    """A readiness test: something accepts connections on that port."""

    def ready(_: Path) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    return ready


def says_ready(log: Path) -> bool:
    """A readiness test: a line that starts with `ready` was printed."""
    return any(line.startswith("ready") for line in log.read_text(errors="replace").splitlines())


def binary(variable: str, name: str) -> str:
    """The path of a program; PeerError with a hint where it is not installed."""
    path = os.environ.get(variable) or shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin")
    if not path:
        raise PeerError(f"{name} is not installed (apt install {name}, or set {variable})")
    return path


def first_line(command: list[str]) -> str:
    """The first line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[0]


class Mqmesh(Peer):
    """The broker of this repository."""

    name = "mqmesh"
    versions = (4, 5)
    chains = True

    def __init__(self) -> None:
        self.python: Callable[[int], list[str]] = lambda index: [sys.executable]  # a profiler replaces it

    def version(self) -> str:
        try:
            loop = f"uvloop {importlib.metadata.version('uvloop')}"
        except importlib.metadata.PackageNotFoundError:
            loop = "asyncio"
        return f"mqmesh {importlib.metadata.version('mqmesh')}, {loop}, Python {sys.version.split()[0]}"

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        port = deployment.ports[index]
        scheme = "ws" if deployment.web else "mqtts" if deployment.tls else "mqtt"
        options = ["--listen", f"{scheme}://127.0.0.1:{port}", "--name", f"bench{index + 1}", "--number", str(index + 1)]
        if deployment.durable:
            options += ["--data", str(deployment.folder / f"data{index}")]
        if len(deployment.ports) > 1:
            options += ["--mesh", "bench", "--mesh-key", "a key that all three know"]
        if index + 1 < len(deployment.ports):
            options += ["--peer", f"mqtt://127.0.0.1:{deployment.ports[index + 1]}"]
        if deployment.tls is not None:
            options += ["--tls-certificate", str(deployment.tls / "broker.crt"), "--tls-key", str(deployment.tls / "broker.key")]
        deployment.start(f"mqmesh{index}", [*self.python(index), "-m", "mqmesh.cli.main", "broker", *options], says_ready)

    def deploy_gateway(self, folder: Path, direction: str, qos: int, apart: bool = False) -> Deployment:
        """Our broker for the community, Mosquitto as the remote one, and the metabroker inside ours or beside it."""
        folder.mkdir(parents=True)
        policy = folder / "policy.toml"
        policy.write_text('[[allow]]\nclients = ["*"]\nremotes = ["mqtt://127.0.0.1:*"]\npublish = ["#"]\nsubscribe = ["#"]\n')
        deployment = Deployment(folder, None, ports=[free_port(), free_port()])
        community = f"mqtt://127.0.0.1:{deployment.ports[0]}"
        deployment.remote = ("127.0.0.1", deployment.ports[1])
        broker = ["broker", "--listen", community, *([] if apart else ["--metabroker", str(policy)])]
        try:
            Mosquitto().launch(deployment, 1, qos)
            deployment.start("mqmesh", [*self.python(0), "-m", "mqmesh.cli.main", *broker], says_ready)
            if apart:
                options = ["--community", community, "--policy", str(policy)]
                deployment.start("metabroker", [*self.python(2), "-m", "mqmesh.cli.main", "metabroker", *options], says_ready)
        except BaseException:
            deployment.stop()
            raise
        if direction == "in":
            deployment.ports.reverse()
        return deployment


class MqmeshAsyncio(Mqmesh):
    """The same on asyncio's own loop, as where uvloop is not installed."""

    name = "mqmesh-asyncio"

    def __init__(self) -> None:
        hidden = (
            "import runpy, sys; sys.modules['uvloop'] = None; name = sys.argv[2]; del sys.argv[1:3]; "
            "runpy.run_module(name, None, '__main__', True)"
        )
        self.python = lambda index: [sys.executable, "-c", hidden]

    def version(self) -> str:
        return "the same without uvloop"


class MqmeshAccess(Mqmesh):
    """The same, with a file of users and ten rules, of which the last one allows what is measured."""

    name = "mqmesh-access"
    chains = False

    def version(self) -> str:
        return "the same with users and rules"

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        from mqmesh.broker.auth import passwords

        users = deployment.folder / "users"
        if not users.exists():
            passwords.change(users, wire.USER.decode(), wire.PASSWORD)
        rules = [f'[[access.rule]]\nallow = ["publish"]\nusers = ["sensor-*"]\ntopics = ["sensors/{n}/%u/#"]\n' for n in range(9)]
        rules.append('[[access.rule]]\nallow = ["publish", "subscribe"]\nusers = ["bench"]\ntopics = ["#"]\n')
        config = deployment.folder / "broker.toml"
        config.write_text(f'listen = ["mqtt://127.0.0.1:{deployment.ports[index]}"]\n[access]\nusers = "users"\n' + "".join(rules))
        deployment.start("mqmesh", [*self.python(index), "-m", "mqmesh.cli.main", "broker", "--config", str(config)], says_ready)


class Mosquitto(Peer):
    """Eclipse Mosquitto."""

    name = "mosquitto"
    versions = (4, 5)
    chains = True

    def version(self) -> str:
        return first_line([binary("MOSQUITTO", "mosquitto"), "-h"])

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        port = deployment.ports[index]
        lines = [
            f"listener {port} 127.0.0.1",
            "allow_anonymous true",
            "set_tcp_nodelay true",
            "max_inflight_messages 0",
            "max_queued_messages 0",
            "persistence false",
            "log_type none",
        ]
        if deployment.tls is not None:
            lines[1:1] = [f"certfile {deployment.tls}/broker.crt", f"keyfile {deployment.tls}/broker.key"]
            if os.getuid() == 0:
                lines.append("user root")  # else it gives its rights up before it reads the key
        if deployment.web:
            lines[:1] = [f"listener {free_port()} 127.0.0.1", lines[0], "protocol websockets"]  # alone it would not start
        if index + 1 < len(deployment.ports):
            lines += [
                f"connection to{index + 2}",
                f"address 127.0.0.1:{deployment.ports[index + 1]}",
                f"topic # both {qos}",
                "bridge_protocol_version mqttv311",
                "cleansession true",
                "notifications false",
                "restart_timeout 1",
            ]
        config = deployment.folder / f"mosquitto{index}.conf"
        config.write_text("\n".join(lines) + "\n")
        deployment.start(f"mosquitto{index}", [binary("MOSQUITTO", "mosquitto"), "-c", str(config)], listens(port))


class Nats(Peer):
    """nats-server with its MQTT face."""

    name = "nats"
    qos = 1

    def version(self) -> str:
        return first_line([binary("NATS_SERVER", "nats-server"), "--version"])

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        port = deployment.ports[index]
        config = deployment.folder / "nats.conf"
        tls = f', tls {{ cert_file: "{deployment.tls}/broker.crt", key_file: "{deployment.tls}/broker.key" }}' if deployment.tls else ""
        config.write_text(
            f"host: 127.0.0.1\nport: {free_port()}\nserver_name: bench\n"
            f'jetstream {{ store_dir: "{deployment.folder}/jetstream" }}\n'
            f"mqtt {{ host: 127.0.0.1, port: {port}, max_ack_pending: 65535{tls} }}\n"
        )
        deployment.start("nats", [binary("NATS_SERVER", "nats-server"), "-c", str(config)], listens(port))


class Amqtt(Peer):
    """amqtt, a broker in Python on asyncio."""

    name = "amqtt"

    def version(self) -> str:
        try:
            return f"amqtt {importlib.metadata.version('amqtt')}"
        except importlib.metadata.PackageNotFoundError:
            raise PeerError("amqtt is not installed (pip install amqtt)") from None

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        port = deployment.ports[index]
        config = deployment.folder / "amqtt.yaml"
        config.write_text(
            f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n"
            "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
        )
        command = [sys.executable, "-c", "from amqtt.scripts.broker_script import main; main()", "-c", str(config)]
        deployment.start("amqtt", command, listens(port))


class Forward(Peer):
    """The byte pump of `forward.py`."""

    name = "forward"
    versions = (4, 5)
    qos = 1

    def version(self) -> str:
        return "no broker, the ceiling of the load generator"

    def launch(self, deployment: Deployment, index: int, qos: int) -> None:
        port = deployment.ports[index]
        deployment.start("forward", [sys.executable, "-m", "benchmarks.forward", str(port)], says_ready)


PEERS: dict[str, Peer] = {peer.name: peer for peer in (Mqmesh(), MqmeshAsyncio(), MqmeshAccess(), Mosquitto(), Nats(), Amqtt(), Forward())}
DEFAULT_PEERS = ("mqmesh", "mosquitto", "nats", "amqtt")
