"""One client's connection: bytes in to `parse`, packets to handlers, blocks of bytes out.

The transport is asyncio's (or uvloop's). The sending half stands in `sending.py`, what is done with received batches
in `broker/publish/`, the rules of backpressure in `backpressure.py`.

Invariants: bytes are taken in order and once; what is not a whole packet waits in `_tail`, never more than one packet and one chunk,
because a connection that is held or paused is not read; once `closing` is set nothing is taken or sent any more, and the session
has been given back to the broker.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...base.quoting import quoted
from ...base.refusals import source_of
from ...mesh.topology.listeners import BOTH
from ...mqtt import packets
from ...mqtt.codec import encode
from ...mqtt.errors import PeerError
from ...mqtt.length import LARGEST_PACKET
from ...mqtt.properties import Property
from ...mqtt.reasons import DISCONNECT_REASONS, Reason
from ..auth.guard import ENDED
from ..empty import EMPTY_SET
from ..ledger import LOGINS, PIECE, RECEIVED, STEP, UNSENT, weight_of_connection
from ..ports import HELD
from ..publish.accept import publish_withheld
from ..publish.direct import LARGEST, NOT_TAKEN, WRITES, take_single
from ..publish.parse import parse
from ..transport.lost import LOST
from . import connect as handshake
from . import packets as handlers
from .sending import Outgoing

if TYPE_CHECKING:
    from ..auth.service import Outcome, Proof
    from ..routing.publication import Withheld
    from ..routing.route import Recipients
    from ..site import Site
    from ..turns import Share
    from .rate_limit import Throttle

log = logging.getLogger("mqmesh.broker")

INFINITE = float("inf")
ADMITTED_MAX = 1_000  # topics that a connection remembers for itself
ADMITTED_LONGEST = 256  # bytes of such a topic
TURN = "turn"  # a cause of not reading: what came last waits for a turn (`turns.py`)
RATE = "rate"  # a cause of not reading: it sends more messages than it may


class Connection(Outgoing, asyncio.Protocol):
    """One network connection of a client (or, until it says so, of another broker).

    session: set by CONNECT. need: bytes of the incomplete packet at the end of what came, 0 when unknown. pauses: why the socket is
    not read. held: the mesh had no room for what came last, or is not ready for CONNECT. clean_end: the client said goodbye, so its
    will is not published. ack: whether its messages are acknowledged behind receipts, None when it did not say. receive_maximum:
    what we granted, 0 for all identifiers. mqisdp: the client speaks MQTT 3.1. bridge: it is the bridge of
    a broker (`Connect.bridge`). taken: QoS 1 messages that waited for their acknowledgement when a piece of bytes came, and those in it
    so far.
    account: what is held for it, but for its session.
    admitted: topics that its client may publish plain messages to, with their recipients. The router's own, or a part of it.
    admitted_at: the router's count of changes when `admitted` was right.
    allowed: topics that the rules of access let it publish to, as far as was asked; None: there are no rules.
    denied: messages that it might not publish.
    user: the name that it has proven. proof: what it has shown for that, None where nobody is asked. ends: when that ends, on the loop's
    clock; None: it does not. named: the user name that its CONNECT said.
    throttle: for its rate of messages, None: there is no limit. allowance: messages taken in all until which nobody looks at it.
    serves: whom its listener serves. listener: the name of that listener, "" without.
    inside: it is the metabroker's that runs in this process, and needs no password.
    largest: bytes of the largest packet that is taken from it, `limits.max_packet_size`; of the metabroker inside any is taken.
    share: of its address in the loop's time. waits: what came, or what it caused, waits for a turn. ending: the peer has ended its stream
    meanwhile, or is gone. lost_by: the error that ended the connection, None: there was none. steps: the rest of what one packet caused;
    what came behind it waits.
    room: what `release` was called with while it waited for a turn; None: it was not.
    keep_alive: seconds of silence after which it is closed, 0 for none. closed_at: when it was closed from this side.
    """

    __slots__ = (
        "_tail",
        "_tail_size",
        "account",
        "ack",
        "address",
        "admitted",
        "admitted_at",
        "aliases_in",
        "allowance",
        "allowed",
        "bridge",
        "clean_end",
        "client_id",
        "closed_at",
        "denied",
        "ending",
        "ends",
        "handed_over",
        "held",
        "inside",
        "keep_alive",
        "largest",
        "last_received",
        "listener",
        "lost_by",
        "mqisdp",
        "named",
        "need",
        "opened",
        "pauses",
        "proof",
        "receive_maximum",
        "received",
        "refuse_when_full",
        "room",
        "serves",
        "share",
        "steps",
        "stuck_since",
        "taken",
        "throttle",
        "unsent_before",
        "user",
        "waits",
        "withheld",
    )

    def __init__(self, site: Site, inside: bool = False, serves: str = BOTH, listener: str = "") -> None:
        super().__init__(site)
        self.inside = inside
        self.largest = LARGEST_PACKET if inside else self.limits.max_packet_size
        self.serves = serves
        self.listener = listener
        self.address = "?"
        self.account = site.context.ledger.account()
        self.client_id = ""
        self._tail: list[bytes] = []
        self._tail_size = 0
        self.need = 0
        self.closed_at = 0.0
        self.handed_over = False
        self.mqisdp = False
        self.bridge = False
        self.clean_end = False
        self.held = False
        self.withheld: Withheld | None = None
        self.refuse_when_full = False
        self.room: bool | None = None
        self.keep_alive = 0.0
        self.last_received = 0.0
        self.opened = 0.0
        self.aliases_in: dict[int, bytes] = {}
        self.admitted = site.router.recipients
        self.admitted_at = 0
        self.denied = 0
        self.named: str | None = None
        self.user: str | None = None
        self.proof: Proof | None = None
        self.ends: float | None = None
        self.allowed: set[bytes] | None = None
        self.pauses: set[object] = EMPTY_SET
        self.receive_maximum = 0
        self.ack: bool | None = None
        self.received = 0
        self.throttle: Throttle | None = None
        self.allowance = INFINITE
        self.taken = 0
        self.share = self.context.turns.share("?")
        self.steps: Iterator[object] | None = None
        self.waits = False
        self.ending = False
        self.lost_by: Exception | None = None
        self.stuck_since = 0.0
        self.unsent_before = 0

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "inside" if self.inside else "unix"
        if not self.inside:
            self.account.move(source_of(self.address), None)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.bound_unsent(self.limits.unsent_bytes)
        self.opened = self.last_received = self.context.loop.time()
        self.share = self.context.turns.share(self.address)
        self.site.connected(self)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        site, context = self.site, self.context
        self.last_received = context.now = context.loop.time()
        context.counters.bytes_received += len(data)
        session = self.session
        at_once = True
        if self._tail or self.held:
            self._tail.append(data)
            self._tail_size += len(data)
            if self._tail_size < self.need or self.held:
                self._charge_tail()
                return
            at_once = False
        taken = NOT_TAKEN
        if at_once and session is not None and 4 <= len(data) <= LARGEST:
            taken = take_single(self, session, data)
        if not taken:
            if not self._take(data, at_once):
                return
        elif site.within is not None and site.within.out:
            site.hand_over()
        if self.inside:
            context.flush()
        else:
            site.rounds.piece_taken(self, len(data), context.write if taken == WRITES else context.flush)
        self._look_at_pace()

    def eof_received(self) -> bool:
        self._end()
        return not self.closing

    def connection_lost(self, error: Exception | None) -> None:
        self.site.lost(self)
        if not self.closing:
            self.lost_by, self.transport = error, LOST
            self.congested = True  # until its turn to end: what queues and shared subscriptions have is for others
            self._end()

    def _end(self) -> None:
        """The peer is gone. What that means for its session is work: where many go at once, each has its turn, behind what came before."""
        turns = self.context.turns
        if self.waits:
            self.ending = True
        elif self.held or self.session is None or self.inside:
            self.close()
            self.context.flush()
        elif turns.enter(turns.ends):
            self.close()
            self.context.flush()
            turns.leave(turns.ends, self)
        else:
            self.ending = True
            self.wait_for_turn(turns.ends)

    def pause_writing(self) -> None:
        self.congested = True
        self.stuck_since = self.context.loop.time()
        self.unsent_before = 0

    def resume_writing(self) -> None:
        self.congested = False
        if self.closing:
            return
        self.context.now = self.context.loop.time()
        self.resume_reading_after(self)
        if self.session is not None:
            self.session.pump()
            if self.site.queues is not None:
                self.site.queues.resumed(self.session)
            self.context.flush()

    # In

    @property
    def unacknowledged(self) -> int:
        """How many messages of QoS 1 wait for their acknowledgement, but for those that are withheld."""
        return self.tracker.waiting_1 if self.tracker is not None else 0

    def _consume(self, data: bytes) -> None:
        """Take what came; what is left waits for more."""
        if self.closing:
            return
        self._tail_size = 0
        self.taken = self.unacknowledged
        if self.account.held[RECEIVED]:
            self.account.settle(RECEIVED, self.unread)
        try:
            used = parse(self, data)
        except PeerError as error:
            self.fail(error)
            return
        except Exception:
            self._internal_error()
            return
        if self.handed_over:
            self.closing = True  # for this protocol: the transport goes on with another one
            self.site.lost(self)
            assert self.site.mesh is not None
            self.site.mesh.adopt(self, data[used:])
        elif used < len(data) and not self.closing:
            self._tail.append(data[used:] if used else data)
            self._tail_size = len(data) - used
            self._charge_tail()

    def _internal_error(self) -> None:
        """An exception that nobody expects: log it, and close without a word of it to the peer."""
        log.exception("event=internal-error address=%s client=%s", self.address, quoted(self.client_id))
        self.fail(PeerError(Reason.UNSPECIFIED_ERROR, "internal error"))

    def packet(self, first: int, body: bytes) -> None:
        """Any packet but PUBLISH and bare acknowledgements."""
        self.context.counters.packets_received += 1
        handlers.handle(self, first, body)

    # Turns

    @property
    def who(self) -> str:
        """Whose work it is, for the log."""
        return f"client={quoted(self.client_id)}"

    def _take(self, data: bytes, whole: bool) -> bool:
        """Work on a piece at once, alone (whole) or behind what has come before. False: it waits for a turn."""
        turns = self.context.turns
        if self.inside:
            turns.until = INFINITE
        elif not turns.enter(self.share):
            if whole:
                self._tail.append(data)
                self._tail_size = len(data)
            self.wait_for_turn()
            return False
        if not whole:
            data = b"".join(self._tail)
            self._tail.clear()
        self._consume(data)
        self._hand_over()
        if not self.inside:
            turns.leave(self.share, self)
        return True

    def _hand_over(self) -> None:
        """What the piece has for the client in this process is its work, too."""
        site = self.site
        if site.within is not None and site.within.out:
            site.hand_over()

    def wait_for_turn(self, share: Share | None = None) -> None:
        """Work on what has come when it is the turn of this address, or of a share; read no more until then."""
        self.waits = self.held = True
        self.pause_reading_for(TURN)
        self.context.turns.wait(share or self.share, self)
        self._charge_tail()

    def work(self, steps: Iterator[object]) -> None:
        """Take the steps of a packet: at once while the slice lasts, the rest in turns. Nothing is taken from the client meanwhile."""
        if self.steps is not None:
            self.steps = chain(self.steps, steps)
            return
        turns = self.context.turns
        if any(turns.over() and not self.inside for _ in steps):
            self.steps = steps
            self.wait_for_turn()

    def turn(self) -> bool:
        """Do a slice of what waits. True: more waits."""
        turns = self.context.turns
        self.context.now = self.context.loop.time()
        if self.steps is not None:
            try:
                if any(turns.over() for _ in self.steps):
                    return True
            except PeerError as error:
                self.fail(error)
            except Exception:
                self._internal_error()
            self.steps = None
            if self._tail and turns.over() and not self.closing:
                return True  # the next packet may be a long one
        self.waits = False
        if self.closing:
            return False
        self.held = False
        data = b"".join(self._tail)
        self._tail.clear()
        if data:
            self._consume(data)
        self._hand_over()
        self.flush()
        if self.waits:
            self._look_at_pace()
            return False  # it has asked for the next turn itself
        self.resume_reading_after(TURN)
        self._look_at_pace()
        room, self.room = self.room, None
        if room is not None:
            self.release(room)
        if self.ending and not self.held:
            self.close()
        return False

    # Backpressure

    @property
    def unsent(self) -> int:
        """Bytes that the transport holds."""
        return self.transport.get_write_buffer_size()

    @property
    def weight(self) -> int:
        """About how many bytes of memory it stands for, with the layers below it."""
        layers = [self.transport.get_extra_info(name) is not None for name in ("tls", "websocket")]
        return weight_of_connection(*layers)

    @property
    def unread(self) -> int:
        """Bytes that have come and are not taken: an incomplete packet, or what is held or withheld."""
        return self._tail_size + (0 if self.withheld is None else self.withheld.bytes)

    def _charge_tail(self) -> None:
        """Tell the ledger of a packet that has come in part; its connection's own weight covers a short one."""
        size = self.unread + PIECE * len(self._tail)
        account = self.account
        if size > account.held[RECEIVED] + STEP:
            account.settle(RECEIVED, size)
            if account.overdrawn:
                self.site.backpressure.evict(self)

    def settle(self) -> None:
        """Tell the ledger what is unsent and in flight."""
        unsent = self.unsent
        before = self.account.held[UNSENT]
        if unsent != before:
            if unsent < before:
                self.stuck_since = self.context.now  # it takes some
            self.account.settle(UNSENT, unsent)
        session = self.session
        if session is not None and session.connection is self:
            session.settle()

    def bound_unsent(self, bound: int) -> None:
        """From now on the connection is congested when it has more unsent bytes than this."""
        self.transport.set_write_buffer_limits(high=bound, low=bound // 2)

    def pause_reading_for(self, cause: object) -> None:
        """Stop reading the socket until `resume_reading_after(cause)`."""
        if not self.pauses and not self.closing and not self.transport.is_closing():
            self.transport.pause_reading()
        if self.pauses is EMPTY_SET:
            self.pauses = set()
        self.pauses.add(cause)

    def resume_reading_after(self, cause: object) -> None:
        """The cause is gone; read on when no other is left."""
        if cause not in self.pauses:
            return
        self.pauses.discard(cause)
        if not self.pauses and not self.closing and not self.transport.is_closing():
            self.last_received = self.context.loop.time()  # its silence was ours
            self.transport.resume_reading()

    def _look_at_pace(self) -> None:
        """Whether it sends too fast, or asks and does not take the answers."""
        if self.received > self.allowance and RATE not in self.pauses:
            self._throttle()
        if self.congested and self.unsent > 2 * self.limits.unsent_bytes:
            self.pause_reading_for(self)

    def _throttle(self) -> None:
        """It has sent as many messages as it may for now, or has waited for that: read on, or later."""
        site, throttle = self.site, self.throttle
        if self.closing or throttle is None:
            return
        wait = throttle.look(site.context.loop.time(), self.received)
        self.allowance = throttle.allowance
        if not wait:
            self.resume_reading_after(RATE)
            return
        if RATE not in self.pauses:
            site.context.counters.slowed += 1
            text = f"more than {self.limits.message_rate} messages a second (limits.message_rate)"
            site.context.warnings.say("slowed", site.context.loop.time(), self.address, text, f" client={quoted(self.client_id)}")
            self.pause_reading_for(RATE)
        site.context.loop.call_later(wait, self._throttle)

    def remember(self, topic: bytes, recipients: Recipients) -> None:
        """Its client may publish plain messages to a topic; from now on the connection has a list of its own of such topics.

        A long topic is not remembered, so that the list is bounded in bytes too.
        """
        if len(topic) > ADMITTED_LONGEST or self.withheld is not None:
            return
        if self.admitted is self.site.router.recipients:
            self.admitted = {}
        if len(self.admitted) >= ADMITTED_MAX:
            self.admitted.clear()
        self.admitted[topic] = recipients

    def review(self) -> None:
        """Routes have changed: what was remembered of them may be wrong."""
        router = self.site.router
        self.admitted_at = router.changes
        if self.admitted is not router.recipients:
            self.admitted.clear()

    def set_rules(self, apply: bool) -> None:
        """Ask anew for each topic what the client may publish, if the rules of access apply to it."""
        self.allowed = set() if apply else None
        self.admitted = {} if apply else self.site.router.recipients

    def hold(self, wants_store: bool) -> None:
        """The store (wants_store) or the mesh takes nothing now: keep what has come, read no more, until `release`."""
        self.held = True
        self.pause_reading_for(HELD)
        if wants_store:
            assert self.site.persistence is not None
            self.site.persistence.hold(self)
            return
        assert self.site.mesh is not None
        self.site.mesh.hold(self)

    def release(self, refuse: bool = False) -> None:
        """Go on with what was held or withheld. refuse: what still finds no room is answered 0x97 (MQTT 5)."""
        if self.closing or not (self.held or self.withheld is not None):
            return
        if self.waits:
            if self.withheld is not None:
                self.room = refuse
            return
        held, self.held = self.held, False
        self.refuse_when_full = refuse
        self.context.now = self.context.loop.time()
        try:
            publish_withheld(self)
        except PeerError as error:
            self.fail(error)
        except Exception:
            self._internal_error()
        if held and not self.held:
            data = b"".join(self._tail)
            self._tail.clear()
            self._consume(data)
        self.refuse_when_full = False
        if not self.held or self.waits:
            self.resume_reading_after(HELD)
        if self.ending and not self.held:
            self.close()
        self.context.flush()

    def admit(self, packet: packets.Connect, outcome: Outcome | None = None) -> None:
        """Answer a CONNECT that was held, and go on with what came behind it: the broker did not know what other brokers want, or
        (outcome) who the client is.
        """
        if not self.held or self.closing:
            return
        self.held = False
        size = self.account.held[LOGINS]
        self.account.settle(LOGINS, 0)
        try:
            if outcome is not None:
                handshake.known(self, packet, outcome)
            else:
                handshake.admit(self, packet, packet.properties.get(Property.AUTHENTICATION_METHOD))
        except PeerError as error:
            self.fail(error)
            return
        if self.held:  # for another reason now: the mesh, or its session elsewhere
            handshake.charge_login(self, size)
            self.resume_reading_after(HELD)
        else:
            self.held = True
            self.release()

    # The end

    def check(self, now: float) -> None:
        """From time to time: end what is silent, stuck or never introduced itself."""
        limits = self.limits
        if self.closing:
            if now - self.closed_at > limits.connect_timeout:
                self.transport.abort()  # it does not take what was still to be sent
        elif self.session is None:
            if not self.held and now - self.opened > limits.connect_timeout:
                self.context.counters.connect_timeouts += 1
                text = f"it did not send CONNECT within {limits.connect_timeout:g} s"
                self.context.warnings.say("connect-timeout", now, self.address, text)
                self.close()
        elif self.corked and now - self.opened > limits.connect_timeout:
            self.context.warnings.say(
                "connect-unkept", now, self.address, f"the store did not keep its session within {limits.connect_timeout:g} s"
            )
            self.close()
        elif self.ends is not None and now >= self.ends:
            self.disconnect(Reason.MAXIMUM_CONNECT_TIME, ENDED)
        elif self.keep_alive:
            if not self.pauses:
                if now - self.last_received > self.keep_alive:
                    self.disconnect(Reason.KEEP_ALIVE_TIMEOUT, "nothing was heard for one and a half keep-alive intervals")
            elif self in self.pauses:
                # not read because it does not take its answers: it is alive as long as it takes some
                if self.unsent != self.unsent_before:
                    self.unsent_before, self.stuck_since = self.unsent, now
                elif now - self.stuck_since > self.keep_alive:
                    self.disconnect(Reason.KEEP_ALIVE_TIMEOUT, "nothing was taken for one and a half keep-alive intervals")

    def fail(self, error: PeerError) -> None:
        """The peer broke a rule: say so where the protocol has a way to (MQTT 5: 4.13), then close."""
        self.context.counters.errors += 1
        fields = f" client={quoted(self.client_id)} reason=0x{error.reason:02x} clause={error.clause}"
        what = f"{error.reason} {error.clause}"
        self.context.warnings.say("refused", self.context.loop.time(), self.address, error.text, fields, what)
        self.disconnect(error.reason, error.text)

    def disconnect(self, reason: Reason, text: str = "") -> None:
        """DISCONNECT with a reason (MQTT 5, behind CONNACK), then close."""
        if self.closing:
            return
        if self.version == 5 and self.session is not None:
            properties: dict[int, Any] = {Property.REASON_STRING: text} if text else {}
            self.send_packet(packets.Disconnect(reason if reason in DISCONNECT_REASONS else Reason.PROTOCOL_ERROR, properties))
        self.close()

    def refuse(self, reason: Reason, text: str, version: int) -> None:
        """CONNACK that refuses, in the form of a protocol version, then close. Its words must fit the client (MQTT-3.2.2-19)."""
        fields = f" client={quoted(self.client_id)} user={quoted(self.user or self.named)} reason=0x{reason:02x}"
        self.context.warnings.say("connect-refused", self.context.loop.time(), self.address, text, fields, f"0x{reason:02x}")
        forms: tuple[dict[int, Any], ...] = ({Property.REASON_STRING: text}, {}) if version == 5 else ({},)
        for properties in forms:
            data = encode(packets.Connack(False, reason, properties), version)
            if not self.max_packet or len(data) <= self.max_packet:
                self.send(data)
                break
        self.close()

    def close(self) -> None:
        """Close after what is unsent has gone; a peer that does not read is cut off. Its session is given back now."""
        if self.closing:
            return
        self.flush()
        self.closing = True
        self.closed_at = self.context.loop.time()
        self._tail.clear()
        self._tail_size = 0
        if self in self.site.connections:
            self.account.settle(RECEIVED, 0)
            self.account.settle(LOGINS, 0)
        else:  # what came before the end of the stream had its turn behind it
            self.account.close()
        if self.congested:
            self.transport.abort()
        else:
            self.transport.close()
        self.site.dismiss(self)

    def leave(self) -> None:
        """Its client has said goodbye: close once what that means for the session is kept, so that the end of the connection says so."""
        session, persistence = self.session, self.site.persistence
        if self.congested or session is None or not session.stored or persistence is None or persistence.error is not None:
            self.close()
            return
        self.flush()
        self.closing = True
        self.closed_at = self.context.loop.time()
        self.site.dismiss(self)
        persistence.when(persistence.mark(), self.transport.close)
