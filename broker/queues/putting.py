"""What a publisher says of a message that it puts into a queue: user properties of PUBLISH.

    mqmesh-priority   0 to 9; JMSPriority is understood too
    mqmesh-delay      until it may be taken: "5s"
    mqmesh-plan       who is to get it: "all", "pool", "a | b, c", "a > b"
    mqmesh-group      its message group; JMSXGroupID is understood too
    mqmesh-reveal     "no": it is PUT only, until the publisher reveals it
    mqmesh-handle     the publisher's name for it: a repeat is not put again

Message Expiry Interval is how long it may wait.

What it does not know: queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .core.blocks import DEFAULT_PRIORITY
from .core.plan import Plan, plan_of
from .core.queue import HIGHEST
from .settings import seconds_of

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties

PRIORITIES = ("mqmesh-priority", "JMSPriority")
GROUPS = ("mqmesh-group", "JMSXGroupID")
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


PLAIN = How()
_known: dict[bytes, How] = {}


def how_of(properties: PublishProperties | None) -> How:
    """Read what a publisher says. ValueError, one line that says what would be right."""
    if properties is None:
        return PLAIN
    found = _known.get(properties.without_expiry)
    if found is None:
        found = _read(properties)
        if len(properties.without_expiry) <= 256 and not found.handle:
            if len(_known) >= KNOWN_MAX:
                _known.clear()
            _known[properties.without_expiry] = found
    return found


def _read(properties: PublishProperties) -> How:
    how = How(properties.without_expiry)
    for name, value in properties.user_properties:
        if name in PRIORITIES:
            if not (value.isascii() and value.isdigit() and int(value) <= HIGHEST):
                raise ValueError(f"{name}: give a number from 0 to {HIGHEST}")
            how = how._replace(priority=int(value))
        elif name in GROUPS:
            how = how._replace(group=value)
        elif name == "mqmesh-handle":
            how = how._replace(handle=value)
        elif name == "mqmesh-reveal":
            if value not in ("yes", "no"):
                raise ValueError('mqmesh-reveal: give "yes" or "no"')
            how = how._replace(revealed=value == "yes")
        elif name in ("mqmesh-delay", "mqmesh-plan"):
            try:
                how = how._replace(delay=int(1000 * seconds_of(value))) if name == "mqmesh-delay" else how._replace(plan=plan_of(value))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return how
