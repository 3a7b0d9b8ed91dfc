"""Many messages at once: requests to publish, and messages of remotes, without a packet for each.

A request to publish is *plain* if all of this holds:

- it asks for QoS 0 or 1 and has no properties;
- its topic, QoS and retain flag were checked and allowed before in this session;
- its identifier is new, there is room, and the remote is connected.

Plain requests in a row become one action that sends and one that answers. Requests without an identifier want no answer. Everything else
goes to `Core.on_request`, in its place in the order, and so do requests with an identifier in a durable session. There is one set of
rules: the tests compare the two paths.

Messages of a remote are matched once for each topic (`Remote.routes`), until subscriptions change.

Invariant: for the same requests both paths send the same messages in the same order and give the same answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgpack

from ...base.cache import Cache
from ...base.metabroker import PUBLICATION, REQUEST, response_topic
from ..protocol import bodies
from ..protocol.bodies import BodyError
from ..protocol.messages import LONG, IncomingRun, Outgoing, PublishHeader
from .actions import DeliverMany, RespondMany, SendMany

if TYPE_CHECKING:
    from ..protocol.events import Abilities
    from .core import Core
    from .remote import Remote
    from .sessions import Session

TOPICS = 256  # of a session that are remembered
ROUTES = 65_536  # recipients of topics of a remote that are remembered
DONE = (b"\x82\xa7message", b"\xa4code\x00")  # the body of an answer before and after the identifier: `code` is 0
INTEGERS = 1 << 63
SHAPES = 3  # that are tried for the bodies of a run
NUMBERS = 1 << 32  # publications of a session that are numbered with four bytes; those behind with eight

TAILS = tuple(b"\xa3qos" + bytes((qos,)) + b"\xa6retain\xc2" for qos in (0, 1))  # how the body of a publication ends

_pack = msgpack.Packer(autoreset=True).pack


def publication_middle(topic: str, payload: bytes) -> bytes:
    """What stands between the number and the payload in the body of a publication; it depends only on the payload's size."""
    size = len(payload)
    return b"\xa5topic" + bytes(_pack(topic)) + b"\xa7payload" + (bytes(_pack(payload))[:-size] if size else b"\xc4\0")


def publication_body(number: int, middle: bytes, payload: bytes) -> bytes:
    """The body of a publication of QoS 0. number: of the session."""
    if number < NUMBERS:
        return b"".join((b"\x85\xa2id\xce", number.to_bytes(4, "big"), middle, payload, TAILS[0]))
    return b"".join((b"\x85\xa2id\xcf", number.to_bytes(8, "big"), middle, payload, TAILS[0]))


class SessionTopics:
    """What is known of a session's topics.

    heads: (topic, QoS, retain) -> header of messages to the remote.
    answers: header of answers to requests.
    incoming: headers of publications for the session, by QoS.
    direct_headers: headers of publications of QoS 0 on the direct lane, by the MQTT version of its client.
    topic: of publications for the session.
    """

    __slots__ = ("abilities", "answers", "direct_headers", "heads", "incoming", "topic")

    def __init__(self, session_id: str, abilities: Abilities, version: int) -> None:
        """version: of MQTT at the community broker."""
        self.abilities = abilities
        self.heads: Cache[tuple[str, int, bool], PublishHeader] = Cache(TOPICS)
        self.answers = PublishHeader(response_topic(session_id, "puback"), 1, False, version)
        topic = response_topic(session_id, "publish")
        self.incoming = (PublishHeader(topic, 0, False, version), PublishHeader(topic, 1, False, version))
        self.direct_headers = {one: PublishHeader(topic, 0, False, one) for one in (4, 5)}
        self.topic = topic.encode()


class PendingBatch:
    """A batch that a remote has not acknowledged completely.

    messages: identifiers of the requests.
    left: number of messages without an answer.
    """

    __slots__ = ("left", "messages", "session")

    def __init__(self, session: str, messages: list[str | int]) -> None:
        self.session = session
        self.messages = messages
        self.left = len(messages)


