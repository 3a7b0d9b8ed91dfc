"""The archive of queues: what the retention lets go is in it, once, before it goes (rows Q16, Q17)."""

from __future__ import annotations

import errno
import os
import queue as queues
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from mqmesh.broker.queues.archive import files
from mqmesh.broker.queues.archive.archiver import Archiver
from mqmesh.broker.queues.archive.collecting import without
from mqmesh.broker.queues.archive.periods import DAY, HOUR, MONDAY, turn_from
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.plan import plan_of
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.log.needed import count_needed
from mqmesh.broker.queues.log.store import LogStore
from mqmesh.mqtt.properties import Property, encode_properties
from support.examples import examples

pytest.importorskip("pyarrow")

BEGIN = 1_795_428_000_000  # 2026-11-23T10:00Z
RULES = {"orders": Rules(retention=60, archive="hourly"), "others": Rules()}
WAIT = 60  # seconds after which a test is taken to have failed


class Log:
    """A log and its archive, without a broker: the test is the loop and the clock."""

    def __init__(self, folder: Path, rules: dict[str, Rules] | None = None, now: int = BEGIN, small: int = 900) -> None:
        self.now = now
        self.archive = folder / "archive"
        self._calls: queues.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queues.SimpleQueue()
        rules = rules or RULES
        self.store = LogStore(folder / "log", "os", say=print, segment_bytes=small)
        self.store.open(lambda name: rules.get(name, Rules()), now)
        for name, one in rules.items():
            self.store.queue(name, one)
        self.archiver = Archiver(
            lambda name: self.archive, "porto", lambda done, *values: self._calls.put((done, values)), lambda: self.now, lambda: None
        )
        self.store.may_go = lambda segment, due: self.archiver.may_go("log", self.store, segment, due)

    @property
    def orders(self) -> Queue:
        return self.store.queues["orders"]

    def commit(self) -> None:
        batch = self.store.gather(self.now)
        if batch is not None:
            self.store.write(batch)
            self.store.applied(batch, self.now)

    def put(self, *payloads: bytes, properties: bytes = b"", name: str = "orders") -> None:
        self.store.queues[name].put(list(payloads), Meta("shop", properties), self.now)
        self.commit()

    def work(self, member: str, most: int = 100, dice: random.Random | None = None, name: str = "orders") -> None:
        queue = self.store.queues[name]
        who = queue.join(member)
        for one in queue.take(who, most, self.now):
            for at in range(one.start, one.start + one.length):
                if dice is None or dice.random() < 0.9:
                    queue.settle(who, one.part, at, 1, Subscriber.DONE, self.now)
        self.commit()
        for _ in count_needed(self.store._segments, self.store.queues, self.now):  # as a broker does every ten seconds
            pass

    def turn(self) -> None:
        """What a broker does every now and then, until there is nothing more to do."""
        self.archiver.look({"log": self.store})
        self.commit()
        while True:
            self.store.trim(self.now)
            while self.store.carry is not None:
                while not self.store.carry.looked:
                    self.store.carry.look()
                self.commit()
            if self.archiver._busy is None and not self.store.trim_soon:
                return
            if self.archiver._busy is not None:
                done, values = self._calls.get(timeout=WAIT)
                done(*values)
                if self.archiver._failed:
                    return

    def log(self) -> list[tuple[int, bytes]]:
        """What is in the log still."""
        found, at = [], 1
        while at is not None:
            page = self.store.reader(self.orders).page(at, 100, self.orders.next)
            for one in page.found:
                found += [(one.block.first + index, self.store.bodies.payload(one.block, index)) for index in range(one.start, one.stop)]
            at = page.more  # type: ignore[assignment]
        return found

    def close(self) -> None:
        self.archiver.close()
        self.store.close()


def archived(folder: Path) -> list[tuple[int, bytes]]:
    return [(row["position"], row["payload"]) for row in files.read(folder / "archive", "orders")]


def test_turns() -> None:
    assert [turn_from("hourly", BEGIN + one) - BEGIN for one in (0, 1, HOUR, HOUR + 1)] == [0, HOUR, HOUR, 2 * HOUR]
    assert turn_from("daily", BEGIN) == BEGIN - 10 * HOUR + DAY
    monday = BEGIN - 10 * HOUR
    assert turn_from("weekly", monday) == monday
    assert turn_from("weekly", monday + 1) == monday + 7 * DAY
    assert (turn_from("biweekly", monday + 1) - MONDAY) % (14 * DAY) == 0
    assert {turn_from("biweekly", monday + day * DAY) for day in range(1, 15)} <= {monday + 7 * DAY, monday + 14 * DAY, monday + 21 * DAY}


