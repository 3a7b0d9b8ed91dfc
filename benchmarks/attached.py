"""One message at a time between two Mosquittos: attached to a ring of five of ours, and bridged.

    python -m benchmarks.attached [MESSAGES [DURABILITY]]

It prints the median of the time from PUBLISH at the one to PUBLISH at the other, for each way, in turns of 200 messages: attached,
with three of our brokers between the two; bridged through three Mosquittos, with as many brokers on the way; and bridged through one.
DURABILITY: of our brokers, fsync, os or memory; Mosquitto keeps nothing here, so memory is its like.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mqmesh.cli.fleet.process import Fleet
from mqmesh.mesh.topology.topology import load

TURN = 200


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def mosquitto(folder: Path, lines: str = "") -> Iterator[int]:
    """A Mosquitto: its port."""
    port = free_port()
    config = folder / f"{port}.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nmax_queued_messages 0\n{lines}")
    process = subprocess.Popen(["mosquitto", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
        yield port
    finally:
        process.kill()
        process.wait()


class Client:
    """A client of MQTT 3.1.1 that does one thing at a time."""

    def __init__(self, port: int, name: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(bytes((0x10, 12 + len(name), 0, 4)) + b"MQTT\x04\x02\0\0" + bytes((0, len(name))) + name)
        self.expect(0x20)

    def expect(self, first: int) -> bytes:
        """The body of the next packet of this kind."""
        while True:
            head = self._read(2)
            body = self._read(head[1])
            if head[0] & 0xF0 == first:
                return body

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "the broker has closed the connection"
            data += piece
        return data


class Route:
    """From a client at one port to a client at another one."""

    def __init__(self, one: int, other: int, qos: int) -> None:
        self.qos = qos
        self.publisher, self.subscriber = Client(one, b"pub%d" % qos), Client(other, b"sub%d" % qos)
        self.subscriber.socket.sendall(b"\x82\x09\0\x01\0\x04t/%d/" % qos + bytes((qos,)))
        self.subscriber.expect(0x90)
        self.times: list[float] = []

    def wait(self) -> None:
        """Until messages come."""
        self.subscriber.socket.settimeout(0.5)
        while True:
            try:
                self.send()
                break
            except TimeoutError:
                continue
        self.subscriber.socket.settimeout(30)
        time.sleep(1)
        self.subscriber.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.subscriber.socket.recv(65_536):
                pass
        self.subscriber.socket.setblocking(True)

    def send(self) -> float:
        """One message: seconds until it has come."""
        topic = b"\0\x04t/%d/" % self.qos
        body = topic + (b"\0\x07" if self.qos else b"") + b"x" * 64
        begun = time.perf_counter()
        self.publisher.socket.sendall(bytes((0x30 | self.qos << 1, len(body))) + body)
        got = self.subscriber.expect(0x30)
        took = time.perf_counter() - begun
        if self.qos:
            self.subscriber.socket.sendall(b"\x40\x02" + got[6:8])
            self.publisher.expect(0x40)
        return took

    def turn(self) -> None:
        self.times += [self.send() for _ in range(TURN)]


@contextlib.contextmanager
def attached(folder: Path, durability: str) -> Iterator[tuple[int, int]]:
    """Two Mosquittos at a ring of five, two links apart."""
    with mosquitto(folder) as one, mosquitto(folder) as other:
        lines = ['[mesh]\nname = "m"\nkey = "0123456789abcdef"\n', f'[store]\ndurability = "{durability}"\n']
        for number, name in enumerate("abcde", 1):
            lines.append(f'[[broker]]\nname = "{name}"\nnumber = {number}\nlisten = "mqtt://127.0.0.1:{free_port()}"\n')
            port = {"a": one, "c": other}.get(name)
            if port:
                lines.append(f'[[broker.attach]]\nname = "{name}"\naddress = "mqtt://127.0.0.1:{port}"\n')
        lines += [f'[[link]]\nbetween = ["{a}", "{b}"]\n' for a, b in ("ab", "bc", "cd", "de", "ea")]
        (folder / "mesh.toml").write_text("".join(lines))
        with Fleet(load(folder / "mesh.toml"), folder / "fleet") as fleet:
            fleet.wait_settled(60)
            yield one, other


@contextlib.contextmanager
def bridged(folder: Path, between: int) -> Iterator[tuple[int, int]]:
    """Two Mosquittos with others between them, each with a bridge to the one before it, the last one also to the second of the two."""
    bridge = "connection to{0}\naddress 127.0.0.1:{0}\ntopic # both 1\nbridge_protocol_version mqttv50\n"
    with contextlib.ExitStack() as stack:
        one, other = (stack.enter_context(mosquitto(folder)) for _ in range(2))
        before = one
        for number in range(between):
            ends = (before, other) if number == between - 1 else (before,)
            before = stack.enter_context(mosquitto(folder, "".join(bridge.format(port) for port in ends)))
        yield one, other


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    durability = sys.argv[2] if len(sys.argv) > 2 else "memory"
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        sites = {"attached": stack.enter_context(attached(folder, durability))}
        sites |= {f"bridged through {between}": stack.enter_context(bridged(folder, between)) for between in (3, 1)}
        for qos in (0, 1):
            paths = {kind: Route(*ports, qos) for kind, ports in sites.items()}
            for path in paths.values():
                path.wait()
            for _ in range(count // TURN):
                for path in paths.values():
                    path.turn()
            half = {kind: statistics.median(path.times) * 1e6 for kind, path in paths.items()}
            ours = half["attached"]
            print(f"QoS {qos}: " + "; ".join(f"{kind} {time:.0f} us ({ours / time:.2f})" for kind, time in half.items()), flush=True)


if __name__ == "__main__":
    main()