class BatchPath:
    """The batch path beside a `Core`.

    version: of MQTT at the community broker.
    able: numbers of the remotes whose connections take batches.
    """

    def __init__(self, core: Core, version: int) -> None:
        self.core = core
        self.version = version
        self.able: set[int] = set()
        self._plain: dict[str, SessionTopics] = {}  # by session
        self._under_way: dict[int, dict[int, PendingBatch]] = {}  # remote -> token -> batch

    def enable(self, number: int) -> None:
        """A remote's connection takes batches."""
        self.able.add(number)

    def forget(self, number: int) -> None:
        """A remote is left."""
        self.able.discard(number)
        self._under_way.pop(number, None)

    # RequestBatch

    def on_requests(self, run: IncomingRun, now: float) -> bool:
        """Messages have come from the community under one topic. True: acknowledge them when what has been put is kept."""
        core, topic = self.core, run.topic
        session_id = topic[len(REQUEST) : -len(PUBLICATION)]
        session = core.sessions.get(session_id) if topic.endswith(PUBLICATION) and topic.startswith(REQUEST) else None
        limits = core.policy.limits
        if (
            session is None
            or session_id in session.remote.joining
            or session.remote.number not in self.able
            or len(run.payloads[0]) > limits.body
        ):
            late = [core.on_request(topic, body, now) for body in run.payloads]
            return any(late)
        session.ends = now + session.life
        requests = RequestBatch(self, session, topic, now)
        requests.take(run.payloads)
        return requests.late

    def plain(self, session: Session) -> SessionTopics:
        """What is known of a session, as long as its remote takes the same."""
        plain = self._plain.get(session.id)
        if plain is None or plain.abilities is not session.remote.abilities:
            if len(self._plain) > 2 * len(self.core.sessions):
                self._plain = {one: known for one, known in self._plain.items() if one in self.core.sessions}
            plain = self._plain[session.id] = SessionTopics(session.id, session.remote.abilities, self.version)
        return plain

    def learn(self, session: Session, plain: SessionTopics, request: dict[str, Any]) -> PublishHeader | None:
        """How a request's topic is sent, if it may be published and the remote takes it; None: the core says what is wrong."""
        try:
            publish = bodies.publish_request(request).publish
        except BodyError:
            return None
        abilities = plain.abilities
        takes = publish.qos <= abilities.qos and (abilities.retain or not publish.retain) and abilities.carries is None
        if not takes or not session.rule.may_publish(publish.topic):
            return None
        head = PublishHeader(publish.topic, publish.qos, publish.retain, abilities.version, abilities.largest)
        if len(publish.topic) <= LONG:
            plain.heads.keep((publish.topic, publish.qos, publish.retain), head)
        return head

    def under_way(self, number: int, session_id: str, messages: list[str | int]) -> int:
        """A token for requests that a remote will acknowledge."""
        token = self.core.new_token()
        self._under_way.setdefault(number, {})[token] = PendingBatch(session_id, messages)
        return token

    def on_batch_settled(self, number: int, token: int, start: int, count: int, reason: int) -> None:
        """The remote has acknowledged or refused `count` messages of a batch, from number `start` on."""
        batches = self._under_way.get(number, {})
        batch = batches.get(token)
        if batch is None:
            return
        batch.left -= count
        if not batch.left:
            del batches[token]
        session = self.core.sessions.get(batch.session)
        if session is None:
            return
        messages = batch.messages[start : start + count] if count < len(batch.messages) else batch.messages
        session.open -= count
        done = session.done
        if reason:
            for message in messages:
                self.core.publishing.answer_published(session, message, reason)
            return
        answers = self.plain(session).answers
        before, behind = DONE
        said: list[Outgoing] = []
        for message in messages:
            content = done.get(message, 0)
            if content < 0:
                done[message] = ~content
            said.append((answers, before + _pack(message) + behind))
        self.core.do(RespondMany(said))

    # Publications

    def on_messages(self, number: int, run: IncomingRun) -> None:
        """A remote has sent messages of one topic: to each session that they are for."""
        core = self.core
        remote = core.remotes.get(number)
        if remote is None:
            return
        count = len(run.payloads)
        known = remote.routes.get((run.topic, run.identifiers))
        if known is None:
            known = self._route(remote, run)
        if any(session.durable is not None for session, *_ in known):
            for publish in run.singles():
                core.on_message(number, publish, run.epoch)
            return
        core.counts.incoming += count
        core.counts.delivered += count * len(known)
        batches: list[tuple[int, list[Outgoing]]] = []
        middle = publication_middle(run.topic, run.payloads[0])
        for session, wanted, plain in known:
            qos = min(wanted, run.qos)
            head = plain.incoming[qos]
            tail = TAILS[qos]
            number_ = session.number + 1
            session.number += count
            mark, width = (b"\xce", 4) if session.number < NUMBERS else (b"\xcf", 8)
            messages: list[Outgoing] = [
                (head, b"".join((b"\x85\xa2id", mark, place.to_bytes(width, "big"), middle, payload, tail)))
                for place, payload in enumerate(run.payloads, number_)
            ]
            batches.append((qos, messages))
        core.do(DeliverMany(number, run.acks, run.epoch, batches))

    def _route(self, remote: Remote, run: IncomingRun) -> list[tuple[Session, int, SessionTopics]]:
        """Who gets the messages of a topic, with which QoS at most."""
        known = []
        for session_id, qos in remote.recipients(run.singles()[0]).items():
            session = self.core.sessions[session_id]
            known.append((session, qos, self.plain(session)))
        if len(run.topic) <= LONG:
            if (len(known) + 1) * len(remote.routes) >= ROUTES:
                remote.routes.clear()
            remote.routes[run.topic, run.identifiers] = known
        return known


