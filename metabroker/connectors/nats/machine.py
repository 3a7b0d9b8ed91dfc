"""A NATS client as a machine: bytes and times in, bytes and events out. The face is that of `wire.Wire`.

The server speaks first (INFO), we say who we are (CONNECT), and its PONG accepts us. Then the list of JetStream's streams is read, so that
it is known which subjects are kept (`jetstream.py`); it is read again when somebody subscribes at QoS 1, and when a stream does not answer.
Mistakes are told by subject (`-ERR`), before the PONG of a PING that follows what they are about.

What it does not know: sockets, TLS (`shell.py`), sessions of the metabroker.
"""

from __future__ import annotations

import builtins
import json
import re
from dataclasses import dataclass
from typing import Any

from ....mqtt.errors import PeerError
from ....mqtt.packets import Publish
from ....mqtt.reasons import Reason
from ...wire import PATIENCE, Abilities, Event, Refused, State, Trouble, Up
from . import codec, jetstream
from .jetstream import Streams
from .publisher import Publisher
from .subscriber import Subscriber
from .talk import Talk

KEEP_ALIVE = 30.0  # seconds between two PINGs
_VIOLATION = re.compile(r'Permissions Violation for (Publish|Subscription) to "([^"]*)"', re.IGNORECASE)
_CREDENTIALS = ("authorization violation", "authentication", "account authentication", "revoked")
_HARMLESS = ("invalid subject", "invalid publish subject", "message size exceeded")


@dataclass(frozen=True, slots=True)
class Login:
    """As whom. name: of our consumers, and what messages' identifiers begin with. expiry: seconds that consumers outlive us."""

    name: str
    username: str | None = None
    password: bytes | None = None
    expiry: int = 3600
    tls: bool = False


