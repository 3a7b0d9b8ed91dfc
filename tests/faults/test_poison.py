"""One message kills every member that looks at it: it alone ends in the dead letters, and not what its members had beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from queue import Queue
from threading import Event, Thread

import pytest
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription
from support.command import start
from support.raw_client import RawClient
from support.services import PATIENCE, free_port

pytestmark = [pytest.mark.slow, pytest.mark.keeps]

POISON = "poison"
GOOD = [f"order {number}" for number in range(100)]
MEMBERS = 3
DELIVERIES = 3
TESTS = Path(__file__).parents[1]


def client(port: int, name: str, *filters: str) -> RawClient:
    made = RawClient(port)
    made.send(Connect(name, 5, True, 0))
    made.expect(Connack)
    if filters:
        made.send(Subscribe(1, [Subscription(one, 1) for one in filters]))
        made.expect(Suback)
    return made


def work(port: int, name: str) -> None:
    """What a member's process does: it says what it has worked, and dies of one message."""
    member = client(port, name, "$queue/orders")
    while True:
        one = member.expect(Publish)
        if one.payload.decode() == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        print(one.payload.decode(), flush=True)
        member.send(Puback(one.packet_id))


class Pool:
    """Processes that are started again when they die. worked: what they say. died: the name of each that was killed."""

    def __init__(self, port: int) -> None:
        self.worked: Queue[str] = Queue()
        self.died: Queue[str] = Queue()
        self._over = Event()
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._threads = [Thread(target=self._keep, args=(port, f"worker-{number}")) for number in range(MEMBERS)]

    def __enter__(self) -> Pool:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for process in list(self._running.values()):
            process.kill()
        for one in self._threads:
            one.join()

    def _keep(self, port: int, name: str) -> None:
        command = [
            sys.executable,
            "-c",
            "import sys; from faults.test_poison import work; work(int(sys.argv[1]), sys.argv[2])",
            str(port),
            name,
        ]
        while not self._over.is_set():
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(TESTS)})
            self._running[name] = process
            if self._over.is_set():
                process.kill()
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    self.worked.put(line.strip())
            if process.wait() == -signal.SIGKILL and not self._over.is_set():
                self.died.put(name)


def test_only_what_kills_its_members_is_a_dead_letter(tmp_path: Path) -> None:
    port = free_port()
    lines = [f'listen = ["mqtt://127.0.0.1:{port}"]', f'data = "{tmp_path}/data"', "[queues.orders-dead]", "[queues.orders]"]
    lines += [f"deliveries = {DELIVERIES}", 'dead_letters = "orders-dead"']
    (tmp_path / "porto.toml").write_text("\n".join(lines) + "\n")
    with start("broker", "--config", tmp_path / "porto.toml", stderr=tmp_path / "log") as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready"), (tmp_path / "log").read_text()
        shop, dead = client(port, "shop"), client(port, "undertaker", "$queue/orders-dead")
        shop.send(*(Publish("$queue/orders", text.encode(), 1, packet_id=number) for number, text in enumerate([POISON, *GOOD], 1)))
        for _ in range(len(GOOD) + 1):
            assert shop.expect(Puback).reason == 0
        with Pool(port) as pool:
            assert dead.expect(Publish).payload.decode() == POISON
            worked = [pool.worked.get(timeout=90) for _ in GOOD]
            assert sorted(worked) == sorted(GOOD)
            for _ in range(DELIVERIES):
                pool.died.get(timeout=PATIENCE)
            assert pool.died.empty()
        broker.terminate()
