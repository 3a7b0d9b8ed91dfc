"""What the metabroker asks of a connector: the side of a remote that the core's actions go to and its events come from.

A connector stays connected to one remote while its `run` lives. It speaks MQTT's terms to its owner, whatever it speaks to the remote:
topics, filters, QoS, reason codes. What happens is told with the events of `wire.py`: `Up` when a connection is accepted, `Message`,
`Published` for each token that is not 0, `Subscribed` for each asking.

What holds for every connector
- A publication of QoS 1 or 2 is kept until the remote has taken it, over lost connections too, and sent again in order. One of QoS 0
  that comes while there is no connection is kept as well (the core does not send any then).
- `Message` carries a packet identifier that is not 0 when it is to be acknowledged; that goes to the remote once the owner says so.
- A topic, filter or message that the remote cannot have as it is, is refused with a reason of MQTT; it never becomes another one.
- What waits is counted in `backlog`: the owner refuses publications while it is too much. `pause` bounds the other way.
- After a lost connection askings without an answer are forgotten: the core asks anew after `Up`.
- Nothing blocks, and nothing is told from inside a call: events come from the connector's own task or transport.
"""

from __future__ import annotations

import builtins
from typing import Protocol

from ...base.address import Address
from ...mqtt.packets import Publish
from ..mqtt.client import Event, State


class Connector(Protocol):
    """One remote. now: the loop's time, seconds. forget: whether the remote is to forget what it keeps for us when we leave; it keeps it
    where `Open` names a client identifier, so that it goes on collecting while there is no metabroker.
    """

    forget: bool

    async def run(self) -> None:
        """Stay connected until cancelled, trying the addresses in turn with growing pauses; then leave in order."""

    def publish(self, publish: Publish, token: int, now: float) -> None:
        """Send a message. The token comes back in `Published`, for QoS 0 never."""

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        """Subscribe, while up. identifier: number that comes back with each message, where `Abilities` says so; 0: none."""

    def unsubscribe(self, filter_: str, now: float) -> None:
        """Give a filter up, while up."""

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        """A message of QoS 1 or 2 is in safe hands. One of an earlier connection (another epoch) is left: the remote sends it again."""

    def pause(self, paused: bool) -> None:
        """Take no more messages from the remote, as far as its protocol allows that, or take them again."""

    def move(self, addresses: list[Address]) -> None:
        """The remote is somewhere else now: try these from the next attempt on. A connection that stands is left alone."""

    def flush(self) -> None:
        """Write what is waiting to be written: called after the actions of a chunk."""

    def tick(self) -> None:
        """Called about twice a second."""

    @property
    def backlog(self) -> int:
        """Bytes that the remote has not taken."""


class Machine(Protocol):
    """What speaks a protocol, without sockets: bytes and times in, bytes and events out. `Connection` makes a `Connector` of it.

    state: of the connection. bytes: payloads that the remote has not taken. reading: False while the owner reads nothing, so that silence
    means nothing.
    """

    state: State
    bytes: int
    reading: bool

    def begin(self, now: float) -> None:
        """A transport is open."""

    def receive(self, data: builtins.bytes, now: float) -> list[Event]:
        """Take bytes. Raises PeerError when the server breaks a rule or ends the connection; the owner closes then."""

    def on_timer(self, now: float) -> None:
        """Called about twice a second. Raises PeerError when the server has been silent for too long."""

    def take(self) -> builtins.bytes:
        """What is to be written now."""

    def end(self, now: float, forget: bool = True) -> bool:
        """Take leave. forget: the remote is to forget what it keeps for us. The connection is closed next, if True by the server."""

    def lost(self) -> None:
        """The connection has ended."""

    def publish(self, publish: Publish, token: int, now: float) -> None:
        """See `Connector`."""

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        """See `Connector`."""

    def unsubscribe(self, filter_: str, token: int, now: float) -> None:
        """See `Connector`; token 0: nobody waits for the answer."""

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        """See `Connector`."""
