"""What a publisher says of a message that it puts into a queue: user properties of PUBLISH.

    mqmesh-priority   0 to 9; JMSPriority is understood too
    mqmesh-delay      until it may be taken: "5s"
    mqmesh-plan       who is to get it: "all", "pool", "a | b, c", "a > b"
    mqmesh-group      its message group; JMSXGroupID is understood too
    mqmesh-reveal     "no": it is PUT only, until the publisher reveals it
    mqmesh-handle     the publisher's name for it: a repeat is not put again
    mqmesh-parents    the messages that it comes of (`workflow/`)

Message Expiry Interval is how long it may wait. What only the broker says to members (`OWN`) does not travel with the message, whoever
wrote it: a member that passes a message on sends it with all that it came with.

What it does not know: queues.
"""

from __future__ import annotations

from typing import NamedTuple

from ...base.queues import DELAY, DELIVERIES, FROM_POSITION, FROM_QUEUE, HANDLE, LINEAGE, PARENTS, POSITION, PRIORITY
from ...mqtt.length import encode_length
from ...mqtt.properties import Property, encode_properties
from ...mqtt.publish import PublishProperties, publish_properties, strip
from .core.blocks import DEFAULT_PRIORITY
from .core.plan import Plan, plan_of
from .core.queue import HIGHEST
from .log.dead import PREFIX as DEAD
from .settings import seconds_of
from .workflow.lineage import Parent, lineage, parents_of

PRIORITIES = (PRIORITY, "JMSPriority")
GROUPS = ("mqmesh-group", "JMSXGroupID")
OWN = (POSITION, DELIVERIES, FROM_QUEUE, FROM_POSITION, PARENTS, LINEAGE, "mqmesh-id", "mqmesh-repeat")  # and what begins with `DEAD`
LONGEST = 1024  # bytes of a handle, of a message group
KNOWN_MAX = 1024


class How(NamedTuple):
    """How a message is put. delay: in milliseconds, -1: the queue's."""

    properties: bytes = b""
    priority: int = DEFAULT_PRIORITY
    delay: int = -1
    plan: Plan | None = None
    revealed: bool | None = None
    group: str = ""
    handle: str = ""
    parents: tuple[Parent, ...] = ()


class Way:
    """How messages with certain properties are put. length: of these in a packet. expiry: in seconds. text: the payload has to be UTF-8.

    alias: the Topic Alias; 0: none. The same properties have the same object.
    """

    __slots__ = ("alias", "expiry", "how", "length", "text")

    def __init__(self, length: int, how: How, expiry: int | None = None, text: bool = False, alias: int = 0) -> None:
        self.length = length
        self.how = how
        self.expiry = expiry
        self.text = text
        self.alias = alias


PLAIN = How()
_known: dict[bytes, How] = {}


def said_inside(block: bytes) -> PublishProperties:
    """Encoded properties of a message that a part of the broker puts. They are for members only: how it is put, they do not say."""
    found = PublishProperties(len(block), len(block))
    found.block = found.without_expiry = block
    return found


def is_inside(publisher: str) -> bool:
    """Whether a publisher is a part of a broker: no client has such an identifier."""
    return publisher.startswith("\0")


def how_of(properties: PublishProperties | None) -> How:
    """Read what a publisher says. ValueError, one line that says what would be right."""
    if properties is None:
        return PLAIN
    found = _known.get(properties.without_expiry)
    if found is None:
        found = _read(properties)
        if len(properties.without_expiry) <= 256 and not found.handle and not found.parents:
            if len(_known) >= KNOWN_MAX:
                _known.clear()
            _known[properties.without_expiry] = found
    return found


def properties_of(block: bytes) -> PublishProperties | None:
    """Encoded properties as they are read from a packet; None: there are none."""
    data = encode_length(len(block)) + block
    return publish_properties(data, 0, len(data)) if block else None


def how_of_any(properties: PublishProperties | None) -> How:
    """The same of a message that cannot be refused any more: if something is wrong, nothing was said."""
    try:
        return how_of(properties)
    except ValueError:
        assert properties is not None
        return How(_travelling(properties))


def _read(properties: PublishProperties) -> How:
    how = How(_travelling(properties))
    for name, value in properties.user_properties:
        if name in PRIORITIES:
            if not (value.isascii() and value.isdigit() and len(value) < 5 and int(value) <= HIGHEST):
                raise ValueError(f"{name}: give a number from 0 to {HIGHEST}")
            how = how._replace(priority=int(value))
        elif name in GROUPS or name == HANDLE:
            if len(value.encode()) > LONGEST:
                raise ValueError(f"{name}: give at most {LONGEST:,} bytes")
            how = how._replace(handle=value) if name == HANDLE else how._replace(group=value)
        elif name == PARENTS:
            parents = parents_of(value)
            how = how._replace(parents=parents, properties=how.properties + lineage(parents))
        elif name == "mqmesh-reveal":
            if value not in ("yes", "no"):
                raise ValueError('mqmesh-reveal: give "yes" or "no"')
            how = how._replace(revealed=value == "yes")
        elif name in (DELAY, "mqmesh-plan"):
            try:
                how = how._replace(delay=int(1000 * seconds_of(value))) if name == DELAY else how._replace(plan=plan_of(value))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return how


def _travelling(properties: PublishProperties) -> bytes:
    """The properties that go to members, without the expiry."""
    pairs = [pair for pair in properties.user_properties if pair[0] not in OWN and not pair[0].startswith(DEAD)]
    if len(pairs) == len(properties.user_properties):
        return properties.without_expiry
    return strip(properties.without_expiry, Property.USER_PROPERTY) + encode_properties({Property.USER_PROPERTY: pairs})
