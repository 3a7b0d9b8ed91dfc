"""Handles of publishers: a repeat is known, what is kept is bounded, and nobody can have those of others forgotten."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.queues.committer import Gate
from mqmesh.broker.queues.core.blocks import Block, Key
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.handles import Handles, Pending, key_of
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from support.broker_site import Client, Site


def settings(folder: Path) -> QueueSettings:
    return QueueSettings({"orders": Rules(), "others": Rules()}, folder=folder / "queues", durability="os")


async def put(client: Client, handle: str, queue: str = "orders") -> tuple[int, list[tuple[str, str]]]:
    """(reason code, user properties of the answer)."""
    user = {Property.USER_PROPERTY: [("mqmesh-handle", handle)]}
    client.send(Publish(f"$queue/{queue}", b"x", 1, packet_id=9, properties=user))
    answer = await client.expect(Puback, packet_id=9)
    return answer.reason, answer.properties.get(Property.USER_PROPERTY, [])


async def test_a_handle_belongs_to_its_publisher_and_its_queue(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop, other = await site.client("shop"), await site.client("other")
        assert await put(shop, "1") == await put(other, "1") == await put(shop, "1", "others") == (0, [])
        assert await put(other, "1") == (0, [("mqmesh-id", "orders:2"), ("mqmesh-repeat", "1")])
        await shop.cut()
        assert await put(await site.client("shop"), "1") == (0, [("mqmesh-id", "orders:1"), ("mqmesh-repeat", "1")])


def test_nobody_has_the_handles_of_others_forgotten() -> None:
    handles = Handles(1000)
    quiet = [key_of("orders", "quiet", str(number)) for number in range(100)]
    for number, key in enumerate(quiet):
        handles.keep(key, number)
    for number in range(10_000):
        handles.keep(key_of("orders", "loud", str(number)), number)
    assert len(handles) <= 1000
    assert [handles.find(key) for key in quiet] == list(range(100))
    assert handles.find(key_of("orders", "loud", "9999")) == 9999


class Unsearchable(dict[bytes, Any]):
    """What is known of publishers, found by name only."""

    def __iter__(self) -> Any:
        raise AssertionError("all publishers are looked at")

    keys = values = items = __iter__


def test_room_is_made_without_a_look_at_all_publishers() -> None:
    handles = Handles(100)
    handles._owners = Unsearchable()
    for number in range(300):
        handles.keep(key_of("orders", f"p{number}", "1"), number)
    assert len(handles) == 100
    assert [handles.find(key_of("orders", f"p{number}", "1")) for number in (199, 200, 299)] == [None, 200, 299]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans()), max_size=200))
def test_who_loses_handles_has_the_most(steps: list[tuple[int, int, bool]]) -> None:
    handles, room = Handles(8), 8
    for publisher, number, known in steps:
        key = key_of("orders", str(publisher), str(number))
        before = {owner: list(kept) for owner, kept in handles._owners.items()}
        if not known:
            handles.forget(key)
            continue
        handles.keep(key, number)
        before.setdefault(key[:8], [])
        before[key[:8]] += [key] if key not in before[key[:8]] else []
        lost = {owner: kept for owner, kept in before.items() if list(handles._owners.get(owner, ())) != kept}
        assert len(lost) == (sum(map(len, before.values())) > room)
        for owner, kept in lost.items():
            assert len(kept) == max(map(len, before.values()))
            assert list(handles._owners.get(owner, ())) == kept[-(-len(kept) // 2) :]
    assert handles._ranks == {
        count: {owner: None for owner, kept in handles._owners.items() if len(kept) == count}
        for count in set(map(len, handles._owners.values()))
    }


def test_what_comes_back_after_a_restart_is_bounded_too(tmp_path: Path) -> None:
    handles = Handles(3)
    for number in range(10):
        handles.keep(key_of("orders", f"p{number % 2}", str(number)), number)
        assert len(handles) <= 3


def test_a_known_handle_holds_no_block() -> None:
    handles, gate, block = Handles(10), Gate(), Block(Key(), 0)
    key = key_of("orders", "shop", "1")
    Pending(handles, key, gate, block, 2)
    assert handles.find(key) is gate
    block.first = 40
    gate.let_go()
    assert handles.find(key) == 42


def test_a_refused_message_may_come_again_with_its_handle() -> None:
    handles, gate, block = Handles(10), Gate(), Block(Key(), 0)
    key = key_of("orders", "shop", "1")
    Pending(handles, key, gate, block, 0)
    gate.let_go("the disk is full")
    assert handles.find(key) is None
    assert len(handles) == 0


async def test_a_full_disk_forgets_the_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop = await site.client("shop")
        queues = site.broker.site.queues
        assert queues is not None
        store = queues.store.here["log"]
        write = store.write

        def full(batch: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(store, "write", full)
        assert (await put(shop, "1"))[0] == 0x97
        monkeypatch.setattr(store, "write", write)
        assert len(queues.handles) == 0
