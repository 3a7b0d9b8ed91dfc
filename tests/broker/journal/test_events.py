"""What one broker writes down of messages, sessions and subscriptions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.journal.kinds import Kind, call_id
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.schema import expand
from mqmesh.broker.journal.settings import JournalSettings, TopicRule
from mqmesh.mqtt.packets import Puback, Publish, Subscription
from mqmesh.mqtt.properties import Property
from support.broker_site import JumpingLoop, Site


def run(scene: Callable[[], Awaitable[Any]]) -> Any:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(scene())


def settings(folder: Path, *rules: TopicRule, **changes: Any) -> JournalSettings:
    made = JournalSettings(str(folder), **changes)
    if rules:
        made.topics = rules
    return made


def rows(folder: Path, *kinds: Kind) -> list[dict[str, Any]]:
    """One row for each message, in order, with names instead of ids."""
    journal = Journal(str(folder))
    assert journal.check() == []
    names = journal.names()
    found = []
    for table in journal.tables():
        for row in expand(table).to_pylist():
            if not kinds or row["kind"] in kinds:
                for column in ("topic", "client", "account", "reason", "recipient"):
                    row[column] = names[row[column]] if row[column] else ""
                row["kind"] = Kind(row["kind"])
                found.append(row)
    return sorted(found, key=lambda row: row["event"])


def counts(folder: Path) -> dict[tuple[Kind, str, str, str], tuple[int, int]]:
    journal = Journal(str(folder))
    names = {0: "", **journal.names()}
    made: Counter[Any] = Counter()
    sizes: Counter[Any] = Counter()
    for row in journal.counts().to_pylist():
        key = Kind(row["kind"]), names[row["topic"]], names[row["account"]], names[row["recipient"]]
        made[key] += row["messages"]
        sizes[key] += row["bytes"]
    return {key: (made[key], sizes[key]) for key in made}


def message_ids(found: list[dict[str, Any]]) -> list[tuple[int, int, int, int]]:
    return [(row["origin"], row["origin_epoch"], row["stream"], row["sequence"]) for row in found]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_has_its_way_from_publisher_to_subscriber(tmp_path: Path, qos: int) -> None:
    async def scene() -> None:
        async with Site(journal=settings(tmp_path)) as site:
            subscriber, publisher = await site.client("s"), await site.client("p")
            await subscriber.subscribe("a/#", qos=2)
            for number in range(5):
                await publisher.publish("a/b", b"x" * (number + 1), qos)
            await subscriber.messages(5)
            await subscriber.nothing()

    run(scene)
    found = rows(tmp_path)
    kinds = Counter(row["kind"] for row in found)
    ends = {Kind.PUBLISHED: 5, Kind.RECEIVED: 5, Kind.DELIVERED: 5} | ({Kind.ACKNOWLEDGED: 5} if qos else {})
    assert {kind: kinds[kind] for kind in ends} == ends
    published = [row for row in found if row["kind"] == Kind.PUBLISHED]
    assert len(set(message_ids(published))) == 5
    for kind in ends:
        assert message_ids([row for row in found if row["kind"] == kind]) == message_ids(published)
    assert [row["size"] for row in published] == [1, 2, 3, 4, 5]
    assert {(row["client"], row["topic"], row["qos"], row["version_in"]) for row in published} == {("p", "a/b", qos, 5)}
    assert {row["client"] for row in found if row["kind"] == Kind.DELIVERED} == {"s"}
    assert {row["value"] for row in found if row["kind"] == Kind.RECEIVED} == {1}
    assert kinds[Kind.CONNECTED] == 2 == kinds[Kind.DISCONNECTED]
    assert [row["topic"] for row in found if row["kind"] == Kind.SUBSCRIBED] == ["a/#"]
    assert counts(tmp_path)[Kind.PUBLISHED, "a", "", ""] == (5, 15)
    assert counts(tmp_path)[Kind.DELIVERED, "a", "", "s"] == (5, 15)


def test_a_run_is_one_event(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Site(journal=settings(tmp_path)) as site:
            subscriber, publisher = await site.client("s"), await site.client("p")
            await subscriber.subscribe("a", qos=1)
            publisher.send(*[Publish("a", b"%03d" % number, 1, packet_id=number + 1) for number in range(100)])
            await subscriber.messages(100)
            await subscriber.nothing()

    run(scene)
    tables = list(Journal(str(tmp_path)).tables())
    assert sum(row["kind"] == Kind.PUBLISHED for table in tables for row in table.to_pylist()) < 20
    for kind in (Kind.PUBLISHED, Kind.DELIVERED, Kind.ACKNOWLEDGED):
        assert [row["sequence"] for row in rows(tmp_path, kind)] == list(range(1, 101))


def test_packets_of_different_topics_that_come_together(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Site(journal=settings(tmp_path)) as site:
            subscriber, publisher = await site.client("s"), await site.client("p")
            await subscriber.subscribe("a/#", qos=1)
            for _ in range(2):  # the second time, recipients are known
                publisher.send(*[Publish(f"a/{number % 7}", b"x" * number, 1, packet_id=number + 1) for number in range(30)])
                await subscriber.messages(30)
            await subscriber.nothing()

    run(scene)
    for kind in (Kind.PUBLISHED, Kind.DELIVERED, Kind.ACKNOWLEDGED):
        found = rows(tmp_path, kind)
        assert [(row["topic"], row["size"]) for row in found] == [(f"a/{number % 7}", number) for number in range(30)] * 2
        assert len(set(message_ids(found))) == 60
    assert counts(tmp_path)[Kind.DELIVERED, "a", "", "s"] == (60, 2 * sum(range(30)))


def test_what_is_counted_only_has_no_events(tmp_path: Path) -> None:
    async def scene() -> None:
        rules = TopicRule("secret/#", "counted"), TopicRule("#", "full")
        async with Site(journal=settings(tmp_path, *rules, dimension=2)) as site:
            subscriber, publisher = await site.client("s"), await site.client("p", version=4)
            await subscriber.subscribe("#", qos=1)
            for qos in (0, 1, 1, 2):
                await publisher.publish("secret/a", b"xyz", qos)
            await publisher.publish("open/a", b"x", 1)
            await subscriber.messages(5)
            await subscriber.nothing()

    run(scene)
    assert {row["topic"] for row in rows(tmp_path, Kind.PUBLISHED, Kind.DELIVERED, Kind.ACKNOWLEDGED)} == {"open/a"}
    found = counts(tmp_path)
    assert found[Kind.PUBLISHED, "secret/a", "", ""] == (4, 12)
    assert found[Kind.DELIVERED, "secret/a", "", "s"] == (4, 12)
    assert found[Kind.DELIVERED, "open/a", "", "s"] == (1, 1)


def test_what_does_not_get_to_a_subscriber_is_said(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Site(journal=settings(tmp_path)) as site:
            small = await site.client("small", maximum_packet_size=40)
            away = await site.client("away", expiry=100)
            publisher = await site.client("p")
            await small.subscribe("a", qos=1)
            await away.subscribe("a", qos=1)
            await away.leave()
            await site.gone("away")
            await publisher.publish("a", b"x" * 100, 1)
            await publisher.publish("a", b"x", 0)
            await small.messages(1)
            again = await site.client("away", clean=True)  # the session ends, with what it had
            await again.nothing()

    run(scene)
    found = {(row["client"], row["qos"]): row["reason"] for row in rows(tmp_path, Kind.DROPPED)}
    assert found == {("small", 1): "larger than the client takes", ("away", 1): "session ended", ("away", 0): "away"}
    assert counts(tmp_path)[Kind.DELIVERED, "a", "", "away"] == (1, 100)


def test_no_local_and_shared_subscriptions(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Site(journal=settings(tmp_path)) as site:
            one, two = await site.client("one"), await site.client("two")
            await one.subscribe(Subscription("a", 1, no_local=True), "$share/g/a", qos=1)
            await two.subscribe("$share/g/a", qos=1)
            for _ in range(4):
                one.send(Publish("a", b"x", 1, packet_id=one.next_id()))
            await two.messages(2)
            await two.nothing()
            got = [await one.receive() for _ in range(6)]
            one.send(*[Puback(packet.packet_id) for packet in got if isinstance(packet, Publish)])
            await one.nothing()

    run(scene)
    assert {row["value"] for row in rows(tmp_path, Kind.RECEIVED)} == {1}
    assert Counter(row["client"] for row in rows(tmp_path, Kind.DELIVERED)) == {"one": 2, "two": 2}
    found = counts(tmp_path)
    assert found[Kind.DELIVERED, "a", "", "one"] == (2, 2)
    assert found[Kind.DELIVERED, "a", "", "two"] == (2, 2)


def test_calls_and_traces(tmp_path: Path) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def scene() -> None:
        async with Site(journal=settings(tmp_path)) as site:
            service, caller = await site.client("service"), await site.client("caller")
            await service.subscribe("ask", qos=1)
            await caller.subscribe("answer/1", qos=1)
            asked = {
                Property.RESPONSE_TOPIC: "answer/1",
                Property.CORRELATION_DATA: b"42",
                Property.USER_PROPERTY: [("traceparent", trace)],
            }
            await caller.publish("ask", b"?", 1, properties=asked)
            await service.messages(1)
            await service.publish("answer/1", b"!", 1, properties={Property.CORRELATION_DATA: b"42"})
            await caller.messages(1)
            await caller.nothing()

    run(scene)
    found = rows(tmp_path, Kind.PUBLISHED, Kind.RECEIVED, Kind.DELIVERED, Kind.ACKNOWLEDGED)
    assert {row["call"] for row in found} == {call_id("answer/1", b"42")}
    assert {row["trace"] for row in found if row["topic"] == "ask"} == {"4bf92f3577b34da6a3ce929d0e0e4736"}


def test_refusals(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Site(journal=settings(tmp_path)) as site:
            client = await site.client("c")
            assert await client.publish("$SYS/x", b"1234", 1) == 0x87

    run(scene)
    (row,) = rows(tmp_path, Kind.REFUSED)
    assert (row["topic"], row["client"], row["origin"], row["bytes"]) == ("$SYS/x", "c", -1, 4)
    assert "belong to the broker" in row["reason"]
    assert counts(tmp_path)[Kind.REFUSED, "$SYS", "", ""] == (1, 4)


def test_use_is_charged_to_accounts(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("")
    access = AccessSettings(accounts={"p": "acme"})

    async def scene() -> None:
        async with Site(journal=settings(tmp_path / "j"), access=access) as site:
            subscriber, publisher = await site.client("s"), await site.client("p")
            site.broker.site.sessions.get("p").connection.user = "p"
            await subscriber.subscribe("a", qos=0)
            await publisher.publish("a", b"x", 1)
            await subscriber.messages(1)

    run(scene)
    assert {row["account"] for row in rows(tmp_path / "j", Kind.PUBLISHED)} == {"acme"}
    assert counts(tmp_path / "j")[Kind.PUBLISHED, "a", "acme", ""] == (1, 1)


def test_sampling_takes_whole_messages(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Site(journal=settings(tmp_path, TopicRule("#", "sampled", 0.25))) as site:
            subscriber, publisher = await site.client("s"), await site.client("p")
            await subscriber.subscribe("a", qos=1)
            for _ in range(20):
                publisher.send(*[Publish("a", b"x", 1, packet_id=number + 1) for number in range(200)])
                await subscriber.messages(200)
            await subscriber.nothing()

    run(scene)
    found = {kind: set(message_ids(rows(tmp_path, kind))) for kind in (Kind.PUBLISHED, Kind.DELIVERED, Kind.ACKNOWLEDGED)}
    assert 0 < len(found[Kind.PUBLISHED]) < 4000
    assert len({frozenset(ids) for ids in found.values()}) == 1
    assert counts(tmp_path)[Kind.PUBLISHED, "a", "", ""] == (4000, 4000)


def test_retained_messages_and_what_operators_do(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Site(journal=settings(tmp_path)) as site:
            publisher = await site.client("p")
            await publisher.publish("a", b"x", 1, retain=True)
            await publisher.publish("a", b"", 1, retain=True)
            site.broker.context.journal.managed(site.broker.site.sessions.get("p").connection, "mesh", do="drain")

    run(scene)
    assert [(row["topic"], row["value"]) for row in rows(tmp_path, Kind.RETAINED_CHANGED)] == [("a", 1), ("a", 0)]
    (row,) = rows(tmp_path, Kind.MANAGED)
    assert (row["client"], row["reason"]) == ("p", "mesh")
    assert '"do": "drain"' in row["detail"]
