"""A disk that is full, read-only, damaged or of another version: one clear line, and nothing acknowledged that is not kept."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.command import run, start
from support.paho_client import Paho
from support.scenes import Scene  # noqa: F401  (makes `benchmarks` known)
from support.services import free_port, wait_until
from support.storage.disks import damage_last_page, data_file, fill, make_read_only, mounted, set_version

from benchmarks.trials.strict import Judge, Publisher, Subscriber

pytestmark = pytest.mark.slow
KINDS = ("sqlite", "lmdb")
PATIENCE = 90.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    with mounted(tmp_path / "disk", 8) as folder:
        yield folder


class Site:
    """A broker whose data stand in `folder`, its configuration and log in `place`."""

    def __init__(self, place: Path, folder: Path, kind: str, mesh: bool = False, on_damage: str = "refuse") -> None:
        self.port = free_port()
        self.log = place / "log"
        self.config = place / "site.toml"
        lines = [
            f'listen = ["mqtt://127.0.0.1:{self.port}"]',
            f'data = "{folder}"',
            'name = "site"',
            "number = 1",
            "[store]",
            f'kind = "{kind}"',
            f'on_damage = "{on_damage}"',
        ]
        if mesh:
            lines += ["[mesh]", 'name = "m"', 'key = "a key of sixteen bytes"']
        self.config.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        assert self.starts(), self.log.read_text()

    def starts(self) -> bool:
        """Start it; whether it listens, else it has ended."""
        self.process = start("broker", "--config", self.config, stderr=self.log)
        if self.process.stdout.readline().startswith("ready"):  # type: ignore[union-attr]
            return True
        self.process.communicate()
        return False

    def end(self, kill: bool = False) -> None:
        assert self.process is not None
        (self.process.kill if kill else self.process.terminate)()
        self.process.communicate()
        self.process = None

    def says(self, words: str) -> int:
        """How many lines of the log have these words."""
        return sum(words in line for line in self.log.read_text().splitlines())

    def refuses_to_start(self, *words: str) -> None:
        """It ends with status 2 and one line."""
        done = run("broker", "--config", self.config)
        lines = done.stderr.decode().splitlines()
        assert done.returncode == 2, lines
        assert len(lines) == 1, lines
        for word in words:
            assert word in lines[0], lines
        assert not done.stdout


class Clients:
    """A subscriber that is away, and publishers of every kind whose messages wait for it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.moved = asyncio.Event()
        self.publishers = [
            Publisher("five", 5, 1, 1, b"d/1", 100),
            Publisher("five twice", 5, 2, 2, b"d/2", 100),
            Publisher("four", 4, 3, 1, b"d/3", 100),
            Publisher("busy", 5, 4, 1, b"d/4", 100),
        ]
        self.judges = {publisher.number: Judge(publisher.qos) for publisher in self.publishers}
        self.away = Subscriber("away", 5, self.judges, 0, 0.0, random.Random(1))
        for session in (self.away, *self.publishers):
            session.changed = self.moved.set

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for what clients hear."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    self.moved.clear()
                    await self.moved.wait()
        except TimeoutError:
            pytest.fail(f"it never came to this: {what}; the log: {self.site.log.read_text()[-2000:]}")

    async def begin(self) -> None:
        await self.away.dial(self.site.port)
        self.away.subscribe(b"d/#", 2)
        await self.until(lambda: self.away.established, "SUBACK")
        self.away.leave()
        await self.come()

    async def come(self) -> None:
        for publisher in self.publishers:
            await publisher.dial(self.site.port)

    def go(self, more: int) -> None:
        for publisher in self.publishers:
            publisher.go(publisher.sent + more)

    @property
    def idle(self) -> bool:
        return all(publisher.idle for publisher in self.publishers)

    async def all_is_there(self) -> None:
        """The subscriber comes back: it gets what was acknowledged, once and in order, and nothing that was refused."""
        await self.away.dial(self.site.port)
        await self.until(lambda: all(one.acknowledged <= self.judges[one.number].seen for one in self.publishers), "all came")
        self.judge()

    async def all_but_what_is_damaged(self) -> None:
        """The subscriber comes back to a store in which messages are found damaged when they are read: the log counts them."""
        await self.away.dial(self.site.port)
        async with asyncio.timeout(PATIENCE):
            while self.missing() != self.counted_as_damaged():  # the log tells nobody when it is written
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.moved.wait(), 0.1)
                self.moved.clear()
        assert not self.missing() or self.site.says("event=store-damaged")
        self.judge()

    def missing(self) -> int:
        """How many acknowledged messages have not come."""
        return sum(len(one.acknowledged - self.judges[one.number].seen) for one in self.publishers)

    def counted_as_damaged(self) -> int:
        """How many messages for the subscriber the log says are gone."""
        return sum(map(int, re.findall(r"event=store-run-missing client=away .*messages=(\d+)", self.site.log.read_text())))

    def judge(self) -> None:
        """What came is right."""
        for publisher in self.publishers:
            judge = self.judges[publisher.number]
            assert (judge.twice, judge.disorder, judge.corrupt) == (0, 0, 0)
            assert not publisher.refused & judge.seen
            assert not publisher.faults
        assert not self.away.faults


