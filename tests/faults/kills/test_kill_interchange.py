"""A broker with an interchange is killed with SIGKILL while services exchange requests: each that was acknowledged ends once, in its
response, and a handle that is posted again after a kill counts once (docs/interchange.md, "What is kept").

`MQMESH_INTERCHANGE_KILLS` says how often; `make soak` takes 100.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path

from mqmesh.base.interchange import ANSWER, INBOX, POST
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from support.command import MQMESH
from support.raw_client import RawClient
from support.services import PATIENCE, free_port

KILLS = int(os.environ.get("MQMESH_INTERCHANGE_KILLS", "1"))
SEED = int(os.environ.get("MQMESH_SEED", "1"))
EACH = 40  # exchanges between two kills
SERVICES = '[services."shop/orders"]\nusers = ["*"]\n[services."bank/credit"]\nusers = ["*"]\n'


class Killed:
    """The broker: its process, killed and started at will, at one port."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        (folder / "services.toml").write_text(SERVICES)
        self._config = folder / "broker.toml"
        text = f'listen = ["mqtt://127.0.0.1:{self.port}"]\ndata = "data"\n[interchange]\nservices = "services.toml"\n'
        self._config.write_text(text)
        self._log = folder / "broker.log"
        self.start()

    def start(self) -> None:
        with self._log.open("a") as log:
            words = [*MQMESH, "broker", "--config", str(self._config), "--stop-with-stdin"]
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready"), self._log.read_text()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.process.communicate()


class Partner(threading.Thread):
    """A service that comes again whenever its connection is lost. `work` is given each packet; `wanted` says whether it goes on."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._port, self._service = port, name
        self.client: RawClient | None = None
        self.up = threading.Event()
        self.ending = False
        self.error: BaseException | None = None
        self._number = 0

    def run(self) -> None:
        while not self.ending:
            try:
                client = RawClient(self._port)
                client.send(Connect(self._service, 5, False, 0, properties={Property.SESSION_EXPIRY_INTERVAL: 3600}))
                client.expect(Connack)
                filters = [Subscription("$queue/" + INBOX + self._service, 1), Subscription(ANSWER, 1)]
                client.send(Subscribe(1, filters))
                client.until(Suback)
                self.client = client
                self.came()
                while True:
                    packet = client.expect(object)
                    if self.work(packet) and isinstance(packet, Publish):
                        client.send(Puback(packet.packet_id))
            except (OSError, AssertionError) as error:
                if isinstance(error, AssertionError) and "closed the connection" not in str(error):
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


class Bank(Partner):
    """Answers each request with its body, and acknowledges it when its answer is. calls: those that it got, by the body."""

    def __init__(self, port: int) -> None:
        super().__init__(port, "bank/credit")
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
    """Posts requests under handles, each again until it is acknowledged. responses: hops of responses, by the body."""

    def __init__(self, port: int) -> None:
        super().__init__(port, "shop/orders")
        self.unacknowledged: dict[bytes, int] = {}
        self.responses: dict[bytes, set[str]] = {}
        self.refused: Counter[str] = Counter()
        self.all_answered = threading.Event()
        self.asked = 0
        self.lock = threading.Lock()

    def came(self) -> None:
        with self.lock:
            for body in self.unacknowledged:
                self.unacknowledged[body] = self._ask(body, possible_duplicate="true")

    def ask(self, body: bytes) -> None:
        with self.lock:
            self.asked += 1
            self.unacknowledged[body] = 0
            try:
                self.unacknowledged[body] = self._ask(body)
            except OSError:
                return  # it is posted when it comes again

    def _ask(self, body: bytes, **more: str) -> int:
        return self.post(body, kind="request", recipient="bank/credit", handle=body.decode(), **more)

    def work(self, packet: object) -> bool:
        if isinstance(packet, Puback):
            with self.lock:
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
        if not self.unacknowledged and len(self.responses) == self.asked:
            self.all_answered.set()
        return isinstance(packet, Publish)


def test_each_request_ends_once_whatever_is_killed(tmp_path: Path) -> None:
    chance, broker = random.Random(SEED), Killed(tmp_path)
    shop, bank = Shop(broker.port), Bank(broker.port)
    for partner in (shop, bank):
        partner.start()
    for kill in range(KILLS):
        at = chance.randrange(EACH)
        for number in range(EACH):
            shop.ask(b"%d-%d" % (kill, number))
            if number == at:
                broker.kill()
                broker.start()
    shop.all_answered.clear()
    shop.ask(b"last")
    assert shop.all_answered.wait(PATIENCE), (shop.asked, len(shop.responses), len(shop.unacknowledged), shop.error, bank.error)
    asked = {b"%d-%d" % (kill, number) for kill in range(KILLS) for number in range(EACH)} | {b"last"}
    assert set(bank.calls) == asked
    assert [body for body, calls in bank.calls.items() if len(calls) > 1] == [], "a handle was posted twice"
    assert [body for body, hops in shop.responses.items() if len(hops) > 1] == [], "a request ended twice"
    assert set(shop.refused) <= {"", "duplicate"}, shop.refused
    shop.ending = bank.ending = True
    broker.process.terminate()
    assert broker.process.wait(PATIENCE) == 0
