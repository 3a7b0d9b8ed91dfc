"""An interchange whose services are those of a directory: they change as they are changed there, and stay while it is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mqmesh.directory.client import Client, ClientError
from mqmesh.directory.storage.accounts import add_account
from mqmesh.directory.storage.store import Store
from mqmesh.interchange.registry.directory import DirectoryRegistry
from support.broker_site import until
from support.directories import in_this_process
from support.interchange_site import InterchangeSite
from support.services import PATIENCE

OPEN: dict[str, Any] = {"users": ["*"], "site": "test"}


class World:
    """A directory that is started and stopped, with an account each for a bank, a shop and interchanges."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._database = f"sqlite:///{folder / 'directory.db'}"
        self._stack = ExitStack()
        store = self.start()
        organisations = {"bank": "bank", "shop": "shop", "porto": "net"}
        self.secrets = {name: add_account(store, name, one, interchange=one == "net") for name, one in organisations.items()}
        (folder / "secret").write_text(self.secrets["porto"] + "\n")

    def start(self) -> Store:
        store = Store(self._database)
        self.url = self._stack.enter_context(in_this_process(store))
        return store

    def stop(self) -> None:
        self._stack.close()

    def put(self, name: str, **profile: Any) -> None:
        account = name.partition("/")[0]
        Client(self.url, PATIENCE, (account, self.secrets[account])).put_service(name, {**OPEN, **profile})

    def site(self) -> InterchangeSite:
        directory = f'[directory]\nurl = "{self.url}"\nmesh = "m"\naccount = "porto"\nsecret_file = "../secret"\nregister = false\n'
        directory = f'name = "test"\nnumber = 1\n{directory}'
        return InterchangeSite(self.folder / "site", None, directory)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.stop()


async def test_services_come_change_and_go(world: World) -> None:
    world.put("shop/orders")
    async with world.site() as site:
        known = lambda: site.inside.registry.services  # noqa: E731
        await until(lambda: "shop/orders" in known())
        world.put("bank/credit")
        await until(lambda: "bank/credit" in known())
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        told = await shop.post("request", b"?", recipient="bank/credit")
        assert (await bank.take())[0] == b"?"
        world.put("bank/credit", suspended=True)
        await until(lambda: known()["bank/credit"].suspended)
        assert (await shop.post("request", b"?", recipient="bank/credit"))["code"] == "suspended"
        assert await bank.post("response", b"!", call=told["call"]) == told, "what was begun goes to its end"
        world.put("bank/credit", callers=["map/*"])
        await until(lambda: not known()["bank/credit"].suspended)
        assert (await shop.post("request", b"?", recipient="bank/credit"))["code"] == "unknown-service"
        Client(world.url, PATIENCE, ("bank", world.secrets["bank"])).delete_service("bank/credit")
        await until(lambda: "bank/credit" not in known())


async def test_it_goes_on_without_the_directory_and_hears_what_it_has_missed(world: World) -> None:
    world.put("shop/orders")
    world.put("bank/credit")
    async with world.site() as site:
        await until(lambda: len(site.inside.registry.services) == 2)
    world.stop()
    async with world.site() as site:
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        await shop.post("request", b"?", recipient="bank/credit")
        assert (await bank.take())[0] == b"?"
    world.start()
    world.put("bank/credit", suspended=True)
    async with world.site() as site:
        await until(lambda: site.inside.registry.services["bank/credit"].suspended)


async def test_a_record_that_cannot_be_read_is_a_suspended_service(world: World) -> None:
    world.put("shop/orders")
    world.put("bank/credit", rules=[{"when": "never"}])
    async with world.site() as site:
        await until(lambda: len(site.inside.registry.services) == 2)
        shop = await site.service("shop/orders")
        assert (await shop.post("request", b"?", recipient="bank/credit"))["code"] == "unknown-service"


async def test_a_virtual_service_is_another_one_under_its_own_name(world: World) -> None:
    world.put("shop/orders")
    world.put("bank/credit", callers=["bank/*"])
    world.put("bank/old", virtual="bank/credit")
    async with world.site() as site:
        await until(lambda: len(site.inside.registry.services) == 3)
        shop, bank = await site.service("shop/orders"), await site.service("bank/credit")
        told = await shop.post("request", b"?", recipient="bank/old")
        await bank.take()
        await bank.post("response", b"!", call=told["call"])
        body, header = await shop.take()
        assert (body, header["sender"]) == (b"!", "bank/old")


def test_a_directory_that_is_back_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqmesh.interchange.registry.directory.FIRST_PAUSE", 0.001)
    answers: list[Any] = [OSError("no secret"), OSError("no secret"), ClientError(0, "", "it does not answer"), []]

    class Book:
        def services(self) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    registry = DirectoryRegistry(Book(), "test", tmp_path)  # type: ignore[arg-type]
    registry._loop = Mock()
    registry._heard(None)
    answers.append([])
    registry._heard(None)
    assert [one.split(" text=")[0] for one in caplog.messages] == ["event=registry-away"] * 2 + ["event=registry-back"]
