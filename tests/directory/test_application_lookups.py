"""What a broker knows of applications: while the directory answers, while it is away, and after a restart without it."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.applications import Application, Lookup
from mqmesh.directory import applications as module
from mqmesh.directory.applications import Applications
from mqmesh.directory.client import ClientError
from mqmesh.directory.leases import read_claim
from mqmesh.interchange.registry import directory as services
from support.directories import Directory
from support.services import PATIENCE


class Book:
    """A directory in this process. `gate` holds its answers back."""

    def __init__(self, *names: str) -> None:
        self.records: dict[str, dict[str, Any]] = {name: {"name": name} for name in names}
        self.away = False
        self.asked: list[str | None] = []
        self.gate = threading.Event()
        self.gate.set()

    def find(self, sort: str = "broker", mesh: str | None = None, name: str | None = None) -> list[dict[str, Any]]:
        assert (sort, mesh) == ("application", "ring")
        self.gate.wait(PATIENCE)
        self.asked.append(name)
        if self.away:
            raise ClientError(0, "", "nobody answers")
        return [one for one in self.records.values() if name in (None, one["name"])]


class World:
    """Lookups over a `Book`; time is the test's own and moves only when it says so."""

    def __init__(self, book: Book, folder: Path | None = None) -> None:
        self.book, self.now = book, 0.0
        self.made = Applications(book, "ring", folder, clock=lambda: self.now)
        self.changes = 0
        self.changed = asyncio.Event()
        self.made.watch(self._note)

    def _note(self) -> None:
        self.changes += 1
        self.changed.set()

    async def look(self, name: str) -> Lookup:
        answered: asyncio.Future[Lookup] = asyncio.get_running_loop().create_future()
        self.made.find(name, answered.set_result)
        return await asyncio.wait_for(answered, PATIENCE)

    async def listed(self) -> None:
        """A listing that differs from the last one has come."""
        await asyncio.wait_for(self.changed.wait(), PATIENCE)
        self.changed.clear()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.made._wake.set()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


@pytest.fixture
def begin() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def made(book: Book, folder: Path | None = None) -> World:
        worlds.append(World(book, folder))
        worlds[-1].made.begin(asyncio.get_running_loop())
        return worlds[-1]

    yield made
    for world in worlds:
        world.book.gate.set()
        world.made.end()


@in_loop
async def test_a_name_that_cannot_be_registered_is_not_asked_for(begin: Callable[..., World]) -> None:
    """Any publisher chooses it, with up to 65,535 bytes: nothing of it is kept while the directory is slow."""
    book = Book("orders")
    book.gate.clear()
    world = begin(book)
    answers: list[Lookup] = []
    world.made.find("n" * 256, answers.append)
    assert answers == [Lookup(None)]
    world.made.find("n" * 255, answers.append)
    assert len(answers) == 1, "this one waits"


@in_loop
async def test_f07_names_are_listed_cached_and_asked_for_again(begin: Callable[..., World]) -> None:
    """F7: alternatives come from the directory, are cached, and are asked for again."""
    book = Book("orders")
    book.records["orders"] |= {"alternatives": ["lyon", "graz"], "broker": "porto", "fault_interval": 3, "probe": True}
    world = begin(book)
    await world.listed()
    expected = Application("orders", "porto", alternatives=("lyon", "graz"), fault_interval=3, probe=True)
    assert await world.look("orders") == Lookup(expected)
    assert world.made.known() == {"orders": expected}
    assert book.asked == [None], "a known name asks nobody"
    book.records["orders"]["alternatives"] = ["graz"]
    world.pass_time(module.FRESH)
    await world.listed()
    assert world.made.known()["orders"].alternatives == ("graz",)


@in_loop
async def test_f15_a_name_is_known_unknown_or_cannot_be_looked_up(begin: Callable[..., World]) -> None:
    """F15: what is not registered is told from what cannot be looked up now."""
    book = Book("orders")
    world = begin(book)
    await world.listed()
    assert await world.look("nobody") == Lookup(None)
    asked = len(book.asked)
    assert await world.look("nobody") == Lookup(None)
    assert len(book.asked) == asked, "an unknown name is not asked for again at once"
    book.records["nobody"] = {"name": "nobody"}
    world.pass_time(module.UNKNOWN_FOR)
    assert await world.look("nobody") == Lookup(Application("nobody")), "registered since"
    book.away = True
    assert (await world.look("late")).away == "nobody answers"
    assert await world.look("orders") == Lookup(Application("orders")), "what is known goes on"
    asked = len(book.asked)
    assert (await world.look("later")).away == "nobody answers"
    assert len(book.asked) == asked, "who is away is not asked for each name"


