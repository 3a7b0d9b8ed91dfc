"""Brokers tell each other their recipients: all of them to a broker that comes, and each change to everybody.

What is known is also a retained message for whoever looks, on $mqmesh/recipients/NAME. It is this broker's own, and does not travel.

What it does not know: what states mean.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...base.quoting import quoted
from ...mqtt.batch.run import Run
from .handover import records
from .handover.records import Record, iso
from .recipient import Recipient

if TYPE_CHECKING:
    from ...mesh.node.actions import Event
    from .shell import Recipients

log = logging.getLogger("mqmesh.broker")

RECORDS = "recipients/records"
TOPIC = "$mqmesh/recipients/"
TOGETHER = 50  # recipients that are told of at once
AT_ONCE = 5  # recipients that are taken over at once; more of them in turns


class Announcing:
    """What one broker tells and is told of recipients."""

    def __init__(self, recipients: Recipients) -> None:
        self._recipients = recipients
        self._news: dict[str, None] = {}  # names to be told to others
        self._telling = False
        self._come: dict[str, Record] = {}  # what others have said and is not taken over yet

    def event(self, event: Event) -> None:
        """Members of the mesh come and go."""
        if event.name == "member_up" and self._recipients.failover.posts is not None:
            number: Any = event.fields.get("number")
            self._recipients.context.loop.call_soon(self._tell_all, number)

    def _tell_all(self, number: int) -> None:
        """A broker has come: it gets all records."""
        posts, node = self._recipients.failover.posts, self._recipients.node
        if posts is None or node is None or not node.known() >> number & 1:
            return
        mine = [self._recipients.record_of(one) for one in self._recipients.local.values()]
        posts.send(1 << number, RECORDS, records.encode(mine, whole=True), must=True)
        turns = self._recipients.context.turns
        turns.run(turns.broker, map(Recipient.go_on, list(self._recipients.local.values())), f"number={number} work=recipients")
        self._recipients.context.flush()

    def tell(self, name: str) -> None:
        """A recipient has changed: others are told when this piece of work is done."""
        self._news[name] = None
        if not self._telling and self._recipients.context.loop is not None:
            self._telling = True
            self._recipients.context.loop.call_soon(self._tell_news)

    def _tell_news(self) -> None:
        news = list(islice(self._news, TOGETHER))
        for name in news:
            del self._news[name]
        self._telling = bool(self._news)
        if self._telling:
            self._recipients.context.loop.call_soon(self._tell_news)
        self._recipients.context.refresh()
        found = [self._recipients.record_of(self._recipients.local[name]) for name in news if name in self._recipients.local]
        gone = [name for name in news if name not in self._recipients.local]
        posts, node = self._recipients.failover.posts, self._recipients.node
        if posts is not None and node is not None and node.known():
            posts.send(node.known(), RECORDS, records.encode(found, gone), must=True)
        for record in found:
            self._show(record.name, record)
        for name in gone:
            self._show(name, None)
        self._recipients.context.flush()

    def take(self, origin: int, body: bytes) -> None:
        """Another broker says what its recipients are. Raises ValueError."""
        found, gone, whole = records.decode(body)
        if whole:
            names = {record.name for record in found}
            known_before = (*self._recipients.remote.values(), *self._come.values())
            gone = [one.name for one in known_before if one.broker == origin and one.name not in names]
        for name in gone:
            if name in self._come and self._come[name].broker == origin:
                del self._come[name]
            known = self._recipients.remote.get(name)
            if known is not None and known.broker == origin:
                del self._recipients.remote[name]
                self._recipients.keeping.put_record(None, origin, name)
                self._show(name, None)
        waits = bool(self._come)
        for record in found:
            record.broker = origin
            self._come[record.name] = record
        if waits:
            return  # in its turn
        if len(self._come) <= AT_ONCE:
            for _ in self._take_over():
                pass
        else:
            turns = self._recipients.context.turns
            turns.run(turns.broker, self._take_over(), f"origin={origin} work=recipients")

    def _take_over(self) -> Iterator[None]:
        """What others have said, a recipient in each step. After a crash they say it again."""
        while self._come:
            name, record = next(iter(self._come.items()))
            del self._come[name]
            if name in self._recipients.local:
                log.warning("event=recipient-twice name=%s number=%d text=two brokers are its home", quoted(name), record.broker)
            else:
                self._recipients.remote[name] = record
                self._recipients.keeping.put_record(record, record.broker, name)
                self._show(name, record)
                self._recipients.asking.release(name, False)
            yield

    def _show(self, name: str, record: Record | None) -> None:
        """The retained message that says a recipient's state to whoever looks."""
        shown = b""
        if record is not None:
            one = record
            found = {"name": one.name, "broker": one.broker, "site": one.site, "state": one.state.value, "since": iso(one.since)}
            found |= {"alternatives": one.alternatives, "queue": one.queue, "probe": one.probe, "held": one.held}
            shown = json.dumps(found).encode()
        self._recipients.issue(Run((TOPIC + name).encode(), 0, True, [shown], received=self._recipients.context.now))


class TakesRecords:
    """Takes the records of other brokers."""

    def __init__(self, recipients: Recipients) -> None:
        self._recipients = recipients

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        try:
            self._recipients.announcing.take(origin, body)
        except ValueError as error:
            log.warning("event=recipient-post-refused origin=%d text=%s", origin, error)

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        """A broker that is gone needs no records."""


class TakesApplications:
    """Takes applications that the directory gives this broker."""

    def __init__(self, recipients: Recipients) -> None:
        self._recipients = recipients

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        try:
            application = records.decode_application(body)
        except ValueError as error:
            log.warning("event=recipient-post-refused origin=%d text=%s", origin, error)
            return
        if application.name not in self._recipients.local:
            self._recipients.adopt(application)

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        """It is asked for again with the next message."""
