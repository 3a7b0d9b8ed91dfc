"""The writer's files: segments, gaps, recovery after a crash, retention, compaction; a store that keeps marks."""

from __future__ import annotations

import asyncio
import gc
import resource
import shutil
import signal
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from mqmesh.broker.config import BrokerConfig
from mqmesh.broker.journal import layout
from mqmesh.broker.journal.ends import stories
from mqmesh.broker.journal.kinds import Kind
from mqmesh.broker.journal.mark import Mark, Source, Span, unpacked
from mqmesh.broker.journal.place import Place
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.recorder import Recorder
from mqmesh.broker.journal.settings import JournalSettings, TopicRule
from mqmesh.broker.journal.topics import Topics, sampled, sampled_parts
from mqmesh.broker.journal.writing import segment
from mqmesh.broker.journal.writing.columns import Columns
from mqmesh.broker.journal.writing.housekeeping import GRACE, Housekeeping
from mqmesh.broker.journal.writing.writer import Writer, folder_of
from mqmesh.broker.server import Broker, StartError
from mqmesh.store.memory import MemoryStore
from support.broker_site import JumpingLoop, Site


def writer(root: Path, epoch: int = 1000, place: Place | None = None, **changes: Any) -> Writer:
    settings = JournalSettings(str(root), batch_seconds=0.01, **changes)
    topics = Topics(settings)
    recorder = Recorder(SimpleNamespace(now=1.0, wall=time.time), topics, 7, settings.pending, 2**27)
    recorder.epoch, recorder.offset = epoch, time.time() - 1.0
    place = place or Place(root)
    return Writer(settings, recorder, Columns(7, topics, lambda user: user), place, folder_of(settings, place, 7))


def note(one: Writer, client: str = "c") -> None:
    one.recorder.event(Kind.CONNECTED, client=client)


def events(root: Path | Place, *kinds: Kind) -> list[dict[str, Any]]:
    found = [row for table in Journal(root if isinstance(root, Place) else str(root)).tables() for row in table.to_pylist()]
    return [row for row in sorted(found, key=lambda row: (row["epoch"], row["event"])) if not kinds or row["kind"] in kinds]


def step(one: Writer, stopping: bool = False) -> None:
    one._step(stopping)


def test_a_segment_is_closed_at_its_size(tmp_path: Path) -> None:
    one = writer(tmp_path, segment_bytes=20_000)
    one.start()
    for number in range(500):
        note(one, f"c{number}")
        if number % 50 == 0:
            one._wake.set()
            while one.written < number + 1:
                time.sleep(0.001)
    one.stop()
    journal = Journal(str(tmp_path))
    assert len(journal.segments()) > 1
    assert journal.check() == []
    assert [row["event"] for row in events(tmp_path)] == list(range(1, 501))
    assert sorted(journal.names().values()) == sorted(f"c{number}" for number in range(500))
    assert not journal.open_segments()


def test_who_asks_waits_for_what_was_noted_before_and_for_nothing_else(tmp_path: Path) -> None:
    one = writer(tmp_path)
    appended, append = [0], one._append

    def slowly(*args: Any) -> bool:
        note(one, f"later {appended[0]}")  # there is always something that is not written
        appended[0] += 1
        return append(*args) and appended[0] % 50 != 0

    one._append = slowly  # type: ignore[method-assign]
    one.start()
    note(one, "before")
    assert one.settle(60)
    assert len(one.recorder.noted) > 0
    assert "before" in map(Journal(str(tmp_path)).names().get, [row["client"] for row in events(tmp_path)])
    one.stop()


