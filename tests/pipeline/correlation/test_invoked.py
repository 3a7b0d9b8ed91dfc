"""Hops, calls and sessions of services, from the journal of a broker with an interchange, beside what its own queries say."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqmesh.broker.journal.kinds import Invoked, Kind, QueueState, identifier_number
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.search import Query, Search
from mqmesh.interchange.identifiers import time_of
from mqmesh.pipeline.run import Order, run
from mqmesh.pipeline.tables.tables import Tables
from support.broker_site import JumpingLoop
from support.interchange_site import InterchangeSite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARIFFS = """
currency = "EUR"
[[service]]
name = "credit"
exchanges = ["bank/*"]
[[party]]
account = "acme"
services = ["shop/*"]
[[party]]
account = "lender"
services = ["bank/*"]
[[tariff]]
name = "standard"
"""
JOURNAL = '[journal]\nfolder = "journal"\n'


async def exchanges(folder: Path) -> dict[str, Any]:
    """A request over a service on the way, one that fails, a notification, and one that nobody answers: what the poster was told."""
    async with InterchangeSite(folder, broker=JOURNAL) as site:
        shop, bank, ids = [await site.service(name) for name in ("shop/orders", "bank/credit", "map/ids")]
        told = {"good": await shop.post("request", b"12345", recipient=bank.name, service=ids.name)}
        await ids.take()
        await ids.post("response", b"123456", call=told["good"]["call"])
        await bank.take()
        await bank.post("response", b"yes", call=told["good"]["call"])
        await shop.take()
        told["bad"] = await shop.post("request", b"?", recipient=bank.name, session=told["good"]["session"])
        await bank.take()
        await bank.post("error", b"", call=told["bad"]["call"], code="no-credit", reason="not enough")
        await shop.take()
        told["news"] = await shop.post("notification", b"news", recipient=bank.name)
        await bank.take()
        refused = await shop.post("request", b"what", recipient="no/body")
        assert refused["code"]
        told["open"] = await shop.post("request", b"", recipient=bank.name)
        await bank.take()
    return told


def written(folder: Path) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        told: dict[str, Any] = runner.run(exchanges(folder))
    return told


def test_a_journal_has_each_delivery_and_each_end(tmp_path: Path) -> None:
    """[M1, M10] Also where nobody runs the pipeline."""
    told = written(tmp_path)
    every = [row for table in Journal(str(tmp_path / "journal")).tables() for row in table.to_pylist()]
    rows = [row for row in every if row["kind"] == Kind.INVOKED]
    names = {0: "", **Journal(str(tmp_path / "journal")).names()}
    good = [row for row in rows if row["call"] == identifier_number(told["good"]["call"])]
    given = [(names[row["reason"]], names[row["recipient"]], row["size"]) for row in good if row["value"] == Invoked.DELIVERED]
    assert given == [("request", "map/ids", 5), ("request", "bank/credit", 6), ("response", "shop/orders", 3)]
    assert [names[row["reason"]] for row in good if row["value"] == Invoked.ENDED] == ["answered"]
    assert {row["session"] for row in good} == {identifier_number(told["good"]["session"])}
    assert {row["published"] for row in good} == {1000 * time_of(told["good"]["call"])}
    (posted, *_) = rows
    assert (names[posted["reason"]], names[posted["client"]], posted["size"], posted["value"]) == (
        "request",
        "shop/orders",
        5,
        Invoked.POSTED,
    )
    charged = [(names[row["client"]], names[row["account"]]) for row in good]
    assert charged.count(("shop/orders", "shop")) == 4, "posted, delivered twice, ended"
    assert set(charged) == {("shop/orders", "shop"), ("map/ids", "map"), ("bank/credit", "bank")}
    (refused,) = [row for row in every if row["kind"] == Kind.REFUSED]
    assert (names[refused["client"]], refused["size"], "no/body" in refused["detail"]) == ("shop/orders", 4, True)
    assert len({row["hop"] for row in good if row["hop"]}) == 3
    puts = [row for row in every if row["kind"] == Kind.QUEUE_STATE and row["value"] == QueueState.PUT]
    hops = [(row["call"], row["session"], row["hop"]) for row in rows if row["value"] == Invoked.DELIVERED]
    assert Counter((row["call"], row["session"], row["hop"]) for row in puts) == Counter(hops)
    found = Search(Journal(str(tmp_path / "journal"))).find(Query(call=identifier_number(told["good"]["call"])))
    assert len(found.messages) == 3
    assert {QueueState.PUT, QueueState.GET, QueueState.DONE} <= set(found.events.column("value").to_pylist())
    assert not [row for row in rows if row["call"] == identifier_number(told["open"]["call"]) and row["value"] == Invoked.ENDED]


def test_hops_calls_and_sessions(spark: SparkSession, tmp_path: Path) -> None:
    """[M1, M2, M3]"""
    told = written(tmp_path)
    out = tmp_path / "out"
    tariffs = tmp_path / "tariffs.toml"
    tariffs.write_text(TARIFFS)
    for jobs in (("invoked",), ("exchanges", "health")):  # a second run replaces
        summary = run(Order(str(tmp_path / "journal"), str(out), jobs, options={"usage.tariffs": str(tariffs)}))
        assert not summary.failed, [job.error for job in summary.jobs]
    calls = {row["call"]: row for row in Tables(str(out)).arrow("service_calls").to_pylist()}
    assert set(calls) == {one["call"] for one in told.values()}
    good, bad, news, still = (calls[told[name]["call"]] for name in ("good", "bad", "news", "open"))
    assert [one["status"] for one in (good, bad, news, still)] == ["answered", "failed", "delivered", "open"]
    assert [one["kind"] for one in (good, bad, news, still)] == ["request", "request", "notification", "request"]
    assert (good["sender"], good["recipients"], good["hops"], good["bytes"]) == ("shop/orders", ["bank/credit"], 3, 14)
    assert [one["service"] for one in good["route"]] == ["map/ids", "bank/credit"]
    assert (bad["code"], bad["reason"]) == ("no-credit", "not enough")
    assert still["ended"] is None
    assert good["ended"] >= good["published"]
    hops = Tables(str(out)).arrow("service_hops").to_pylist()
    assert len(hops) == sum(one["hops"] for one in calls.values())
    way = sorted((one for one in hops if one["call"] == good["call"]), key=lambda one: one["given"])
    assert [(one["sender"], one["receiver"], one["kind"], one["size"]) for one in way] == [
        ("shop/orders", "map/ids", "request", 5),
        ("shop/orders", "bank/credit", "request", 6),
        ("bank/credit", "shop/orders", "response", 3),
    ]
    assert [one["status"] for one in way][:2] == ["completed", "completed"]
    sessions = {row["session"]: row for row in Tables(str(out)).arrow("service_sessions").to_pylist()}
    both = sessions[told["good"]["session"][:16]]
    assert (both["calls"], both["complete"]) == (sorted([good["call"], bad["call"]]), False)
    assert [one["size"] for one in both["executed"] if one["call"] == good["call"]] == [5, 6, 3]
    assert [one["service"] for one in both["calculated"]] == ["map/ids", "bank/credit", "bank/credit"]
    assert both["services"] == ["bank/credit", "map/ids", "shop/orders"]
    assert sessions[told["open"]["session"][:16]]["ended"] is None
    health = {row["name"]: row["found"] for row in Tables(str(out)).arrow("health").to_pylist() if row["job"] == "invoked"}
    assert health == {"deliveries to services": len(hops), "calls of services": 4, "deliveries of calls": len(hops)}
    used: Counter[tuple[str, str, str]] = Counter()
    for row in Tables(str(out)).arrow("service_usage").to_pylist():
        used[row["account"], row["service"], row["role"]] += row["messages"]
    to_bank = sum(one["receiver"] == "bank/credit" for one in hops)
    to_shop = sum(one["receiver"] == "shop/orders" for one in hops)
    assert used == {
        ("acme", "credit", "originator"): to_bank,
        ("lender", "credit", "recipient"): to_bank,
        ("acme", "map", "originator"): 1,
        ("", "map", "recipient"): 1,
        ("lender", "shop", "originator"): to_shop,
        ("acme", "shop", "recipient"): to_shop,
    }


def test_there_is_no_interchange(spark: SparkSession, little: Path, tmp_path: Path) -> None:
    assert not run(Order(str(little), str(tmp_path), ("invoked",))).failed
    assert "service_calls" not in Tables(str(tmp_path)).names()
