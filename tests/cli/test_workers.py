"""`mqmesh broker --workers N` as processes: one port, one broker to its clients, workers that are started again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command import run, start
from support.paho_client import Paho
from support.services import PATIENCE, free_port, missing, wait_until

pytestmark = pytest.mark.process

TAKEN = "the address is taken by another program; give another port, or port 0 for any free one"


class Workers:
    """A broker with two workers."""

    def __init__(self, folder: Path, *more: object, **options: Any) -> None:
        self.log = folder / "log"
        self.unix = f"unix://{folder}/bell.sock"
        self.process: subprocess.Popen[str] = start(
            "broker",
            "--name",
            "bell",
            "--listen",
            "mqtt://127.0.0.1:0",
            "--listen",
            self.unix,
            "--workers",
            2,
            *more,
            stderr=self.log,
            **options,
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        assert self.ready.startswith("ready mqtt://127.0.0.1:"), self.log.read_text()
        self.port = int(self.ready.split()[1].rpartition(":")[2])
        wait_until(lambda: self.linked() >= 2, PATIENCE, "link between the workers")

    def lives(self, index: int) -> list[int]:
        """The processes that a worker has had."""
        return [int(one) for one in re.findall(rf"event=worker-ready worker={index} process=(\d+)", self.log.read_text())]

    def linked(self) -> int:
        """How many links between workers have come up."""
        return self.log.read_text().count("event=link-up")

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self.process.communicate()
        assert "Traceback" not in self.log.read_text(), self.log.read_text()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    found = Workers(tmp_path, "--data", tmp_path / "data")
    yield found
    found.stop()


def test_one_port_one_broker(workers: Workers, tmp_path: Path) -> None:
    assert workers.ready.endswith(" name=bell number=0 workers=2\n")
    assert (tmp_path / "data" / "worker-1").is_dir()
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0, "whichever worker is first"
    clients = [Paho(workers.port, client_id=f"client-{number}").open() for number in range(12)]  # all at one worker: once in 2,048 times
    for client in clients:
        client.subscribe("a/#", 1)
    clients[0].publish("a/b", b"to all", 1, retain=True)
    for client in clients:
        assert client.next().payload == b"to all"
    late = Paho(workers.port, client_id="late").open()
    late.subscribe("a/#", 1)
    assert late.next().payload == b"to all"
    for client in (*clients, late):
        client.close()


def test_a_worker_that_dies_is_started_again(workers: Workers) -> None:
    (killed,) = workers.lives(1)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(workers.lives(1)) == 2, PATIENCE, "it runs again")
    assert "event=worker-ended worker=1 text=it ended by signal 9" in workers.log.read_text()
    assert workers.process.poll() is None


def test_status_shows_one_broker(workers: Workers) -> None:
    clients = [Paho(workers.port, client_id=f"client-{number}").open() for number in range(6)]

    def shown() -> dict[str, object]:
        return json.loads(run("status", "-h", f"mqtt://127.0.0.1:{workers.port}", "--json").stdout)

    wait_until(lambda: len(shown()["broker"]["workers"]) == 2, PATIENCE, "status with both")  # type: ignore[index]
    found = shown()
    assert found["ok"], found["problems"]
    assert found["mesh"] is None
    assert found["broker"]["name"] == "bell"  # type: ignore[index]
    assert [(one["name"], one["up"]) for one in found["broker"]["workers"]] == [("bell.0", True), ("bell.1", True)]  # type: ignore[index]
    for client in clients:
        client.close()


def test_a_session_is_found_wherever_its_client_comes(workers: Workers) -> None:
    seen = []
    for number in range(8):
        client = Paho(workers.port, client_id="traveller", persistent=True).open()
        seen.append(client.session_present)
        if not number:
            client.subscribe("t/#", 1)
        client.close()
        sender = Paho(workers.port, client_id=f"sender-{number}").open()
        sender.publish("t/1", str(number).encode(), 1)
        sender.close()
    assert seen == [False] + 7 * [True]


def test_a_broker_gets_workers_and_loses_them_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    alone = start("broker", "--listen", "mqtt://127.0.0.1:0", "--data", data)
    port = int(alone.stdout.readline().split()[1].rpartition(":")[2])  # type: ignore[union-attr]
    names = [f"keeps-{number}" for number in range(6)]
    for name in names:
        client = Paho(port, client_id=name, persistent=True).open()
        client.subscribe(f"{name}/#", 1)
        client.publish(f"retained/{name}", b"kept", 1, retain=True)
        client.close()
    alone.terminate()
    assert alone.wait(PATIENCE) == 0
    alone.communicate()
    several = Workers(tmp_path, "--data", data)
    for name in names:
        client = Paho(several.port, client_id=name, persistent=True).open()
        assert client.session_present
        client.close()
    several.stop()
    fewer = Workers(tmp_path, "--data", data, "--workers", 1)
    assert "event=workers-left-behind folders=worker-1" in fewer.log.read_text()
    for name in names:
        client = Paho(fewer.port, client_id=name, persistent=True).open()
        assert client.session_present
        client.subscribe("retained/#", 1)
        assert {client.next().topic for _ in names} == {f"retained/{one}" for one in names}
        client.close()
    fewer.stop()


def test_a_port_is_not_shared_with_another_broker(workers: Workers) -> None:
    address = f"mqtt://127.0.0.1:{workers.port}"
    for more in ([], ["--workers", "2"]):
        done = run("broker", "--listen", address, *more)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.decode().splitlines()[-1] == f"mqmesh: broker mqmesh: cannot listen on {address}: {TAKEN}"


def test_both_families_have_the_same_port(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        missing("this machine has no IPv6")
    port = free_port()
    workers = Workers(tmp_path, "--listen", f"mqtt://127.0.0.1:{port}", "--listen", f"mqtt://[::]:{port}")
    assert f"mqtt://127.0.0.1:{port} mqtt://[::]:{port}" in workers.ready
    with Paho(port, client_id="one") as client:
        assert client.reason == 0
    workers.stop()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "0"], "--workers = 0: give a whole number from 1 to 32"),
        (["--workers", "x"], '--workers = "x": give a whole number'),
        (["--workers", "2", "--mesh", "m", "--mesh-key", "sixteen bytes or more", "--name", "a", "--number", "1"], "a broker of a mesh"),
    ],
)
def test_mistakes(arguments: list[str], words: str) -> None:
    done = run("broker", "--listen", f"mqtt://127.0.0.1:{free_port()}", *arguments)
    assert done.returncode == 2
    assert words in done.stderr.decode()
    assert done.stderr.decode().count("\n") == 1


def test_workers_that_cannot_start_end_the_broker(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "identity.json").write_text("{")
    done = run("broker", "--workers", 2, "--listen", "mqtt://127.0.0.1:0", "--data", tmp_path / "data")
    assert done.returncode == 2
    assert b"is not a broker's identity" in done.stderr
    assert b"Traceback" not in done.stderr


def test_workers_end_with_the_process_that_started_them(workers: Workers) -> None:
    pids = [workers.lives(index)[-1] for index in range(2)]
    workers.process.kill()
    workers.process.wait()

    def gone() -> bool:
        return not any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)

    wait_until(gone, PATIENCE, "they are gone")
    workers.process.stdout.close()  # type: ignore[union-attr]
    workers.stop = lambda: None  # type: ignore[method-assign]


def test_management_sees_all_workers(workers: Workers) -> None:
    url = workers.unix
    clients = [Paho(workers.port, client_id=f"client-{number}").open() for number in range(8)]
    clients[0].publish("kept", b"x", 1, retain=True)

    def listed(*what: object) -> dict[str, Any]:
        done = run(*what, "-h", url, "--json")
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    rows = listed("clients", "client=client-*")["rows"]
    assert sorted(row["client"] for row in rows) == sorted(f"client-{number}" for number in range(8))
    assert {row["site"] for row in rows} <= {"bell.0", "bell.1"}
    assert len(listed("retained", "topic=kept")["rows"]) == 1
    for number in range(8):
        done = run("manage", "do", "disconnect", f"client=client-{number}", "-h", url)
        assert not done.returncode, done.stderr
        assert clients[number].disconnects.get(timeout=PATIENCE)[0]
    refused = run("manage", "do", "disconnect", "client=nobody", "-h", url)
    assert refused.returncode == 1
    assert refused.stderr.decode().count("nobody") == 1
    for client in clients:
        client.client.loop_stop()


def test_queues_http_and_files_read_again(tmp_path: Path) -> None:
    """What one process only can have is at the first worker, and for clients of all."""
    file = tmp_path / "b.toml"
    text = 'name = "bell"\ndata = "data"\n[http]\nlisten = "http://127.0.0.1:0"\n[queues.orders]\n'
    file.write_text(text)
    workers = Workers(tmp_path, "--config", file)
    clients = [Paho(workers.port, client_id=f"shop-{number}").open() for number in range(6)]
    for number, client in enumerate(clients):
        wait_until(lambda client=client, number=number: not client.publish("$queue/orders", str(number), 1), PATIENCE, "the order is put")  # type: ignore[misc]
    worker = Paho(workers.port, client_id="worker").open()
    worker.subscribe("$queue/orders", 1)
    assert sorted(worker.next().payload for _ in clients) == [str(number).encode() for number in range(6)]
    url = re.findall(r" http=(\S+)", workers.ready)[0]
    with urllib.request.urlopen(f"{url}/health") as answer:
        assert json.load(answer)["name"] == "bell"
    file.write_text(f"workers = 3\n{text}[limits]\nin_flight = 7\n")
    workers.process.send_signal(signal.SIGHUP)
    wait_until(lambda: workers.log.read_text().count("event=reloaded") == 2, PATIENCE, "both have read the file again")
    assert workers.log.read_text().count("event=not-reloaded settings=limits.in_flight") == 2  # the command line says how many workers
    for client in (*clients, worker):
        client.close()
    workers.stop()


def test_systemd_hears_of_the_broker_and_not_of_each_worker(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE)
        workers = Workers(tmp_path, env={**os.environ, "NOTIFY_SOCKET": address})
        assert manager.recv(4096).startswith(b"READY=1\nSTATUS=2 workers listen at mqtt://127.0.0.1:")
        workers.stop()
        assert manager.recv(4096) == b"STOPPING=1"
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(4096)
