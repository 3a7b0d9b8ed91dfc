"""A queue with two homes on PostgreSQL, worked from three sites, while home or database are harmed (docs/queues.md, "Several homes").

What a publisher was told is worked in the end, and what a member was told is done is given to nobody again.
`MQMESH_QUEUE_KILLS` says how often each harm is done; without it, once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from mqmesh.mqtt.packets import Connack, Connect, Pingreq, Pingresp, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from support.command import start
from support.peers.postgres import Server, server
from support.raw_client import RawClient
from support.services import PATIENCE, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.keeps, pytest.mark.service]

TIMES = int(os.environ.get("MQMESH_QUEUE_KILLS", "1"))
TOPIC = "$queue/orders"
SITES = {"lyon": 1, "porto": 2, "turin": 3}
HOMES = ("lyon", "porto")
SOME = 60  # messages
HOUR = 3600.0
CLOCK = """
import os, time
right = time.time
def wrong():
    with open(os.environ["CLOCK_OFF"]) as file:
        return right() + float(file.read())
time.time = wrong
"""  # of a broker, whose wall clock is set by writing into a file


class Sites:
    """Three brokers; the first two are homes of the queue. off: by how many seconds their clocks are wrong, by name."""

    def __init__(self, folder: Path, database: Server, **off: float) -> None:
        self.folder = folder
        self.database = database
        (folder / "sitecustomize.py").write_text(CLOCK)
        self.ports = {name: free_port() for name in SITES}
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.lives = 0
        self._stack = ExitStack()
        queue = f'[queues.orders]\nstore = "{database.url}"\nhomes = ["lyon", "porto"]\nacknowledge = "request"\n[limits]\nsys_interval = 1'
        for name, number in SITES.items():
            peers = [f'[[mesh.peer]]\naddress = "mqtt://127.0.0.1:{self.ports[one]}"' for one in SITES if one < name]
            lines = [f'name = "{name}"', f"number = {number}", f'listen = ["mqtt://127.0.0.1:{self.ports[name]}"]']
            lines += [f'data = "{folder}/{name}"', queue if name in HOMES else ""]
            self.set_clock(name, off.get(name, 0.0))
            (folder / f"{name}.toml").write_text("\n".join([*lines, '[mesh]\nname = "m"\nkey = "0123456789abcdef"', *peers]))

    def __enter__(self) -> Sites:
        for name in SITES:
            self.start(name)
        wait_until(self.known, PATIENCE, "home that all sites know")
        return self

    def known(self) -> bool:
        """Whether the site that is no home knows that the topic is that of a queue."""
        client = RawClient(self.ports["turin"])
        client.send(Connect("asks", 5, True, 0), Subscribe(1, [Subscription(f"$share/g/{TOPIC}", 1)]))
        client.expect(Connack)
        (reason,) = client.expect(Suback).reasons
        client.close()
        return reason == 0x8F

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, name: str) -> None:
        self.lives += 1
        log = self.folder / f"log-{name}-{self.lives}"
        env = os.environ | {"PYTHONPATH": str(self.folder), "CLOCK_OFF": str(self.folder / f"clock-{name}")}
        broker = self._stack.enter_context(start("broker", "--config", self.folder / f"{name}.toml", stderr=log, env=env))
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready"), log.read_text()
        self.running[name] = broker

    def set_clock(self, name: str, off: float) -> None:
        """Set the wall clock of a broker. off: seconds from that of the database."""
        made = self.folder / "made"
        made.write_text(str(off))
        made.rename(self.folder / f"clock-{name}")

    def lease(self) -> tuple[int, str]:
        """Its token, and who has it."""
        try:
            with psycopg.connect(self.database.url, connect_timeout=15) as admin:
                row = admin.execute("SELECT token, holder FROM mqmesh_queues.lease").fetchone()
        except psycopg.Error:
            return 0, ""
        return row or (0, "")

    def other(self, token: int) -> str:
        """Who has the lease after this one."""
        wait_until(lambda: self.lease()[0] > token, PATIENCE, "takeover")
        return self.lease()[1]


class Client(threading.Thread):
    """Connects to a broker again and again until it is told to stop."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(daemon=True)
        self.name = name
        self.port = port
        self.stopped = False
        self.error: BaseException | None = None
        self.client: RawClient | None = None
        self.start()

    def run(self) -> None:
        while not self.stopped:
            try:
                self.client = RawClient(self.port)
                self.client.send(Connect(self.name, 5, True, 0))
                self.client.expect(Connack)
                self.work(self.client)
            except OSError:
                continue
            except AssertionError as error:
                if not str(error).startswith(("the broker closed", "Disconnect(")):
                    self.error = error
                    return

    def work(self, client: RawClient) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.stopped = True
        if self.client is not None:
            self.client.shut()
        self.join(PATIENCE)


