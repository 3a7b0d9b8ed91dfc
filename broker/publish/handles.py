"""Messages with a handle of their publisher's: the first is published, a repeat is answered only.

A PUBLISH with the user property `mqmesh-handle` comes here from `accept.py`, after admission; `parse.py` gives it alone, never as a part
of a run. The window (`persistence/handles.py`) knows the handles. A message that is refused, or waits for room, is not known yet: its
publisher may send it again with the same handle.

A handle is committed together with what its message caused. Until then the acknowledgement waits, and so do deliveries at QoS 2 and the
copies for other brokers, because the message may come again until then. A delivery at QoS 1 or 0 to a client here may leave before:
it can come twice if the broker is killed in between, as MQTT lets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...mqtt import packets
from ...mqtt.codec import encode
from ...mqtt.properties import Property
from ...mqtt.reasons import Reason
from ..persistence.handles import NOWHERE, key_of
from .acknowledge import acknowledge

if TYPE_CHECKING:
    from ..persistence.handles import Position
    from ..session.session import Session
    from ..site import ClientConnection

HANDLE = "mqmesh-handle"  # the user property of PUBLISH


def handle_of(pairs: tuple[tuple[str, str], ...]) -> str | None:
    """The handle in the user properties of a PUBLISH; None: there is none, or it is empty."""
    for name, value in pairs:
        if name == HANDLE:
            return value or None
    return None


class Handled:
    """One message with a handle on its way through `accept.publish`.

    key: of the window. before: the last position in this broker's custody before it.
    """

    __slots__ = ("before", "key")

    def __init__(self, connection: ClientConnection, handle: str) -> None:
        self.key = key_of(connection.user, handle)
        self.before = _position(connection)

    def known(self, connection: ClientConnection) -> Position | None:
        """The position of the first message with this handle; None: this is the first."""
        return connection.site.handles.find(self.key)

    def keep(self, connection: ClientConnection) -> None:
        """The message was taken."""
        epoch, last = _position(connection)
        connection.site.handles.keep(self.key, (epoch, self.before[1] + 1) if (epoch, last) != self.before else NOWHERE)

    def forget(self, connection: ClientConnection) -> None:
        """It was taken, and some recipient had no room for it: its publisher may send it again."""
        connection.site.handles.forget(self.key)

    def acknowledge(self, connection: ClientConnection, qos: int, number: int, reason: int) -> None:
        """PUBACK or PUBREC with the message's identifier, now that it was taken. reason: below 0x80."""
        say(connection, qos, number, reason, self.known(connection) or NOWHERE, False)


def repeat(connection: ClientConnection, session: Session, qos: int, numbers: Any, first: Position) -> None:
    """Answer a message whose handle is known. first: the position of the first message with it."""
    site = connection.site
    site.handles.repeats += 1
    if not qos:
        return
    persistence = site.persistence
    if persistence is not None:
        persistence.begin()
        persistence.need_commit()  # the first may not be kept yet
    if qos == 2:
        session.inbound.new(numbers)
        if persistence is not None and session.stored:
            persistence.received(session)
    say(connection, qos, numbers[0], 0, first, True)


def say(connection: ClientConnection, qos: int, number: int, reason: int, position: Position, repeated: bool) -> None:
    """PUBACK or PUBREC that names the message, if it has an identifier and the client takes such words [MQTT-3.1.2-29, MQTT-3.4.2-3]."""
    pairs = [("mqmesh-repeat", "1")] if repeated else []
    mesh = connection.site.mesh
    if mesh is not None and position != NOWHERE:
        pairs.insert(0, ("mqmesh-id", f"{mesh.node.identity.number}:{position[0]}:{position[1]}"))
    if pairs and connection.version == 5 and connection.request_problem:
        kind = packets.Puback if qos == 1 else packets.Pubrec
        data = encode(kind(number, Reason(reason), {Property.USER_PROPERTY: pairs}), 5)
        if not connection.max_packet or len(data) <= connection.max_packet:
            connection.context.counters.packets_sent += 1
            connection.confirm(qos, data, 1)
            return
    acknowledge(connection, qos, [number], reason)


def _position(connection: ClientConnection) -> Position:
    mesh = connection.site.mesh
    return mesh.node.position() if mesh is not None else NOWHERE
