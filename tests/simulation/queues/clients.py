"""Clients of queues in the virtual loop: publishers that repeat what was not acknowledged, and members that work, refuse, hang and die."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqmesh.base.queues import ANSWER, POSITION, PREFIX, TOPIC
from mqmesh.mqtt.packets import Puback, Publish, Pubrec, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason

from ..recipients.clients import Client, Publisher
from ..recipients.virtual import VirtualLoop

if TYPE_CHECKING:
    from random import Random

REFUSED = 0x80  # and above: a reason code that refuses
AGAIN = 0.5  # seconds until a subscription that was refused is tried again
GIVEN_UP = 6.0  # seconds until a request without an answer is asked again


class Putter(Publisher):
    """Puts messages. repeated: told (number, queue and position) of what the broker says it has already. bodies: of messages, by number."""

    def __init__(
        self, loop: VirtualLoop, name: str, broker: str, acknowledged: Callable[[int, int], None], repeated: Callable[[int, str], None]
    ) -> None:
        super().__init__(loop, name, broker, acknowledged)
        self.repeated = repeated

    def put(self, number: int, body: bytes, queue: str, qos: int, properties: dict[int, Any]) -> None:
        """Put a message, now or when there is a connection. With QoS 0 only if there is one."""
        if not qos:
            self.send(Publish(PREFIX + queue, body, 0, False, False, 0, properties))
            return
        self.publish(number, PREFIX + queue, qos, properties, body)

    def packet(self, packet: Any) -> None:
        if isinstance(packet, Puback | Pubrec) and packet.packet_id in self.waiting:
            said = dict(packet.properties.get(Property.USER_PROPERTY, ()))
            if "mqmesh-repeat" in said:
                self.repeated(self.waiting[packet.packet_id][0], said["mqmesh-id"])
            if packet.reason >= REFUSED and isinstance(packet, Pubrec):  # it ends with that [MQTT-4.3.3-4]
                self.acknowledged(self.waiting.pop(packet.packet_id)[0], packet.reason)
                return
        super().packet(packet)


@dataclass(slots=True)
class Got:
    """A message that a member has. number: of its payload. queue, position: where it is said."""

    number: int
    queue: str
    packet_id: int
    position: int | None
    life: int  # which connection of the member it came over


class Worker(Client):
    """A member of queues. judge: says what becomes of a message: "done", "return", "unusable", "nothing".

    requests: of these queues it says so by requests. confirmed: told (queue, position, what was asked) when a request is answered.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        broker: str,
        queues: list[str],
        requests: set[str],
        chance: Random,
        judge: Callable[[Worker, Got], str],
        confirmed: Callable[[str, int, str], None],
    ) -> None:
        super().__init__(loop, name, broker)
        self.queues, self.requests = queues, requests
        self.chance, self.judge, self.confirmed = chance, judge, confirmed
        self.slowness = 0.02  # seconds that it works on a message, about
        self.late = False  # it says what it has to say of messages that it got over an earlier connection
        self.ready: set[str] = set()
        self.got = 0
        self.qos = 1
        self._connection = 0
        self._next = 30_000
        self._asked: dict[int, tuple[str, int, str]] = {}
        self._subscribing: dict[int, list[str]] = {}

    def hang(self) -> None:
        """Do nothing from now on."""
        self.awake = False
        if self.transport is not None:
            self.transport.pause_reading()

    def wake(self) -> None:
        """Go on where it was."""
        self.awake = True
        if self.transport is not None:
            self.transport.resume_reading()
        else:
            self._dial()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._connection += 1
        if not self.awake:
            self.transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.ready.clear()
        super().connection_lost(error)

    def entered(self, connack: Any) -> None:
        self._subscribing.clear()
        self._subscribe([ANSWER, *(PREFIX + one for one in self.queues)])

    def _subscribe(self, filters: list[str]) -> None:
        number = self._number()
        self._subscribing[number] = filters
        self.send(Subscribe(number, [Subscription(one, self.qos if one != ANSWER else 0) for one in filters], {}))

    def _number(self) -> int:
        self._next = self._next % 65_535 + 1
        return self._next

    def packet(self, packet: Any) -> None:
        if isinstance(packet, Suback):
            filters = self._subscribing.pop(packet.packet_id, [])
            refused = [one for one, reason in zip(filters, packet.reasons, strict=True) if reason >= REFUSED]
            self.ready.update(one for one in filters if one not in refused)
            if refused:
                self.loop.call_later(AGAIN, self._again, self._connection, refused, context=self.context)
        elif isinstance(packet, Publish) and packet.topic == ANSWER:
            self._answered(packet)
        elif isinstance(packet, Publish):
            self._came(packet)
        else:
            super().packet(packet)

    def _again(self, connection: int, filters: list[str]) -> None:
        if connection == self._connection and self.up:
            self._subscribe(filters)

    # ---- messages

    def _came(self, packet: Publish) -> None:
        assert packet.topic.startswith(PREFIX)
        said = dict(packet.properties.get(Property.USER_PROPERTY, ()))
        position = int(said[POSITION]) if POSITION in said else None
        got = Got(int(packet.payload.split()[0]), packet.topic[len(PREFIX) :], packet.packet_id, position, self._connection)
        self.got += 1
        if got.queue in self.requests and packet.qos:
            self.send(Puback(packet.packet_id))
        self.loop.call_later(self.slowness * self.chance.random(), self._judged, got, packet.qos, context=self.context)

    def _judged(self, got: Got, qos: int) -> None:
        here = got.life == self._connection and self.up
        if not self.awake:
            self.loop.call_later(0.5, self._judged, got, qos, context=self.context)
            return
        if not here and not (self.late and got.queue in self.requests and self.up):
            return
        what = self.judge(self, got)
        if what == "nothing":
            self.loop.call_later(0.5, self._judged, got, qos, context=self.context)
        elif got.queue in self.requests:
            assert got.position is not None, f"{got} has no position"
            self._ask(got.queue, got.position, what)
        elif qos:
            reasons = {"done": 0, "return": Reason.UNSPECIFIED_ERROR, "unusable": Reason.PAYLOAD_FORMAT_INVALID}
            self.send(Puback(got.packet_id, reasons[what]))

    # ---- requests

    def _ask(self, queue: str, position: int, what: str) -> None:
        number = self._number()
        self._asked[number] = queue, position, what
        asked = {"do": what, "name": queue, "position": position}
        self.send(Publish(TOPIC, json.dumps(asked).encode(), 0, False, False, 0, {Property.CORRELATION_DATA: number.to_bytes(2, "big")}))
        self.loop.call_later(GIVEN_UP, self._unanswered, number, self._connection, context=self.context)

    def _unanswered(self, number: int, connection: int) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None and connection == self._connection and self.up:
            self._ask(*asked)

    def _answered(self, packet: Publish) -> None:
        asked = self._asked.pop(int.from_bytes(packet.properties[Property.CORRELATION_DATA], "big"), None)
        if asked is None:
            return
        said = json.loads(packet.payload)
        if "error" not in said:
            self.confirmed(*asked)
        elif any(text in said["error"] for text in ("no answer", "takes nothing", "wait for one")):  # it may have come, or not
            self.loop.call_later(AGAIN, self._once_more, asked, self._connection, context=self.context)

    def _once_more(self, asked: tuple[str, int, str], connection: int) -> None:
        if connection == self._connection and self.up:
            self._ask(*asked)
