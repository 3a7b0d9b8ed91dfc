"""What became of messages, asked over MQTT: by whom, by what, at one site and from any of two (docs/interchange.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.interchange import ANSWER, QUERY
from mqmesh.broker.auth.passwords import change
from mqmesh.interchange.correlation import tables
from mqmesh.interchange.correlation.questions import read_question
from mqmesh.interchange.shell import correlation
from mqmesh.interchange.shell.correlation import Correlation
from mqmesh.mqtt.packets import Puback, Publish
from support.broker_site import until
from support.interchange_http import Web
from support.interchange_site import InterchangeSite, Service

from .test_two_sites import TwoSites

SERVICES = """
[services."shop/orders"]
users = ["shop"]
identifiers = {order = {json = "$.order.id"}}
[services."shop/returns"]
users = ["sue"]
[services."bank/credit"]
users = ["bank"]
[services."bank/loans"]
users = ["bank"]
[services."map/ids"]
users = ["map"]
"""
ACCESS = '[access]\nusers = "users"\n'
USERS = ("shop", "sue", "bank", "map", "nobody")


def site_of(folder: Path) -> InterchangeSite:
    folder.mkdir(exist_ok=True)
    (folder / "users").touch()
    for user in USERS:
        change(folder / "users", user, "secret")
    return InterchangeSite(folder, SERVICES, ACCESS)


async def service(site: InterchangeSite, name: str, user: str = "") -> Service:
    return await site.service(name, user or name.partition("/")[0], password=b"secret")


async def ask(who: Service, **question: Any) -> dict[str, Any]:
    """What the interchange answers a query with."""
    client = who.client
    client.send(Publish(QUERY, json.dumps(question).encode(), 1, packet_id=client.next_id()))
    answer, acknowledged = None, False
    while answer is None or not acknowledged:
        packet = await client.receive()
        if isinstance(packet, Puback):
            acknowledged = True
        else:
            assert isinstance(packet, Publish), packet
            client.send(Puback(packet.packet_id))
            if packet.topic == ANSWER:  # what was not acknowledged before a restart comes as well
                answer = packet
    found: dict[str, Any] = json.loads(answer.payload)
    return found


async def exchange(shop: Service, bank: Service, body: bytes = b"{}", **fields: Any) -> dict[str, Any]:
    """A request of the shop that the bank answers: its identifiers."""
    told = await shop.post("request", body, recipient=bank.name, **fields)
    await bank.take()
    await bank.post("response", b"yes", call=told["call"])
    await shop.take()
    return told


def calls(answer: dict[str, Any]) -> list[str]:
    return [one["call"] for one in answer["calls"]]


async def test_a_call_is_told_with_its_hops(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        shop, bank = await service(site, "shop/orders"), await service(site, "bank/credit")
        told = await exchange(shop, bank, b'{"order": {"id": 17}}', handle="h-1", topic="credit")
        [found] = (await ask(shop, call=told["call"]))["calls"]
        assert {key: found[key] for key in ("call", "session", "kind", "sender", "status", "topic", "handle")} == {
            **told,
            "kind": "request",
            "sender": "shop/orders",
            "status": "answered",
            "topic": "credit",
            "handle": "h-1",
        }
        assert found["identifiers"] == [{"name": "order", "value": "17", "service": "shop/orders"}]
        [branch] = found["recipients"]
        assert (branch["state"], branch["route"]) == ("answered", [{"service": "bank/credit", "revision": 0}])
        hops = [(one["service"], one["kind"], one["size"], one["status"]) for one in branch["hops"]]
        assert hops == [("bank/credit", "request", 21, "completed"), ("shop/orders", "response", 3, "completed")]
        assert [(one["received"], one["sent"]) for one in branch["hops"]] == [("mqtt-5", "mqtt")] * 2
        [seen] = (await ask(bank, call=told["call"]))["calls"]
        assert not {"handle", "identifiers"} & seen.keys(), "they are the shop's own"


async def test_each_question_finds_what_is_asked_for(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        shop, bank = await service(site, "shop/orders"), await service(site, "bank/credit")
        first = await exchange(shop, bank, b'{"order": {"id": 17}}')
        waits = await shop.post("request", b"", recipient="bank/loans", call=first["call"])
        other = await shop.post("request", b"", recipient="map/ids")
        await shop.post("cancel", call=other["call"])
        asked = {
            first["call"]: [{"status": "answered"}, {"identifier": {"name": "order", "value": "17"}}, {"service": "bank/credit"}],
            waits["call"]: [{"status": "open"}, {"route": "bank/loans"}],
            other["call"]: [{"status": "cancelled"}, {"session": other["session"]}],
        }
        for call, questions in asked.items():
            for question in questions:
                assert calls(await ask(shop, **question)) == [call], question
        whole = await ask(shop, session=first["session"])
        assert calls(whole) == [waits["call"], first["call"]]
        [session] = whole["sessions"]
        assert (session["calls"], session["open"], session["ended"]) == (2, 1, None)
        newest = await ask(shop, limit=2)
        assert calls(newest) == [other["call"], waits["call"]]
        assert calls(await ask(shop, limit=2, cursor=newest["cursor"])) == [first["call"]]
        at = whole["calls"][1]["created"]
        assert calls(await ask(shop, until=at)) == []
        assert len(calls(await ask(shop, since=at))) == 3


@pytest.mark.parametrize(
    "question", [{"call": "x"}, {"session": "1"}, {"status": "lost"}, {"limit": -1}, {"cursor": "no"}, {"what": 1}, {"identifier": {}}]
)
async def test_wrong_questions_are_refused(tmp_path: Path, question: dict[str, Any]) -> None:
    async with site_of(tmp_path) as site:
        shop = await service(site, "shop/orders")
        assert (await ask(shop, **question))["code"] == "not-well-formed"


async def test_an_answer_is_written_at_once(tmp_path: Path) -> None:
    """It is found in a thread: the broker would not write it before it next looks at its connections."""
    events: list[str] = []
    tables_of_one = Correlation(tmp_path, 1, 1000, lambda: 0, None, lambda: events.append("written"))
    tables_of_one.ask(["shop"], read_question(b"{}"), lambda found: events.append("told"))
    await until(lambda: "told" in events)
    assert events == ["told", "written"]
    tables_of_one.close()


async def test_who_may_ask(tmp_path: Path) -> None:
    """Services of three organisations, and a user of none: what is another's is as if it did not exist, for each question."""
    async with site_of(tmp_path) as site:
        shop, bank = await service(site, "shop/orders"), await service(site, "bank/credit")
        sue, stranger = await service(site, "shop/returns", "sue"), await service(site, "map/ids")
        told = await exchange(shop, bank, b'{"order": {"id": 17}}', handle="h-1")
        later = await bank.post("notification", b"", recipient="bank/loans", session=told["session"])
        questions: list[dict[str, Any]] = [
            {},
            {"call": told["call"]},
            {"session": told["session"]},
            {"service": "bank/credit"},
            {"route": "bank/credit"},
            {"status": "answered"},
            {"since": 0},
            {"identifier": {"name": "order", "value": "17"}},
        ]
        for question in questions:
            for one in (shop, sue):
                assert told["call"] in calls(await ask(one, **question)), (one.name, question)
            assert (told["call"] in calls(await ask(bank, **question))) != ("identifier" in question), question
            strange = await ask(stranger, **question)
            assert strange == {"calls": [], "sessions": [], "missing": {}}, question
            nothing = question | {key: "0" * len(question[key]) for key in ("call", "session") if key in question}
            assert await ask(stranger, **nothing) == strange
        assert later["call"] in calls(await ask(sue, session=told["session"])), "all of a session that the organisation takes part in"
        nobody = await site.client("nobody", password=b"secret")
        await nobody.subscribe(ANSWER, qos=1)
        assert (await ask(Service(nobody, "")))["code"] == "not-permitted"


