"""The sending half of a connection: runs and deliveries as this client wants them.

What is sent is appended to `out`. The broker writes all touched connections at once (`write_rounds.py` says when). Most
clients are plain: they take a run's shared bytes as they are. A *special* one limits the packet size or takes topic aliases.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from ...mqtt.batch.batch import Batch
from ...mqtt.batch.run import Run
from ...mqtt.codec import encode
from ...mqtt.properties import Property
from ...mqtt.session import Delivery
from ..journal.kinds import Kind

if TYPE_CHECKING:
    from ...mesh.topology.settings import Limits
    from ...mqtt.batch.batch import Mark
    from ..mesh.receipts import Tracker
    from ..persistence.answers import Answer
    from ..session.session import Session
    from ..site import Site

TOO_LARGE = "larger than the client takes"
ALIASES_OUT = 64  # the most aliases used towards one client, whatever it offers
ALIAS_MIN = 4  # a topic of fewer bytes is not longer than its alias


class Outgoing:
    """What a connection sends.

    congested: the transport holds more unsent bytes than it may. corked: nothing leaves, because CONNACK waits for a commit. sent:
    PUBLISH packets. dropped: QoS 0 messages for which there was no room. max_packet: the client's Maximum Packet Size, 0 for none.
    alias_maximum: its Topic Alias Maximum. tracker: of acknowledgements that wait for receipts; None while there never was one.
    via: how the client talks, for the journal: version + 16 * protocol. tally: what it has published, by what the journal's counters
    call its topics.
    """

    __slots__ = (
        "alias_maximum",
        "aliases_out",
        "answers",
        "closing",
        "congested",
        "context",
        "corked",
        "dropped",
        "limits",
        "max_packet",
        "out",
        "request_problem",
        "sends",
        "sent",
        "session",
        "site",
        "special",
        "tally",
        "tracker",
        "transport",
        "version",
        "via",
    )

    def __init__(self, site: Site) -> None:
        self.site = site
        self.context = site.context
        self.limits: Limits = site.config.limits
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.version = 4
        self.session: Session | None = None
        self.out: list[bytes | bytearray] = []
        self.answers: deque[Answer] | None = None
        self.sends: deque[tuple[int, bytes | bytearray]] | None = None
        self.closing = False
        self.congested = False
        self.corked = False
        self.special = False
        self.max_packet = 0
        self.alias_maximum = 0
        self.aliases_out: dict[bytes, int] = {}
        self.request_problem = True
        self.tracker: Tracker | None = None
        self.sent = 0
        self.dropped = 0
        self.via = 0
        self.tally: dict[str, int] | None = None

    def send(self, data: bytes | bytearray) -> None:
        """Append to what the next flush writes."""
        out = self.out
        if not out:
            self.context.touched.append(self)
        out.append(data)

    def flush(self) -> None:
        """Write what it has been given, now."""
        if self.out and not (self.closing or self.corked):
            data = b"".join(self.out)
            self.out = []
            self.context.counters.bytes_sent += len(data)
            self.transport.write(data)

    def cork(self) -> None:
        """From now on nothing leaves, until `uncork`: what is sent gathers in `out`, and the connection counts as congested."""
        self.corked = self.congested = True
        self.out.append(b"")  # so that `send` finds it touched already, and nobody writes it

    def uncork(self) -> None:
        """The next flush writes what has gathered."""
        if self.closing or not self.corked:
            return
        self.corked = self.congested = False
        self.context.touched.append(self)
        if self.session is not None:
            self.session.pump()
            if self.site.queues is not None:
                self.site.queues.resumed(self.session)

    def answer(self, data: bytes | bytearray) -> None:
        """Send an acknowledgement, once what it promises is kept and after those before it."""
        persistence = self.site.persistence
        if persistence is None:
            self.send(data)
        else:
            persistence.answer(self, data)  # type: ignore[arg-type]

    def confirm(self, qos: int, data: bytes | bytearray, count: int) -> None:
        """Send acknowledgements of PUBLISH as `answer` does, and behind those of this QoS that wait for receipts [MQTT-4.6.0-2, -3]."""
        if self.tracker is None:
            self.answer(data)
        else:
            self.tracker.behind(qos, data, count)

    def send_after(self, ticket: int, data: bytes | bytearray) -> None:
        """Send once a commit is done, and after what waits for commits already. ticket: of the commit; 0: of none."""
        if ticket or self.sends:
            assert self.site.persistence is not None
            self.site.persistence.send(self, ticket, data)  # type: ignore[arg-type]
        else:
            self.send(data)

    def send_packet(self, packet: Any, answer: bool = False) -> None:
        """Send one control packet; one too large for the client goes without its Reason String, or not at all (MQTT-3.1.2-24).

        answer: it goes as an acknowledgement does.
        """
        data = encode(packet, self.version)
        if self.max_packet and len(data) > self.max_packet:
            if Property.REASON_STRING not in packet.properties:
                return
            del packet.properties[Property.REASON_STRING]
            self.send_packet(packet, answer)
            return
        self.context.counters.packets_sent += 1
        if answer:
            self.answer(data)
        else:
            self.send(data)

    def drop(self, count: int) -> None:
        """Messages that this client does not get: it is congested or they are too large for it."""
        self.dropped += count
        self.context.counters.dropped += count

    def send_qos0(self, batch: Batch, retain: bool, suffix: bytes) -> bool:
        """A batch at QoS 0, with everything that this connection may want of it. suffix: encoded subscription identifiers.

        False: nothing of it was sent.
        """
        mark = batch.mark
        if self.congested:
            self.drop(batch.count)
            if mark is not None:
                self._note_unsent(mark, "unsent bytes over the bound")
            return False
        if self.special and not batch.uniform:
            sent = [self.send_qos0(batch.single(index), retain, suffix) for index in range(batch.count)]
            return any(sent)
        more = self._more(batch, suffix)
        if more is None:
            self.context.counters.expired += batch.count
            if mark is not None:
                self._note_unsent(mark, "expired", expired=True)
            return False
        if self.alias_maximum:
            if not self._send_aliased(batch, 0, retain, more, 0, batch.count, 0, False):
                if mark is not None:
                    self._note_unsent(mark, TOO_LARGE)
                return False
        else:
            block = batch.block(self.version, retain, more)
            if self.max_packet and len(block) > self.max_packet * batch.count:
                self.drop(batch.count)
                if mark is not None:
                    self._note_unsent(mark, TOO_LARGE)
                return False
            self.sent += batch.count
            self.context.counters.publish_bytes_sent += len(block)
            self.send(block)
        if mark is not None and self.context.journal is not None:
            self.context.journal.sent(self, mark, 0)
        return True

    def _note_unsent(self, mark: Mark, reason: str, expired: bool = False) -> None:
        """Write down that this client does not get messages."""
        journal, session = self.context.journal, self.session
        if journal is not None and session is not None:
            journal.dropped(session.client_id, mark, reason, session.user or "", Kind.EXPIRED if expired else Kind.DROPPED)

    def _note_delivery(self, delivery: Delivery, reason: str = "", expired: bool = False) -> None:
        """Write down that messages of QoS 1 or 2 were sent, or why not."""
        mark = delivery.run.mark
        if mark is None or self.context.journal is None:
            return
        mark = mark.part(delivery.start, delivery.start + delivery.count)
        if reason:
            self._note_unsent(mark, reason, expired)
        else:
            self.context.journal.sent(self, mark, delivery.qos)

    def send_delivery(self, delivery: Delivery, duplicate: bool = False, ticket: int = 0) -> bool:
        """QoS 1 or 2, identifiers given. False: nothing was sent, they are free again (expired or larger than the client takes).

        duplicate: it is sent again, on a resumed session; then it goes out even after its lifetime, because its delivery has begun.
        ticket: see `send_after`; 0: the delivery's own.
        """
        ticket = ticket or delivery.ticket
        batch = delivery.run
        if self.special and not batch.uniform:
            return self._send_singly(delivery, duplicate, ticket)
        more = self._more(batch, delivery.suffix)
        if more is None:
            if not duplicate:
                self.context.counters.expired += delivery.count
                self._note_delivery(delivery, "expired", expired=True)
                return False
            more = b"\x02\0\0\0\0" + delivery.suffix
        if self.alias_maximum and not (ticket or self.sends):  # what waits must not define what others use before
            given = batch, delivery.qos, delivery.retain, more, delivery.start, delivery.count, delivery.first, duplicate
            taken = self._send_aliased(*given)
            if not (taken and duplicate):
                self._note_delivery(delivery, "" if taken else TOO_LARGE)
            return taken
        data = delivery.encode(self.version, more, duplicate)
        if self.max_packet and len(data) > self.max_packet * delivery.count:
            self.drop(delivery.count)
            self._note_delivery(delivery, TOO_LARGE)
            return False
        if batch.mark is not None and not duplicate:
            self._note_delivery(delivery)
        self.sent += delivery.count
        self.context.counters.publish_bytes_sent += len(data)
        if ticket or self.sends:
            self.send_after(ticket, data)
        else:
            self.send(data)
        return True

    def _send_singly(self, delivery: Delivery, duplicate: bool, ticket: int) -> bool:
        """A special client's wishes are looked at message by message."""
        session = self.session
        assert session is not None
        for index in range(delivery.count):
            one = Delivery(delivery.run.single(delivery.start + index), delivery.qos, delivery.retain, delivery.suffix)
            one.first = delivery.first + index
            if not self.send_delivery(one, duplicate, ticket):
                session.outbound.give_up(one.qos, one.first, 1)
        return True

    def _more(self, batch: Batch, suffix: bytes) -> bytes | None:
        """The properties that follow the messages' own for this connection; None when the messages have expired (MQTT-3.3.2-5, -6)."""
        if batch.expiry is None:
            return suffix
        waited = self.context.now - batch.received
        if waited > batch.expiry:
            return None
        left = batch.expiry - int(waited) if waited > 0 else batch.expiry
        return b"".join((b"\x02", left.to_bytes(4, "big"), suffix))

    def _send_aliased(self, batch: Batch, qos: int, retain: bool, more: bytes, start: int, count: int, first: int, duplicate: bool) -> bool:
        """To a client that takes topic aliases: the topic once, from then on its number (MQTT-3.3.2-7 to -14). False: too large for it."""
        topic = batch.topic
        table = self.aliases_out
        alias = table.get(topic, 0)
        known = alias > 0
        if not known and len(table) < min(self.alias_maximum, ALIASES_OUT) and len(topic) >= ALIAS_MIN:
            alias = len(table) + 1
        if alias:
            more += b"\x23" + alias.to_bytes(2, "big")
        stop = start + count
        blocks = [(start, stop, known)] if known or not alias else [(start, start + 1, False), (start + 1, stop, True)]
        for begin, end, short in blocks:
            if begin == end:
                continue
            part = batch if end - begin == batch.count else batch.part(begin, end)
            if short:
                part = Run(b"", batch.qos, batch.retain, part.payloads, batch.properties)
            data = (
                part.stamped(5, qos, retain, more, 0, part.count, first + begin - start, duplicate) if qos else part.block(5, retain, more)
            )
            if self.max_packet and len(data) > self.max_packet * part.count:
                self.drop(end - start)
                return False
            if alias:
                table[topic] = alias
            self.sent += part.count
            self.context.counters.publish_bytes_sent += len(data)
            self.send(data)
        return True
