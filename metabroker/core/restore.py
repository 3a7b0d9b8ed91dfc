"""Restores a core from a store after a restart.

Sessions keep their identifiers. Their remotes know the metabroker as the same client, so that a remote that has kept its session goes on
sending. The present policy decides what sessions may do: those that it does not allow any more end. Requests without an answer go to the
remote again, in order. Repeats of answered requests are still recognised.

A session that is not durable goes on with a publication number that no earlier life can have reached.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...store.records import StoredDelivery, StoredRun
from ..policy import Policy, Rule
from ..protocol.messages import ANY_CONTENT
from .core import Core
from .persistence import Persistence
from .records import (
    ACKED,
    ASKED,
    FILTER,
    INCOMING,
    LIFE,
    OUTGOING,
    REMOTE,
    REQUEST,
    SESSION,
    TAKEN,
    AskedRecord,
    Readable,
    RemoteRecord,
    SessionRecord,
    number_in,
    read,
    split,
    write,
)
from .remote import Credentials, Remote
from .sessions import Durable, Session

LIVES = 1 << 32  # publications of a session in one life, at most
_SELF, _NUMBER = b"metabroker", b"number"


def restore(core: Core, store: Readable, now: float) -> None:
    """Take over what a store holds. core: new, with a persistence. now: the core's time. Raises SealError."""
    persistence = core.persistence
    assert persistence is not None
    persistence.heard(now)
    persistence.next_run = store.highest_run() + 1
    kept = dict(store.values(LIFE))
    me = core.roster.me
    me.number, me.epoch = read(kept[_NUMBER]) if _NUMBER in kept else me.number, lives_in(store)
    persistence.changes.put_value(LIFE, _NUMBER, write(me.number))
    _go_on(core, store, me.epoch, now)


def adopt(core: Core, store: Readable, home: int, now: float) -> None:
    """Take over what another metabroker's store holds. home: its number; the store is given up in the same commit. Raises SealError before
    anything is changed.

    Of requests there may be hundreds for each session: the database moves them by itself (`TAKEN`)."""
    persistence = core.persistence
    assert persistence is not None
    persistence.heard(now)
    _remotes(store, persistence)
    changes, taken = persistence.changes, _Taken(store, persistence)
    for run in taken.runs.values():
        changes.put_run(run)
    for delivery in taken.deliveries():
        changes.put_delivery(delivery)
    for table in (REMOTE, SESSION, FILTER, ASKED, ACKED):
        for key, value in taken.values(table):
            changes.put_value(table, key, value)
    for key, value in taken.values(REQUEST):
        changes.note_value(REQUEST, key, value)
    changes.put_value(TAKEN, f"{home:08x}".encode(), b"")
    _go_on(core, taken, max(persistence.lives + 1, lives_in(store)), now)


def lives_in(store: Readable) -> int:
    """How often a metabroker has begun with a store, now included."""
    life = dict(store.values(LIFE)).get(_SELF)
    return int(read(life)) + 1 if life is not None else 0


