"""Messages on their way to the remote: publisher confirms at QoS 1 and 2, nothing at QoS 0.

A message of QoS 1 or 2 is kept until the remote has confirmed it, and is sent again, in order, on a new connection. QoS 0 has a channel
of its own, so that what happens there disturbs nobody.

The remote answers a mistake (a topic that the user may not write to) by closing the channel, and says not which message it was. Then those
without a confirmation are sent again one at a time; the one that closes the channel while it is alone was it. A topic that was refused so
is not sent again during the connection.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from ....mqtt.errors import PeerError
from ....mqtt.packets import Publish
from ....mqtt.reasons import Reason
from ...wire import Event, Published, Trouble
from . import codec, mapping
from .codec import Malformed
from .mapping import Unmappable

CONFIRMED, PLAIN = 3, 4  # channels
WINDOW = 1000  # messages without a confirmation
REMEMBERED = 1000  # topics that were refused
MANDATORY = 1
REASONS = {403: Reason.NOT_AUTHORIZED, 404: Reason.TOPIC_NAME_INVALID, 311: Reason.PACKET_TOO_LARGE, 406: Reason.PACKET_TOO_LARGE}


def reason_of(code: int) -> Reason:
    """MQTT's reason for a code with which a channel was closed."""
    return REASONS.get(code, Reason.IMPLEMENTATION_SPECIFIC_ERROR)


@dataclass(slots=True)
class _Sent:
    """A message and its token. returned: the remote has no queue for it."""

    publish: Publish
    token: int
    message_id: str
    returned: bool = False


class Publisher:
    """name: begins the identifiers of messages, which the remote's users may use to remove repeats."""

    def __init__(self, exchange: str, name: str, write: Callable[[bytes], None]) -> None:
        self.bytes = 0
        self.largest_frame = codec.LARGEST_FRAME
        self.ready = self.plain_ready = False
        self._exchange = exchange
        self._name = name
        self._write = write
        self._number = 0
        self._tag = 0
        self._careful = 0  # so many are to be sent one at a time
        self._waiting: deque[_Sent] = deque()
        self._flight: OrderedDict[int, _Sent] = OrderedDict()  # by delivery tag
        self._by_id: dict[str, _Sent] = {}
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._failed: list[Event] = []

    def cannot(self, publish: Publish) -> str | None:
        """Why a message is not to be sent; None: it may be."""
        if publish.topic in self._refused:
            return "the remote does not let this user write to this topic"
        return mapping.check(publish, self.largest_frame)

    # Connections

    def open(self) -> None:
        """A connection is accepted: open both channels."""
        self._refused.clear()
        self._open(CONFIRMED)
        self._open(PLAIN)

    def _open(self, channel: int) -> None:
        self._write(codec.method(channel, codec.CHANNEL_OPEN, ""))
        if channel == CONFIRMED:
            self._tag = 0
            self._write(codec.method(channel, codec.SELECT, 0))

    def lost(self) -> None:
        """The connection has ended."""
        self.ready = self.plain_ready = False
        self._careful = 0
        self._again()

    def _again(self) -> None:
        self._waiting.extendleft(reversed(self._flight.values()))
        self._flight.clear()
        self._by_id.clear()

    # What leaves

    def publish(self, publish: Publish, token: int) -> None:
        """Send a message, or keep it until it can be sent."""
        self._number += 1
        self._waiting.append(_Sent(publish, token, f"{self._name}-{self._number}"))
        self.bytes += len(publish.payload)
        self.more(self._failed)

    def more(self, events: list[Event]) -> None:
        """Send what has waited, in order, as far as there is room."""
        while self._waiting and self.ready and self.plain_ready:
            if self._waiting[0].publish.qos and len(self._flight) >= (1 if self._careful else WINDOW):
                break
            sent = self._waiting.popleft()
            try:
                self._send(sent)
            except (Unmappable, Malformed):  # what was taken before the remote's limits were known
                self.bytes -= len(sent.publish.payload)
                events.append(Published(sent.token, Reason.TOPIC_NAME_INVALID))

    def _send(self, sent: _Sent) -> None:
        publish = sent.publish
        key = mapping.routing_key(publish.topic)
        channel = CONFIRMED if publish.qos else PLAIN
        data = codec.method(channel, codec.PUBLISH, 0, self._exchange, key, MANDATORY if publish.qos else 0)
        properties = mapping.to_amqp(publish, sent.message_id)
        sent.message_id = str(properties["message_id"])  # it may have one of its own
        data += codec.content(channel, properties, publish.payload, self.largest_frame)
        self._write(data)
        if publish.qos:
            self._tag += 1
            self._flight[self._tag] = sent
            self._by_id[sent.message_id] = sent
        else:
            self.bytes -= len(publish.payload)

    # What comes

    def receive(self, channel: int, key: codec.Key, values: list[codec.Argument], events: list[Event]) -> None:
        """A method on one of the two channels. Raises PeerError."""
        events += self._failed
        self._failed = []
        if key == codec.SELECT_OK:
            self.ready = True
        elif key == codec.CHANNEL_OPEN_OK:
            self.plain_ready = self.plain_ready or channel == PLAIN
        elif key in (codec.ACK, codec.NACK):
            self._confirmed(codec.number(values[0]), bool(codec.number(values[1]) & 1), key == codec.ACK, events)
        elif key == codec.CHANNEL_CLOSE:
            self._closed(channel, codec.number(values[0]), codec.text(values[1]), events)
        self.more(events)

    def returned(self, message_id: str) -> None:
        """The remote has no queue for a message; its confirmation comes next."""
        sent = self._by_id.get(message_id)
        if sent is not None:
            sent.returned = True

    def _confirmed(self, tag: int, multiple: bool, taken: bool, events: list[Event]) -> None:
        tags = list(takewhile(lambda one: one <= tag, self._flight)) if multiple else [tag]
        for one in tags:
            sent = self._flight.pop(one, None)
            if sent is not None:
                reason = Reason.NO_MATCHING_SUBSCRIBERS if sent.returned else Reason.SUCCESS
                self._settled(sent, reason if taken else Reason.QUOTA_EXCEEDED, events)

    def _settled(self, sent: _Sent, reason: Reason, events: list[Event]) -> None:
        self._by_id.pop(sent.message_id, None)
        self._careful = max(self._careful - 1, 0)
        self.bytes -= len(sent.publish.payload)
        events.append(Published(sent.token, reason))

    def _closed(self, channel: int, code: int, text: str, events: list[Event]) -> None:
        """The remote has closed a channel: it is opened again."""
        if code == 404:
            raise PeerError(Reason.TOPIC_NAME_INVALID, text, "")
        self._write(codec.method(channel, codec.CHANNEL_CLOSE_OK))
        if channel == PLAIN:
            events.append(Trouble(f"messages of QoS 0 are lost: {text}"))
            self.plain_ready = False
        else:
            self.ready = False
            alone = len(self._flight) == 1
            if alone:
                [(tag, sent)] = self._flight.items()
                del self._flight[tag]
                self._settled(sent, reason_of(code), events)
                if code == 403:
                    self._refuse(sent.publish.topic)
            else:
                self._careful = len(self._flight)
            events.append(Trouble(text))
            self._again()
        self._open(channel)

    def _refuse(self, topic: str) -> None:
        self._refused[topic] = None
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)
