"""What the core wants done: values that the shell carries out in order."""

from __future__ import annotations

from typing import NamedTuple

from ...mqtt.packets import Publish
from ..policy import Rule
from ..protocol.messages import Outgoing


class Respond(NamedTuple):
    """Publish a body to the community."""

    topic: str
    body: bytes
    qos: int


class Deliver(NamedTuple):
    """Publish a remote's message to sessions; when the community has all of it, acknowledge it to the remote (packet_id 0: no need).

    kept: not before what has been put is kept, too.
    """

    remote: int
    packet_id: int
    epoch: int
    responses: list[Respond]
    kept: bool = False


class SendMany(NamedTuple):
    """Publish messages of one QoS, 0 or 1, to a remote; at QoS 1 the answers go to `BatchPath.on_batch_settled` under the token."""

    remote: int
    token: int
    qos: int
    messages: list[Outgoing]


class RespondMany(NamedTuple):
    """Publish bodies to the community at QoS 1."""

    messages: list[Outgoing]


class DeliverMany(NamedTuple):
    """Publish a run of a remote's messages to sessions, (QoS, bodies) for each; then acknowledge it to the remote (no acks: no need)."""

    remote: int
    acks: bytes
    epoch: int
    batches: list[tuple[int, list[Outgoing]]]


class Resolve(NamedTuple):
    """Find the addresses of a service; the answer goes to `Core.on_resolved`."""

    remote: int
    name: str


class Open(NamedTuple):
    """Connect to a remote and stay connected, trying its addresses in turn.

    client_id: as whom; empty: as anybody. known: the remote may have a session of ours from before. expiry: seconds that it is to keep one.
    """

    remote: int
    addresses: list[str]
    username: str | None
    password: bytes | None
    rule: Rule
    client_id: str = ""
    known: bool = False
    expiry: int = 3600


class Close(NamedTuple):
    """Leave a remote, which forgets our session."""

    remote: int


class Send(NamedTuple):
    """Publish to a remote; the answer goes to `Core.on_published` under the token (0: none is wanted)."""

    remote: int
    token: int
    publish: Publish


class Subscribe(NamedTuple):
    """Subscribe at a remote; the answer goes to `Core.on_subscribed`. identifier: Subscription Identifier, 0: none."""

    remote: int
    token: int
    filter: str
    qos: int
    identifier: int


class Unsubscribe(NamedTuple):
    """Unsubscribe at a remote."""

    remote: int
    filter: str


class LogLine(NamedTuple):
    """A line for the log. warning: the client's or the remote's fault. what: the same within a minute is one line; empty: each is."""

    warning: bool
    text: str
    what: str = ""


class ReadPage(NamedTuple):
    """Read a durable session's publications behind `after` up to `last`; the answer goes to `Core.on_fetched` under the token."""

    session: str
    token: int
    after: int
    last: int


class AfterCommit(NamedTuple):
    """Do these once everything that has been put so far is kept."""

    actions: list[Action]


Action = (
    Respond
    | RespondMany
    | Deliver
    | DeliverMany
    | SendMany
    | Resolve
    | Open
    | Close
    | Send
    | Subscribe
    | Unsubscribe
    | LogLine
    | ReadPage
    | AfterCommit
)