class Shop(Client):
    """confirmed: messages whose PUBACK said that they are put."""

    def __init__(self, port: int, name: str) -> None:
        self.confirmed: set[bytes] = set()
        self.count = 0
        super().__init__(port, name)

    def work(self, client: RawClient) -> None:
        while not self.stopped:
            self.count += 1
            payload = f"{self.name} {self.count}".encode()
            client.send(Publish(TOPIC, payload, 1, packet_id=1))
            if client.expect(Puback).reason < 0x80:
                self.confirmed.add(payload)


class Worker(Client):
    """given: messages that it got. done: those of which the queue has said so, of all workers."""

    done: set[bytes] = set()  # noqa: RUF012 - of one test

    def __init__(self, port: int, name: str) -> None:
        self.given: set[bytes] = set()
        self.late = False  # what its broker was writing to it when it was stopped comes when that goes on, before it answers a ping
        super().__init__(port, name)

    def work(self, client: RawClient) -> None:
        client.send(Subscribe(1, [Subscription("$mqmesh/queues/answer", 0), Subscription(TOPIC, 1)]))
        before = client.until(Suback)
        self.late = False
        while not self.stopped:
            packet: Any = before.pop(0) if before else client.expect(object)
            if isinstance(packet, Pingresp):
                self.late = False
                continue
            assert isinstance(packet, Publish), f"{packet} came"
            if packet.topic == TOPIC:
                self.take(client, packet)
            elif json.loads(packet.payload).get("state") == "done":
                self.done.add(packet.properties[Property.CORRELATION_DATA])

    def ping(self) -> None:
        """Its broker goes on: what comes after the answer is given now."""
        assert self.client is not None
        with suppress(OSError):  # it connects anew
            self.client.send(Pingreq())

    def take(self, client: RawClient, packet: Publish) -> None:
        assert packet.payload not in self.done or self.late, f"{packet.payload!r} is done, and was given to {self.name} again"
        self.given.add(packet.payload)
        (position,) = [value for key, value in packet.properties[Property.USER_PROPERTY] if key == "mqmesh-position"]
        body = json.dumps({"do": "done", "name": "orders", "position": int(position)}).encode()
        client.send(Puback(packet.packet_id), Publish("$mqmesh/queues", body, properties={Property.CORRELATION_DATA: packet.payload}))


class Load:
    """Shops and workers at all sites."""

    def __init__(self, sites: Sites) -> None:
        Worker.done = set()
        self.shops = [Shop(port, f"shop-{name}") for name, port in sites.ports.items()]
        self.workers = [Worker(port, f"worker-{name}") for name, port in sites.ports.items()]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def looked() -> bool:
            for one in (*self.shops, *self.workers):
                if one.error is not None:
                    raise one.error
            return condition()

        wait_until(looked, PATIENCE, what)

    def more(self, of: str = "") -> None:
        """Let some more messages be put and worked; of one site."""
        done = len(Worker.done)
        shops = [shop for shop in self.shops if shop.name.endswith(of)]
        put = sum(len(shop.confirmed) for shop in shops)
        self.until(lambda: sum(len(shop.confirmed) for shop in shops) > put + SOME, f"messages that are put at {of or 'any site'}")
        self.until(lambda: len(Worker.done) > done + SOME, "messages that are worked")

    def end(self) -> None:
        """Everything that was confirmed is worked: who took it may have been killed before it heard that it is done."""
        for shop in self.shops:
            shop.end()
        confirmed = set().union(*[shop.confirmed for shop in self.shops])
        given: set[bytes] = set()
        self.until(lambda: confirmed <= given.union(*[worker.given.copy() for worker in self.workers]), "end of the work")
        for worker in self.workers:
            worker.end()
            assert worker.error is None, worker.error


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with server() as database, Sites(tmp_path, database) as running:
        yield running


@pytest.mark.parametrize("harm", ["killed", "stopped"])
def test_the_other_home_takes_over(sites: Sites, harm: str) -> None:
    load = Load(sites)
    for _ in range(TIMES):
        load.more()
        token, home = sites.lease()
        broker = sites.running[home]
        broker.send_signal(signal.SIGKILL if harm == "killed" else signal.SIGTERM)
        broker.wait(PATIENCE)
        assert sites.other(token) != home
        load.more("turin")
        sites.start(home)
        load.more(home)
    load.end()


