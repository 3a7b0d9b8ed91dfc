"""What clients ask a broker about messages, from its own journal: operators all, others their own account's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mqmesh.broker.auth import passwords
from mqmesh.broker.auth.guard import TRACE_ANSWER
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.journal.recent import TOGETHER, OpenFile, Recent
from mqmesh.broker.journal.schema import arrow_schema
from mqmesh.broker.journal.search import Query
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.broker.requests.trace import TOPIC
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.pipeline.trace.story import COMPLETE, stories
from support.broker_site import Client, Site
from support.journals import SECOND, START, JournalMaker, message, table_of


@pytest.fixture
def home(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/socket"


@pytest.fixture
def maker(tmp_path: Path) -> JournalMaker:
    return JournalMaker(tmp_path / "journal")


def recent(maker: JournalMaker, broker: int = 3) -> Recent:
    folder = Path(maker.root) / f"open/broker={broker}"
    return Recent(maker.place, broker, folder, lambda seconds: None)


async def asker(site: Site, name: str = "operator", **more: Any) -> Client:
    client = await site.client(name, **more)
    await client.subscribe(TRACE_ANSWER, qos=1)
    return client


async def ask(client: Client, request: object) -> Any:
    """The answer to a request."""
    payload = request if isinstance(request, bytes) else json.dumps(request).encode()
    number = client.next_id()
    client.send(Publish(TOPIC, payload, 1, packet_id=number))
    found: list[Any] = [await client.receive(), await client.receive()]
    (answer,) = [one for one in found if isinstance(one, Publish)]
    assert [one.packet_id for one in found if isinstance(one, Puback)] == [number]
    client.send(Puback(answer.packet_id))
    return json.loads(answer.payload)


async def test_an_operator_asks_for_any_message(home: str, maker: JournalMaker) -> None:
    for number in (1, 2, 3):
        maker.write(maker.way(number, at=START + number * SECOND))
    async with Site(home) as site:
        site.broker.trace_topic.recent = recent(maker)
        client = await asker(site)
        answer = await ask(client, {"message": str(message(2))})
        assert [row["kind"] for row in answer["events"]] == [4, 5, 6]  # what this broker has seen
        assert set(answer["names"].values()) == {"shop/orders", "anna", "reader"}
        assert (answer["skipped"], answer["cut"]) == ([], 0)
        answer = await ask(client, {"client": "reader", "limit": 2})
        assert {row["sequence"] for row in answer["events"]} == {2, 3}
        maker.write(maker.way(4, at=START + 4 * SECOND))
        assert (await ask(client, {"client": "reader", "limit": 1}))["events"][0]["sequence"] == 4


async def test_what_is_asked_wrongly_is_said(home: str, maker: JournalMaker) -> None:
    async with Site(home) as site:
        client = await asker(site)
        assert "writes no journal" in (await ask(client, {"limit": 1}))["error"]
        site.broker.trace_topic.recent = recent(maker)
        for request, says in ((b"what", "send {"), ([], "send {"), ({"colour": 1}, "is no condition"), ({"limit": 0}, "1 to 1000")):
            assert says in (await ask(client, request))["error"]


async def test_others_see_the_messages_of_their_own_account(tmp_path: Path, maker: JournalMaker) -> None:
    users = tmp_path / "users"
    passwords.change(users, "anna", b"secret")
    passwords.change(users, "bert", b"secret")
    maker.write(maker.way(1))
    maker.write(maker.way(2, account=maker.name("bert"), at=START + SECOND))
    access = AccessSettings(users=users, anonymous=True)
    async with Site(access=access) as site:
        site.broker.trace_topic.recent = recent(maker)
        anna = await asker(site, "anna", password=b"secret")
        assert {row["sequence"] for row in (await ask(anna, {"topic": "shop/orders"}))["events"]} == {1}
        assert (await ask(anna, {"message": str(message(2))}))["events"] == []
        nobody = await asker(site, "nobody")
        assert "not permitted" in (await ask(nobody, {"topic": "shop/orders"}))["error"]


def test_an_open_segment_is_read_as_it_grows(tmp_path: Path, maker: JournalMaker) -> None:
    path = tmp_path / "1-1.arrows"
    opened = OpenFile(path)
    assert opened.parts() == []
    with path.open("wb") as file, pa.ipc.new_stream(file, arrow_schema()) as stream:
        for number in (1, 2):
            stream.write_table(table_of(maker.number(maker.way(number))))
            file.flush()
            assert rows_of(opened) == 6 * number
    assert rows_of(opened) == 12


def test_a_message_is_found_in_the_parts_of_an_open_segment_that_may_hold_it(tmp_path: Path) -> None:
    """Its events may lie far from each other, and messages of two origins have the same numbers."""
    maker = JournalMaker(tmp_path / "journal")
    folder = Path(maker.root) / "open/broker=3"
    folder.mkdir(parents=True)
    ways = [maker.way(number, origin) for number in range(1, 4 * TOGETHER) for origin in (1, 2)]
    ways += [maker.way(2)]  # and late events of an early message
    rows = maker.number({**row, "broker": 3} for way in ways for row in way)
    path = folder / "1-1.arrows"
    with path.open("wb") as file, pa.ipc.new_stream(file, arrow_schema()) as stream:
        for at in range(0, len(rows), 6):
            stream.write_table(table_of(rows[at : at + 6]))
    parts = OpenFile(path).parts()
    assert sum(part.may_hold(message(1)) for part in parts) == 2  # the first one, and the last one, whose bounds nobody has looked for yet
    assert sum(part.may_hold(message(2)) for part in parts) == 2
    assert not any(part.may_hold(message(5 * TOGETHER)) for part in parts[:-1])
    told = recent(maker)
    for asked in (message(1), message(2), message(3 * TOGETHER), message(7, 2)):
        events = told.find(Query(message=asked), None)["events"]
        wanted = [row["event"] for row in rows if (row["origin"], row["sequence"]) == (asked.origin, asked.sequence)]
        assert sorted(row["event"] for row in events) == wanted


def rows_of(opened: OpenFile) -> int:
    return sum(part.table.num_rows for part in opened.parts())


async def test_what_was_just_published_is_known(home: str, tmp_path: Path) -> None:
    async with Site(home, journal=JournalSettings(str(tmp_path / "written"))) as site:
        reader, publisher = await site.client("reader"), await site.client("publisher")
        await reader.subscribe("shop/#", qos=1)
        client = await asker(site)
        for number in range(3):
            await publisher.publish("shop/orders", b"%d" % number, 1)
            await reader.messages(1)
            await reader.nothing()
            answer = await ask(client, {"client": "publisher", "limit": 1})
            (one,) = stories(answer["events"], {int(key): name for key, name in answer["names"].items()}.get)
            assert [step.name for step in one.steps] == ["published", "received", "delivered", "acknowledged"]
            assert (one.status, one.topic, one.publisher) == (COMPLETE, "shop/orders", "publisher")
            assert one.steps[2].client == "reader"
        assert len({row["sequence"] for row in (await ask(client, {"topic": "shop/+"}))["events"]}) == 3