class BodyShape:
    """What request bodies of one size have in common: everything except the payload and `message`, a number of 2, 4 or 8 bytes, if present.

    Other bodies of a run are compared with it and not unpacked.
    """

    __slots__ = ("_before", "_behind", "_between", "_first", "_message", "_payload", "head")

    def __init__(self, before: bytes, message: slice | None, between: bytes, payload: slice, behind: bytes, head: PublishHeader) -> None:
        self._before, self._between, self._behind = before, between, behind
        self._message, self._payload = message, payload
        self._first = min(message.stop, payload.stop) if message is not None else 0
        self.head = head

    @classmethod
    def of(cls, body: bytes, read: dict[str, Any], head: PublishHeader) -> BodyShape | None:
        """The shape of a plain request; None if it is not written in the shortest way, or its identifier is no such number."""
        parts = [bytes((0x80 | len(read),))]
        places: dict[str, slice] = {}
        at = 1
        for key, value in read.items():
            name, content = _pack(key), _pack(value)
            at += len(name)
            if key == "message":
                if content[0] not in (0xCD, 0xCE, 0xCF):
                    return None
                places[key] = slice(at + 1, at + len(content))
            elif key == "payload":
                places[key] = slice(at + len(content) - len(value), at + len(content))
            at += len(content)
            parts += (name, content)
        if b"".join(parts) != body:
            return None
        payload = places["payload"]
        message = places.get("message")
        if message is None:
            return cls(body[: payload.start], None, b"", payload, body[payload.stop :], head)
        one, two = sorted(places.values(), key=lambda place: place.start)
        return cls(body[: one.start], message, body[one.stop : two.start], payload, body[two.stop :], head)

    def read(self, body: bytes) -> tuple[int | None, bytes] | None:
        """Identifier and payload of a body of this shape; None if it has another."""
        if self._message is None:
            return (None, body[self._payload]) if body.startswith(self._before) and body.endswith(self._behind) else None
        if body.startswith(self._before) and body.startswith(self._between, self._first) and body.endswith(self._behind):
            message = int.from_bytes(body[self._message], "big")
            if message < INTEGERS:
                return message, body[self._payload]
        return None