async def test_what_a_kill_has_kept_from_the_tables_is_there_after_the_start(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        shop, bank = await service(site, "shop/orders"), await service(site, "bank/credit")
        told = await exchange(shop, bank)
    for left in (tmp_path / "data").glob("correlation.db*"):
        left.unlink()
    async with site_of(tmp_path) as site:
        assert calls(await ask(await service(site, "shop/orders"))) == [told["call"]]


async def test_refused_posts_are_written_down(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        shop = await service(site, "shop/orders")
        assert (await shop.post("request", b"", recipient="bank/none"))["code"] == "unknown-service"
    rows = tables.connect(tmp_path / "data" / "correlation.db").execute("SELECT user, client, code FROM refused").fetchall()
    assert rows == [("shop", "shop", "unknown-service")]


async def test_what_a_full_disk_does_not_take_is_written_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(correlation, "SOON", 0.01)
    monkeypatch.setattr(correlation, "AGAIN", 0.01)
    async with site_of(tmp_path) as site:
        shop, bank = await service(site, "shop/orders"), await service(site, "bank/credit")
        first = await exchange(shop, bank)
        kept = site.inside._correlation
        assert kept is not None
        assert calls(await ask(shop)) == [first["call"]]
        pages = kept._writer.execute("PRAGMA page_count").fetchone()[0]
        kept._writer.execute(f"PRAGMA max_page_count = {pages}")  # as a full disk
        told = [await exchange(shop, bank) for _ in range(60)]
        assert (await shop.post("request", b"", recipient="bank/none"))["code"] == "unknown-service"
        await until(lambda: any("event=correlation-waits" in one.getMessage() for one in caplog.records))
        kept._writer.execute("PRAGMA max_page_count = 1000000")
        reader = tables.connect(tmp_path / "data" / "correlation.db")
        await until(lambda: reader.execute("SELECT count(*) FROM calls WHERE status = 'answered'").fetchone() == (1 + len(told),))
        assert calls(await ask(shop, limit=100)) == [one["call"] for one in reversed([first, *told])]
    rows = tables.connect(tmp_path / "data" / "correlation.db").execute("SELECT code FROM refused").fetchall()
    assert rows == [("unknown-service",)]
    assert any("event=correlation-written" in one.getMessage() for one in caplog.records)
    assert not [one for one in caplog.records if one.exc_info]


async def test_damaged_tables_are_named_and_exchanges_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with site_of(tmp_path) as site:
        shop, bank = await service(site, "shop/orders"), await service(site, "bank/credit")
        for _ in range(30):
            await exchange(shop, bank)
    file = tmp_path / "data" / "correlation.db"
    assert file.stat().st_mode & 0o777 == 0o600
    with file.open("r+b") as written:
        for page in range(8192, file.stat().st_size, 4096):
            written.seek(page)
            written.write(b"damaged")
    async with site_of(tmp_path) as site:
        shop, bank = await service(site, "shop/orders"), await service(site, "bank/credit")
        told = await exchange(shop, bank)
        for question in ({}, {"call": told["call"]}, {"session": told["session"]}):
            answer = await ask(shop, **question)
            assert (answer["calls"], list(answer["missing"].values())) == ([], ["its tables cannot be read; its log says why"])
    for event in ("correlation-lost", "query-failed"):
        [line] = [one for one in caplog.records if f"event={event} " in one.getMessage()]
        assert line.exc_info is None
        assert "malformed" in line.getMessage()


async def test_refused_posts_of_one_user_fill_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mqmesh.interchange.shell.correlation.MOST_OF_ONE", 3)
    async with site_of(tmp_path) as site:
        shop = await service(site, "shop/orders")
        bank = await service(site, "bank/credit")
        for number in range(5):
            await shop.post("request", b"", recipient=f"bank/none{number}")
        await bank.post("request", b"", recipient="bank/none")
        assert site.inside._correlation is not None
        monkeypatch.setattr(site.inside._correlation, "_now", lambda: site.inside.now() + 60_000)
        await shop.post("request", b"", recipient="bank/more")
    rows = tables.connect(tmp_path / "data" / "correlation.db").execute("SELECT user, what FROM refused").fetchall()
    assert [user for user, _ in rows] == ["shop", "shop", "shop", "bank", "shop"]
    assert rows[-1][1].endswith("(left_out=2 of an earlier minute)")
    assert [one.levelname for one in caplog.records if "event=post-refused" in one.getMessage()].count("WARNING") == 1


async def test_a_session_is_told_from_any_site(tmp_path: Path) -> None:
    async with TwoSites(tmp_path) as mesh:
        shop, bank = await mesh.at("porto", "shop/orders"), await mesh.at("lyon", "bank/credit")
        first = await shop.post("request", b"?", recipient="bank/credit")
        await bank.take()
        second = await bank.post("request", b"?", recipient="map/ids", session=first["session"])
        assert first["session"] == second["session"]
        for who in (shop, bank):
            answer = await ask(who, session=first["session"])
            assert (calls(answer), answer["missing"]) == ([second["call"], first["call"]], {})
        assert calls(await ask(bank, call=first["call"])) == [first["call"]]
        porto = mesh.sites["porto"].broker.site.mesh
        assert porto is not None
        await mesh.stop("lyon")
        await until(lambda: not porto.node.live() & 1 << 2)
        answer = await ask(shop, session=first["session"])
        assert (calls(answer), answer["missing"]) == ([first["call"]], {"lyon": "out of reach"})


async def test_a_hop_says_by_which_protocol_it_was_posted(tmp_path: Path) -> None:
    services = SERVICES + 'delivery = "poll"\n'
    async with InterchangeSite(tmp_path, services.replace('"shop"', '"*"'), interchange='http = "http://127.0.0.1:0"') as site:
        assert site.inside.faces is not None
        web = Web(site.inside.faces.url)
        told = await web.post({"kind": "request", "sender": "shop/orders", "recipients": ["map/ids"], "body": "?"})
        assert told.status == 200, told
        shop = await site.service("shop/orders")
        [found] = (await ask(shop, call=told.body["call"]))["calls"]
        assert [(one["received"], one["sent"]) for one in found["recipients"][0]["hops"]] == [("http", "poll")]
        await shop.post("cancel", call=told.body["call"])
        [found] = (await ask(shop, call=told.body["call"]))["calls"]
        hops = found["recipients"][0]["hops"]
        assert [one.get("received") for one in hops] == ["http", None], "the interchange itself tells of a cancel"
