"""Invoices of a month from a made journal: they add up, lead to their messages, and a second run changes nothing."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline.billing.job import lists, read_usage
from mqmesh.pipeline.billing.rating import Period, invoices
from mqmesh.pipeline.billing.store import Invoices
from mqmesh.pipeline.billing.tariff import read_tariffs
from mqmesh.pipeline.run import Order, run
from mqmesh.pipeline.tables.tables import Tables

if TYPE_CHECKING:
    from mqmesh.pipeline.synthesis.synthesize import Made
    from pyspark.sql import SparkSession

TARIFFS = """
currency = "EUR"
[tax]
name = "VAT"
percent = "23"
[[tariff]]
name = "plant"
accounts = ["plant"]
flat = "10.00"
[[tariff.price]]
tiers = [{ upto = 100, price = "0" }, { price = "0.01" }]
[[tariff]]
name = "others"
minimum = "5"
[[tariff.price]]
per = "kB"
price = "0.02"
pays = { originator = "0.5", recipient = "0.5" }
"""
EXCHANGED = """
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
[[tariff.price]]
services = ["credit"]
price = "0.50"
pays = { originator = "0.5", recipient = "0.5" }
"""


@pytest.fixture(scope="module")
def billed(spark: SparkSession, journal: tuple[Path, Made], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Order]:
    """The output folder after one run."""
    out = tmp_path_factory.mktemp("billed")
    (out / "tariffs.toml").write_text(TARIFFS)
    order = Order(str(journal[0]), str(out / "tables"), ("invoices",), options={"usage.tariffs": str(out / "tariffs.toml")})
    summary = run(order)
    assert not summary.failed, [job.error for job in summary.jobs]
    return out / "tables", order


def content(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in sorted((out / "invoices").rglob("*"))
        if path.suffix != ".parquet" and path.is_file() and "_manifest" not in path.parts
    }


def lines(out: Path) -> list[dict[str, Any]]:
    return Tables(out).arrow("invoice_lines").to_pylist()


def test_lines_add_up_to_what_is_asked(billed: tuple[Path, Order]) -> None:
    out = billed[0]
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for row in lines(out):
        sums[row["invoice"]] += Decimal(row["amount"])
    asked = {one.number: one.total for one in Invoices(Place(out)).all()}
    assert set(asked) == set(sums) == {f"INV-2025-01-{account}" for account in ("fleet", "lab", "office", "plant", "shop")}
    for number, net in sums.items():
        assert asked[number] == net + (net * 23 / 100).quantize(Decimal("0.01"), rounding="ROUND_HALF_UP")


def test_lines_are_the_usage_of_the_month(billed: tuple[Path, Order]) -> None:
    out = billed[0]
    used: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in Tables(out).arrow("usage").to_pylist():
        used[row["account"], row["service"], row["role"]] += row["bytes"]
    charged = {(row["account"], row["service"], row["role"]): row["bytes"] for row in lines(out) if row["role"]}
    assert charged == {key: size for key, size in used.items() if key in charged}
    wanted = {key for key in used if key[0] not in ("", "plant") or (key[0] == "plant" and key[2] == "originator")}
    assert set(charged) == wanted


def test_each_line_leads_to_its_messages(billed: tuple[Path, Order]) -> None:
    out = billed[0]
    looked = 0
    for row in lines(out):
        if row["role"] == "originator":
            text = (out / row["folder"] / "lines" / f"{row['line']}.csv").read_text()
            listed = list(csv.DictReader(io.StringIO(text)))
            assert sum(int(one["count"]) for one in listed) == row["messages"]
            assert sum(int(one["bytes"]) for one in listed) == row["bytes"]
            assert all(one["topic"].split("/")[0] == row["service"] for one in listed)
            assert f'href="lines/{row["line"]}.csv"' in (out / row["folder"] / "invoice.html").read_text()
            looked += 1
    assert looked > 5


def test_a_second_run_changes_no_byte(billed: tuple[Path, Order]) -> None:
    out, order = billed
    before, rows = content(out), lines(out)
    assert len(before) > 20
    assert not run(order).failed
    assert content(out) == before
    assert lines(out) == rows


def test_a_run_without_tariffs_says_so(spark: SparkSession, journal: tuple[Path, Made], tmp_path: Path) -> None:
    summary = run(Order(str(journal[0]), str(tmp_path), ("usage", "charged", "invoices")))
    assert summary.jobs[-1].error == "invoices need tariffs: --set usage.tariffs=FILE"


def test_exchanges_of_services_are_charged_and_listed(tmp_path: Path) -> None:
    """[IH3] What services of the interchange have sent each other: a line for each product and role, which leads to its hops."""
    file = tmp_path / "tariffs.toml"
    file.write_text(EXCHANGED)
    tariffs, tables = read_tariffs(file), Tables(tmp_path)
    keys = ("date", "account", "service", "role", "messages", "bytes")
    days = ("2026-11-02", "2026-11-30", "2026-12-01")
    charged = (("acme", "originator", 2), ("lender", "recipient", 3))
    exchanged = [(day, account, "credit", role, count, 10 * count) for day in days for account, role, count in charged]
    tables.write_arrow("usage", pa.Table.from_pylist([dict(zip(keys, ("2026-11-02", "acme", "plant", "originator", 7, 70), strict=True))]))
    tables.write_arrow("service_usage", pa.Table.from_pylist([dict(zip(keys, row, strict=True)) for row in exchanged]))
    hops = [
        {"date": day, "hop": f"{number}{day}", "sender": sender, "receiver": receiver, "size": 10, "given": 1_793_000_000_000_000 + number}
        for day in days
        for number, (sender, receiver) in enumerate([("shop/a", "bank/x"), ("shop/b", "bank/y"), ("bank/x", "shop/a"), ("other", "bank/x")])
    ]
    tables.write_arrow("service_hops", pa.Table.from_pylist(hops))
    made = {one.account: one for one in invoices(tariffs, read_usage(tables), Period(2026, 11))}
    assert {name: [(line.service, line.messages, line.amount) for line in one.lines] for name, one in made.items()} == {
        "acme": [("credit", 4, Decimal("1.00"))],
        "lender": [("credit", 6, Decimal("1.50"))],
    }
    for account, numbers in (("acme", (0, 1)), ("lender", (0, 1, 3))):
        found = list(csv.DictReader(io.StringIO(lists(tables, made[account], tariffs, 100)[1])))
        assert [row["message"] for row in found] == [f"{number}{day}" for number in numbers for day in days[:2]]
        assert [(row["topic"], row["recipient"], row["bytes"]) for row in found[:3:2]] == [
            ("shop/a", "bank/x", "10"),
            ("shop/b", "bank/y", "10"),
        ]
    assert lists(tables, made["acme"], tariffs, 3)[1].count("\n") == 1 + 3