def test_what_is_open_is_read_too(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.folder.mkdir(parents=True)
    note(one)
    step(one)
    note(one)
    step(one)
    assert len(events(tmp_path)) == 2
    assert not Journal(str(tmp_path)).segments()
    assert Journal(str(tmp_path)).names()


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_crash_loses_at_most_the_open_batch_and_says_so(tmp_path: Path, cut: int) -> None:
    """cut: bytes that are missing at the end of the open segment, as when the machine went down while it was written."""
    one = writer(tmp_path / "a")
    one.start()
    for number in range(3):
        note(one, f"c{number}")
        with mock.patch.object(one, "_stop", False):
            one._wake.set()
            while one.written < number + 1:
                time.sleep(0.001)
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # what kill -9 leaves
    one.stop()
    (file,) = (tmp_path / "b").glob("open/broker=7/*.arrows")
    file.write_bytes(file.read_bytes()[: -cut or None])
    two = writer(tmp_path / "b", epoch=2000)
    two.start()
    two.stop()
    found = events(tmp_path / "b")
    kept = 3 if not cut else 2
    assert [row["event"] for row in found if row["epoch"] == 1000] == list(range(1, kept + 1))
    (gap,) = [row for row in found if row["kind"] == Kind.GAP]
    assert (gap["epoch"], gap["value"]) == (2000, -1)
    assert f'"after": {kept}' in gap["detail"]
    assert Journal(str(tmp_path / "b")).check() == []
    assert {f"c{number}" for number in range(kept)} <= set(Journal(str(tmp_path / "b")).names().values())
    three = writer(tmp_path / "b", epoch=3000)
    three.start()
    three.stop()
    assert len(events(tmp_path / "b", Kind.GAP)) == 1, "a life that ended well has no gap"


def test_a_crash_between_a_segment_and_the_deletion_of_its_open_file(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.folder.mkdir(parents=True)
    note(one)
    step(one)
    with mock.patch.object(segment.OpenSegment, "remove", lambda self: self.close()):
        step(one, stopping=True)
    assert len(events(tmp_path)) == 1
    two = writer(tmp_path, epoch=2000)
    two.start()
    two.stop()
    assert len(events(tmp_path, Kind.CONNECTED)) == 1
    assert not list(one.folder.glob("*.arrows"))


def test_more_than_may_wait_is_counted(tmp_path: Path) -> None:
    one = writer(tmp_path, pending=1000)
    one.folder.mkdir(parents=True)
    for _ in range(1500):
        note(one)
    step(one, stopping=True)
    (gap,) = events(tmp_path, Kind.GAP)
    assert gap["value"] == 500
    assert len(events(tmp_path, Kind.CONNECTED)) == 1000


def test_a_full_disk_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = writer(tmp_path)
    one.folder.mkdir(parents=True)
    note(one)
    step(one)
    real = segment.OpenSegment.append

    def full(self: Any, table: Any) -> None:
        self._file.write(b"half a batch")
        import os

        os.ftruncate(self._file.fileno(), self.size)
        raise OSError(28, "No space left on device")

    with mock.patch.object(segment.OpenSegment, "append", full):
        for _ in range(3):
            note(one)
            step(one)
    assert segment.OpenSegment.append is real
    assert one.error == f"{one.folder}: no space left on its disk: free some space; writing then goes on by itself"
    assert [record.getMessage() for record in caplog.records] == [f"event=journal-error text={one.error}"]
    note(one)
    step(one)
    assert caplog.records[-1].getMessage() == "event=journal-written-again lost=0"
    step(one, stopping=True)
    assert one.error is None
    assert not events(tmp_path, Kind.GAP), "what the disk did not take waited for it"
    assert [event["event"] for event in events(tmp_path, Kind.CONNECTED)] == [1, 2, 3, 4, 5]
    assert one.recorder.lost == 0
    assert Journal(str(tmp_path)).check() == []


def test_a_journal_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("")
    broker = Broker(BrokerConfig(listen=[], journal=JournalSettings(str(tmp_path / "journal"))))
    with pytest.raises(StartError, match=r"^journal: .*/journal/open/broker=0: is a file or lies below one: name a folder$"):
        asyncio.run(broker.start())


def test_a_place_that_cannot_be_reached_is_tried_again(tmp_path: Path) -> None:
    place = Place("memory://unreachable")
    one = writer(tmp_path, place=place, spool=tmp_path)
    one.folder.mkdir(parents=True)
    note(one)
    step(one)
    with mock.patch.object(place, "write", side_effect=OSError("connection refused")):
        step(one, stopping=True)
    assert one.error == "connection refused"
    assert list(one.folder.glob("*.arrows"))
    two = writer(tmp_path, epoch=2000, place=place, spool=tmp_path)  # the next life puts it in its place
    two.start()
    two.stop()
    assert len(events(place, Kind.CONNECTED)) == 1


def test_what_waits_for_its_place_is_on_the_disk_and_not_in_memory(tmp_path: Path) -> None:
    place = Place("memory://away")
    one = writer(tmp_path, place=place, spool=tmp_path, segment_bytes=0)
    one.folder.mkdir(parents=True)
    note(one, "first")
    with mock.patch.object(place, "write", side_effect=OSError("connection refused")):
        step(one)
        one._retry_at = float("inf")
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes()
            for number in range(100):
                for at in range(100):
                    note(one, f"{number}.{at}" + "c" * 600)
                step(one)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - before[0] < 3_000_000
            assert pa.total_allocated_bytes() - before[1] < 500_000
        finally:
            tracemalloc.stop()
    one._retry_at = 0.0
    step(one, stopping=True)
    assert one.error is None
    assert [row["event"] for row in events(place, Kind.CONNECTED)] == list(range(1, 10_002))
    assert len(Journal(place).names()) == 10_001
    assert not list(one.folder.iterdir())


def test_a_name_that_was_cut_off_is_written_whole(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.folder.mkdir(parents=True)
    one._write_lines("names", [["client", 1, "a"]])
    with resource_limit(one._lines("names").stat().st_size + 5), pytest.raises(OSError):
        one._write_lines("names", [["client", 2, "b"]])
    one._write_lines("names", [["client", 2, "b"]])
    assert one._lines("names").read_text() == '["client", 1, "a"]\n["client", 2, "b"]\n'


@contextmanager
def resource_limit(size: int) -> Iterator[None]:
    """Files get no larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_what_is_old_goes_and_what_is_small_is_joined(tmp_path: Path) -> None:
    place = Place(tmp_path)
    day = 86_400_000_000
    columns = Columns(7, Topics(JournalSettings("")), lambda user: user)
    columns.epoch = 1
    for number in range(6):
        from mqmesh.broker.journal.writing.columns import Fact

        when = (100 * day if number else 50 * day) / 1e6 + number
        segment.store_events(place, columns.batch([Fact(Kind.CONNECTED, when, {"client": "c"})], 0.0))
    care = Housekeeping(place, 7, JournalSettings(str(tmp_path), retention=30 * 86_400.0))
    now = 101 * day / 1e6
    assert care.look(now) == (1, 5)
    manifest = Journal(place).manifest()
    assert [(one.first, one.last) for one in manifest.segments] == [(2, 6)]
    assert len(manifest.replaced) == 5
    assert len(events(tmp_path)) == 5
    assert care.look(now + 1) == (0, 0)
    assert care.look(now + GRACE + 2) == (5, 0)
    assert len(place.files("events")) == 1 == len(place.files("manifest"))
    assert Journal(place).check() == []


def test_midnight_parts_a_segment(tmp_path: Path) -> None:
    from mqmesh.broker.journal.writing.columns import Fact

    columns = Columns(7, Topics(JournalSettings("")), lambda user: user)
    midnight = 20_000 * 86_400.0
    table = columns.batch([Fact(Kind.CONNECTED, midnight + at, {}) for at in (-1, 1)], 0.0)
    made = segment.store_events(Place(tmp_path), table)
    assert [layout.date_in(one.path) for one in made] == ["2024-10-03", "2024-10-04"]
    assert [(one.first, one.last) for one in made] == [(1, 1), (2, 2)]


def test_a_mark_survives_a_store() -> None:
    source = Source([b"a", b"b", b"c"], [1, 2, 3], 1)
    source.spans = [Span(0, 2, 7, 1, 1, 10), Span(2, 3, 7, 1, 2, 5)]
    source.client, source.published = "p", 12
    mark = unpacked(Mark(source, range(3)).part(1, 3).packed(), [b"b", b"c"], 1, b"")
    assert mark is not None
    assert [(span.first + first - span.start, span.stream, count) for span, first, count in mark.stretches()] == [(11, 1, 1), (5, 2, 1)]
    assert (mark.source.client, mark.source.published, mark.source.size(1)) == ("p", 12, 3)
    assert unpacked(b"\x93\x09\x01\x02", [b"b"], 1, b"") is None


@pytest.mark.parametrize("topics", [1, 5])
def test_messages_that_wait_over_a_restart_keep_their_ids(tmp_path: Path, topics: int) -> None:
    store = MemoryStore()
    journal = JournalSettings(str(tmp_path), batch_seconds=0.01)

    async def before() -> None:
        async with Site(store=store, journal=journal) as site:
            subscriber, publisher = await site.client("s", expiry=1000), await site.client("p")
            await subscriber.subscribe("a/#", qos=1)
            await subscriber.leave()
            await site.gone("s")
            for _ in range(2):
                for number in range(10):
                    await publisher.publish(f"a/{number % topics}", b"x" * number, 1)
            await publisher.leave()

    async def after() -> None:
        async with Site(store=store, journal=journal) as site:
            subscriber = await site.client("s", clean=False, expiry=1000)
            assert [len(one.payload) for one in await subscriber.messages(20)] == [*range(10), *range(10)]
            await subscriber.nothing()

    for scene in (before, after):
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(scene())
    found = stories(Journal(str(tmp_path)).tables())
    assert len(found) == 20
    assert {story.missing for story in found.values()} == {""}
    sizes = [row["size"] for row in events(tmp_path, Kind.ACKNOWLEDGED) for _ in range(row["count"])]
    assert sorted(sizes) == sorted([*range(10), *range(10)])


def test_every_broker_samples_the_same_messages() -> None:
    rule = TopicRule("#", "sampled", 0.3)
    chosen = [sequence for sequence in range(1, 20_000) if sampled(rule, 7, 123456789012, 1, sequence)]
    assert 0.2 < len(chosen) / 20_000 < 0.4
    parts = [1 + skip + at for skip, count in sampled_parts(rule, 7, 123456789012, 1, 1, 19_999) for at in range(count)]
    assert parts == chosen
    assert sampled_parts(TopicRule("#", "full"), 7, 1, 1, 5, 9) == [(0, 9)]


def test_events_of_a_later_release_are_left_alone(tmp_path: Path) -> None:
    from mqmesh.broker.journal.writing.columns import Fact

    columns = Columns(7, Topics(JournalSettings("")), lambda user: user)
    (made,) = segment.store_events(Place(tmp_path), columns.batch([Fact(Kind.CONNECTED, 1.0, {})], 0.0))
    newer = layout.Segment(**{**{name: getattr(made, name) for name in layout.Segment.__dataclass_fields__}, "schema_version": 99})
    Place(tmp_path).write(made.name, newer.dumped())
    assert Journal(str(tmp_path)).segments() == []
    assert "later release" in Journal(str(tmp_path)).check()[0][1]