@in_loop
async def test_f15_the_end_of_an_absence_is_told(begin: Callable[..., World]) -> None:
    """F15: what waits for a lookup learns that it can be tried again."""
    book = Book()
    book.away = True
    world = begin(book)
    assert (await world.look("orders")).away
    book.away, book.records["orders"] = False, {"name": "orders"}
    world.pass_time(module.PAUSE)
    await world.listed()
    assert await world.look("orders") == Lookup(Application("orders"))


@in_loop
async def test_what_is_known_outlives_a_restart(begin: Callable[..., World], tmp_path: Path) -> None:
    book = Book("orders", "lyon")
    world = begin(book, tmp_path)
    await world.listed()
    book = Book()
    book.away = True
    again = begin(book, tmp_path)
    assert sorted(again.made.known()) == ["lyon", "orders"]
    assert await again.look("orders") == Lookup(Application("orders"))
    assert (await again.look("new")).away
    other = Applications(book, "another", tmp_path)
    assert other.known() == {}, "of one mesh"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"mesh": "ring"}', '{"mesh": "ring", "applications": [1]}'])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, text: str) -> None:
    (tmp_path / module.FILE).write_text(text)
    assert Applications(Book(), "ring", tmp_path).known() == {}


@in_loop
async def test_what_waits_is_bounded(begin: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_MOST", 2)
    book = Book()
    book.gate.clear()
    world = begin(book)
    first = [asyncio.ensure_future(world.look(name)) for name in ("a", "b")]
    await asyncio.sleep(0)
    assert await world.look("c") == Lookup(None, module.FULL)
    book.gate.set()
    assert await asyncio.gather(*first) == [Lookup(None)] * 2


def test_what_a_broker_registers() -> None:
    declared: list[None] = []
    made = Applications(Book(), "ring", declared=lambda: declared.append(None))
    orders = Application("orders", clients=("orders-1",), alternatives=("lyon",), message_interval=1.0)
    made.declare(orders)
    made.declare(orders)
    assert made.offered() == [{"name": "orders", "clients": ["orders-1"], "alternatives": ["lyon"], "message_interval": 1.0}]
    made.withdraw("orders")
    made.withdraw("orders")
    assert (made.offered(), len(declared)) == ([], 2), "only changes are told"


def test_a_client_cannot_have_the_claim_of_its_broker_refused(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no directory takes is left out, and told once; and so is what is too many."""
    monkeypatch.setattr(module, "OFFERED_MOST", 3)
    made = Applications(Book(), "ring")
    for name in ("two  spaces", "x" * 256, " a", "tab\t"):
        made.declare(Application(name))
    made.declare(Application("a", clients=("bad\n",)))
    made.declare(Application("b", consents=tuple(map(str, range(65)))))
    for name in ("c", "d", "e", "f"):
        made.declare(Application(name))
    for _ in range(2):
        assert [one["name"] for one in made.offered()] == ["c", "d", "e"]
    assert caplog.text.count("event=applications-not-registered count=7") == 1
    read_claim("ring", str(uuid.UUID(int=1)), {"name": "porto", "seconds": 30, "applications": made.offered()})


@pytest.mark.process
@in_loop
async def test_a_real_directory(directory: Directory, begin: Callable[..., World]) -> None:
    alice = directory.client("alice")
    alice.put("mesh", "ring")
    alice.put("application", "orders", "ring", broker="porto", alternatives=["lyon"], message_interval=1.5, consents=["*"])
    made = Applications(directory.client(), "ring")
    made.begin(asyncio.get_running_loop())
    answered: asyncio.Future[Lookup] = asyncio.get_running_loop().create_future()
    made.find("orders", answered.set_result)
    found = await asyncio.wait_for(answered, PATIENCE)
    assert found.record == Application("orders", "porto", (), ("lyon",), 1.5, consents=("*",))
    made.end()


def test_the_file_is_readable(tmp_path: Path) -> None:
    made = Applications(Book(), "ring", tmp_path)
    made._take({"orders": Application("orders", alternatives=("lyon",))})
    assert json.loads((tmp_path / module.FILE).read_text())["applications"][0]["alternatives"] == ["lyon"]
    assert Applications(Book(), "ring", tmp_path).known() == {"orders": Application("orders", alternatives=("lyon",))}


def test_a_file_that_can_be_written_again_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for where, made, words in (
        (module, Applications(Book(), "ring", tmp_path), ("directory-memory-failed", "directory-memory-kept")),
        (services, services.DirectoryRegistry(Book(), "lyon", tmp_path), ("registry-not-kept", "registry-kept")),  # type: ignore[arg-type]
    ):
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setattr(where, "replace_file", full)
            made._save()
        made._save()
        made._save()
        assert [one.split()[0] for one in caplog.messages] == [f"event={word}" for word in words]
