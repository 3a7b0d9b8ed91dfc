"""The core's way for many messages at once: requests to publish, and publications of remotes, without a packet for each.

Strategy: a request to publish is *plain* when it asks for QoS 0 or 1 without properties, when its topic, QoS and retain flag were found
right and allowed before in this session, and when nothing speaks against it now: the identifier is new, there is room, the remote is
there. Plain requests in a row become one action to send and one to answer. Whatever else comes, and all that durable sessions ask for,
goes to `Core.on_request`, in its place in the order, so that there is one set of rules; the tests hold both ways against each other.

Publications of a remote are matched once for each topic (`Remote.routes`, forgotten when subscriptions change).

Invariant: for the same requests both ways send the same messages in the same order and give the same answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from . import bodies
from .actions import DeliverMany, RespondMany, SendMany
from .answering import REQUEST, RESPONSE
from .bodies import BodyError
from .bursts import Head, Messages, Outgoing
from .codes import Code

if TYPE_CHECKING:
    from .core import Core
    from .events import Abilities
    from .remote import Remote
    from .sessions import Session

PUBLISH = "/publish"
KNOWN = 1024  # topics of a session, or of a remote, that are remembered
DONE = (b"\x82\xa7message", b"\xa4code\x00")  # the body of an answer, before and behind the identifier: `code` is 0
INTEGERS = 1 << 63
NUMBERS = 1 << 32  # publications of a session that are numbered with four bytes; those behind with eight

_pack = msgpack.Packer(autoreset=True).pack


class Plain:
    """What is known of a session's topics. heads: (topic, QoS, retain) -> how it is sent; answers: how it is answered."""

    __slots__ = ("abilities", "answers", "heads")

    def __init__(self, session_id: str, abilities: Abilities, version: int) -> None:
        """version: of MQTT at the community broker."""
        self.abilities = abilities
        self.heads: dict[tuple[str, int, bool], Head] = {}
        self.answers = Head(f"{RESPONSE}{session_id}/puback", 1, False, version)


class UnderWay:
    """A burst that a remote has not acknowledged whole. messages: identifiers of the requests. left: how many have no answer."""

    __slots__ = ("left", "messages", "session")

    def __init__(self, session: str, messages: list[str | int]) -> None:
        self.session = session
        self.messages = messages
        self.left = len(messages)


class Fast:
    """Beside a `Core`. version: of MQTT at the community broker. able: the numbers of remotes whose connections take bursts."""

    def __init__(self, core: Core, version: int) -> None:
        self.core = core
        self.version = version
        self.able: set[int] = set()
        self._plain: dict[str, Plain] = {}  # by session
        self._under_way: dict[int, dict[int, UnderWay]] = {}  # remote -> token -> burst

    def enable(self, number: int) -> None:
        """A remote's connection takes bursts."""
        self.able.add(number)

    def forget(self, number: int) -> None:
        """A remote is left."""
        self.able.discard(number)
        self._under_way.pop(number, None)

    # Requests

    def on_requests(self, run: Messages, now: float) -> bool:
        """Messages have come from the community under one topic. True: acknowledge them when what has been put is kept."""
        core, topic = self.core, run.topic
        session_id = topic[len(REQUEST) : -len(PUBLISH)]
        session = core.sessions.get(session_id) if topic.endswith(PUBLISH) and topic.startswith(REQUEST) else None
        limits = core.policy.limits
        if (
            session is None
            or session.durable is not None
            or session_id in session.remote.joining
            or session.remote.number not in self.able
            or len(run.payloads[0]) > limits.body
        ):
            late = [core.on_request(topic, body, now) for body in run.payloads]
            return any(late)
        session.ends = now + session.life
        Requests(self, session, topic, now).take(run.payloads)
        return False

    def plain(self, session: Session) -> Plain:
        """What is known of a session, as long as its remote takes the same."""
        plain = self._plain.get(session.id)
        if plain is None or plain.abilities is not session.remote.abilities:
            if len(self._plain) > 2 * len(self.core.sessions):
                self._plain = {one: known for one, known in self._plain.items() if one in self.core.sessions}
            plain = self._plain[session.id] = Plain(session.id, session.remote.abilities, self.version)
        return plain

    def learn(self, session: Session, plain: Plain, request: dict[str, object]) -> Head | None:
        """How a request's topic is sent, if it may be published and the remote takes it; None: the core says what is wrong."""
        try:
            publish = bodies.publish_request(request).publish
        except BodyError:
            return None
        abilities = plain.abilities
        takes = publish.qos <= abilities.qos and (abilities.retain or not publish.retain) and abilities.carries is None
        if not takes or not session.rule.may_publish(publish.topic):
            return None
        if len(plain.heads) >= KNOWN:
            plain.heads.clear()
        head = Head(publish.topic, publish.qos, publish.retain, session.rule.version, abilities.largest)
        plain.heads[publish.topic, publish.qos, publish.retain] = head
        return head

    def under_way(self, number: int, session_id: str, messages: list[str | int]) -> int:
        """A token for requests that a remote will acknowledge."""
        token = self.core.new_token()
        self._under_way.setdefault(number, {})[token] = UnderWay(session_id, messages)
        return token

    def on_settled(self, number: int, token: int, start: int, count: int, reason: int) -> None:
        """The remote has acknowledged or refused `count` messages of a burst, from number `start` on."""
        bursts = self._under_way.get(number, {})
        burst = bursts.get(token)
        if burst is None:
            return
        burst.left -= count
        if not burst.left:
            del bursts[token]
        session = self.core.sessions.get(burst.session)
        if session is None:
            return
        messages = burst.messages[start : start + count] if count < len(burst.messages) else burst.messages
        session.open -= count
        done = session.done
        if reason:
            for message in messages:
                self.core.answer_published(session, message, reason)
            return
        answers = self.plain(session).answers
        before, behind = DONE
        said: list[Outgoing] = []
        for message in messages:
            if message in done:
                done[message] = Code.OK
            said.append((answers, before + _pack(message) + behind))
        self.core.do(RespondMany(said))

    # Publications

    def on_messages(self, number: int, run: Messages) -> None:
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
        bursts: list[tuple[int, list[Outgoing]]] = []
        topic = _pack(run.topic)
        size = len(run.payloads[0])
        middle = b"\xa5topic" + topic + b"\xa7payload" + (_pack(run.payloads[0])[:-size] if size else b"\xc4\0")
        for session, wanted, heads in known:
            qos = min(wanted, run.qos)
            head = heads[qos]
            tail = b"\xa3qos" + bytes((qos,)) + b"\xa6retain\xc2"
            number_ = session.number + 1
            session.number += count
            mark, width = (b"\xce", 4) if session.number < NUMBERS else (b"\xcf", 8)
            messages: list[Outgoing] = [
                (head, b"".join((b"\x85\xa2id", mark, place.to_bytes(width, "big"), middle, payload, tail)))
                for place, payload in enumerate(run.payloads, number_)
            ]
            bursts.append((qos, messages))
        core.do(DeliverMany(number, run.acks, run.epoch, bursts))

    def _route(self, remote: Remote, run: Messages) -> list[tuple[Session, int, tuple[Head, Head]]]:
        """Who gets the messages of a topic, with which QoS at most."""
        wanted = remote.recipients(run.singles()[0]) if run.payloads else {}
        known = []
        for session_id, qos in wanted.items():
            topic = f"{RESPONSE}{session_id}/publish"
            heads = (Head(topic, 0, False, self.version), Head(topic, 1, False, self.version))
            known.append((self.core.sessions[session_id], qos, heads))
        if len(remote.routes) >= KNOWN:
            remote.routes.clear()
        remote.routes[run.topic, run.identifiers] = known
        return known


