"""The way of every batch that a client publishes: admission, acceptance, acknowledgement.

    publish    called by `parse.py` for each batch that it finds
    admit      may this client publish there? The only place that asks; what it answers is remembered per connection and topic
    accept     relay to other brokers, deliver here, retain: all that an acknowledgement promises. Wills come in here
    answer     PUBACK or PUBREC for each message

A batch is taken as a whole or, where some session has no room, up to a message. MQTT 5 publishers are told which ones were refused.
MQTT 3.1.1 has no way to say it: its publishers get a plain acknowledgement, and the refusal is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from ..ports import AWAY
from ..queues.workflow.publishing import is_delayed
from ..routing.publication import Publication
from .acknowledge import TEXTS, acknowledge, receipts_of, refuse
from .fan_out import GROUPS, WIDE, carry_on, fan_out, has_to_wait, in_one_commit, in_turns, wait_for
from .handles import Handled, handle_of, repeat
from .queueing import put
from .withheld import AWAY_TEXT, keep, take_back, withhold

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ...mqtt.publish import PublishProperties
    from ..mesh.receipts import Asked, Receipts
    from ..routing.publication import Numbers
    from ..routing.route import Recipients, Route, Service
    from ..session.session import Session
    from ..site import ClientConnection, Site
    from .find_puts import Puts
    from .posts import Posts


def publish_run(
    connection: ClientConnection, session: Session, run: Batch, route: Route, numbers: Numbers, properties: PublishProperties | None
) -> bool:
    """Take a run that a client published to any topic, or refuse it. False: it has to be given again after `release`."""
    publication = Publication(connection, session.face, numbers, properties)
    ill_formed = properties is not None and properties.payload_format == 1 and not all_utf8(run.payloads)
    if ill_formed and not (run.qos and route.writable):
        raise PeerError(Reason.PAYLOAD_FORMAT_INVALID, TEXTS[Reason.PAYLOAD_FORMAT_INVALID], "3.3.2.3.2")
    if not route.writable:
        if route.service is not None:
            serve(publication, session, run, route.service)
            return True
        if route.queue is not None:
            return queued(publication, session, run, route)
        connection.context.counters.dropped += run.count
        publication.refuse(run.count, Reason.NOT_AUTHORIZED)
        _note_refused(connection, run, run.count, TEXTS[Reason.NOT_AUTHORIZED])
        if connection.context.hooks is not None:
            connection.context.hooks.dropped(connection.client_id, run, run.count, TEXTS[Reason.NOT_AUTHORIZED])
    elif not admit(publication, run, route):
        publication.refuse(run.count, Reason.NOT_AUTHORIZED, publication.text)
    elif (entered := (run, route) if route.addressed is None else route.addressed(publication, run, route)) is not None:
        run, route = entered
        if properties is not None and properties.user_properties and not ill_formed:
            handle = handle_of(properties.user_properties)
            if handle is not None:
                return publish_handled(publication, session, run, route, handle)
        return (publish_well_formed if ill_formed else publish)(publication, session, run, route)
    if run.qos:
        refuse(connection, session, run, numbers, publication.reason, publication.text)
    return True


def queued(publication: Publication, session: Session, run: Batch, route: Route) -> bool:
    """Have a run put into its queue, if its publisher may."""
    connection: ClientConnection | None = publication.connection
    assert connection is not None
    if connection.receive_maximum and run.qos:
        check_quota(connection, session, run)
    if not route.queue:
        publication.refuse(run.count, Reason.TOPIC_NAME_INVALID, f"there is no queue {route.topic!r} at this broker")
        connection.context.counters.dropped += run.count
    elif admit(publication, run, route):
        put(publication, session, run, route.queue)
        return True
    else:
        publication.refuse(run.count, Reason.NOT_AUTHORIZED, publication.text)
    if run.qos:
        refuse(connection, session, run, publication.numbers, publication.reason, publication.text)
    return True


def admit(publication: Publication, run: Batch, route: Route) -> bool:
    """Whether the publisher may publish this run; if not, `publication.text` says why, and it is counted and logged.

    A topic that it may publish plain messages to is remembered: batches and single messages for it are not asked for again.
    """
    connection: ClientConnection | None = publication.connection
    assert connection is not None
    site, rights, allowed = connection.site, route.rights, connection.allowed
    text = None if allowed is None or run.topic in allowed else site.guard.topic(connection, route.topic, run)
    if text is None and rights is not None and rights.refuses(connection.client_id, run.retain):
        text = rights.text
    if text is not None:
        site.router.access.dropped(connection, run, text)
        publication.text = text
        _note_refused(connection, run, run.count, text)
        if site.context.hooks is not None:
            site.context.hooks.dropped(connection.client_id, run, run.count, text)
        return False
    if route.recipients is not None and (
        connection.admitted is not site.router.recipients or route.choosy or (rights is not None and rights.owners)
    ):
        chooses = publication.session in route.choosy
        recipients = site.router.recipients_of(route, publication.session) if chooses else route.recipients
        if recipients is not None:
            connection.remember(run.topic, recipients)
    return True


def publish(publication: Publication, session: Session, batch: Batch, to: Route | Recipients) -> bool:
    """Take a batch that its publisher may publish, and acknowledge it. False: nothing was done.

    session: the publisher's. A run that finds no room is held: it has to be given again after `release`. Another batch has to be
    given as runs.
    """
    connection: ClientConnection | None = publication.connection
    assert connection is not None
    site, numbers = connection.site, publication.numbers
    handled = publication.handled
    if not batch.qos:
        accepted = accept(site, batch, to, publication)
        if handled is not None and accepted and not publication.refused:
            handled.keep(connection)
        if publication.rest is not None:
            wait_for(connection, publication.rest)
        return accepted or batch.uniform
    if connection.withheld is not None:
        if not batch.uniform:
            return False
        if batch.topic in connection.withheld.topics:
            return _wait(publication, batch, away=connection.version != 5)
    persistence = site.persistence
    repeatable = batch.qos == 2 and persistence is not None and session.stored
    if persistence is not None:
        persistence.begin()
        if repeatable:
            persistence.received(session)
    fresh: Batch | None = batch
    fresh_numbers = numbers
    if batch.qos == 2:
        new = session.inbound.new(numbers)
        if new is not None:
            fresh = batch.chosen(new) if new else None
            fresh_numbers = [numbers[index] for index in new]
    taken = connection.taken
    if connection.receive_maximum:
        check_quota(connection, session, batch)
    receipts = receipts_of(publication, to)
    position = receipts.node.position() if receipts is not None else (0, 0)
    if fresh is not None:
        if persistence is not None and (repeatable or handled is not None):
            publication.commit = persistence.next_commit
        if not accept(site, fresh, to, publication):
            if not (connection.refuse_when_full and batch.uniform):
                connection.taken = taken
                if batch.qos == 2:
                    session.inbound.release(fresh_numbers)
                return batch.uniform and _wait(publication, batch, publication.away)
            site.context.counters.dropped += fresh.count
            publication.refuse(fresh.count, Reason.QUOTA_EXCEEDED)
    asked = receipts.ask(connection, batch, fresh_numbers, position) if receipts is not None and fresh is not None else None
    if handled is not None and fresh is not None and not publication.refused:
        handled.keep(connection)
    if publication.rest is not None:
        rest = _answered_after(publication.rest, publication, session, batch, fresh, fresh_numbers, receipts, asked)
        if persistence is not None and fresh is not None and in_one_commit(fresh, publication):
            rest = persistence.whole(rest)
        wait_for(connection, rest)
    else:
        _answer(publication, session, batch, fresh, fresh_numbers, receipts, asked)
    return True


def _answered_after(
    rest: Iterator[None],
    publication: Publication,
    session: Session,
    batch: Batch,
    fresh: Batch | None,
    fresh_numbers: Numbers,
    receipts: Receipts | None,
    asked: Asked | None,
) -> Iterator[None]:
    """The steps of a delivery in turns, and then the answer to its publisher, if it is still there."""
    yield from rest
    if publication.handled is not None and publication.refused:
        publication.handled.forget(publication.connection)
    if not publication.connection.closing:
        _answer(publication, session, batch, fresh, fresh_numbers, receipts, asked)


def _answer(
    publication: Publication,
    session: Session,
    batch: Batch,
    fresh: Batch | None,
    fresh_numbers: Numbers,
    receipts: Receipts | None,
    asked: Asked | None,
) -> None:
    """Acknowledge a batch that was accepted, but for what of it was refused.

    fresh: those of its messages that are no repeats, None: all are. fresh_numbers: their packet identifiers. receipts, asked: what the
    acknowledgement waits for.
    """
    connection: ClientConnection = publication.connection
    site, numbers, handled = connection.site, publication.numbers, publication.handled
    persistence = site.persistence
    if site.context.hooks is not None and fresh is not None and publication.refused < fresh.count:
        site.context.hooks.acknowledged(connection.client_id, fresh)
    refused = publication.refused
    kept, rejected = numbers, fresh_numbers[:0]
    if refused:
        rejected = fresh_numbers[len(fresh_numbers) - refused :]
        kept = numbers[: len(numbers) - refused] if fresh is batch else [number for number in numbers if number not in set(rejected)]
    if kept:
        reason = 0 if refused else publication.reason
        if receipts is None and handled is not None:
            handled.acknowledge(connection, batch.qos, kept[0], reason)
        elif receipts is None:
            acknowledge(connection, batch.qos, kept, reason)
        else:
            receipts.acknowledge(connection, batch, kept, fresh_numbers if fresh is not None else [], asked, reason)
    if rejected:
        text = publication.text
        if text is None and persistence is not None and persistence.closed and publication.reason == Reason.QUOTA_EXCEEDED:
            text = persistence.why()
        if fresh is not None:
            _note_refused(connection, fresh, len(rejected), text or TEXTS.get(Reason(publication.reason), "refused"))
        refuse(connection, session, batch, rejected, publication.reason, text)


def _wait(publication: Publication, run: Batch, away: bool) -> bool:
    """A run finds no room: it waits, and its publisher goes on to be read as long as not too much does. False: it is not read."""
    connection: ClientConnection | None = publication.connection
    assert connection is not None
    apart = publication.away or not publication.wants_store
    if apart and withhold(connection, run, publication.numbers, publication.properties, away):
        return True
    connection.hold(publication.wants_store)
    return False


def publish_withheld(connection: ClientConnection) -> None:
    """There may be room again: publish what is withheld of a client, in its order. What finds none is withheld again."""
    session = connection.session
    held = take_back(connection)
    if held is None or session is None:
        return
    connection.taken = connection.unacknowledged
    routes = connection.site.router
    for run, numbers, properties in held.runs:
        if connection.closing:
            return
        route = routes.routes.get(run.topic) or routes.route(run.topic)
        taken = not connection.held and publish_run(connection, session, run, route, numbers, properties)
        if not taken and not connection.closing:
            keep(connection, run, numbers, properties)
            if connection.steps is not None:  # an earlier run is delivered in turns: go on behind it
                connection.room = connection.refuse_when_full
    if connection.withheld is None:
        connection.set_rules(connection.allowed is not None)


def accept(site: Site, batch: Batch, to: Route | Recipients, publication: Publication) -> bool:
    """Relay, deliver and retain a batch: everything that its acknowledgement promises.

    False: the mesh or the store has no room, or the messages of a batch that is no run do not go together any more; then nothing was done.
    Otherwise `publication` says how many messages were refused and with which reason.
    """
    persistence, mesh, qos = site.persistence, site.mesh, batch.qos
    connection: ClientConnection | None = publication.connection
    spreads = (len(to.targets) > WIDE[qos] or len(to.shares) > GROUPS) and in_turns(site, batch, to, publication)
    if spreads and has_to_wait(site, batch, publication):
        publication.wants_store = True
        return False
    if qos and persistence is not None and persistence.closed and persistence.needed(to, batch):
        if not batch.uniform:
            return False
        if (persistence.error is None and persistence.quota.text is None) or connection is None or connection.version != 5:
            publication.wants_store = True
            publication.away = connection is not None and persistence.error is None and not (persistence.stuck or persistence.quota.full)
            return False
        persistence.quota.refused += batch.count
        publication.refuse(batch.count, Reason.QUOTA_EXCEEDED)
        return True
    journal = site.context.journal
    if journal is not None and to.noted:
        journal.begin(batch, connection)
    if mesh is not None and (to.elsewhere or batch.retain):
        verdict = mesh.publish(
            to, batch, connection is None or publication.handled is not None, publication.payer if batch.retain else None
        )
        if verdict is None and (qos or not batch.uniform):
            return False
        if verdict == AWAY:
            if connection is None or connection.version != 5:
                publication.away = True
                return False
            publication.refuse(batch.count, Reason.QUOTA_EXCEEDED, AWAY_TEXT)
            return True
        if verdict and qos:
            publication.refuse(batch.count, verdict)
            return True
    if journal is not None:
        journal.accepted(batch, to, connection, publication.session)
    hooks = site.context.hooks
    publisher = connection.client_id if connection is not None else None
    if hooks is not None:
        hooks.admitted(publisher, batch)
    if spreads:
        publication.rest = fan_out(site, batch, to, publication)
    else:
        site.router.deliver(batch, to, publication)
    if batch.retain:
        if not site.retain(batch, publication.payer):
            publication.refused = batch.count
        elif journal is not None and batch.mark is not None:
            journal.retained(batch)
    if hooks is not None:
        hooks.delivered(publisher, batch, [target.session.client_id for target in to.targets])
        if publication.refused:
            hooks.dropped(publisher, batch, publication.refused, "no room at a recipient")
    if publication.refused:
        publication.reason = Reason.QUOTA_EXCEEDED
    elif qos and connection is not None:
        if not spreads:
            site.backpressure.press(connection, to.targets)
        for group in to.shares:
            site.backpressure.press(connection, group.members)
        publication.reason = Reason.NO_MATCHING_SUBSCRIBERS if to.empty else Reason.SUCCESS
    return True


def accept_own(site: Site, batch: Batch, to: Route | Recipients, publication: Publication) -> bool:
    """`accept` for a message that no connection publishes; the rest of its delivery follows in turns."""
    accepted = accept(site, batch, to, publication)
    rest, persistence = publication.rest, site.persistence
    if rest is not None:
        if persistence is not None and in_one_commit(batch, publication):
            rest = persistence.whole(rest)
        carry_on(site, rest, publication.account)
    return accepted


def publish_well_formed(publication: Publication, session: Session, run: Batch, route: Route) -> bool:
    """`publish` for messages whose Payload Format Indicator says UTF-8 and is wrong for some of them: these are refused.

    The publisher is not disconnected: a client that comes back would send what is unacknowledged again, for ever.
    """
    connection: ClientConnection | None = publication.connection
    numbers = publication.numbers
    assert connection is not None
    good = [index for index, payload in enumerate(run.payloads) if all_utf8([payload])]
    if good:
        part = Publication(connection, publication.session, [numbers[index] for index in good], publication.properties)
        if not publish(part, session, run.chosen(good), route):
            return False
    taken = set(good)
    bad = [number for index, number in enumerate(numbers) if index not in taken]
    connection.context.counters.dropped += len(bad)
    _note_refused(connection, run, len(bad), TEXTS[Reason.PAYLOAD_FORMAT_INVALID])
    refuse(connection, session, run, bad, Reason.PAYLOAD_FORMAT_INVALID)
    return True


def publish_handled(publication: Publication, session: Session, run: Batch, route: Route, handle: str) -> bool:
    """`publish` for a message with a handle of its publisher's, which stands alone in its run: a repeat is answered only.

    One with a delay is put into the queue that holds such messages, where there is one.
    """
    connection: ClientConnection | None = publication.connection
    assert connection is not None
    queues, properties = connection.site.queues, publication.properties
    due = queues.due.name if queues is not None else None
    if due is not None and properties is not None and is_delayed(properties.user_properties) and not run.retain:
        if connection.receive_maximum and run.qos:
            check_quota(connection, session, run)
        put(publication, session, run, due, bytes(run.topic))
        return True
    handled = Handled(connection, handle)
    first = handled.known(connection)
    if first is not None:
        if connection.receive_maximum and run.qos:
            check_quota(connection, session, run)
        repeat(connection, session, run.qos, publication.numbers, first)
        return True
    publication.handled = handled
    return publish(publication, session, run, route)


def _note_refused(connection: ClientConnection, batch: Batch, count: int, text: str) -> None:
    """Have the journal told that the last `count` messages of a batch are not taken."""
    if connection.context.journal is not None:
        connection.context.journal.refused(batch, connection, count, text)


def all_utf8(payloads: list[bytes]) -> bool:
    """Payload Format Indicator 1: the payload has to be UTF-8 (MQTT 5: 3.3.2.3.2)."""
    try:
        b"\n".join(payloads).decode()
    except UnicodeDecodeError:
        return False
    return True


def serve(publication: Publication, session: Session, run: Batch, service: Service) -> None:
    """A request to the broker itself: its answers, then the acknowledgement."""
    connection: ClientConnection | None = publication.connection
    numbers = publication.numbers
    assert connection is not None
    persistence = connection.site.persistence
    if persistence is not None:
        persistence.begin()
        if run.qos == 2 and session.stored:
            persistence.received(session)
    fresh: Batch | None = run
    if run.qos == 2:
        new = session.inbound.new(numbers)
        if new is not None:
            fresh = run.chosen(new) if new else None
    if connection.receive_maximum and run.qos:
        check_quota(connection, session, run)
    answered = fresh is None or service(connection, fresh, publication.properties)
    if not run.qos:
        return
    if isinstance(answered, bool):
        acknowledge(connection, run.qos, numbers, 0 if answered else Reason.NO_MATCHING_SUBSCRIBERS)
        return
    asked = numbers if fresh is run else [numbers[index] for index in new or ()]
    _answered(connection, session, run, numbers, asked, answered)


def serve_together(connection: ClientConnection, session: Session, posts: Posts) -> None:
    """The same for messages whose properties differ."""
    if connection.site.persistence is not None:
        connection.site.persistence.begin()
    if connection.receive_maximum:
        check_quota(connection, session, posts)
    _answered(connection, session, posts, posts.numbers, posts.numbers, posts.service(connection, posts.payloads, posts.properties))


def _answered(
    connection: ClientConnection, session: Session, run: Batch | Posts, numbers: Numbers, asked: Numbers, answered: list[str | None]
) -> None:
    """Acknowledge messages that a service has taken or refused. asked: those it was given. answered: why it refuses each, or None."""
    persistence = connection.site.persistence
    wrong = {number: text for number, text in zip(asked, answered, strict=True) if text is not None}
    if not wrong:
        if persistence is not None:
            persistence.need_commit()
        acknowledge(connection, run.qos, numbers)
        return
    for number in numbers:  # in their order [MQTT-4.6.0-2]
        if number in wrong:
            refuse(connection, session, run, [number], Reason.IMPLEMENTATION_SPECIFIC_ERROR, wrong[number])
            continue
        if persistence is not None:
            persistence.need_commit()  # each for itself: a refusal between them has ended the piece of work
        acknowledge(connection, run.qos, [number])


def check_quota(connection: ClientConnection, session: Session, batch: Batch | Posts | Puts) -> None:
    """Our Receive Maximum (MQTT-3.3.4-7): what came in one piece was sent before any of it was acknowledged."""
    if batch.qos == 1:
        connection.taken += batch.count
    withheld = connection.withheld.messages if connection.withheld is not None else 0
    if connection.taken + withheld + len(session.inbound) > connection.receive_maximum:
        text = f"more than {connection.receive_maximum} unacknowledged QoS 1 and 2 messages"
        raise PeerError(Reason.RECEIVE_MAXIMUM_EXCEEDED, text, "MQTT-3.3.4-7")
