"""Brokers with an interchange that are killed, and services that come again whenever their connection is lost."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections import Counter
from pathlib import Path

from mqmesh.base.interchange import ANSWER, INBOX, POST
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property

from support.command import start
from support.raw_client import RawClient
from support.services import PATIENCE, free_port


class Killed:
    """A broker: its process, killed and started at will, at one port. lines: of its file; interchange: of its table there."""

    def __init__(self, folder: Path, lines: str = "", interchange: str = 'services = "../services.toml"') -> None:
        folder.mkdir()
        self.port = free_port()
        self._folder, self._config = folder, folder / "broker.toml"
        text = f'listen = ["mqtt://127.0.0.1:{self.port}"]\ndata = "data"\n{lines}\n[interchange]\n{interchange}\n'
        self._config.write_text(text)
        self._starts = 0
        self.up = threading.Event()

    def start(self) -> None:
        self._starts += 1
        log = self._folder / f"{self._starts}.log"
        self.process = start("broker", "--config", self._config, stderr=log)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready"), log.read_text()
        self.up.set()

    def kill(self) -> None:
        self.up.clear()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.process.communicate()

    def end(self) -> None:
        """It ends as it should."""
        self.up.clear()
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self.process.communicate()


class Partner(threading.Thread):
    """A service that comes again whenever its connection is lost. `work` is given each packet; `wanted` says whether it goes on."""

    def __init__(self, broker: Killed, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._broker, self._service = broker, name
        self.client: RawClient | None = None
        self.ending = False
        self.error: BaseException | None = None
        self._number = 0

    def run(self) -> None:
        while not self.ending:
            self._broker.up.wait(PATIENCE)
            try:
                client = RawClient(self._broker.port)
                client.send(Connect(self._service, 5, False, 0, properties={Property.SESSION_EXPIRY_INTERVAL: 3600}))
                client.expect(Connack)
                filters = [Subscription("$queue/" + INBOX + self._service, 1), Subscription(ANSWER, 1)]
                client.send(Subscribe(1, filters))
                before = client.until(Suback)
                self.client = client
                self.came()
                while True:
                    packet = before.pop(0) if before else client.expect(object)
                    if self.work(packet) and isinstance(packet, Publish):
                        client.send(Puback(packet.packet_id))
            except BaseException as error:
                if not isinstance(error, OSError) and "closed the connection" not in str(error):
                    self.error = error
                    raise
                self.client = None

    def came(self) -> None:
        """It is connected, for the first time or again."""

    def work(self, packet: object) -> bool:
        """Whether a message is acknowledged now."""
        raise NotImplementedError

    def post(self, body: bytes, **fields: str) -> int:
        """Post a message: its packet identifier. Raises OSError."""
        client = self.client
        if client is None:
            raise OSError
        self._number = self._number % 60_000 + 2
        pairs = [(name, value) for name, value in {"sender": self._service, **fields}.items()]
        client.send(Publish(POST, body, 1, packet_id=self._number, properties={Property.USER_PROPERTY: pairs}))
        return self._number


class Answerer(Partner):
    """Answers each request with its body, and acknowledges it when its answer is. calls: those that it got, by the body."""

    def __init__(self, broker: Killed, name: str = "bank/credit") -> None:
        super().__init__(broker, name)
        self.calls: dict[bytes, set[str]] = {}
        self._answering: dict[int, int] = {}

    def came(self) -> None:
        self._answering.clear()

    def work(self, packet: object) -> bool:
        if isinstance(packet, Puback):
            assert self.client is not None
            self.client.send(Puback(self._answering.pop(packet.packet_id)))
        if isinstance(packet, Publish) and packet.topic.startswith("$queue/"):
            header = dict(packet.properties[Property.USER_PROPERTY])
            if header["kind"] == "request":
                self.calls.setdefault(packet.payload, set()).add(header["call"])
                self._answering[self.post(packet.payload, kind="response", hop=header["hop"])] = packet.packet_id
                return False
        return isinstance(packet, Publish)


class Shop(Partner):
    """Posts requests under handles, each again until it is acknowledged. responses: hops of responses, by the body.

    about: further fields of their headers.
    """

    def __init__(self, broker: Killed, **about: str) -> None:
        super().__init__(broker, "shop/orders")
        self._about = about
        self.unacknowledged: dict[bytes, int] = {}
        self.responses: dict[bytes, set[str]] = {}
        self.refused: Counter[str] = Counter()
        self.asked: set[bytes] = set()
        self.changed = threading.Condition()

    def came(self) -> None:
        with self.changed:
            for body in self.unacknowledged:
                self.unacknowledged[body] = self._ask(body, possible_duplicate="true")

    def ask(self, body: bytes) -> None:
        with self.changed:
            self.asked.add(body)
            self.unacknowledged[body] = 0
            with contextlib.suppress(OSError):  # it is posted when it comes again
                self.unacknowledged[body] = self._ask(body)

    def all_answered(self) -> bool:
        """Wait until each request has its response, and each post its acknowledgement."""
        with self.changed:
            return self.changed.wait_for(lambda: not self.unacknowledged and self.responses.keys() == self.asked, PATIENCE)

    def _ask(self, body: bytes, **more: str) -> int:
        return self.post(body, kind="request", recipient="bank/credit", handle=body.decode(), **self._about, **more)

    def work(self, packet: object) -> bool:
        with self.changed:
            if isinstance(packet, Puback):
                for body, number in list(self.unacknowledged.items()):
                    if number == packet.packet_id:
                        del self.unacknowledged[body]
            elif isinstance(packet, Publish) and packet.topic == ANSWER:
                self.refused[json.loads(packet.payload).get("code", "")] += 1
            elif isinstance(packet, Publish):
                header = dict(packet.properties[Property.USER_PROPERTY])
                assert header["kind"] == "response", header
                assert header["handle"].encode() == packet.payload
                self.responses.setdefault(packet.payload, set()).add(header["hop"])
            self.changed.notify_all()
        return isinstance(packet, Publish)