class Machine:
    """See `connectors.connector.Machine`. life: makes the identifiers of messages differ from those of an earlier machine of this name."""

    def __init__(self, login: Login, life: str) -> None:
        self.login = login
        self.state = State.DOWN
        self.reading = True
        self.epoch = 0
        self._out: list[bytes] = []
        self._framer = codec.Framer()
        self._streams = Streams()
        self._talk = Talk(f"_INBOX.{login.name}-{life}", self._out.append)
        self._publisher = Publisher(f"{login.name}-{life}", self._talk, self._streams, self._out.append, self._list)
        self._subscriber = Subscriber(login.name, login.expiry, self._talk, self._streams, self._out.append, self._list)
        self._listing = False
        self._heard_at = self._pinged_at = 0.0
        self._info: dict[str, Any] = {}

    @property
    def bytes(self) -> int:
        """Payloads that the remote has not acknowledged."""
        return self._publisher.bytes

    @bytes.setter
    def bytes(self, value: int) -> None:
        self._publisher.bytes = value

    def take(self) -> builtins.bytes:
        """See `Machine`, as all of these."""
        if self.state is State.UP:
            self._publisher.mark()
        data = b"".join(self._out)
        self._out.clear()
        return data

    # Connections

    def begin(self, now: float) -> None:
        self.epoch += 1
        self.state = State.CONNECTING
        self._framer = codec.Framer()
        self._heard_at = self._pinged_at = self._talk.now = now
        self._info = {}
        self._listing = False
        self._out.clear()

    def lost(self) -> None:
        self.state = State.DOWN
        self._talk.lost()
        self._publisher.lost()
        self._subscriber.lost()
        self._out.clear()

    def end(self, now: float, forget: bool = True) -> bool:
        return self.state is State.UP and forget and self._subscriber.leave()

    # Requests

    def publish(self, publish: Publish, token: int, now: float) -> None:
        self._talk.now = now
        self._publisher.publish(publish, token)

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        self._talk.now = now
        self._subscriber.subscribe(filter_, qos, identifier, token)

    def unsubscribe(self, filter_: str, token: int, now: float) -> None:
        self._talk.now = now
        self._subscriber.unsubscribe(filter_)

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        self._subscriber.acknowledge(packet_id, epoch)

    # Time

    def on_timer(self, now: float) -> None:
        if self.state is State.DOWN:
            return
        if not self.reading:
            self._heard_at = now
        if now - self._heard_at > (PATIENCE if self.state is State.CONNECTING else KEEP_ALIVE + PATIENCE):
            raise PeerError(Reason.KEEP_ALIVE_TIMEOUT, "the server does not answer", "")
        self._talk.on_timer(now)
        if self.state is State.UP:
            self._publisher.on_timer(now)
            self._subscriber.settle(now)
            if now - self._pinged_at >= KEEP_ALIVE:
                self._pinged_at = now
                self._talk.ping()

    # What comes

    def receive(self, data: builtins.bytes, now: float) -> list[Event]:
        self._heard_at = self._talk.now = now
        events: list[Event] = []
        for item in self._framer.feed(data):
            if isinstance(item, codec.Delivery):
                self._delivery(item, events)
            else:
                self._line(item, events, now)
            if events and isinstance(events[-1], Refused):
                break
        return events

    def _line(self, line: codec.Line, events: list[Event], now: float) -> None:
        match line.verb:
            case "PING":
                self._out.append(b"PONG\r\n")
            case "PONG":
                self._talk.on_pong(events)
            case "INFO":
                self._on_info(line.rest, events)
            case "-ERR":
                self._error(line.rest.decode("utf-8", "replace").strip("' "), events)
            case "+OK":
                pass
            case _:
                raise PeerError(Reason.PROTOCOL_ERROR, "the server does not speak NATS", "")

    def _on_info(self, rest: builtins.bytes, events: list[Event]) -> None:
        try:
            info = json.loads(rest)
        except (ValueError, RecursionError):
            info = None
        if not isinstance(info, dict):
            raise PeerError(Reason.MALFORMED_PACKET, "the server does not speak NATS: its INFO is no JSON", "")
        first, self._info = not self._info, self._info | info
        if not first:
            return  # the cluster has changed
        if info.get("tls_required") and not self.login.tls:
            events.append(Refused(False, "it wants TLS: write tls://host:port"))
        elif not info.get("headers"):
            events.append(Refused(False, "it knows no headers: nats-server 2.2 and later do"))
        else:
            largest = info.get("max_payload")
            self._publisher.largest = largest if isinstance(largest, int) else 0
            self._connect()

    def _connect(self) -> None:
        login = self.login
        options: dict[str, Any] = {"verbose": False, "pedantic": False, "lang": "python-mqmesh", "version": "1", "protocol": 1}
        options |= {"echo": True, "headers": True, "no_responders": True, "tls_required": login.tls, "name": login.name}
        if login.username is not None and login.password is None:
            options["auth_token"] = login.username
        elif login.username is not None:
            options |= {"user": login.username, "pass": (login.password or b"").decode("utf-8", "replace")}
        self._out.append(f"CONNECT {json.dumps(options)}\r\n".encode())
        self._talk.ping(self._accepted)

    def _accepted(self, events: list[Event]) -> None:
        self._out.append(f"SUB {self._talk.inbox}.* 1\r\n".encode())
        self._streams.forget()
        if self._info.get("jetstream"):
            self._list()
        else:
            self._listed(events)

    def _error(self, text: str, events: list[Event]) -> None:
        lower = text.lower()
        if (violation := _VIOLATION.search(text)) is not None:
            what, subject = violation.groups()
            events.append(Trouble(text))
            if what.lower() == "publish":
                self._talk.refused(subject, events)
                self._publisher.refused(subject, events)
            else:
                self._subscriber.refused(subject)
        elif lower.startswith("maximum subscriptions"):
            events.append(Trouble(text))
            self._subscriber.too_many()
        elif lower.startswith(_HARMLESS):
            events.append(Trouble(text))
        elif self.state is State.CONNECTING:
            events.append(Refused(any(word in lower for word in _CREDENTIALS), text))
        else:
            raise PeerError(Reason.UNSPECIFIED_ERROR, f"the server ends the connection: {text}", "")

    def _delivery(self, delivery: codec.Delivery, events: list[Event]) -> None:
        if delivery.sid != 1:
            self._subscriber.on_delivery(delivery, events)
            return
        token = delivery.subject.rpartition(b".")[2]
        status = codec.read_headers(delivery.headers)[0] if delivery.headers else ""
        if token.startswith(b"r"):
            self._talk.on_answer(token[1:], status, delivery.payload, events)
        else:
            self._publisher.on_answer(token[1:], status, delivery.payload, events)

    # Streams

    def _list(self) -> None:
        """Read the list of streams, unless that is under way; nothing is published meanwhile."""
        if not self._listing:
            self._listing = True
            self._publisher.ready = False
            self._talk.ask(jetstream.LIST, self._streams.begin(), self._page)

    def _page(self, answer: Any, events: list[Event]) -> None:
        more = self._streams.page(answer)
        if more is not None:
            self._talk.ask(jetstream.LIST, more, self._page)
        else:
            self._listed(events)

    def _listed(self, events: list[Event]) -> None:
        self._listing = False
        if self.state is State.CONNECTING:
            self.state = State.UP
            self._subscriber.open(self.epoch, self._talk.now)
            events.append(Up(False, Abilities(True, self._publisher.largest, 2, False, self._publisher.cannot)))
        self._publisher.ready = True
        self._subscriber.listed()
        self._publisher.more()