def test_a_home_that_was_away_writes_nothing_more(sites: Sites) -> None:
    load = Load(sites)
    for _ in range(TIMES):
        load.more()
        token, home = sites.lease()
        worker = next(one for one in load.workers if one.name == f"worker-{home}")
        worker.late = True
        sites.running[home].send_signal(signal.SIGSTOP)
        assert sites.other(token) != home
        load.more("turin")
        sites.running[home].send_signal(signal.SIGCONT)
        worker.ping()
        load.more(home)
        load.until(lambda: not worker.late, "answer to a ping")  # noqa: B023 - it is asked now
    load.end()


def test_the_database_is_killed(sites: Sites) -> None:
    load = Load(sites)
    for _ in range(TIMES):
        load.more()
        sites.database.kill()
        sites.database.start()
        load.more()
    load.end()


@pytest.mark.parametrize(("first", "later"), [(0.0, HOUR), (0.0, -HOUR), (HOUR, 0.0), (-HOUR, 0.0), (HOUR, HOUR), (-HOUR, -HOUR)])
def test_a_clock_of_a_home_that_is_wrong_or_set_changes_no_delay_and_no_expiry(tmp_path: Path, first: float, later: float) -> None:
    """The time of such a queue is that of the database. first: what the clock of the first home is off; later: once it has messages."""
    lives, waits = {Property.MESSAGE_EXPIRY_INTERVAL: 1800}, {Property.USER_PROPERTY: [("mqmesh-delay", "1800s")]}
    soon = {Property.USER_PROPERTY: [("mqmesh-delay", "1s")]}
    with server() as database, Sites(tmp_path, database, lyon=first) as sites:
        token, home = sites.lease()
        assert home == "lyon"
        shop = RawClient(sites.ports["turin"])
        shop.send(Connect("shop", 5, True, 0))
        shop.expect(Connack)
        for number, (payload, properties) in enumerate(((b"lives", lives), (b"waits", waits), (b"soon", soon)), 1):
            shop.send(Publish(TOPIC, payload, 1, packet_id=number, properties=properties))
            assert shop.expect(Puback).reason < 0x80
        sites.set_clock(home, later)
        clock = RawClient(sites.ports[home])
        clock.send(Connect("clock", 5, True, 0), Subscribe(1, [Subscription("$SYS/broker/clock", 0)]))
        clock.until(Suback)
        wait_until(lambda: abs(int(clock.expect(Publish).payload) - time.time() - later) < HOUR / 2, PATIENCE, "clock that is set")
        clock.expect(Publish)  # it has looked at its clock
        with given(sites.ports["turin"], 1) as payloads:
            assert b"lives" in payloads
            assert b"waits" not in payloads
        sites.running[home].kill()
        assert sites.other(token) != home
        with given(sites.ports["turin"], 2) as payloads:
            assert payloads == {b"lives", b"soon"}


@contextmanager
def given(port: int, count: int) -> Iterator[set[bytes]]:
    """The first messages that a member gets, which acknowledges nothing."""
    client = RawClient(port)
    client.send(Connect("worker", 5, True, 0), Subscribe(1, [Subscription(TOPIC, 1)]))
    client.expect(Connack)
    packets = client.until(Suback)
    while len(packets) < count:
        packets.append(client.expect(Publish))
    client.send(Pingreq())
    packets += client.until(Pingresp)
    yield {packet.payload for packet in packets}
    client.close()


def subscribers(port: int) -> set[str]:
    """Of the queue, as the broker says that is its home."""
    client = RawClient(port)
    client.send(Connect("looks", 5, True, 0), Subscribe(1, [Subscription("$mqmesh/queues/answer", 0)]))
    client.expect(Connack)
    client.expect(Suback)
    client.send(Publish("$mqmesh/queues", json.dumps({"do": "show", "name": "orders"}).encode()))
    answer = json.loads(client.expect(Publish).payload)
    client.close()
    return {one["name"] for one in answer["queue"]["members"] if one["subscriber"]} if "queue" in answer else set()


def test_clients_of_a_killed_home_are_subscribers_until_it_is_back(sites: Sites) -> None:
    token, home = sites.lease()
    members = {}
    for name in SITES:
        member = members[name] = RawClient(sites.ports[name])
        member.send(Connect(f"member-{name}", 5, True, 0), Subscribe(1, [Subscription(TOPIC, 1)]))
        member.expect(Connack)
        member.expect(Suback)
    everybody = {f"member-{name}" for name in SITES}
    wait_until(lambda: subscribers(sites.ports["turin"]) == everybody, PATIENCE, "members of all sites")
    sites.running[home].kill()
    sites.running[home].wait(PATIENCE)
    assert sites.other(token) != home
    wait_until(lambda: subscribers(sites.ports["turin"]) == everybody, PATIENCE, "members that the new home knows")
    sites.start(home)
    wait_until(
        lambda: subscribers(sites.ports["turin"]) == everybody - {f"member-{home}"}, PATIENCE, "end of the sessions of the killed home"
    )
