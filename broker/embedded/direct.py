"""The short way between a client and what runs inside the broker (the metabroker), for one message at a time at QoS 0.

A lone message that goes the general way becomes a run, a route's delivery, bytes for the joint, a packet there, and so on: each step
serves many messages as well as one, and for one alone they are the time that it takes, on a processor that has just woken up. Here a
request goes from the client's bytes to the guest with one call, and a publication of the guest to its recipients with another.

Strategy: what may go this way was found by the general way before (`Router.straight` lives as long as the route it was made from), so
that there is one set of rules; what is unusual in any respect is left to the general way. Nothing overtakes: where something waits
between the two, the short way is closed. Counters count the same bytes and packets as if there had been frames in between.

Invariant: `request` does all or nothing; after `recipients` has found some, `give` is the delivery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...mqtt.framing import lone_body

if TYPE_CHECKING:
    from ..auth.permissions import Rights
    from ..client.connection import Connection
    from ..routing.route import Fan
    from ..server import Broker
    from ..transport.in_process import Joint

Take = Callable[[bytes, float], bool]  # a request's body, and the loop's time: whether it was taken
Way = tuple["Rights", Take]  # who may use it, and where it leads
LARGEST = 16_386 + 2  # bytes of a packet whose Remaining Length is two bytes, and what the guest's version adds
TURNS = (127, 16_383)  # Remaining Lengths behind which one more byte makes two


class Guest(Protocol):
    """What runs inside, as far as messages go the short way."""

    def joined(self, straight: Straight) -> None:
        """This is the broker's side from now on."""

    def way(self, topic: str) -> Take | None:
        """Who takes the requests of QoS 0 on a topic; None: they go the general way."""


class Straight:
    """Of one join. inside: the guest's connection at the broker."""

    __slots__ = ("_broker", "_guest", "_inside", "_joint", "_ways")

    def __init__(self, broker: Broker, joint: Joint, inside: Connection, guest: Guest) -> None:
        self._broker = broker
        self._joint = joint
        self._inside = inside
        self._guest = guest
        self._ways = broker.router.straight
        self._ways.clear()  # they led to who was inside before
        guest.joined(self)

    # In: from a client to the guest

    def request(self, connection: Connection, data: bytes) -> bool:
        """Take `data`, which came from a connected client with nothing before it and begins with 0x30. False: nothing was done."""
        start = lone_body(data)
        if not start:
            return False
        size = len(data)
        end = start + 2 + (data[start] << 8 | data[start + 1])
        topic = data[start + 2 : end]
        way = self._ways.get(topic)
        if way is None:
            self._learn(topic)
            return False
        inside = self._inside
        if connection.version == 5:
            if end >= size or data[end]:
                return False
            body, sent = data[end + 1 :], size
        else:
            if end > size or size - start in TURNS:
                return False
            body, sent = data[end:], size + 1  # the guest speaks MQTT 5: a byte for no properties
        rights, take = way
        if (
            inside.out
            or inside.closing
            or inside.congested
            or self._joint.other.waiting
            or (rights.owners is not None and connection.client_id not in rights.owners)
            or (connection.allowed is not None and topic not in connection.allowed)
            or size > connection.limits.max_packet_size
            or not take(body, connection.last_received)
        ):
            return False
        connection.received += 1
        inside.sent += 1
        counters = self._broker.counters
        counters.publish_bytes_received += size
        counters.publish_bytes_sent += sent
        counters.bytes_sent += sent
        return True

    def _learn(self, topic: bytes) -> None:
        """A topic has no way: make one, if the general way has found that it leads to the guest alone."""
        route = self._broker.router.routes.get(topic)
        if route is None or route.rights is None or route.rights.identified or route.mesh is not None:
            return
        inside = self._inside
        able = inside.version == 5 and not inside.alias_maximum and (not inside.max_packet or inside.max_packet > LARGEST)
        if not able or not route.plain or not route.writable or route.service is not None:
            return
        if [target.session for target in route.targets] != [inside.session]:
            return
        take = self._guest.way(route.topic)
        if take is not None:
            self._ways[topic] = route.rights, take

    # Out: from the guest to clients

    def recipients(self, topic: bytes) -> Fan | None:
        """Who gets what the guest publishes on a topic that it alone may publish to; None: it has to go the general way."""
        inside, joint = self._inside, self._joint
        if joint.one.waiting or inside.closing or inside.received >= inside.allowance:
            return None
        if inside.allowed is not None and topic not in inside.allowed:
            return None
        fan = self._broker.router.owned_fans.get(topic)
        return None if fan is None or fan.mask else fan

    def give(self, fan: Fan, version: int, frame: bytes, now: float) -> None:
        """Deliver a PUBLISH, as it is for clients of a version of MQTT; `flush` follows."""
        broker, inside = self._broker, self._inside
        inside.last_received = broker.now = now
        inside.received += 1
        counters = broker.counters
        size = len(frame)
        if version == 4:  # the guest's own would have a byte for no properties
            size += 2 if size in (129, 16_386) else 1
        counters.bytes_received += size
        counters.publish_bytes_received += size
        broker.router.deliver_block(frame, version, 1, fan)

    def flush(self) -> None:
        """Write what has been given."""
        self._broker.flush()
