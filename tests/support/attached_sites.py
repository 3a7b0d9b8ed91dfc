"""Mosquittos attached to the brokers of a mesh, with clients at the Mosquittos only, for tests that break one part after the other."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mqmesh.cli.fleet.process import Fleet
from mqmesh.cli.fleet.proxy import Proxy
from mqmesh.mesh.topology.topology import load
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import PacketTypes, Properties

from support.mosquittos import Mosquitto
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

NAMES = "abc"


class Attached:
    """A ring of brokers; in front of Mosquitto x the broker x, through a proxy.

    standby: broker c stands by for the Mosquitto of a. saves: see `Mosquitto`.
    Mosquittos: `mosquittos`, by the broker's name; `proxies`: towards them.
    """

    def __init__(self, folder: Path, fronts: str = "ab", standby: bool = False, saves: bool = False, members: str = NAMES) -> None:
        self.folder = folder
        self.mosquittos = {name: Mosquitto(folder, name=f"mosquitto-{name}", saves=saves) for name in fronts}
        self.proxies = {name: Proxy("127.0.0.1", one.port) for name, one in self.mosquittos.items()}
        self.standby_proxy = Proxy("127.0.0.1", self.mosquittos["a"].port)
        lines = ['[mesh]\nname = "m"\nkey = "0123456789abcdef"\nclients = "roam"\nroam_wait = 0.5\n[limits]\nsys_interval = 1\n']
        for number, name in enumerate(members, 1):
            lines.append(f'[[broker]]\nname = "{name}"\nnumber = {number}\nlisten = "mqtt://127.0.0.1:{free_port()}"\n')
            if name in self.proxies:
                lines.append(_table(name, self.proxies[name].url, standby and name == "a"))
            elif standby:
                lines.append(_table("a", self.standby_proxy.url, True))
        lines += [f'[[link]]\nbetween = ["{one}", "{other}"]\n' for one, other in zip(members, members[1:] + members[0], strict=True)]
        file = folder / "mesh.toml"
        file.write_text("".join(lines))
        self.fleet = Fleet(load(file), folder / "fleet")

    def __enter__(self) -> Self:
        for one in self.mosquittos.values():
            one.start()
        self.fleet.start()
        self.fleet.wait_settled(PATIENCE)
        self._wait_until_they_cross()
        return self

    def _wait_until_they_cross(self) -> None:
        """What is published before the brokers are attached and know each other's interest is for nobody."""
        listeners = {name: Listener(one.port, f"probe-{name}", "probe/#") for name, one in self.mosquittos.items()}
        wanted = {(f"probe/{name}", b"") for name in listeners}
        end = time.monotonic() + PATIENCE
        while not all(wanted <= set(one.seen) for one in listeners.values()):
            assert time.monotonic() < end, {name: sorted(one.seen) for name, one in listeners.items()}
            for name, one in listeners.items():
                one.client.publish(f"probe/{name}", b"")
            time.sleep(0.05)
        for one in listeners.values():
            one.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.fleet.stop()
        for proxy in (*self.proxies.values(), self.standby_proxy):
            proxy.close()
        for one in self.mosquittos.values():
            one.__exit__(kind, error, trace)

    def port(self, name: str) -> int:
        """Of a broker of the mesh."""
        return int(load(self.folder / "mesh.toml").broker(name).listen[0].rpartition(":")[2])


def _table(name: str, url: str, standby: bool) -> str:
    return f'[[broker.attach]]\nname = "{name}"\naddress = "{url}"\nstandby = {str(standby).lower()}\n'


class Worker:
    """A client with a session that comes back whenever its connection is lost."""

    def __init__(self, port: int, name: str) -> None:
        self.client = client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
        client.reconnect_delay_set(1, 1)
        client.max_queued_messages_set(0)
        client.on_connect = self._on_connect
        client.on_message = lambda _c, _u, message: self.got(message)
        self.changed = threading.Condition()
        self.filters: list[tuple[str, int]] = []
        self.subscribed = threading.Event()
        client.on_subscribe = lambda *_: self.subscribed.set()
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        client.connect("127.0.0.1", port, 30, clean_start=False, properties=properties)
        client.loop_start()

    def _on_connect(self, client: Client, _u: object, flags: Any, _reason: object, _p: object) -> None:
        if self.filters and not flags.session_present:
            client.subscribe(self.filters)

    def got(self, message: Any) -> None:
        """A message has come."""

    def await_connection(self) -> None:
        wait_until(self.client.is_connected, PATIENCE, "a connection")

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Listener(Worker):
    """Counts what comes, by (topic, payload)."""

    def __init__(self, port: int, name: str, filter_: str = "t/#") -> None:
        self.seen: Counter[tuple[str, bytes]] = Counter()
        super().__init__(port, name)
        self.filters = [(filter_, 2)]
        self.client.subscribe(self.filters)
        assert self.subscribed.wait(PATIENCE)

    def got(self, message: Any) -> None:
        self.seen[message.topic, message.payload] += 1

    def wait_for(self, expected: set[tuple[str, bytes]]) -> None:
        try:
            while (before := len(self.seen)) < len(expected) or not expected <= set(self.seen):  # counted first: more may come meanwhile
                wait_until(lambda before=before: len(self.seen) > before, PATIENCE, "more messages")  # type: ignore[misc]
        except AssertionError:
            lost = sorted(expected - set(self.seen), key=lambda one: (one[0], int(one[1])))
            raise AssertionError(f"{len(lost)} of {len(expected)} are missing, as {lost[:20]}") from None


class Talker(Worker):
    """Publishes numbered messages, one after the other's acknowledgement, as many as `more` says. sent: those that were acknowledged."""

    def __init__(self, port: int, name: str, qos: int, retain: bool = False) -> None:
        super().__init__(port, name)
        self.topic, self.qos, self.retain = f"t/{name}", qos, retain
        self.sent = self.goal = 0
        self._on = True
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def _talk(self) -> None:
        while self._on:
            with self.changed:
                self.changed.wait_for(lambda: self.sent < self.goal or not self._on)
            while self.sent < self.goal:
                done = self.client.publish(self.topic, b"%d" % self.sent, self.qos, self.retain)
                done.wait_for_publish(PATIENCE)
                assert done.is_published()
                self.sent += 1

    def more(self, count: int = 100) -> None:
        """Begin to publish so many more. Returns when the first of them are acknowledged."""
        with self.changed:
            begun = self.sent
            self.goal += count
            self.changed.notify_all()
        wait_until(lambda: self.sent >= begun + count // 20, PATIENCE, "acknowledgements")

    def stop(self) -> set[tuple[str, bytes]]:
        """Publish what is left: all that was acknowledged."""
        with self.changed:
            self._on = False
            self.changed.notify_all()
        self._thread.join(PATIENCE)
        return {(self.topic, b"%d" % number) for number in range(self.sent)}


def die(port: int, topic: str, payload: bytes) -> None:
    """A client connects with a will of QoS 1, and is gone."""
    Paho(port, will={"topic": topic, "payload": payload, "qos": 1}).open().vanish()


def each(faults: list[Callable[[], None]], between: Callable[[], None]) -> None:
    """Do one after the other, each under load."""
    for fault in faults:
        between()
        fault()
    between()
