"""Events of messages as OpenTelemetry spans, as OTLP has them in JSON.

The semantic conventions for messaging name the operations:

    event                          operation    type       kind
    published, refused             publish      send       producer
    forwarded                      forward      send       client
    received                       receive      receive    consumer
    delivered                      deliver      process    consumer
    acknowledged                   done         settle     client
    dropped, expired, returned,
    failed over                    the same     settle     client, status error

A trace is the one of the message's `traceparent`; where it has none, that of its call, so that a request and its responses stand
together; else of the message itself. All identifiers are made from the journal's numbers: an event that is exported twice is the same span.
A span begins with its parent's event, if that has been seen, and ends with its own: its length is the time of that step.

    publish (origin) -> receive (origin) -> deliver -> done
                     -> forward -> forward (relay) -> receive (destination) -> deliver -> done

Sources: OTLP 1.x (protobuf in JSON, opentelemetry.io/docs/specs/otlp), semantic conventions for messaging.
It knows no network: `otlp.py` sends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

from .kinds import NOBODY, NONE, Kind, MessageId, Protocol
from .schema import expand

INTERNAL, CLIENT, PRODUCER, CONSUMER = 1, 3, 4, 5
ERROR = 2
REMEMBERED = 100_000  # spans whose time their children ask for
_STEPS: dict[int, tuple[str, str, int]] = {
    Kind.PUBLISHED: ("publish", "send", PRODUCER),
    Kind.REFUSED: ("publish", "send", PRODUCER),
    Kind.FORWARDED: ("forward", "send", CLIENT),
    Kind.RECEIVED: ("receive", "receive", CONSUMER),
    Kind.DELIVERED: ("deliver", "process", CONSUMER),
    Kind.ACKNOWLEDGED: ("done", "settle", CLIENT),
    Kind.DROPPED: ("drop", "settle", CLIENT),
    Kind.EXPIRED: ("expire", "settle", CLIENT),
    Kind.RETURNED: ("return", "settle", CLIENT),
    Kind.FAILED_OVER: ("fail over", "settle", CLIENT),
}
_FAILED = {Kind.REFUSED, Kind.DROPPED, Kind.EXPIRED, Kind.RETURNED, Kind.FAILED_OVER}
_SYSTEMS = {Protocol.AMQP: "amqp", Protocol.NATS: "nats"}

Row = dict[str, Any]


class Spans:
    """Makes spans. It remembers the times of the newest ones, for those that follow from them, and the traces of messages.

    names: what an id stands for; None where it is not known. site: the name of a broker.
    """

    def __init__(self, names: Callable[[int], str | None], site: Callable[[int], str] = str) -> None:
        self._names = names
        self._site = site
        self._times: OrderedDict[str, int] = OrderedDict()
        self._traces: OrderedDict[tuple[int, int, int, int], str] = OrderedDict()
        self._ways: OrderedDict[tuple[MessageId, int], str] = OrderedDict()  # (message, broker) -> the span that sent it there

    def of(self, table: Any) -> list[tuple[int, Row]]:
        """(broker, span) for each message of each event of a table, in its order. Events that are of no message are left out."""
        return [(row["broker"], self.span(row)) for row in expand(table).to_pylist() if row["kind"] in _STEPS and row["origin"] != NOBODY]

    def span(self, row: Row) -> Row:
        """The span of one event of one message."""
        kind = Kind(row["kind"])
        name, operation, side = _STEPS[kind]
        message = MessageId(row["origin"], row["origin_epoch"], row["stream"], row["sequence"])
        own, above = _own(kind, message, row), self._above(kind, message, row)
        if kind == Kind.FORWARDED:
            _remember(self._ways, (message, row["to_broker"]), own)
        begin = self._times.get(above, row["time"]) if above else row["time"]
        _remember(self._times, own, row["time"])
        topic = self._names(row["topic"]) if row["topic"] != NONE else None
        made: Row = {
            "traceId": self._trace(message, row),
            "spanId": own,
            "name": f"{name} {topic}" if topic else name,
            "kind": side,
            "startTimeUnixNano": str(min(begin, row["time"]) * 1000),
            "endTimeUnixNano": str(row["time"] * 1000),
            "attributes": attributes(self._values(name, operation, str(message), topic, row)),
        }
        if above:
            made["parentSpanId"] = above
        if kind in _FAILED:
            made["status"] = {"code": ERROR, "message": self._name(row["reason"]) or name}
        return made

    def _above(self, kind: Kind, message: MessageId, row: Row) -> str | None:
        """The span that this one follows from. A relay writes no event when a message comes: its copies follow from the copy that came."""
        broker = row["broker"]
        if kind in (Kind.PUBLISHED, Kind.REFUSED):
            return None
        published = _span_id(Kind.PUBLISHED, message, message.origin, 0)
        if kind == Kind.RECEIVED:
            sender = row["from_broker"]
            return published if sender in (broker, NOBODY) else _span_id(Kind.FORWARDED, message, sender, broker)
        if kind == Kind.FORWARDED:
            return published if broker == message.origin else self._ways.get((message, broker), published)
        if kind == Kind.ACKNOWLEDGED:
            return _span_id(Kind.DELIVERED, message, broker, row["client"])
        return _span_id(Kind.RECEIVED, message, broker, 0)

    def _values(self, name: str, operation: str, message: str, topic: str | None, row: Row) -> dict[str, Any]:
        client = self._name(row["client"])
        failed = Kind(row["kind"]) in _FAILED
        return {
            "messaging.system": _SYSTEMS.get(row["protocol_in"], "mqtt"),
            "messaging.operation.name": name,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
            "messaging.message.id": message,
            "messaging.message.body.size": row["size"],
            "messaging.message.conversation_id": f"{row['call'] & (1 << 64) - 1:016x}" if row["call"] else None,
            "messaging.client.id": client,
            "messaging.mqtt.qos": row["qos"],
            "enduser.id": self._name(row["account"]),
            "error.type": (self._name(row["reason"]) or name) if failed else None,
            "mqmesh.broker": row["broker"],
            "mqmesh.recipient": self._name(row["recipient"]),
            "mqmesh.from": self._site(row["from_broker"]) if row["from_broker"] != NOBODY else None,
            "mqmesh.to": self._site(row["to_broker"]) if row["to_broker"] != NOBODY else None,
        }

    def _name(self, number: int) -> str | None:
        return (self._names(number) or str(number)) if number != NONE else None

    def _trace(self, message: MessageId, row: Row) -> str:
        """The trace of a message; events that do not repeat its call or `traceparent` take it from those before."""
        known = self._traces.get(message)
        if row["trace"]:
            known = row["trace"]
        elif known is None and row["call"]:
            known = _hashed(f"call {row['call']}", 16)
        if known is None:
            return _hashed(str(message), 16)
        _remember(self._traces, message, known)
        return str(known)


def resource_spans(spans: Iterable[tuple[int, Row]], site: Callable[[int], str], version: str) -> Row:
    """The body of one request: each broker is a resource of its own."""
    by_broker: dict[int, list[Row]] = {}
    for broker, span in spans:
        by_broker.setdefault(broker, []).append(span)
    return {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": attributes(
                        {"service.name": "mqmesh", "service.instance.id": site(broker), "service.version": version, "mqmesh.broker": broker}
                    )
                },
                "scopeSpans": [{"scope": {"name": "mqmesh.journal", "version": version}, "spans": found}],
            }
            for broker, found in sorted(by_broker.items())
        ]
    }


def attributes(values: dict[str, Any]) -> list[Row]:
    """Attributes as OTLP has them; those that are None are left out."""
    made = []
    for key, value in values.items():
        if isinstance(value, bool):
            made.append({"key": key, "value": {"boolValue": value}})
        elif isinstance(value, int):
            made.append({"key": key, "value": {"intValue": str(value)}})
        elif value is not None:
            made.append({"key": key, "value": {"stringValue": str(value)}})
    return made


def _own(kind: Kind, message: MessageId, row: Row) -> str:
    return _span_id(kind, message, row["broker"], row["to_broker"] if kind == Kind.FORWARDED else row["client"])


def _span_id(kind: Kind, message: MessageId, broker: int, other: int) -> str:
    other = 0 if kind in (Kind.PUBLISHED, Kind.RECEIVED, Kind.REFUSED) else other
    return _hashed(f"{int(kind)} {message} {broker} {other}", 8)


def _hashed(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()


def _remember(where: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    where[key] = value
    if len(where) > REMEMBERED:
        where.popitem(last=False)