async def fill_up(clients: Clients, disk: Path) -> None:
    """Publish, fill the disk, publish until publishers of MQTT 5 are refused.

    Those of MQTT 3.1.1 are not read; who has messages without an answer waits for it, as answers keep their order [MQTT-4.6.0-2].
    """
    five, twice, four, busy = clients.publishers
    clients.go(300)
    await clients.until(lambda: clients.idle, "all was acknowledged")
    with pytest.raises(OSError):
        fill(disk / "filler")

    busy.go(busy.sent + 3000)
    await asyncio.to_thread(wait_until, lambda: clients.site.says("event=store-failed") > 0, PATIENCE, "error in the log")
    for publisher in (five, twice, four):
        publisher.go(publisher.sent + 10)
    await clients.until(lambda: bool(five.refused and twice.refused), "publishers were refused")
    assert not four.idle
    assert not busy.idle
    assert not four.refused | busy.refused


def served_meanwhile(site: Site) -> None:
    """Who needs no disk is served; whoever asks is told what is wrong."""
    with Paho(site.port) as client:
        client.subscribe("free", 1)
        assert client.publish("free", b"goes", 1) == 0
        assert client.next().payload == b"goes"
        client.subscribe("$SYS/broker/store/state")
        assert b"no space left on its disk" in client.next().payload
        assert client.publish("d/1", b"needs the disk", 1) == 0x97


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_is_full_for_a_while(kind: str, small_disk: Path, tmp_path: Path) -> None:
    site = Site(tmp_path, small_disk / "data", kind)
    site.start()

    async def scene() -> None:
        clients = Clients(site)
        await clients.begin()
        await fill_up(clients, small_disk)
        await asyncio.to_thread(served_meanwhile, site)
        assert site.says("event=store-failed kind=full") == 1
        (small_disk / "filler").unlink()
        await clients.until(lambda: clients.idle, "those who were not read are acknowledged")
        before = sum(len(publisher.refused) for publisher in clients.publishers)
        clients.go(300)
        await clients.until(lambda: clients.idle, "all goes on")
        assert sum(len(publisher.refused) for publisher in clients.publishers) == before
        assert site.says("event=store-recovered") == 1
        site.end(kill=True)
        site.start()
        await clients.all_is_there()

    asyncio.run(scene())
    site.end()


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_is_killed_while_its_disk_is_full(kind: str, small_disk: Path, tmp_path: Path) -> None:
    site = Site(tmp_path, small_disk / "data", kind)
    site.start()

    async def scene() -> None:
        clients = Clients(site)
        await clients.begin()
        await fill_up(clients, small_disk)
        site.end(kill=True)
        (small_disk / "filler").unlink()
        site.start()
        await clients.come()
        await clients.until(lambda: clients.idle, "what was open is acknowledged")
        await clients.all_is_there()

    asyncio.run(scene())
    site.end()


