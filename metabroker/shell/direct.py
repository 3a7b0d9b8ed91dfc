"""The metabroker's direct lane inside a broker's process: one message at a time at QoS 0, requests that want no answer and publications.

The broker hands the body of a request to `SessionRequests`, without a packet (`broker/embedded/direct.py`). The request becomes the PUBLISH
for the remote and is written. A publication of a remote becomes a PUBLISH for each client and is written. No event, action or batch is
made.

Only what the general path has seen before takes this lane: a topic that the session may publish to, in a request of a known shape
(`BodyShape`), or a topic of the remote whose recipients are known (`Remote.routes`). It is taken only while nothing is pending: the remote
has taken all that was written, and the community's connection is up and has nothing under way that must stay in front. Everything else
(durable sessions, answers, QoS 1 and 2, properties, refusals) is left to the general path, and nothing has been changed then.

Invariant: for the same messages both paths send the same bytes in the same order and count the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...base.metabroker import PUBLICATION, REQUEST
from ...mqtt.framing import single_body
from ..core.batch_path import BodyShape, RequestBatch, publication_body, publication_middle
from ..mqtt.connection import Connection
from ..protocol.messages import LONG

if TYPE_CHECKING:
    from ...broker.embedded.direct import Direct, Receiver
    from ..core.batch_path import SessionTopics
    from ..core.sessions import Session
    from ..mqtt.client import ClientMachine
    from ..protocol.messages import PublishHeader
    from .server import Server

SHAPES = 32  # sizes of bodies of a session whose shape is remembered
HEADS = 1024  # of publications of remotes that are remembered
ROOM = 64  # bytes in the frame of a publication beside topics and payload, at most


class Known(NamedTuple):
    """What is known of publications of a remote with the same bytes before the payload.

    key: of `Remote.routes`. size: of the payload. middle: see `fast.publication_middle`.
    """

    key: tuple[str, tuple[int, ...]]
    size: int
    middle: bytes


class Singles:
    """Of one metabroker: a `Guest`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._direct: Direct | None = None
        self._known: dict[bytes, Known] = {}  # by all that stands before the payload

    def joined(self, direct: Direct) -> None:
        """See `Guest`."""
        self._direct = direct

    # Requests

    def receiver(self, topic: str) -> Receiver | None:
        """See `Guest`."""
        core = self._server.core
        session = core.sessions.get(topic[len(REQUEST) : -len(PUBLICATION)]) if topic.endswith(PUBLICATION) else None
        if session is None or session.remote.number not in self._server.batch_path.able:
            return None
        return SessionRequests(self._server, session).take

    # Publications

    def message(self, number: int, machine: ClientMachine, data: bytes, now: float) -> bool:
        """A remote has sent `data`, which begins with 0x30. False: nothing was done."""
        if self._direct is None or self._server.failed.done():
            return False
        try:
            return self._message(self._direct, number, machine, data, now)
        except Exception as error:
            self._server.fail(error)
            return True

    def _message(self, direct: Direct, number: int, machine: ClientMachine, data: bytes, now: float) -> bool:
        """A PUBLISH of a topic whose recipients are known goes to each of them."""
        start = single_body(data)
        if not start:
            return False
        end = len(data)
        payload = start + 2 + (data[start] << 8 | data[start + 1])
        if payload >= end:
            return False
        if machine.login.version == 5:
            payload += 1 + data[payload]
        head = data[:payload]
        known = self._known.get(head) or self._learn(machine, head, start, data[payload:])
        if known is None or known.size != end - payload:
            return False
        core, community = self._server.core, self._server.community.machine
        remote = core.remotes.get(number)
        sessions = remote.routes.get(known.key) if remote is not None else None
        if remote is None or remote.congested or sessions is None:  # the general way looks whether it still is
            return False
        given = []
        for session, _, plain in sessions:
            recipients = direct.recipients(plain.topic)
            if recipients is None or session.durable is not None or not community.takes(ROOM + len(plain.topic) + len(known.middle) + end):
                return False
            given.append(recipients)
        if not community.may_write_directly(now) or not machine.takes_directly():
            return False
        core.counts.incoming += 1
        core.counts.delivered += len(given)
        content = data[payload:]
        for (session, _, plain), recipients in zip(sessions, given, strict=True):
            session.number += 1
            body = publication_body(session.number, known.middle, content)
            target = recipients.targets[0].session.connection if recipients.targets else None
            version = target.version if target is not None else 5
            direct.give(recipients, version, plain.direct_headers[version].of(len(body)) + body, now)
        direct.flush()
        return True

    def _learn(self, machine: ClientMachine, head: bytes, start: int, payload: bytes) -> Known | None:
        """What is known of a topic that has come the general way."""
        key = machine.topic_of(head[start:])
        if key is None or len(head) > LONG:
            return None
        if len(self._known) >= HEADS:
            self._known.clear()
        known = self._known[head] = Known(key, len(payload), publication_middle(key[0], payload))
        return known


class SessionRequests:
    """Requests to publish of one session. They want no answer, and have QoS 0."""

    __slots__ = ("_plain", "_server", "_session", "_shapes")

    def __init__(self, server: Server, session: Session) -> None:
        self._server = server
        self._session = session
        self._plain: SessionTopics | None = None
        self._shapes: dict[int, BodyShape] = {}  # by the size of the body

    def take(self, body: bytes, now: float) -> bool:
        """See `Receiver`."""
        server, session = self._server, self._session
        core, remote = server.core, session.remote
        if remote.congested or not remote.up or remote.joining or core.sessions.get(session.id) is not session or server.failed.done():
            return False
        try:
            plain = server.batch_path.plain(session)
            if plain is not self._plain:
                self._plain = plain
                self._shapes.clear()
            shape = self._shapes.get(len(body))
            read = shape.read(body) if shape is not None else None
            if read is not None and shape is not None:
                payload, head = read[1], shape.head
            else:
                found = self._look(plain, body)
                if found is None:
                    return False
                head, payload = found
            size = len(payload)
            if size > head.largest:
                return False
            frame = (head.known.get(size) or head.of(size)) + payload
            connection = server.remotes.get(remote.number)
            if not isinstance(connection, Connection) or not connection.write_directly(frame, now):
                return False
            core.hear(1, now)
            core.counts.published += 1
            session.ends = now + session.life
            server.community.machine.packets += 1
        except Exception as error:
            server.fail(error)
        return True

    def _look(self, plain: SessionTopics, body: bytes) -> tuple[PublishHeader, bytes] | None:
        """The head and the payload of a request; its shape is remembered. None: the general way has to see to it."""
        if len(body) > self._server.core.policy.limits.body:
            return None
        read = RequestBatch.read(body)
        if read is None or "message" in read:
            return None
        head = plain.heads.get((read["topic"], 0, read.get("retain", False)))
        if head is None:
            return None
        if len(body) not in self._shapes and (shape := BodyShape.of(body, read, head)) is not None:
            if len(self._shapes) >= SHAPES:
                self._shapes.clear()
            self._shapes[len(body)] = shape
        return head, read["payload"]
