"""Management of sites of a mesh, from one of them: who is asked, who is believed, and what is said of those that do not answer."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from mqmesh.broker.auth.roles import Grant, ManagementSettings, Rights, Role
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.management.asked import asked
from mqmesh.broker.management.errors import Refused
from mqmesh.broker.management.wire import ASK, Asker, Doorkeeper, Question, decode_part, encode_part, encode_question
from mqmesh.mesh.wire.keys import Signer
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until
from support.management import BELIEVING, EVERYBODY, ask, manager, role

KEY = "a key of sixteen bytes"


def settings(*peers: Site) -> MeshSettings:
    return MeshSettings("m", KEY, peers=[PeerSettings(site.broker.addresses[0]) for site in peers])


async def linked(*sites: Site) -> None:
    """Each knows all, and the links are up at both ends."""
    await until(lambda: all(sum(one.live for one in site.broker.site.mesh.node.members()) == len(sites) for site in sites))


@pytest.mark.parametrize("stored", [True, False])
async def test_lists_of_one_site_and_of_all(stored: bool) -> None:
    store = MemoryStore if stored else lambda: None
    async with (
        Site(mesh=(1, settings()), management=EVERYBODY, store=store()) as one,
        Site(mesh=(2, settings(one)), management=BELIEVING, store=store()) as two,
        Site(mesh=(3, settings(two)), management=BELIEVING, store=store()) as three,
    ):
        await linked(one, two, three)
        for site, count in ((one, 1), (two, 5), (three, 3)):
            for number in range(count):
                await site.client(f"client-{number}")
        client = await manager(one)
        answer = await ask(client, list="clients", at="site3")
        assert [(row["site"], row["client"]) for row in answer["rows"]] == [("site3", f"client-{number}") for number in range(3)]
        found: list[Any] = []
        cursor = None
        while True:
            answer = await ask(client, list="clients", at="*", where={"client": "client-*"}, limit=2, cursor=cursor)
            assert (answer["total"], answer["missing"], answer["refused"]) == (9, {}, {})
            assert {name: one["total"] for name, one in answer["sites"].items()} == {"site1": 1, "site2": 5, "site3": 3}
            found += [(row["client"], row["site"]) for row in answer["rows"]]
            cursor = answer["cursor"]
            if cursor is None:
                break
        everything = [(f"client-{n}", f"site{s}") for s, count in ((1, 1), (2, 5), (3, 3)) for n in range(count)]
        assert found == sorted(everything)
        links = (await ask(client, list="links", at=["1", "site2"]))["rows"]
        assert [(row["site"], row["name"]) for row in links] == [("site2", "site1"), ("site1", "site2"), ("site2", "site3")]
        assert all(row["up"] and row["bytes_in"] > 0 and row["bytes_out"] > 0 for row in links)
        brokers = (await ask(client, list="brokers"))["rows"]
        hops = [(row["name"], row["hops"], row["via"]) for row in brokers]
        assert hops == [
            ("site1", 0, None),
            ("site2", 1, "site2"),
            ("site3", 2, "site2"),
        ]


async def test_links_count_messages_each_way() -> None:
    async with Site(mesh=(1, settings()), management=EVERYBODY) as one, Site(mesh=(2, settings(one)), management=BELIEVING) as two:
        await linked(one, two)
        there = await two.client()
        await there.subscribe("t")
        await until(lambda: one.broker.site.mesh.node.interested("t") > 0)
        publisher = await one.client()
        before = {row["site"]: row for row in (await ask(await manager(one), list="links", at="*"))["rows"]}
        for _ in range(7):
            await publisher.publish("t", b"x")
        await there.messages(7)
        after = {row["site"]: row for row in (await ask(await manager(one, "again"), list="links", at="site1"))["rows"]}
        assert after["site1"]["messages_out"] - before["site1"]["messages_out"] >= 7
        assert sum(end.received for end in two.broker.site.mesh.node._core.links.values()) >= 7
        node = one.broker.site.mesh.node
        assert node.counters.sent == sum(end.sent for end in node._core.links.values())


async def test_routes_name_the_sites_that_want_a_topic() -> None:
    async with Site(mesh=(1, settings()), management=EVERYBODY) as one, Site(mesh=(2, settings(one)), management=BELIEVING) as two:
        await linked(one, two)
        there = await two.client()
        await there.subscribe("plant/#", "$share/g/plant/1")
        await until(lambda: one.broker.site.mesh.node.interested("plant/1") > 0)
        answer = await ask(await manager(one), list="routes", where={"topic": "plant/1"})
        assert ("site2", "site", True, "interest") in [(row["to"], row["kind"], row["gets"], row["why"]) for row in answer["rows"]]


async def test_a_site_believes_whom_it_says() -> None:
    async with (
        Site(mesh=(1, settings()), management=EVERYBODY) as one,
        Site(mesh=(2, settings(one)), management=ManagementSettings()) as two,
        Site(mesh=(3, settings(one)), management=ManagementSettings(("site2",))) as three,
    ):
        await linked(one, two, three)
        client = await manager(one)
        assert "site2: this site does not believe site1" in (await ask(client, list="clients", at="site2"))["error"]
        answer = await ask(client, list="clients", at="*")
        assert set(answer["refused"]) == {"site2", "site3"}
        assert [row["site"] for row in answer["rows"]] == ["site1"]


async def test_each_site_decides_by_its_own_rules_too() -> None:
    """What the asked site grants the user for there, and what that site grants the user itself, both count."""
    viewers = ManagementSettings(("*",), (Grant(Role.VIEWER),))
    async with (
        Site(mesh=(1, settings()), management=role("operator", sites=("site1", "site3"))) as one,
        Site(mesh=(2, settings(one)), management=viewers) as two,
        Site(mesh=(3, settings(one)), management=BELIEVING) as three,
        Site(mesh=(4, settings(one)), management=BELIEVING) as four,
    ):
        await linked(one, two, three, four)
        client = await manager(one)
        answer = await ask(client, list="clients", at="*")
        assert set(answer["sites"]) == {"site1", "site2", "site3"}
        assert set(answer["refused"]) == {"site4"}


async def test_sites_that_do_not_answer_are_named() -> None:
    async with Site(mesh=(1, settings()), management=EVERYBODY) as one, Site(mesh=(2, settings(one)), management=BELIEVING) as two:
        async with Site(mesh=(3, settings(one)), management=BELIEVING) as three:
            await linked(one, two, three)
        await until(lambda: not one.broker.site.mesh.node.reachable(3))
        two.broker.site.mesh.peer_messages._handlers[ASK] = Deaf()
        client = await manager(one)
        answer = await ask(client, list="clients", at="*", within=0.1)
        assert answer["missing"] == {"site2": "no answer within 0.1 s", "site3": "out of reach"}
        assert "site3: out of reach" in (await ask(client, list="clients", at="3"))["error"]
        assert "not a site" in (await ask(client, list="clients", at="mars"))["error"]
        answer = await ask(client, list="clients", at=["site1", "mars"])
        assert answer["missing"] == {"mars": "not a site that is known here"}
        assert not one.broker.management._open


class Deaf:
    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        pass

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        pass


SIGNER = Signer(bytes(32))


def question(**changes: Any) -> Question:
    values: dict[str, Any] = {"origin": 7, "number": b"n" * 16, "sites": frozenset({1, 2}), "sent": 1000.0}
    who = Asker("client", "ops", "127.0.0.1:5", Rights((Grant(Role.OPERATOR, None, ("lyon",), ("a/#",)),)))
    return Question(**{**values, **changes}, asker=who, asked=asked({"list": "sessions", "where": {"client": "x"}, "sort": "-bytes"}))


def test_questions_between_brokers_are_signed_and_count_once() -> None:
    body = encode_question(question(), SIGNER)
    door = Doorkeeper(1, lambda number: SIGNER.public if number == 7 else None)
    assert door.read(7, body, 1001.0) == question()
    for origin, sent, wall, text in ((7, body, 1001.0, "already"), (8, body, 1001.0, "not signed")):
        with pytest.raises(Refused, match=text):
            door.read(origin, sent, wall)
    forged = encode_question(question(number=b"m" * 16), Signer(bytes(31) + b"\1"))
    with pytest.raises(Refused, match="not signed"):
        door.read(7, forged, 1001.0)
    with pytest.raises(Refused, match="other sites"):
        Doorkeeper(3, lambda _: SIGNER.public).read(7, body, 1001.0)
    for wall in (2000.0, 100.0):
        with pytest.raises(Refused, match="clock"):
            Doorkeeper(1, lambda _: SIGNER.public).read(7, body, wall)
    for junk in (b"", b"\xc0", b"\x92\xc4\x00\xc4\x00", json.dumps({}).encode(), body[:-9]):
        with pytest.raises(Refused, match="cannot be read"):
            door.read(7, junk, time.time())


def test_parts_are_checked() -> None:
    assert decode_part(encode_part(b"n", {"error": "x"})) == (b"n", {"error": "x"})
    for junk in (b"", b"\xc0", encode_part(b"n", {}), encode_part(b"n", {"rows": []})):
        with pytest.raises(Refused, match="cannot be read"):
            decode_part(junk)


@pytest.mark.parametrize("stored", [(False, True), (True, True), (True, False)])
async def test_an_action_at_a_site_with_a_store_is_answered_once_it_is_kept(stored: tuple[bool, bool]) -> None:
    here, there = (MemoryStore() if one else None for one in stored)
    async with (
        Site(mesh=(1, settings()), management=EVERYBODY, store=here) as one,
        Site(mesh=(2, settings(one)), management=BELIEVING, store=there) as two,
    ):
        await linked(one, two)
        client = await manager(one)
        for number in range(3):
            away = await two.client(f"away-{number}", expiry=3600)
            await away.cut()
            await two.gone(f"away-{number}")
            answer = await ask(client, do_="end-session", at="site2", client=f"away-{number}")
            assert "ends" in answer["done"]["site2"]
