"""A relay between two MQTT sessions: one at this broker, one at a broker that is no member of the mesh. A machine without sockets.

    this broker  <-- session --  here | there  -- session -->  the other broker

Each broker believes that it serves a client. A PUBLISH of one goes to the other **with its packet identifier**, and each acknowledgement
goes back with it. So the relay remembers nothing of a message:

- a message is acknowledged to the broker that sent it when, and only when, the other one has acknowledged it;
- after any break each broker sends again what it has in flight, with the same identifiers. A broker that has taken a message of QoS 2 knows
  its identifier, and does not take it twice.

What the relay answers itself: messages that the policy keeps back, that are too large there, over whose characters the other broker may
close the connection, or that stand at this broker already. Of those at QoS 2 it remembers the identifier until PUBREL.

**Retained messages.** Subscriptions ask for the retain flag as published. When one of the two sessions is new, all retained messages come.
They are told from later ones by a Subscription Identifier that the subscription has for that moment only. This broker's go there first. A
message of theirs that has the topic of one of ours is left out, so the mesh's value stands at both.

**New sessions.** If one session is new and the other is not, the older one may know identifiers of QoS 2 of messages that nobody remembers.
Each is released before a
message gets it, or it would take that message for a repetition.

**No echo.** No Local at both ends; with MQTT 3.1.1 the bit of a bridge in CONNECT.

Invariant: here and there have the same packet identifiers in flight, in each direction, when nothing is in the pipes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ...mqtt.errors import protocol_error
from ...mqtt.fields import doubtful
from ...mqtt.framing import single_body
from ...mqtt.packets import Subscribe, Subscription, Unsubscribe
from ...mqtt.properties import Properties, Property, properties_in
from ...mqtt.publish import strip
from ...mqtt.reasons import Reason
from .end import (
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    End,
    Message,
    answered,
)

Name = Callable[[bytes], bytes | None]  # a topic's name at the other end; None: it does not pass
Test = Callable[[bytes], bool]  # of a topic
FILTERS = 100  # in one SUBSCRIBE
INITIAL = 1  # the Subscription Identifier of what was retained before
# Refusals that may pass: the message stays with the broker that sent it, and the connections begin anew.
PASSING = frozenset((Reason.QUOTA_EXCEEDED, Reason.SERVER_BUSY, Reason.SERVER_UNAVAILABLE, Reason.RECEIVE_MAXIMUM_EXCEEDED))
RELEASES = 100  # that wait for an answer at once
ALL_IDENTIFIERS = range(1, 65_536)


class Later(Exception):
    """One end cannot go on now; the connections begin anew. fenced: another one took over our session there."""

    def __init__(self, text: str, fenced: bool = False) -> None:
        super().__init__(text)
        self.fenced = fenced


class Wants(NamedTuple):
    """What a relay asks for.

    here, there: filters at each end. qos: the highest. again: this process has subscribed there before. mark: a shared subscription at this
    broker that says that we serve; empty: none. compare: what is retained is to be compared, though both sessions are known.
    """

    here: list[str]
    there: list[str]
    qos: int
    again: bool = False
    mark: str = ""
    compare: bool = False


class Counts:
    """Of one attached broker, since the start.

    out, into: messages that went there and came in. refused: those that the other end refused for good, or were too large for it.
    withheld: those that the policy, or a retained message of the mesh, kept back.
    """

    __slots__ = ("into", "out", "refused", "withheld")

    def __init__(self) -> None:
        self.out = self.into = self.refused = self.withheld = 0


class _Way:
    """One direction.

    rename: the topic's name at the target; None: it does not pass. kept_back: whether an old retained message, by its name at the target,
    stays behind. bare: whether messages lose the retain flag, by the same name. own: identifiers of QoS 2 that the relay answers. stale:
    those that the target is still to release. swallow: those of PUBCOMP that nobody waits for, in order.
    """

    __slots__ = ("bare", "count", "kept_back", "own", "rename", "source", "stale", "swallow", "target")

    def __init__(self, source: End, target: End, rename: Name, kept_back: Test, bare: Test, count: Callable[[], None]) -> None:
        self.source, self.target = source, target
        self.rename, self.kept_back, self.bare, self.count = rename, kept_back, bare, count
        self.own: set[int] = set()
        self.stale: dict[int, None] = {}
        self.swallow: deque[int] = deque()

    def release(self, packet_id: int) -> None:
        """Have the target forget an identifier before a message gets it."""
        del self.stale[packet_id]
        self.swallow.append(packet_id)
        self.target.answer(PUBREL, packet_id)

    def release_more(self) -> None:
        """Go on, as fast as the target answers."""
        while self.stale and len(self.swallow) < RELEASES:
            self.release(next(iter(self.stale)))


class Relay:
    """One life of two connections.

    names: outwards and inwards, of `PolicyFilter`. retained: whether this broker has a retained message at a topic. identifiers: of QoS 2
    that our session has taken and that are not released. note: told of what an operator should know. bare: whether messages of a topic come
    in without their retain flag.
    """

    def __init__(
        self,
        here: End,
        there: End,
        wants: Wants,
        names: tuple[Name, Name],
        retained: Callable[[bytes], bool],
        identifiers: Callable[[], list[int]],
        counts: Counts,
        note: Callable[[str], None],
        bare: Callable[[bytes], bool] = lambda topic: False,
    ) -> None:
        self.here, self.there = here, there
        self._wants, self._identifiers, self._counts, self._note = wants, identifiers, counts, note
        outwards, inwards = names

        def out() -> None:
            counts.out += 1

        def into() -> None:
            counts.into += 1

        self._early: list[tuple[int, bytes]] = []  # frames from there, before this broker has accepted us
        never: Test = lambda topic: False  # noqa: E731
        self._out = _Way(here, there, outwards, never, never, out)
        self._in = _Way(there, here, inwards, lambda topic: retained(topic) and outwards(topic) is not None, bare, into)

    @property
    def up(self) -> bool:
        """Whether messages cross."""
        return self.here.up and self.there.up

    def feed(self, end: End, data: bytes) -> bool:
        """Take bytes from one end. True: it has accepted us. Raises PeerError, Refused, Later."""
        accepted = False
        way, back = (self._out, self._in) if end is self.here else (self._in, self._out)
        for first, body in end.feed(data):
            if not end.up:
                end.accept(first, body)
                accepted = True
            elif self.up:
                self._frame(way, back, first, body)
            else:
                self._early.append((first, body))
        return accepted

    def single(self, end: End, data: bytes) -> bool:
        """Whether bytes are one whole PUBLISH or PUBACK which goes to the other end as it is, now. False: they have to be fed.

        Most messages come by themselves and keep their names.
        """
        way = self._out if end is self.here else self._in
        target = way.target
        if not self.up or target.out or not end.idle or len(data) > end.largest:
            return False
        first = data[0]
        if first == 0x40:
            return len(data) == 4 and data[1] == 2
        start = single_body(data) if first == 0x30 or first == 0x32 else 0
        if not start or end.version != target.version or 0 < target.takes < len(data):
            return False
        stop = start + 2 + (data[start] << 8 | data[start + 1])
        topic, qos = data[start + 2 : stop], first >> 1 & 1
        payload = stop + 2 * qos + (end.version == 5)
        if payload > len(data) or not topic or (end.version == 5 and data[payload - 1]) or (qos and not any(data[stop : stop + 2])):
            return False
        try:
            if way.rename(topic) != topic:
                return False
        except UnicodeDecodeError:
            return False
        way.count()
        return True

    def begin(self) -> None:
        """Both ends have accepted us. Raises PeerError, Later."""
        self._subscribe()
        self._out.release_more()
        self._in.release_more()
        early, self._early = self._early, []
        for first, body in early:
            self._frame(self._in, self._out, first, body)

    def _subscribe(self) -> None:
        here, there, wants = self.here, self.there, self._wants
        fresh = wants.compare or not (here.present and there.present)
        if there.present and not here.present:
            self._out.stale = dict.fromkeys(ALL_IDENTIFIERS)
        elif here.present and not there.present:
            self._in.stale = dict.fromkeys(self._identifiers())
        _subscribe(here, wants.here, min(wants.qos, there.qos), fresh)
        if wants.mark:
            here.send(Subscribe(65_535, [Subscription(wants.mark)]))
        if there.version == 5 or fresh or not wants.again:  # with MQTT 3.1.1 all that is retained would come again
            _subscribe(there, wants.there, min(wants.qos, here.qos), fresh)

    def ask(self, new: list[str], gone: list[str]) -> None:
        """Subscribe more at the other broker, without retained messages, and then give up the rest: in between a message may come twice."""
        there, wide = self.there, self.there.version == 5
        for start in range(0, len(new), FILTERS):
            qos = min(self._wants.qos, self.here.qos)
            there.send(Subscribe(65_535, [Subscription(one, qos, wide, False, 2 if wide else 0) for one in new[start : start + FILTERS]]))
        for start in range(0, len(gone), FILTERS):
            there.send(Unsubscribe(65_535, gone[start : start + FILTERS]))

    def _frame(self, way: _Way, back: _Way, first: int, body: bytes) -> None:
        """A frame of `way.source`. back: the way towards it."""
        kind = first >> 4
        if kind == PUBLISH:
            self._publish(way, way.source.message(first, body))
        elif kind in (PUBACK, PUBREC):
            self._answer(back, kind, *answered(body))
        elif kind == PUBREL:
            packet_id, reason = answered(body)
            if packet_id in way.own:
                way.own.discard(packet_id)
                way.source.answer(PUBCOMP, packet_id)
            else:
                way.target.answer(PUBREL, packet_id, reason)
        elif kind == PUBCOMP:
            packet_id, reason = answered(body)
            if back.swallow and back.swallow[0] == packet_id:
                back.swallow.popleft()
                back.release_more()
            else:
                back.source.answer(PUBCOMP, packet_id, reason)
        elif kind == SUBACK:
            self._granted(way.source, body)
        elif kind == DISCONNECT:
            reason, text = way.source.farewell(body)
            said = f"{way.source.name} ends the connection: {reason.name.lower().replace('_', ' ')} {text}".rstrip()
            raise Later(said, reason == Reason.SESSION_TAKEN_OVER)
        elif kind not in (PINGRESP, UNSUBACK):
            raise protocol_error(f"{way.source.name} must not send a packet of kind {kind}")

    def _publish(self, way: _Way, message: Message) -> None:
        """A message: it passes, or the relay answers."""
        block, initial = message.block, False
        if block:
            try:
                bare = strip(block, Property.SUBSCRIPTION_IDENTIFIER)
            except IndexError:
                raise protocol_error(f"{way.source.name}: properties that cannot be read", "4.13.1") from None
            initial = bare != block and bool(message.first & 1)
            message = message._replace(block=bare)
        try:
            name = way.rename(message.topic)
        except UnicodeDecodeError:
            raise protocol_error(f"{way.source.name}: a topic that is not UTF-8", "MQTT-1.5.4-1") from None
        if name is None or (initial and way.kept_back(name)):
            self._counts.withheld += 1
            self._take(way, message)
            return
        if way is self._out and message.block and way.target.version == 5 and _doubtful(message.block):
            self._counts.refused += 1
            self._note(f"a message at {message.topic.decode()!r} has control characters in its properties: dropped")
            self._take(way, message)
            return
        if message.first & 1 and way.bare(name):
            message = message._replace(first=message.first & 0xFE)
        frame = way.target.frame(message, name)
        if way.target.takes and len(frame) > way.target.takes:
            self._counts.refused += 1
            self._note(f"a message of {len(frame)} bytes at {message.topic.decode()!r} is larger than {way.target.name} takes: dropped")
            self._take(way, message)
            return
        if message.packet_id in way.stale and message.qos == 2:
            way.release(message.packet_id)
        way.count()
        way.target.out.append(frame)

    def _take(self, way: _Way, message: Message) -> None:
        """Acknowledge a message that does not pass."""
        if message.qos == 1:
            way.source.answer(PUBACK, message.packet_id)
        elif message.qos == 2:
            way.own.add(message.packet_id)
            way.source.answer(PUBREC, message.packet_id)

    def _answer(self, way: _Way, kind: int, packet_id: int, reason: int) -> None:
        """The target acknowledges a message."""
        if reason in PASSING:
            raise Later(f"{way.target.name} has no room: {Reason(reason).name.lower().replace('_', ' ')}")
        if reason >= 0x80:
            self._counts.refused += 1
            self._note(f"{way.target.name} refuses a message for good: reason code {reason:#x}")
            if kind == PUBREC and way.source.version == 4:  # it cannot be told, and will release what nobody holds
                way.own.add(packet_id)
        way.source.answer(kind, packet_id, reason)

    def _granted(self, end: End, body: bytes) -> None:
        at = 2
        if end.version == 5:
            at += 1 + (body[2] if len(body) > 2 else 0)
        refused = [reason for reason in body[at:] if reason >= 0x80]
        if refused:
            self._note(f"{end.name} refuses {len(refused)} of our subscriptions: reason code {refused[0]:#x}")


def _doubtful(block: bytes) -> bool:
    """Whether texts among the properties of a PUBLISH may make the other broker close the connection."""
    found = properties_in(block)
    texts = [value for value in found.values() if isinstance(value, str)]
    texts += [text for pair in found.get(Property.USER_PROPERTY, []) for text in pair]
    return any(doubtful(text.encode()) for text in texts)


def unmark(here: End, mark: str) -> None:
    """Say that we serve no longer."""
    here.send(Unsubscribe(65_535, [mark]))


def _subscribe(end: End, filters: list[str], qos: int, fresh: bool) -> None:
    """Subscribe. fresh: what is retained is to come, as that."""
    for start in range(0, len(filters), FILTERS):
        part = filters[start : start + FILTERS]
        rounds = [(0, True), (2, False)] if fresh and end.identifies else [(0, False)] if fresh else [(1, False)]
        for handling, identified in rounds:
            properties: Properties = {Property.SUBSCRIPTION_IDENTIFIER: [INITIAL]} if identified else {}
            entries = [Subscription(one, qos, end.version == 5, end.version == 5, handling if end.version == 5 else 0) for one in part]
            end.send(Subscribe(65_535, entries, properties))
