"""What the core keeps in the store: sessions, their subscriptions, publications and requests of durable sessions.

Changes go into the open batch of a store at once (`Changes`). Actions that must follow the commit are wrapped in `AfterCommit`. So one
group commit serves everything that came in one chunk, and nobody waits for the disk in between.

A publication for a durable session gets the next identifier, is stored, and is sent while the client keeps up: at most `window` are sent
and not acknowledged. The others are read from the store in pages when there is room (`ReadPage`), so that memory holds only a number for
each. A client that comes back says what it has, and is sent what follows.

Invariants
- identifiers of a durable session have no gap between `acked` and the session's `number`, except for expired ones;
- nothing is sent before the commit, so that no identifier is ever given to two messages;
- a page that was read for a client that has left or come back meanwhile is not used (its token differs).

It does not know files, threads, or the shell that carries out its actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.metabroker import Code, pack, response_topic
from ...mqtt.packets import Publish
from ...mqtt.properties import Property, encode_properties, properties_in
from ...store.records import RUN_WEIGHT, StoredDelivery, StoredRun
from ..policy import Limits
from ..protocol import bodies
from ..protocol.messages import ANY_CONTENT
from ..protocol.messages import weight as weight_of
from ..sealing import Sealer
from .actions import Action, AfterCommit, LogLine, ReadPage, Respond
from .records import (
    ACKED,
    ASKED,
    FILTER,
    INCOMING,
    OUTGOING,
    REMOTE,
    REQUEST,
    SESSION,
    AskedRecord,
    Changes,
    RemoteRecord,
    SessionRecord,
    numbered,
    pair,
    read,
    write,
)
from .remote import FEW, Remote, RemoteFilter
from .sessions import LONGEST_PROBE, PROBE, Counters, Session

PAGE, PAGE_BYTES = 200, 1_048_576  # what one page of the store holds at most; one message in any case
OUT_BYTES = 4_194_304  # of publications that are sent and not acknowledged; one message in any case
AGAIN = 0  # the token of a page with one publication that is sent again


class Persistence:
    """What is kept of sessions. changes: where. offset: from the core's time to the wall clock. do: takes actions."""

    def __init__(self, changes: Changes, limits: Limits, counts: Counters, offset: float, do: Callable[[Action], None]) -> None:
        self.changes = changes
        self.limits = limits
        self.counts = counts
        self.offset = offset
        self.congested = False  # the store does not keep up
        self.next_run = 1
        self.sealer: Sealer | None = None  # of passwords; None: they are stored as they are
        self.lives = 0  # how often a metabroker has begun with what is kept
        self._do = do
        self._sequences: dict[int, tuple[str, int]] = {}  # token -> session, sequence
        self._token = 0
        self._now = 0.0

    # Records

    def put_remote(self, remote: Remote) -> None:
        """A remote, from its first session on."""
        credentials = remote.credentials
        record = RemoteRecord(credentials.remote, credentials.username, credentials.password, credentials.rule.version)
        if self.sealer is not None and record.password is not None:
            record = record._replace(password=self.sealer.seal(record.password, remote.client_id), sealed=True)
        self.changes.put_value(REMOTE, remote.client_id.encode(), write(record))

    def remote_record(self, client_id: str, data: bytes) -> RemoteRecord:
        """A stored record, with the password as it is. Raises SealError."""
        record = RemoteRecord(*read(data))
        if self.sealer is None or record.password is None or not record.sealed:
            return record
        return record._replace(password=self.sealer.open(record.password, client_id), sealed=False)

    def forget_remote(self, remote: Remote) -> None:
        """A remote that has been left."""
        self.changes.delete_value(REMOTE, remote.client_id.encode())
        for filter_ in {*remote.held, *remote.stale, *(remote.covers.filters if remote.covers is not None else ())}:
            self.forget_asked(remote, filter_)

    def put_session(self, session: Session) -> None:
        """A session that its client knows, and how it is now."""
        durable = session.durable
        seen = session.ends - session.life + self.offset
        record = SessionRecord(session.client, session.remote.client_id, seen, 0, False, 0)
        if durable is None:
            record = record._replace(life=int(session.life))
        else:
            durable.noted = seen
            record = record._replace(expiry=durable.expiry, away=durable.away, dropped=durable.dropped)
        self.changes.put_value(SESSION, session.id.encode(), write(record))

    def forget_session(self, session: Session) -> None:
        """A session that has ended, with all that it holds."""
        changes, key = self.changes, session.id.encode()
        changes.delete_value(SESSION, key)
        for filter_ in session.filters:
            changes.delete_value(FILTER, pair(session.id, filter_))
        if session.durable is None:
            return
        changes.delete_value(ACKED, key)
        changes.delete_recipient(INCOMING + session.id)
        changes.delete_recipient(OUTGOING + session.id)
        for sequence in session.durable.slots.values():
            changes.delete_value(REQUEST, numbered(session.id, sequence))
        self._sequences = {token: one for token, one in self._sequences.items() if one[0] != session.id}

    def put_filter(self, session: Session, filter_: str, qos: int) -> None:
        """A session holds a filter."""
        self.changes.put_value(FILTER, pair(session.id, filter_), write(qos))

    def forget_filter(self, session_id: str, filter_: str) -> None:
        """It does no longer."""
        self.changes.delete_value(FILTER, pair(session_id, filter_))

    def put_asked(self, remote: Remote, held: RemoteFilter) -> None:
        """How a remote knows a filter."""
        numbers = [(number, sorted(remote.asked[number][1])) for number in held.numbers]
        record = AskedRecord(held.order, held.granted, [(number, who if len(who) <= FEW else None) for number, who in numbers])
        self.changes.put_value(ASKED, pair(remote.client_id, held.filter), write(record))

    def put_cover(self, remote: Remote, filter_: str, qos: int) -> None:
        """It is to be asked for a filter that no session holds (`covers.py`)."""
        self.changes.put_value(ASKED, pair(remote.client_id, filter_), write(AskedRecord(0, qos, [])))

    def forget_asked(self, remote: Remote, filter_: str) -> None:
        """It does no longer."""
        self.changes.delete_value(ASKED, pair(remote.client_id, filter_))

    # Publications for clients

    def collect(self, publish: Publish, recipients: list[tuple[Session, int]]) -> bool:
        """Keep a remote's message for durable sessions, each with its QoS; False if none of them has room."""
        weight = weight_of(publish, RUN_WEIGHT)
        run = 0
        responses: list[Action] = []
        for session, qos in recipients:
            durable = session.durable
            assert durable is not None
            if len(durable.kept) >= self.limits.stored or durable.bytes + weight > self.limits.stored_bytes:
                self._drop(session)
                continue
            run = run or self._put_run(publish)
            session.number = number = session.number + 1
            self.changes.put_delivery(StoredDelivery(INCOMING + session.id, number, run, 0, 1, qos, 0, 0, weight.to_bytes(5, "big")))
            durable.kept[number] = weight
            durable.bytes += weight
            if not durable.away and not durable.fetching and durable.sent == number - 1 and self._room(session):
                responses.append(self._publication(session, number, publish, qos, weight))
        if responses:
            self._do(AfterCommit(responses))
        return bool(run)

    def acknowledge(self, session: Session, number: int) -> None:
        """The client has everything up to a publication. number: at most the session's last."""
        durable = session.durable
        assert durable is not None
        for gone in range(durable.acked + 1, number + 1):
            self._forget(session, gone)
        if number > durable.acked:
            durable.acked = number
            if durable.sent < number:
                durable.sent = durable.shown = number
            durable.full = False
            durable.pause, durable.probe = PROBE, self._now + PROBE
            self.changes.put_value(ACKED, session.id.encode(), write(number))
        self.pump(session)

    def resume(self, session: Session, number: int) -> None:
        """The client is there, has everything up to a publication, and is sent what follows."""
        durable = session.durable
        assert durable is not None
        durable.away = False
        self.rewind(session)
        self.acknowledge(session, number)
        self.put_session(session)

    def rewind(self, session: Session) -> None:
        """What is sent and not acknowledged counts as not sent."""
        durable = session.durable
        assert durable is not None
        durable.sent = durable.shown = durable.acked
        durable.outstanding = durable.out = durable.fetching = 0
        durable.pause, durable.probe = PROBE, self._now + PROBE

    def leave(self, session: Session) -> None:
        """The client leaves; its session stays."""
        durable = session.durable
        assert durable is not None
        durable.away = True
        durable.fetching = 0
        self.put_session(session)

    def pump(self, session: Session) -> None:
        """Read what can be sent, if nothing is being read."""
        durable = session.durable
        assert durable is not None
        if durable.away or durable.fetching or durable.sent >= session.number or not self._room(session):
            return
        last, size = durable.sent, 0
        most = min(session.number, last + min(PAGE, self.limits.window - durable.outstanding))
        while last < most and (size == 0 or size + durable.kept.get(last + 1, 0) <= PAGE_BYTES):
            last += 1
            size += durable.kept.get(last, 0)
        self._token += 1
        durable.fetching = self._token
        self._do(AfterCommit([ReadPage(session.id, self._token, durable.sent, last)]))

    def on_fetched(self, session: Session, token: int, last: int, rows: list[tuple[StoredDelivery, StoredRun]] | None) -> None:
        """A page has been read, up to an identifier; None: the store did not answer, `on_timer` tries again."""
        durable = session.durable
        if durable is None or durable.away or (token != AGAIN and token != durable.fetching):
            return
        if token == AGAIN:
            for delivery, run in rows or ():
                if delivery.order in durable.kept and (again := self.message_in(run)) is not None:
                    self._do(self._response(session, delivery.order, again, delivery.qos, None))
            return
        durable.fetching = 0
        if rows is None:
            return
        for delivery, run in rows:
            number = delivery.order
            weight = durable.kept.get(number)
            if weight is None or number <= durable.sent:
                continue
            publish = self.message_in(run)
            if publish is None:
                self.counts.expired += 1
                self._forget(session, number)
            else:
                self._do(self._publication(session, number, publish, delivery.qos, weight))
        durable.sent = max(durable.sent, last)
        self.pump(session)

    def on_timer(self, session: Session, now: float) -> None:
        """Send on; send the oldest publication again when the client says nothing; note when the client was heard."""
        self._now = now
        durable = session.durable
        if durable is None:
            return
        if session.ends - session.life + self.offset - durable.noted > durable.expiry / 10:
            self.put_session(session)
        if durable.away:
            return
        self.pump(session)
        if durable.outstanding and now >= durable.probe:
            durable.pause = min(2 * durable.pause, LONGEST_PROBE)
            durable.probe = now + durable.pause
            oldest = next(iter(durable.kept))
            self._do(AfterCommit([ReadPage(session.id, AGAIN, oldest - 1, oldest)]))

    def heard(self, now: float) -> None:
        """The time, for what has no other."""
        self._now = now

    def _room(self, session: Session) -> bool:
        durable = session.durable
        assert durable is not None
        return not durable.outstanding or (durable.outstanding < self.limits.window and durable.out < OUT_BYTES)

    def _publication(self, session: Session, number: int, publish: Publish, qos: int, weight: int) -> Respond:
        """What is sent to the client, counted."""
        durable = session.durable
        assert durable is not None
        before = durable.shown if durable.shown != number - 1 else None
        if not durable.outstanding:
            durable.probe = self._now + durable.pause
        durable.sent = durable.shown = number
        durable.outstanding += 1
        durable.out += weight
        return self._response(session, number, publish, qos, before)

    @staticmethod
    def _response(session: Session, number: int, publish: Publish, qos: int, before: int | None) -> Respond:
        return Respond(response_topic(session.id, "publish"), bodies.publication(number, publish, qos, publish.retain, before), qos)

    def _forget(self, session: Session, number: int) -> None:
        durable = session.durable
        assert durable is not None
        weight = durable.kept.pop(number, None)
        if weight is None:
            return
        self.changes.delete_delivery(INCOMING + session.id, number)
        durable.bytes -= weight
        if number <= durable.sent:
            durable.outstanding -= 1
            durable.out -= weight

    def _drop(self, session: Session) -> None:
        """There is no room: the message is dropped for this session, and its client is told once until there is room again."""
        durable = session.durable
        assert durable is not None
        durable.dropped += 1
        self.counts.dropped += 1
        self.put_session(session)
        if durable.full:
            return
        durable.full = True
        text = f"{len(durable.kept)} publications of {durable.bytes} bytes wait: what comes is dropped until some are acknowledged"
        self._do(LogLine(True, f"event=session-full client={session.client!r} messages={len(durable.kept)} bytes={durable.bytes}"))
        body = pack(code=Code.MESSAGES_DROPPED, reason=text, dropped=durable.dropped)
        self._do(Respond(response_topic(session.id, "status"), body, 1))

    # Requests to publish

    def keep_request(self, session: Session, token: int, message: str | int, publish: Publish) -> None:
        """A request of QoS 1 or 2 is under way to the remote."""
        durable = session.durable
        assert durable is not None
        durable.sequence = sequence = durable.sequence + 1
        run = self._put_run(publish)
        self.changes.put_delivery(StoredDelivery(OUTGOING + session.id, sequence, run, 0, 1, publish.qos, 0, 0, b""))
        self.changes.put_value(REQUEST, numbered(session.id, sequence), write([message, -1, ~session.done.get(message, ~ANY_CONTENT)]))
        durable.slots[message] = sequence
        self._sequences[token] = (session.id, sequence)

    def found_request(self, session: Session, token: int, sequence: int) -> None:
        """A kept request is under way again."""
        self._sequences[token] = (session.id, sequence)

    def request_done(self, session: Session, token: int, message: str | int, done: bool) -> None:
        """The remote has acknowledged a request, or refused it."""
        durable = session.durable
        assert durable is not None
        _, sequence = self._sequences.pop(token)
        self.changes.delete_delivery(OUTGOING + session.id, sequence)
        if durable.slots.get(message) != sequence:
            return
        if done:
            self.changes.put_value(
                REQUEST, numbered(session.id, sequence), write([message, int(Code.OK), ~session.done.get(message, ~ANY_CONTENT)])
            )
        else:
            self.forget_request(session, message)

    def forget_request(self, session: Session, message: str | int) -> None:
        """An identifier is too old, or free again."""
        durable = session.durable
        assert durable is not None
        sequence = durable.slots.pop(message, None)
        if sequence is not None:
            self.changes.delete_value(REQUEST, numbered(session.id, sequence))

    def _put_run(self, publish: Publish) -> int:
        run = self.next_run
        self.next_run += 1
        wall = self._now + self.offset
        known = (Property.SUBSCRIPTION_IDENTIFIER, Property.MESSAGE_EXPIRY_INTERVAL)
        properties: dict[int, Any] = {key: value for key, value in publish.properties.items() if key not in known}
        expiry = publish.properties.get(Property.MESSAGE_EXPIRY_INTERVAL)
        expires = None if expiry is None else wall + expiry
        payload = publish.payload
        blob = encode_properties(properties) if properties else b""
        self.changes.put_run(
            StoredRun(run, publish.topic.encode(), publish.qos, publish.retain, blob, expires, wall, len(payload), 1, payload)
        )
        return run

    def message_in(self, run: StoredRun) -> Publish | None:
        """The message of a run, with what is left of its expiry; None if nothing is."""
        properties: dict[int, Any] = {}
        if run.properties:
            properties = properties_in(run.properties)
        if run.expires_at is not None:
            left = run.expires_at - self._now - self.offset
            if left <= 0:
                return None
            properties[Property.MESSAGE_EXPIRY_INTERVAL] = max(1, round(left))
        return Publish(run.topic.decode(), run.payloads, run.qos, run.retain, properties=properties)