class RequestBatch:
    """Requests to publish of one session, in the order in which they came, while they become actions."""

    def __init__(self, batch_path: BatchPath, session: Session, topic: str, now: float) -> None:
        self.batch_path, self.core, self.session, self.topic, self.now = batch_path, batch_path.core, session, topic, now
        self.plain = batch_path.plain(session)
        self.qos = 0  # of all in `messages`
        self.messages: list[Outgoing] = []
        self.names: list[str | int] = []  # of those that are answered
        self.late = False  # the requests are to be acknowledged when what has been put is kept

    def take(self, payloads: list[bytes]) -> None:
        """All of them. One long function, because it runs for each message."""
        session, limits, persistence = self.session, self.core.policy.limits, self.core.persistence
        remote, done = session.remote, session.done
        keep = 2 * limits.waiting
        shape: BodyShape | None = None
        tries = SHAPES if len(payloads) > 2 else 0
        head: PublishHeader | None = None
        for body in payloads:
            found = shape.read(body) if shape is not None else None
            message: str | int | None
            if found is not None and shape is not None:
                message, payload = found
                head = shape.head
            else:
                read = self.read(body)
                if read is None:
                    self._unusual(body)
                    continue
                message, payload = read.get("message"), read["payload"]
                known = read["topic"], read.get("qos", 0), read.get("retain", False)
                head = self.plain.heads.get(known) or self.batch_path.learn(session, self.plain, read)
                if tries and head is not None:
                    tries -= 1
                    shape = BodyShape.of(body, read, head)
            if message is None:
                if head is None or len(payload) > head.largest:
                    self._unusual(body)
                elif remote.congested or not remote.up:
                    self._refuse()
                else:
                    if self.qos:
                        self._flush()
                        self.qos = 0
                    self.messages.append((head, payload))
                continue
            if (
                head is None
                or session.durable is not None
                or message in done
                or len(payload) > head.largest
                or session.open >= limits.waiting
                or remote.congested
                or (persistence is not None and persistence.congested)
                or not (head.qos or remote.up)
            ):
                self._unusual(body)
                continue
            if head.qos != self.qos:
                self._flush()
                self.qos = head.qos
            self.messages.append((head, payload))
            self.names.append(message)
            content = crc32(payload, head.content)
            if head.qos:
                done[message] = ~content
                session.open += 1
            else:
                done[message] = content
            if len(done) > keep:
                oldest, other = done.popitem(last=False)
                if other < 0:  # it has no answer yet
                    done[oldest] = other
                    self.core.publishing.remember(session, message, done[message])
        self._flush()

    @staticmethod
    def read(body: bytes) -> dict[str, Any] | None:
        """The map in the body of a request that may be plain."""
        try:
            read: dict[str, Any] = msgpack.unpackb(body, max_ext_len=0)
            qos = read.get("qos", 0)
            if "message" in read:
                message = read["message"]
                named = (type(message) is int and 0 <= message < INTEGERS) or (type(message) is str and len(message) <= 256)
            else:
                named = qos == 0
            plain = (
                type(read["payload"]) is bytes
                and len(read) == 2 + ("message" in read) + ("qos" in read) + ("retain" in read)
                and named
                and type(read["topic"]) is str
                and type(qos) is int
                and 0 <= qos <= 1
                and type(read.get("retain", False)) is bool
            )
        except Exception:  # whatever it is, the core finds it and names it
            return None
        return read if plain else None

    def _unusual(self, body: bytes) -> None:
        """One that the core judges."""
        self._flush()
        self.late |= self.core.on_request(self.topic, body, self.now)

    def _refuse(self) -> None:
        """One without an identifier, because the remote takes nothing now."""
        self._flush()
        self.core.hear(1, self.now)
        self.core.publishing.refuses_unanswered(self.session)

    def _flush(self) -> None:
        """What is plain becomes actions."""
        if not self.messages:
            return
        number = self.session.remote.number
        self.core.hear(len(self.messages), self.now)
        self.core.counts.published += len(self.messages)
        if self.qos:
            token = self.batch_path.under_way(number, self.session.id, self.names)
            self.core.do(SendMany(number, token, 1, self.messages))
        else:
            before, behind = DONE
            answers = self.plain.answers
            self.core.do(SendMany(number, 0, 0, self.messages))
            if self.names:
                self.core.do(RespondMany([(answers, before + _pack(name) + behind) for name in self.names]))
        self.messages, self.names = [], []