def test_runs_without_others() -> None:
    assert without([(0, 10)], [(2, 3), (7, 1)], 10) == [(0, 2), (5, 2), (8, 2)]
    assert without([(1, 2), (5, 3)], [(0, 2), (6, 1)], 10) == [(2, 1), (5, 1), (7, 1)]
    assert without([(1, 2)], [(0, 4)], 10) == []


class Written:
    """What is in the files of an archive, each read once: reading all of them each time would take nearly all the time of a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "archive" / "queue=orders"
        self._files: dict[Path, list[tuple[int, bytes]]] = {}

    def all(self) -> list[tuple[int, bytes]]:
        for path in {one for one in self._folder.glob(f"date=*/*{files.SUFFIX}") if not one.name.startswith(".")} - self._files.keys():
            rows = pq.read_table(path, columns=["position", "payload"], partitioning=None).to_pylist()
            self._files[path] = [(row["position"], row["payload"]) for row in rows]
        return sorted(row for rows in self._files.values() for row in rows)


@pytest.mark.parametrize("seed", range(examples(6)))
def test_a_message_is_in_the_archive_once_or_in_the_log(tmp_path: Path, seed: int) -> None:
    """Small segments, messages that wait for long and are carried, another queue between, restarts."""
    dice = random.Random(seed)
    log = Log(tmp_path)
    truth: dict[int, bytes] = {}
    written = Written(tmp_path)
    for hour in range(60):
        log.now = BEGIN + hour * HOUR // 3
        for _ in range(3):
            payloads = [dice.randbytes(dice.randrange(40)) for _ in range(dice.randrange(1, 5))]
            truth.update(enumerate(payloads, log.orders.next))
            log.put(*payloads)
            log.put(b"x" * 60, name="others")
            log.work("idle", name="others")
        log.work(dice.choice("abc"), 12, dice)
        log.turn()
        if dice.random() < 0.1:
            now = log.now
            log.close()
            log = Log(tmp_path, now=now)
        here, gone = dict(log.log()), written.all()
        assert len(dict(gone)) == len(gone), "each one once"
        assert {**here, **dict(gone)} == truth
    assert archived(tmp_path) == written.all(), "no file has changed"
    assert len(written.all()) > len(truth) // 3
    assert not list((tmp_path / "archive").rglob("*.part"))
    log.close()


def test_a_row_has_all_of_a_message_and_every_state(tmp_path: Path) -> None:
    rules = {"orders": Rules(archive="hourly", plan=plan_of("a | b, c"))}
    log = Log(tmp_path, rules)
    said = {
        Property.PAYLOAD_FORMAT_INDICATOR: 1,
        Property.CONTENT_TYPE: "text/plain",
        Property.RESPONSE_TOPIC: "answers",
        Property.CORRELATION_DATA: b"\xff",
        Property.USER_PROPERTY: [("color", "red"), ("color", "blue")],
    }
    log.put(b"order", properties=encode_properties(said))
    log.now += 1000
    log.work("a")
    log.now += 1000
    log.work("c")
    log.now += HOUR
    log.turn()
    assert log.log() == [], "it is in the archive, and not in the log any more"
    (row,) = files.read(tmp_path / "archive", "orders")
    assert (row["queue"], row["site"], row["position"], row["publisher"], row["payload"]) == ("orders", "porto", 1, "shop", b"order")
    assert row["properties"] == {
        "text": True,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation": b"\xff",
        "user": [{"name": "color", "value": "red"}, {"name": "color", "value": "blue"}],
    }
    assert (row["state"], row["put"].timestamp() * 1000) == ("JOURNALLED", BEGIN)
    steps = [(one["who"], one["state"], round(one["at"].timestamp() * 1000) - BEGIN) for one in row["states"]]
    assert ("shop", "PUT", 0) in steps
    assert ("a", "DONE", 1000) in steps
    assert ("b", "EXPIRED", 1000) in steps
    assert ("c", "DONE", 2000) in steps
    log.close()


def test_a_queue_with_few_messages_waits_for_its_turn_and_no_longer(tmp_path: Path) -> None:
    """Its segment is never full: it ends with the turn."""
    log = Log(tmp_path, {"orders": Rules(retention=60, archive="daily")}, small=32 << 20)
    log.put(b"order")
    log.work("a")
    for hour in range(1, 14):
        log.now = BEGIN + hour * HOUR
        log.turn()
        assert archived(tmp_path) == []
    log.now = BEGIN + 14 * HOUR
    log.turn()
    assert archived(tmp_path) == [(1, b"order")]
    assert log.log() == []
    log.close()


def test_the_retention_goes_on_over_restarts(tmp_path: Path) -> None:
    """It began anew with each start: a broker that was started anew more often kept everything."""
    log = Log(tmp_path, {"orders": Rules(retention=7200, archive="hourly")})
    for number in range(30):
        log.put(b"%d" % number)
    log.work("a")
    for hour in range(4):
        now = log.now + HOUR
        log.close()
        log = Log(tmp_path, {"orders": Rules(retention=7200, archive="hourly")}, now=now)
        log.turn()
        assert bool(archived(tmp_path)) == (hour >= 1), "two hours after it was worked, and not before"
    log.close()


def test_a_full_disk_keeps_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(tmp_path)
    truth = []
    for number in range(30):
        log.put(b"%d" % number * 20)
        truth.append((number + 1, b"%d" % number * 20))
    log.work("a")
    log.now += 2 * HOUR
    sync = os.fsync

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        for _ in range(3):
            log.turn()
    assert os.fsync is sync
    assert log.log() == truth
    assert archived(tmp_path) == []
    assert [record.getMessage() for record in caplog.records if "queue-archive-failed" in record.getMessage()], "it is told"
    assert not list((tmp_path / "archive").rglob("*.part"))
    log.turn()
    assert archived(tmp_path) + log.log() == truth
    assert archived(tmp_path)
    log.close()


def test_what_is_not_in_the_log_yet_is_waited_for(tmp_path: Path) -> None:
    """The last states of messages are archived with them: before their commit they are in memory only."""
    log = Log(tmp_path, {"orders": Rules(archive="hourly")}, small=100)
    log.put(b"order")
    log.put(b"later")
    who = log.orders.join("a")
    (one,) = log.orders.take(who, 1, log.now)
    log.orders.settle(who, one.part, 0, 1, Subscriber.DONE, log.now)
    log.store.trim(log.now)
    assert log.archiver._busy is None
    log.commit()
    log.turn()
    (row,) = files.read(tmp_path / "archive", "orders")
    assert row["state"] == "JOURNALLED"
    log.close()


STEPS = ["open", "flush", "replace", "sync", "drop"]
KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = {path!r}
from broker.queues.archive.test_archive import Log, HOUR
from mqmesh.broker.queues.archive import files
from mqmesh.broker.queues.log.places.files import FileSegments
step = {step!r}
def killed(*_, **__):
    os._exit(9)
if step == "open": files._groups = killed
if step == "flush": files.os.fsync = killed
if step == "replace": files.os.replace = killed
if step == "sync": files.sync_folder = killed
if step == "drop": FileSegments.drop = killed
log = Log(Path({folder!r}))
log.now += 2 * HOUR
log.turn()
os._exit(0)
"""