@pytest.mark.parametrize("mesh", [False, True], ids=["alone", "in a mesh"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full_from_the_start(kind: str, mesh: bool, small_disk: Path, tmp_path: Path) -> None:
    site = Site(tmp_path, small_disk / "data", kind, mesh)
    with suppress(OSError):
        fill(small_disk / "filler")
    site.refuses_to_start(str(small_disk), "o space left")
    (small_disk / "filler").unlink()
    site.start()
    site.end()


@pytest.mark.parametrize("mesh", [False, True], ids=["alone", "in a mesh"])
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_read_only_folder(kind: str, used: bool, mesh: bool, small_disk: Path, tmp_path: Path) -> None:
    site = Site(tmp_path, small_disk / "data", kind, mesh)
    if used:
        site.start()
        site.end()
    make_read_only(small_disk)
    site.refuses_to_start(str(small_disk / "data"), "make the folder writable")


async def something_kept(site: Site) -> Clients:
    """Messages wait for a subscriber that is away."""
    clients = Clients(site)
    await clients.begin()
    clients.go(3000)
    await clients.until(lambda: clients.idle, "all was acknowledged")
    return clients


@pytest.mark.parametrize("how", ["random", "zero", "cut"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_last_page(kind: str, how: str, tmp_path: Path) -> None:
    """What the check at the start finds, ends the start. The last page may be a free one; then its damage does not matter. Or it holds
    nothing but payload, or the file is too large to be checked whole; then the damage is found when the message is read."""
    site = Site(tmp_path, tmp_path / "data", kind)

    async def scene() -> None:
        site.start()
        clients = await something_kept(site)
        await asyncio.to_thread(site.end)
        damage_last_page(data_file(tmp_path / "data", kind), how)
        if how == "cut" or not await asyncio.to_thread(site.starts):
            await asyncio.to_thread(site.refuses_to_start, str(tmp_path / "data"), "is damaged", "restore a copy, or move it away")
        else:
            await clients.all_but_what_is_damaged()
            site.end()

    asyncio.run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_goes_on_with_what_is_whole(kind: str, tmp_path: Path) -> None:
    """A page of its store is damaged: it says so once, sets the store aside, and serves what is left."""
    site = Site(tmp_path, tmp_path / "data", kind, on_damage="salvage")

    async def scene() -> None:
        site.start()
        await something_kept(site)
        await asyncio.to_thread(site.end)

    asyncio.run(scene())
    file = data_file(tmp_path / "data", kind)
    data = bytearray(file.read_bytes())
    if kind == "sqlite":
        page = data.rindex(b"session/1") // 4096 * 4096
        data[page : page + 64] = bytes(64)
    else:
        data[4096 + 16 + 24 + 2 * 48 + 8] ^= 0x40  # the number of the transaction in its second meta page
    file.write_bytes(data)
    site.start()
    assert site.says("event=store-damaged") == site.says("event=store-salvaged") == 1
    (aside,) = file.parent.glob("damaged-*")
    assert (aside / file.name).read_bytes() == data
    site.end()
    site.start()
    assert site.says("event=store-salvaged") == 0
    site.end()


@pytest.mark.parametrize(("version", "who"), [(0, "an older mqmesh"), (99, "a newer mqmesh")])
@pytest.mark.parametrize("kind", KINDS)
def test_another_schema_version(kind: str, version: int, who: str, tmp_path: Path) -> None:
    site = Site(tmp_path, tmp_path / "data", kind)
    site.start()
    asyncio.run(something_kept(site))
    site.end()
    set_version(tmp_path / "data", kind, version)
    site.refuses_to_start(f"schema version {version}, this mqmesh reads version 2", who)
    set_version(tmp_path / "data", kind, 2)
    site.start()
    wait_until(lambda: site.says("event=recovered sessions=5 messages=12000") == 1, PATIENCE, "all that was kept")
    site.end()
