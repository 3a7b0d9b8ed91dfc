"""The interface of connectors: the core's actions go to a connector, events of one remote come from it.

A connector stays connected to one remote while its `run` lives. Whatever it speaks to the remote, it speaks MQTT's terms to its owner:
topics, filters, QoS, reason codes. It reports with the events of `protocol/events.py`: `Up` when a connection is accepted, `Message`,
`Published` for each token that is not 0, `Subscribed` for each `subscribe`.

What holds for every connector
- A publication of QoS 1 or 2 is kept until the remote has taken it, also over lost connections, and is sent again in order. One of QoS 0
  that comes while there is no connection is kept too (the core does not send any then).
- `Message` has a packet identifier that is not 0 if it is to be acknowledged. The remote is told once the owner acknowledges it.
- A topic, filter or message that the remote cannot represent is refused with a reason of MQTT. It never becomes another one.
- Pending bytes are counted in `backlog`: the owner refuses publications while they are too many. `pause` bounds the other direction.
- After a lost connection subscribes without an answer are forgotten: the core subscribes again after `Up`.
- Nothing blocks, and no event is told from inside a call: events come from the connector's own task or transport.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...base.address import Address
from ...mqtt.packets import Publish
from ..protocol.events import Event


class Owner(NamedTuple):
    """Whom a connector tells.

    on_events: is given the events.
    on_down: is called when a connection has ended, or when every address was tried in vain. Its arguments: whether the server refused our
    credentials (None: it did not refuse us), and one line.
    """

    on_events: Callable[[list[Event]], None]
    on_down: Callable[[bool | None, str], None]


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
        """Acknowledge a message of QoS 1 or 2. One of an earlier connection (another epoch) is skipped: the remote sends it again."""

    def pause(self, paused: bool) -> None:
        """Take no more messages from the remote, as far as its protocol allows that, or take them again."""

    def move(self, addresses: list[Address]) -> None:
        """The remote has other addresses now: use them from the next attempt on. An open connection stays."""

    def flush(self) -> None:
        """Write what is waiting to be written: called after the actions of a chunk."""

    def tick(self) -> None:
        """Called about twice a second."""

    @property
    def backlog(self) -> int:
        """Bytes that the remote has not taken."""