@pytest.mark.process
@pytest.mark.parametrize("step", STEPS)
def test_killed_between_any_two_steps(tmp_path: Path, step: str) -> None:
    log = Log(tmp_path)
    truth = []
    for number in range(30):
        log.put(b"%d" % number * 20)
        truth.append((number + 1, b"%d" % number * 20))
    log.work("a", 25)
    log.close()
    script = KILLED.format(path=sys.path, step=step, folder=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    log = Log(tmp_path)
    assert {**dict(log.log()), **dict(archived(tmp_path))} == dict(truth)
    log.now += 4 * HOUR
    log.turn()
    gone = archived(tmp_path)
    assert len(gone) == len(dict(gone)) > 10
    assert {**dict(log.log()), **dict(gone)} == dict(truth)
    assert not list((tmp_path / "archive").rglob("*.part"))
    log.close()


def test_duckdb_reads_it(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    log = Log(tmp_path)
    for number in range(30):
        log.put(b"%d" % number)
    log.work("a")
    log.now += 2 * HOUR
    log.turn()
    found = duckdb.sql(
        f"select queue, count(*), min(position), any_value(properties.text) from read_parquet('{tmp_path}/archive/**/*.parquet', "
        "hive_partitioning = true) where date >= '2026-11-23' group by queue"
    ).fetchall()
    assert found == [("orders", len(archived(tmp_path)), 1, False)]
    log.close()