class Requests:
    """Requests to publish of one session, in the order in which they came, while they become actions."""

    def __init__(self, fast: Fast, session: Session, topic: str, now: float) -> None:
        self.fast, self.core, self.session, self.topic, self.now = fast, fast.core, session, topic, now
        self.plain = fast.plain(session)
        self.qos = 0  # of all in `messages`
        self.messages: list[Outgoing] = []
        self.names: list[str | int] = []

    def take(self, payloads: list[bytes]) -> None:
        """All of them. One long function, because it runs for each message."""
        session, heads = self.session, self.plain.heads
        remote, limits, done = session.remote, self.core.policy.limits, session.done
        unpack = msgpack.unpackb
        memory = self.core.memory
        keep = 2 * limits.waiting
        for body in payloads:
            try:
                read = unpack(body, max_ext_len=0)
                message, topic, payload = read["message"], read["topic"], read["payload"]
                qos = read.get("qos", 0)
                retain = read.get("retain", False)
            except Exception:  # whatever it is, the core finds it and names it
                self._unusual(body)
                continue
            if (
                type(payload) is not bytes
                or len(read) != 3 + ("qos" in read) + ("retain" in read)
                or not ((type(message) is int and 0 <= message < INTEGERS) or (type(message) is str and len(message) <= 256))
                or type(topic) is not str
                or type(qos) is not int
                or not 0 <= qos <= 1
                or type(retain) is not bool
                or message in done
            ):
                self._unusual(body)
                continue
            head = heads.get((topic, qos, retain)) or self.fast.learn(session, self.plain, read)
            if (
                head is None
                or len(payload) > head.largest
                or session.open >= limits.waiting
                or remote.congested
                or (memory is not None and memory.congested)
                or not (qos or remote.up)
            ):
                self._unusual(body)
                continue
            if qos != self.qos:
                self._flush()
                self.qos = qos
            self.messages.append((head, payload))
            self.names.append(message)
            if qos:
                done[message] = None
                session.open += 1
            else:
                done[message] = Code.OK
            if len(done) > keep:
                oldest, code = done.popitem(last=False)
                if code is None:  # it has no answer yet
                    done[oldest] = None
                    self.core.remember(session, message, done[message])
        self._flush()

    def _unusual(self, body: bytes) -> None:
        """One that the core judges."""
        self._flush()
        self.core.on_request(self.topic, body, self.now)

    def _flush(self) -> None:
        """What is plain becomes actions."""
        if not self.messages:
            return
        number = self.session.remote.number
        self.core.hear(len(self.messages), self.now)
        self.core.counts.published += len(self.messages)
        if self.qos:
            token = self.fast.under_way(number, self.session.id, self.names)
            self.core.do(SendMany(number, token, 1, self.messages))
        else:
            before, behind = DONE
            answers = self.plain.answers
            self.core.do(SendMany(number, 0, 0, self.messages))
            self.core.do(RespondMany([(answers, before + _pack(name) + behind) for name in self.names]))
        self.messages, self.names = [], []
