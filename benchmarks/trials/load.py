"""Steady load on a mesh while it is being broken, every message accounted for.

Strategy. Publishers at chosen sites send at a fixed rate, each message with its publisher's number and a
sequence; subscribers at chosen sites compare what comes with what must come next. All clients live in one thread with one
epoll loop; the caller's thread breaks things, and asks. `Load.lock` is held by the loop except while it waits, so that the
caller may look at and change everything with the lock.

What a message is: 2 bytes publisher, 8 bytes sequence, 8 bytes time of publishing (monotonic seconds), then filler that
follows from the sequence; its size follows from the sequence too. So each message is checked as a whole.

What is counted, for each subscriber and publisher (`Stream`): what came twice, what came behind a later one, what never
came. A message that never came is lost unless it is *excused*: it was published while the subscriber's broker was gone, or
its own broker was killed before it had acknowledged it (with memory only: before all had it). Twice and disorder are never
excused.

What QoS 1 allows is counted apart (`again`): sessions end with their connections here, so a broker that was killed cannot know
what it had sent at QoS 1 to the session before, and what was not kept by then comes again, to the next session of the same client
or, in a shared subscription, to another member. That is so for messages which a client of the killed broker got within `RECENT`
seconds before the kill, each once. QoS 2 leaves a broker behind the commit that lets it in once, so it never comes again.

It does not know brokers, links or faults.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from benchmarks.load_generator import wire
from benchmarks.load_generator.connection import Connection

HEADER = struct.Struct(">HQd")
FILLER = bytes(range(256)) * 1025  # a message's filler begins at its sequence modulo 256
SIZES = (64,)
TICK = 0.02  # seconds between two looks at what is due
FOREVER = 2**63
RECENT = 12.0  # seconds: what a client got so shortly before its broker was killed may not be written down there on a busy machine
MARK = 0.05  # seconds between two notes of how far a stream is


def payload(publisher: int, sequence: int, size: int, now: float) -> bytes:
    """The message; `size` is at least HEADER.size."""
    begin = sequence & 255
    return HEADER.pack(publisher, sequence, now) + FILLER[begin : begin + size - HEADER.size]


@dataclass(slots=True)
class Stream:
    """What one subscriber has from one publisher.

    next: the sequence that must come next. missing: what was passed over, as ranges (first, last). excused: absence up to
    this sequence is no loss. unsure: nor that of these. earlier: these may have come to an earlier session without the broker's
    knowing it. again: of these, how many came to this one too. last, gap: when a message came last and the longest time without one,
    since `meter`. marks: how far it was when, of the last `RECENT` seconds and one before.
    """

    next: int = 1
    missing: list[tuple[int, int]] = field(default_factory=list)
    excused: int = 0
    earlier: set[int] = field(default_factory=set)
    again: int = 0
    marks: deque[tuple[float, int]] = field(default_factory=deque)
    unsure: frozenset[int] = frozenset()
    received: int = 0
    duplicates: int = 0
    disorder: int = 0
    last: float = 0.0
    gap: float = 0.0
    latest: float = 0.0  # the longest way of a message, seconds

    def take(self, sequence: int, now: float) -> None:
        """A message has come."""
        self.received += 1
        if sequence == self.next:
            self.next = sequence + 1
        elif sequence > self.next:
            first = max(self.next, self.excused + 1)
            if first < sequence:
                self.missing.append((first, sequence - 1))
            self.next = sequence + 1
        else:
            self._late(sequence)
        if now - self.last > self.gap:
            self.gap = now - self.last
        self.last = now
        if not self.marks or now - self.marks[-1][0] > MARK:
            self.mark(now)

    def mark(self, now: float) -> None:
        """Note how far it is."""
        marks = self.marks
        marks.append((now, self.next))
        while len(marks) > 1 and marks[1][0] < now - RECENT:
            marks.popleft()

    def recent(self, now: float) -> range:
        """What came within the last `RECENT` seconds."""
        self.mark(now)
        before, reached = self.marks[0]
        return range(reached if before < now - RECENT else 1, self.next)  # else all of it is as young as that

    def _late(self, sequence: int) -> None:
        for place, (first, last) in enumerate(self.missing):
            if first <= sequence <= last:
                self.disorder += 1
                parts = [(first, sequence - 1), (sequence + 1, last)]
                self.missing[place : place + 1] = [part for part in parts if part[0] <= part[1]]
                return
        if sequence in self.earlier:
            self.earlier.discard(sequence)
            self.again += 1
        else:
            self.duplicates += 1

    def meter(self, now: float) -> None:
        """Measure gaps from now on."""
        self.last, self.gap = now, 0.0

    def silence(self, now: float) -> float:
        """The longest time without a message since `meter`, in seconds."""
        return max(self.gap, now - self.last)

    def lost(self, sent: int) -> int:
        """Messages up to the sequence `sent` that have not come."""
        come = max(self.next - 1, self.excused)
        total = sum(last - first + 1 for first, last in self.missing) + max(0, sent - come)
        if total and self.unsure:
            ranges = [*self.missing, (come + 1, sent)]
            total -= sum(any(first <= sequence <= last for first, last in ranges) for sequence in self.unsure)
        return total


class Publisher(Connection):
    """A client that publishes to one topic at a rate; at most `window` messages wait for their acknowledgement."""

    def __init__(
        self, address: tuple[str, int], number: int, site: str, topic: bytes, qos: int, rate: float, sizes: tuple[int, ...], window: int
    ) -> None:
        """rate: messages a second. sizes: of the payloads, in turn; each at least HEADER.size."""
        super().__init__(address, f"load-pub-{number}", 5)
        self.address, self.number, self.site, self.topic, self.qos, self.rate = address, number, site, topic, qos, rate
        self.sizes = sizes
        self.window = min(window, self.receive_maximum)
        self.sent = 0
        self.acknowledged = 0
        self.refused = 0
        self.open: dict[int, int] = {}  # packet identifier that waits for PUBACK or PUBCOMP -> sequence
        self.due = 0.0
        self.alive = True

    def publish(self, now: float) -> None:
        """Send what is due."""
        begin = now - 0.1  # never more than a tenth of a second at once
        self.due = max(self.due, begin)
        out = []
        while self.due <= now and len(self.open) < self.window:
            self.due += 1 / self.rate
            out.append(self._message(now))
        if out:
            self.push(b"".join(out))

    def _message(self, now: float) -> bytes:
        self.sent += 1
        pid = 0
        if self.qos:
            pid = self.sent % 65535 + 1
            while pid in self.open:
                pid = pid % 65535 + 1
            self.open[pid] = self.sent
        body = payload(self.number, self.sent, self.sizes[self.sent % len(self.sizes)], now)
        return wire.publish(self.topic, body, self.qos, 5, pid)

    def read(self, data: memoryview) -> None:
        self.slow(data)

    def packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        pid = int.from_bytes(body[:2], "big")
        failed = len(body) > 2 and body[2] >= 0x80
        if pid not in self.open or kind not in (wire.PUBACK, wire.PUBREC, wire.PUBCOMP):
            raise wire.WireError(f"packet type {kind} for packet identifier {pid}, which waits for none: {body.hex()}")
        if kind == wire.PUBREC and not failed:
            self.push(wire.acknowledgement(wire.PUBREL, pid))
            return
        del self.open[pid]
        if failed:
            self.refused += 1
        else:
            self.acknowledged += 1


class Subscriber(Connection):
    """A client with one subscription; `streams` has what it got, by publisher."""

    def __init__(self, address: tuple[str, int], name: str, site: str, topic_filter: bytes, qos: int, group: Group | None = None) -> None:
        super().__init__(address, f"load-sub-{name}", 5)
        self.address, self.name, self.site, self.filter, self.qos, self.group = address, name, site, topic_filter, qos, group
        self.streams: dict[int, Stream] = {}
        self.sizes: dict[int, tuple[int, ...]] = {}
        self.corrupt = 0
        self.alive = True
        self.answers: list[bytes] = []
        self.now = 0.0
        self.subscribe(topic_filter, qos)

    def read(self, data: memoryview) -> None:
        self.now = time.monotonic()
        self.slow(data)
        if self.answers:
            self.push(b"".join(self.answers))
            self.answers = []

    def packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == wire.PUBLISH:
            self._take(wire.decode_publish(first, body, 5))
        elif kind == wire.PUBREL:
            self.answers.append(wire.acknowledgement(wire.PUBCOMP, int.from_bytes(body[:2], "big")))
        else:
            raise wire.WireError(f"packet type {kind} at a subscriber: {body[:40].hex()}")

    def _take(self, message: wire.Publication) -> None:
        number, sequence, sent = HEADER.unpack_from(message.payload)
        sizes = self.sizes.get(number)
        if sizes is None or message.payload[HEADER.size :] != payload(number, sequence, sizes[sequence % len(sizes)], 0.0)[HEADER.size :]:
            self.corrupt += 1
            return
        if message.qos:
            self.answers.append(wire.acknowledgement(wire.PUBACK if message.qos == 1 else wire.PUBREC, message.pid))
        stream = self.streams[number]
        if self.group is not None:
            self.group.take(number, sequence, self.site, self.now)
            stream.received += 1
            return
        stream.take(sequence, self.now)
        if self.now - sent > stream.latest:
            stream.latest = self.now - sent


class Group:
    """A shared subscription: each message comes once over all its members, in any order."""

    def __init__(self) -> None:
        self.counts: dict[int, bytearray] = {}
        self.excused: dict[int, int] = {}  # publisher -> up to this sequence messages may be missing
        self.unsure: dict[int, set[int]] = {}  # publisher -> these may be missing too
        self.twice: dict[int, set[int]] = {}  # publisher -> these may come again
        self.got: dict[str, deque[tuple[float, int, int]]] = {}  # site -> when its members got which, of the last `RECENT` seconds

    def take(self, number: int, sequence: int, site: str, now: float) -> None:
        """A member got a message."""
        got = self.got.setdefault(site, deque())
        got.append((now, number, sequence))
        while got[0][0] < now - RECENT:
            got.popleft()
        counts = self.counts.setdefault(number, bytearray())
        if sequence >= len(counts):
            counts.extend(bytes(sequence + 10_000 - len(counts)))
        counts[sequence] = min(255, counts[sequence] + 1)

    def lost(self, number: int, sent: int) -> int:
        """How many of the messages 1 to `sent` no member got."""
        first = self.excused.get(number, 0) + 1
        counts = self.counts.get(number, b"")
        came = counts[first : sent + 1]
        missing = max(0, sent + 1 - first) - (len(came) - came.count(0))
        if missing:
            missing -= sum(n >= first and (n >= len(counts) or not counts[n]) for n in self.unsure.get(number, ()))
        return missing

    def duplicates(self) -> tuple[int, int]:
        """Arrivals beyond the first, of all messages: those that may not be, and those that QoS 1 allows."""
        total = again = 0
        for number, counts in self.counts.items():
            if max(counts, default=0) < 2:
                continue
            allowed = self.twice.get(number, ())
            for sequence, count in enumerate(counts):
                if count > 1:
                    excused = sequence in allowed
                    again += excused
                    total += count - 1 - excused
        return total, again


@dataclass(slots=True)
class Count:
    """What went wrong since the load began (`Load.count`), or in a part of it (`minus`). again: repeats that QoS 1 allows."""

    received: int = 0
    lost: int = 0
    duplicates: int = 0
    again: int = 0
    disorder: int = 0
    corrupt: int = 0
    refused: int = 0

    def minus(self, other: Count) -> Count:
        """What has come since `other` was counted."""
        return Count(*(getattr(self, name) - getattr(other, name) for name in self.__slots__))

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicates or self.disorder or self.corrupt or self.refused)


class Load:
    """All clients and their thread. `with Load() as load:` then add clients, `start`, break things, `drain`, `count`."""

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.publishers: dict[int, Publisher] = {}
        self.subscribers: list[Subscriber] = []
        self.groups: list[Group] = []
        self.problems: list[str] = []
        self.down: set[str] = set()  # sites whose clients may lose their connection
        self._epoll = select.epoll()
        self._clients: dict[int, Publisher | Subscriber] = {}
        self._running = False
        self._ended = False
        self._thread = threading.Thread(target=self._loop, name="load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self._ended = True
        self._thread.join(10)
        for client in (*self.publishers.values(), *self.subscribers):
            client.close()
        self._epoll.close()

    # Clients

    def publish(
        self, site: str, address: tuple[str, int], qos: int, rate: float, sizes: tuple[int, ...] = SIZES, window: int = 1000
    ) -> Publisher:
        """A publisher at this site, to the topic load/SITE/NUMBER."""
        number = len(self.publishers) + 1
        publisher = Publisher(address, number, site, f"load/{site}/{number}".encode(), qos, rate, sizes, window)
        with self.lock:
            self.publishers[number] = publisher
            for subscriber in self.subscribers:
                self._introduce(subscriber, publisher)
            self._register(publisher)
        return publisher

    def subscribe(
        self, site: str, address: tuple[str, int], qos: int = 2, topic_filter: str = "load/#", group: Group | None = None
    ) -> Subscriber:
        """A subscriber at this site. group: for a filter that begins with $share."""
        subscriber = Subscriber(address, f"{len(self.subscribers)}-{site}", site, topic_filter.encode(), qos, group)
        with self.lock:
            if group is not None and group not in self.groups:
                self.groups.append(group)
            for publisher in self.publishers.values():
                self._introduce(subscriber, publisher)
            self.subscribers.append(subscriber)
            self._register(subscriber)
        return subscriber

    @staticmethod
    def _introduce(subscriber: Subscriber, publisher: Publisher) -> None:
        subscriber.streams[publisher.number] = Stream(next=publisher.sent + 1, excused=publisher.sent)
        subscriber.sizes[publisher.number] = publisher.sizes

    def _register(self, client: Publisher | Subscriber) -> None:
        client.register(self._epoll)
        self._clients[client.fd] = client

    # Running

    def start(self) -> None:
        """Publish."""
        with self.lock:
            now = time.monotonic()
            for publisher in self.publishers.values():
                publisher.due = now
            self._running = True

    def pause(self) -> None:
        """Publish nothing until `start`."""
        with self.lock:
            self._running = False

    def _loop(self) -> None:
        look = 0.0
        while not self._ended:
            ready = self._epoll.poll(max(0.0, look - time.monotonic()))
            with self.lock:
                for fd, events in ready:
                    self._serve(fd, events)
                if (now := time.monotonic()) >= look:
                    look = now + TICK
                    for publisher in self.publishers.values():
                        if self._running and publisher.alive and not publisher.left:
                            self._try(publisher, lambda client=publisher, now=now: client.publish(now))  # type: ignore[misc]
                self.lock.notify_all()

    def _serve(self, fd: int, events: int) -> None:
        client = self._clients.get(fd)
        if client is None:
            return
        if events & select.EPOLLOUT:
            self._try(client, client.writable)
        if events & ~select.EPOLLOUT and client.alive:
            self._try(client, client.readable)

    def _try(self, client: Publisher | Subscriber, action: Callable[[], None]) -> None:
        try:
            action()
        except (OSError, wire.WireError) as error:
            if client.site not in self.down:
                self.problems.append(f"the {type(client).__name__.lower()} at {client.site}: {error}")
            self._lose(client)

    def _lose(self, client: Publisher | Subscriber) -> None:
        client.alive = False
        self._clients.pop(client.fd, None)
        with suppress(OSError, ValueError):
            self._epoll.unregister(client.fd)
        client.sock.close()

    # Brokers that are killed

    def killed(self, site: str, keeps: bool) -> None:
        """The site's broker was killed, and what its subscribers miss is excused.

        keeps: it has what it acknowledged on disk; else what its publishers had not brought to all is excused too.
        """
        now = time.monotonic()
        with self.lock:
            for subscriber in self.subscribers:
                for number, stream in subscriber.streams.items():
                    publisher = self.publishers[number]
                    if subscriber.site == site:
                        stream.excused = FOREVER
                        at_least_once = keeps and min(publisher.qos, subscriber.qos) == 1  # what keeps nothing gets nothing again
                        stream.earlier = set(stream.recent(now)) if at_least_once else set()
                    elif publisher.site == site:
                        if keeps and publisher.qos:
                            stream.unsure |= frozenset(publisher.open.values())
                        else:
                            stream.excused = publisher.sent
            self._excuse_in_groups(site, keeps)
            for client in list(self._clients.values()):
                if client.site == site:
                    self._lose(client)

    def noticed(self, site: str) -> None:
        """The mesh knows that the killed broker is gone: from here on nothing is sent to it, so that no shared subscription loses any."""
        with self.lock:
            self._excuse_in_groups(site, True)

    def _excuse_in_groups(self, site: str, keeps: bool) -> None:
        """What was given to the site's members may be gone with them, or come again; what its publishers sent, with the origin."""
        for group in self.groups:
            members = [subscriber for subscriber in self.subscribers if subscriber.group is group and subscriber.site == site]
            for _, number, sequence in group.got.pop(site, ()):
                if min(self.publishers[number].qos, *(member.qos for member in members)) == 1:
                    group.twice.setdefault(number, set()).add(sequence)
            for number, publisher in self.publishers.items():
                if members or (publisher.site == site and not keeps):
                    group.excused[number] = publisher.sent
                elif publisher.site == site:
                    group.unsure.setdefault(number, set()).update(publisher.open.values())

    def returned(self, site: str) -> None:
        """Connect the site's clients again; publishers go on with new messages. Call `settled` when the mesh knows their interest."""
        for old in [subscriber for subscriber in self.subscribers if subscriber.site == site]:
            fresh = Subscriber(old.address, old.name, site, old.filter, old.qos, old.group)
            with self.lock:
                fresh.streams, fresh.sizes, fresh.corrupt = old.streams, old.sizes, old.corrupt
                self.subscribers[self.subscribers.index(old)] = fresh
                self._register(fresh)
        for gone in [publisher for publisher in self.publishers.values() if publisher.site == site]:
            new = Publisher(gone.address, gone.number, site, gone.topic, gone.qos, gone.rate, gone.sizes, gone.window)
            with self.lock:
                new.sent, new.acknowledged, new.refused, new.due = gone.sent, gone.acknowledged, gone.refused, time.monotonic()
                self.publishers[gone.number] = new
                self._register(new)

    def settled(self, site: str) -> None:
        """The whole mesh knows the site's interest: from here on its subscribers may miss nothing."""
        with self.lock:
            for subscriber in self.subscribers:
                if subscriber.site == site:
                    for number, stream in subscriber.streams.items():
                        stream.excused = self.publishers[number].sent

    # What is known

    @property
    def sent(self) -> int:
        return sum(publisher.sent for publisher in self.publishers.values())

    def _pairs(self) -> Iterator[tuple[Subscriber, Publisher, Stream]]:
        for subscriber in self.subscribers:
            if subscriber.group is None:
                for number, stream in subscriber.streams.items():
                    yield subscriber, self.publishers[number], stream

    def count(self) -> Count:
        """What went wrong so far; what is still on its way counts as lost, so `drain` first."""
        with self.lock:
            total = Count()
            for _, publisher, stream in self._pairs():
                total.received += stream.received
                total.lost += stream.lost(publisher.sent)
                total.duplicates += stream.duplicates
                total.again += stream.again
                total.disorder += stream.disorder
            for group in self.groups:
                duplicates, again = group.duplicates()
                total.duplicates += duplicates
                total.again += again
                total.lost += sum(group.lost(number, publisher.sent) for number, publisher in self.publishers.items())
            total.corrupt = sum(subscriber.corrupt for subscriber in self.subscribers)
            total.refused = sum(publisher.refused for publisher in self.publishers.values())
            return total

    def behind(self) -> list[str]:
        """Who has not got what from whom, one line each."""
        with self.lock:
            found = [
                f"{subscriber.site} lacks {lost} of {publisher.site}/{publisher.number} (QoS {publisher.qos}): "
                f"next {stream.next} of {publisher.sent}, passed over {stream.missing[:3]}"
                for subscriber, publisher, stream in self._pairs()
                if (lost := stream.lost(publisher.sent))
            ]
            for publisher in self.publishers.values():
                if publisher.alive and publisher.open:
                    found.append(f"{publisher.site}/{publisher.number} waits for {len(publisher.open)} acknowledgements")
            for group in self.groups:
                for number, publisher in self.publishers.items():
                    if lost := group.lost(number, publisher.sent):
                        found.append(f"the group lacks {lost} of {publisher.site}/{number}")
            return found

    def drain(self, patience: float = 20.0) -> bool:
        """Publish no more and wait until everything is acknowledged and has arrived; False if nothing comes in `patience` seconds."""
        self.pause()
        came = -1
        while not self.wait(lambda: not self.behind(), patience):
            before, came = came, self.count().received
            if came == before:
                return False
        return True

    def wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait for something that the clients' events bring about."""
        with self.lock:
            return self.lock.wait_for(condition, timeout)

    def flows(self, timeout: float) -> bool:
        """Wait until every living subscriber has heard from every living publisher since the last `meter`."""
        return self.wait(lambda: not self.silent(), timeout)

    def silent(self) -> list[tuple[str, str]]:
        """Living subscribers that have not heard since the last `meter` from a living publisher, by site."""
        return [
            (subscriber.site, publisher.site)
            for subscriber, publisher, stream in self._pairs()
            if subscriber.alive and publisher.alive and not stream.gap
        ]

    # Gaps

    def meter(self) -> None:
        """Measure silences from now on."""
        with self.lock:
            now = time.monotonic()
            for _, _, stream in self._pairs():
                stream.meter(now)

    def gaps(self, apart: Callable[[str, str], bool] = lambda publisher, subscriber: False) -> dict[str, float]:
        """Site -> the longest silence of any publisher there since `meter`, seconds. apart(a, b): sites that have no path."""
        with self.lock:
            now = time.monotonic()
            found: dict[str, float] = {}
            for subscriber, publisher, stream in self._pairs():
                if subscriber.alive and publisher.alive and not apart(publisher.site, subscriber.site):
                    found[subscriber.site] = max(found.get(subscriber.site, 0.0), stream.silence(now))
            return found

    @contextmanager
    def losing(self, sites: Iterable[str]) -> Iterator[None]:
        """These sites' clients may lose their connection now."""
        self.down.update(sites)
        yield
        self.down.difference_update(sites)
