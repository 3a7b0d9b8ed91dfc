"""What the journal of a mesh says after faults: of each message its end and its path, and of each outage of the journal what is missing.

A broker that is killed loses the batch that it had open, and one whose disk takes nothing loses what it cannot hold: a GAP says it. So a
message may lack a part only at a broker that lost events while the message was on its way, and everything else must be whole.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqmesh.broker.journal.ends import stories
from mqmesh.broker.journal.kinds import Kind, MessageId
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.schema import expand

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqmesh.broker.journal.ends import Story

Life = tuple[int, int]  # number of a broker, epoch


@dataclass
class Outage:
    """A broker whose events are lost between two times, in microseconds of its clock. said: how many; None: it was killed."""

    broker: int
    begin: int
    end: int
    said: int | None
    messages: int = 0  # that lack a part because of it


@dataclass
class Books:
    """What was found. cut_short: messages that lack a part where an outage explains it. problems: one line each; none is right."""

    messages: int = 0
    whole: int = 0
    cut_short: int = 0
    events: int = 0
    outages: list[Outage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        crashes = [one for one in self.outages if one.said is None]
        most = max([one.messages for one in crashes], default=0)
        said = sum(one.said or 0 for one in self.outages)
        return (
            f"journal: {self.events:,} events of {self.messages:,} messages; {self.whole:,} are whole, {self.cut_short:,} lack a part: "
            f"{len(crashes)} crashes ({most:,} messages by one at most), {len(self.outages) - len(crashes)} times a disk took nothing "
            f"({said:,} events, as the journal says); {len(self.problems)} problems"
        )


@dataclass
class _Read:
    """The journal once. span: of each message, first and last event. lives: of each life, its events' numbers, and its last time."""

    span: dict[MessageId, tuple[int, int]] = field(default_factory=dict)
    events: dict[Life, list[int]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[Life, int] = field(default_factory=dict)
    gaps: list[tuple[Life, int, int, dict[str, str | int]]] = field(default_factory=list)  # who, time, events, what it says


def read(root: str, links: Iterable[frozenset[int]], kills: int, longest: float) -> Books:
    """Judge the journal of a mesh that has ended.

    links: pairs of brokers' numbers. kills: brokers that were killed with SIGKILL. longest: seconds that a message was on its way at most.
    """
    journal, books = Journal(root), Books()
    books.problems += [f"{path}: {text}" for path, text in journal.check()]
    known = _read(journal)
    _judge_lives(books, known, kills)
    allowed = set(links)
    brokers = frozenset().union(*allowed)
    for message, story in stories(journal.tables()).items():
        books.messages += 1
        lacks = story.missing or story.stray(allowed)
        if not lacks:
            books.whole += 1
            continue
        why = _outage(known.span[message], _where(message, story, brokers), books.outages, int(longest * 1e6))
        if why is None or "have no link" in lacks:
            books.problems.append(f"{message}: {lacks}, and nothing explains it")
            continue
        books.cut_short += 1
        why.messages += 1
    return books


def _read(journal: Journal) -> _Read:
    known = _Read()
    columns = ("kind", "broker", "epoch", "time", "value", "origin", "origin_epoch", "stream", "sequence", "detail")
    for table in journal.tables():
        for broker, epoch, event in zip(*(table.column(name).to_pylist() for name in ("broker", "epoch", "event")), strict=True):
            known.events[broker, epoch].append(event)
        made = expand(table)
        for row in zip(*(made.column(name).to_pylist() for name in columns), strict=True):
            kind, broker, epoch, time, value, origin, origin_epoch, stream, sequence, detail = row
            known.ends[broker, epoch] = max(known.ends.get((broker, epoch), 0), time)
            if kind == Kind.GAP:
                known.gaps.append(((broker, epoch), time, value, json.loads(detail)))
            if origin >= 0:
                message = MessageId(origin, origin_epoch, stream, sequence)
                first, last = known.span.get(message, (time, time))
                known.span[message] = (min(first, time), max(last, time))
    return known


def _judge_lives(books: Books, known: _Read, kills: int) -> None:
    """No event twice; none missing that the journal does not say; each crash is said, and after how many events it came.

    Events that found no room have no number, so more may be said to be missing than numbers are.
    """
    lost: Counter[Life] = Counter()
    for life, _, value, says in known.gaps:
        lost[life] += value if says["why"] != "crash" else 0
    for life, events in known.events.items():
        books.events += len(events)
        missing = max(events) - len(events)
        if len(set(events)) != len(events) or missing > lost[life]:
            books.problems.append(f"broker {life[0]}, epoch {life[1]}: {missing} events are missing, and the journal says {lost[life]}")
    for (broker, _), time, value, says in known.gaps:
        if says["why"] != "crash":
            books.outages.append(Outage(broker, time, time, value))
            continue
        life = (broker, int(says["epoch"]))
        books.outages.append(Outage(broker, known.ends.get(life, time), time, None))
        if (last := max(known.events.get(life, (0,)))) != says["after"]:
            books.problems.append(f"broker {broker}, epoch {life[1]}: its last event is {last}, and the gap says {says['after']}")
    crashes = sum(one.said is None for one in books.outages)
    if crashes != kills:
        books.problems.append(f"{crashes} crashes are in the journal, and {kills} brokers were killed")


def _where(message: MessageId, story: Story, brokers: frozenset[int]) -> frozenset[int]:
    """The brokers of which one has not written what a message lacks."""
    if story.others is None:
        return frozenset((message.origin,))
    reached = (story.wanted.keys() - {message.origin}) | story.given_up
    if len(reached) < story.others:
        return brokers - reached
    return frozenset(broker for broker, wanted in story.wanted.items() if story.ends[broker] < wanted) or brokers


def _outage(span: tuple[int, int], where: frozenset[int], outages: list[Outage], longest: int) -> Outage | None:
    """The outage of one of these brokers while a message was on its way; None: there was none."""
    first, last = span
    for one in outages:
        if one.broker in where and first <= one.end + longest and last >= one.begin - longest:
            return one
    return None
