"""Single messages of QoS 0 between a client and the metabroker in this process, without packets in between.

On the general way a single message becomes a run, a delivery, bytes for the in-process transport, a packet there, and so on. Each step
serves many messages as well as one, and for one message they are the time that it takes. Here a request goes from the client's bytes to
the metabroker with one call (`request`, called by `broker/publish/direct.py`), and a publication of the metabroker to its recipients
with another (`give`).

Strategy: only what the general way has done before goes here, so that there is one set of rules. What is unusual in any respect is left to
the general way. Nothing overtakes: while something waits between the two, nothing goes here. Counters count the same bytes and packets
as if there had been frames in between.

Invariant: `request` does everything or nothing; after `recipients` has found some, `give` is the delivery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...mqtt.batch.packets import PacketBatch
from ..publish.direct import LARGEST
from ..routing.publication import Publication

if TYPE_CHECKING:
    from ..routing.route import Recipients
    from ..site import ClientConnection, Site
    from ..transport.in_process import InProcessPair

Receiver = Callable[[bytes, float], bool]  # takes a request's body, at a time of the loop's clock; False: it did nothing
TURNS = (127, 16_383)  # Remaining Lengths to which one more byte adds a byte of length


class Guest(Protocol):
    """The metabroker in this process, as far as single messages are concerned."""

    def joined(self, direct: Direct) -> None:
        """This is the broker's side from now on."""

    def receiver(self, topic: str) -> Receiver | None:
        """What takes the requests of QoS 0 on a topic; None: they go the general way."""


class Direct:
    """The broker's side of one join. inside: the metabroker's connection at the broker."""

    __slots__ = ("_guest", "_inside", "_pair", "_receivers", "_site")

    def __init__(self, site: Site, pair: InProcessPair, inside: ClientConnection, guest: Guest) -> None:
        self._site = site
        self._pair = pair
        self._inside = inside
        self._guest = guest
        self._receivers = site.router.receivers
        self._receivers.clear()  # they were those of an earlier metabroker
        guest.joined(self)

    # From a client to the metabroker

    def request(self, connection: ClientConnection, topic: bytes, data: bytes, start: int, end: int) -> bool:
        """Take a PUBLISH of QoS 0 whose sole recipient is the metabroker. False: nothing was done.

        start: of its body in `data`. end: of its topic, to which `connection` may publish.
        """
        receiver = self._receivers.get(topic)
        if receiver is None:
            self._find_receiver(topic)
            return False
        inside = self._inside
        size = len(data)
        if connection.version == 5:
            if end >= size or data[end]:
                return False
            body, sent = data[end + 1 :], size
        else:
            if end > size or size - start in TURNS:
                return False
            body, sent = data[end:], size + 1  # the metabroker speaks MQTT 5: a byte for no properties
        if inside.out or inside.closing or inside.congested or self._pair.other.waiting or not receiver(body, connection.last_received):
            return False
        connection.received += 1
        inside.sent += 1
        counters = self._site.context.counters
        counters.publish_bytes_received += size
        counters.publish_bytes_sent += sent
        counters.bytes_sent += sent
        return True

    def _find_receiver(self, topic: bytes) -> None:
        """A topic has no receiver: ask the metabroker for one."""
        route = self._site.router.routes.get(topic)
        inside = self._inside
        able = inside.version == 5 and not inside.alias_maximum and (not inside.max_packet or inside.max_packet > LARGEST)
        if route is None or route.rights is None or not able:
            return
        receiver = self._guest.receiver(route.topic)
        if receiver is not None:
            self._receivers[topic] = receiver

    # From the metabroker to clients

    def recipients(self, topic: bytes) -> Recipients | None:
        """Who gets what the metabroker publishes on a topic; None: it has to go the general way."""
        inside, pair = self._inside, self._pair
        if pair.one.waiting or inside.closing or inside.received >= inside.allowance:
            return None
        if inside.admitted_at != self._site.router.changes:
            inside.review()
        recipients = inside.admitted.get(topic)
        if recipients is None or recipients.mask or recipients.noted or self._site.context.hooks is not None:
            return None
        return recipients

    def give(self, recipients: Recipients, version: int, frame: bytes, now: float) -> None:
        """Deliver a PUBLISH, as it is for clients of a version of MQTT; `flush` follows."""
        site, inside = self._site, self._inside
        inside.last_received = site.context.now = now
        inside.received += 1
        counters = site.context.counters
        size = len(frame)
        if version == 4:  # the metabroker's own would have a byte for no properties
            size += 2 if size in (129, 16_386) else 1
        counters.bytes_received += size
        counters.publish_bytes_received += size
        site.router.deliver(PacketBatch(frame, version, 0, 1, now), recipients, Publication())

    def flush(self) -> None:
        """Write what has been given."""
        self._site.context.flush()