class _Taken:
    """Another metabroker's store, whose runs have new numbers."""

    def __init__(self, store: Readable, persistence: Persistence) -> None:
        self._store = store
        self.runs: dict[int, StoredRun] = {}
        self._deliveries: list[StoredDelivery] = []
        numbers: dict[int, int] = {}
        for delivery in store.deliveries():
            number = numbers.get(delivery.run)
            if number is None:
                run = store.run(delivery.run)
                if run is None:
                    continue
                number = numbers[delivery.run] = persistence.next_run
                persistence.next_run += 1
                self.runs[number] = run._replace(id=number)
            self._deliveries.append(delivery._replace(run=number))

    def values(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        return self._store.values(table)

    def deliveries(self) -> Iterator[StoredDelivery]:
        return iter(self._deliveries)

    def run(self, run: int) -> StoredRun | None:
        return self.runs.get(run)

    def highest_run(self) -> int:
        return max(self.runs, default=0)


def _remotes(store: Readable, persistence: Persistence) -> dict[str, RemoteRecord]:
    return {key.decode(): persistence.remote_record(key.decode(), value) for key, value in store.values(REMOTE)}


def _go_on(core: Core, store: Readable, lives: int, now: float) -> None:
    """Sessions in a store go on. lives: how often a metabroker has begun with them."""
    persistence = core.persistence
    assert persistence is not None
    persistence.lives = lives
    persistence.changes.put_value(LIFE, _SELF, write(lives))
    records = _remotes(store, persistence)
    refused: list[Session] = []
    before = set(core.sessions)
    remotes = _sessions(core, store, records, refused, lives * LIVES, now)
    _filters(core, store, remotes, records)
    _publications(core, store)
    _requests(core, store, persistence)
    for client_id, record in records.items():
        if client_id not in remotes:  # its sessions have ended; it may not know yet
            remote = core.add_remote(_credentials(record, _any_rule(core.policy, record)), client_id)
            remote.leaves = now + core.policy.limits.durable
            remotes[client_id] = remote
    for remote in remotes.values():
        remote.ready = True
        core.reach(remote)
    for session in refused:
        core.refuse_restored(session)
    core.come_back([session for session in core.sessions.values() if session.id not in before], isinstance(store, _Taken))


def _credentials(record: RemoteRecord, rule: Rule) -> Credentials:
    return Credentials(record.remote, record.username, record.password, rule)


def _any_rule(policy: Policy, record: RemoteRecord) -> Rule:
    """How to reach a remote that is only to be told that we leave."""
    return next(iter(policy.reaching(record.remote)), Rule((), (), version=record.version))


def _sessions(
    core: Core, store: Readable, records: dict[str, RemoteRecord], refused: list[Session], number: int, now: float
) -> dict[str, Remote]:
    """Make the sessions and their remotes; the remotes by our client identifier there. refused: those that the policy does not allow."""
    persistence = core.persistence
    assert persistence is not None
    remotes: dict[str, Remote] = {}
    found: dict[tuple[str, Credentials], Remote] = {}
    for key, value in store.values(SESSION):
        kept = SessionRecord(*read(value))
        record = records[kept.remote]
        rule = core.policy.rule(kept.client, record.remote)
        credentials = _credentials(record, rule or _any_rule(core.policy, record))
        remote = found.get((kept.remote, credentials))
        if remote is None:
            # sessions that shared a remote under one rule may have different ones now: the first has the connection
            client_id = kept.remote if kept.remote not in remotes else core.new_client_id()
            remote = remotes[client_id] = found[kept.remote, credentials] = core.add_remote(credentials, client_id)
            persistence.put_remote(remote)
        session = core.add_session(key.decode(), kept.client, remote, credentials.rule, kept.expiry, now, kept.life)
        if session.durable is None:
            session.number = number
        else:
            session.ends = kept.seen - persistence.offset + session.life
            session.durable.away, session.durable.dropped, session.durable.noted = kept.away, kept.dropped, kept.seen
            core.roster.answered(session.id, kept.seen)
        if remote.client_id != kept.remote:
            persistence.put_session(session)
        if rule is None:
            refused.append(session)
    return remotes


def _filters(core: Core, store: Readable, remotes: dict[str, Remote], records: dict[str, RemoteRecord]) -> None:
    persistence = core.persistence
    assert persistence is not None
    for key, value in store.values(FILTER):
        session_id, filter_ = split(key)
        session = core.sessions.get(session_id)
        if session is None or not session.rule.may_subscribe(filter_):
            persistence.forget_filter(session_id, filter_)
            if session is not None:
                core.note(f"event=subscription-ended client={session.client!r} filter={filter_[:80]!r} error=refused-by-policy")
            continue
        held = session.remote.hold(filter_)
        held.granted = -1
        session.remote.grant(held, session_id, read(value))
        session.filters.add(filter_)
    for key, value in store.values(ASKED):
        client_id, filter_ = split(key)
        remote, record = remotes.get(client_id), AskedRecord(*read(value))
        if remote is None:
            if client_id not in records:
                persistence.changes.delete_value(ASKED, key)
        elif filter_ not in remote.held:
            remote.stale.add(filter_)
        else:
            held = remote.held[filter_]
            held.granted = record.granted
            everyone = frozenset(held.holders)
            numbers = [(number, everyone if who is None else frozenset(who)) for number, who in record.numbers]
            remote.restored(held, record.order, numbers)


def _publications(core: Core, store: Readable) -> None:
    persistence = core.persistence
    assert persistence is not None
    for key, value in store.values(ACKED):
        durable = _durable(core.sessions.get(key.decode()))
        if durable is None:
            persistence.changes.delete_value(ACKED, key)
        else:
            core.sessions[key.decode()].number = durable.acked = durable.sent = durable.shown = read(value)
    for delivery in store.deliveries():
        if not delivery.recipient.startswith(INCOMING):
            continue
        session = core.sessions.get(delivery.recipient.removeprefix(INCOMING))
        durable = _durable(session)
        if session is None or durable is None:
            persistence.changes.delete_delivery(delivery.recipient, delivery.order)
            continue
        durable.kept[delivery.order] = weight = int.from_bytes(delivery.extra, "big")
        durable.bytes += weight
        session.number = max(session.number, delivery.order)


def _requests(core: Core, store: Readable, persistence: Persistence) -> None:
    """The identifiers of requests, in order; those that are under way go to the remote again."""
    found: dict[str, list[tuple[int, str | int, int, int]]] = {}
    for key, value in store.values(REQUEST):
        session_id, sequence = number_in(key)
        message, code, *content = read(value)
        if _durable(core.sessions.get(session_id)) is None:
            persistence.changes.delete_value(REQUEST, key)
        else:
            found.setdefault(session_id, []).append((sequence, message, code, content[0] if content else ANY_CONTENT))
    runs = {(one.recipient, one.order): one.run for one in store.deliveries() if one.recipient.startswith(OUTGOING)}
    for recipient, order in runs:
        if _durable(core.sessions.get(recipient.removeprefix(OUTGOING))) is None:
            persistence.changes.delete_delivery(recipient, order)
    for session_id, requests in found.items():
        session = core.sessions[session_id]
        durable = session.durable
        assert durable is not None
        for sequence, message, code, content in sorted(requests):
            durable.sequence = max(durable.sequence, sequence)
            durable.slots[message] = sequence
            session.done[message] = ~content if code < 0 else content
            if code >= 0:
                continue
            run = store.run(runs[OUTGOING + session_id, sequence])
            publish = persistence.message_in(run) if run is not None else None
            if publish is not None:
                core.publishing.send_again(session, message, sequence, publish)
            else:  # its time is over
                persistence.changes.delete_delivery(OUTGOING + session_id, sequence)
                persistence.forget_request(session, message)
                session.done.pop(message)
                persistence.counts.expired += 1


def _durable(session: Session | None) -> Durable | None:
    return session.durable if session is not None else None
