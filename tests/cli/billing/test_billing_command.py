"""`mqmesh billing` and `mqmesh audit` from the command line."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from mqmesh.base.standing import read_standings
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline.audit.trail import Trail
from mqmesh.pipeline.billing.rating import Period, Usage, invoices
from mqmesh.pipeline.billing.store import Invoices
from mqmesh.pipeline.billing.tariff import Role, read_tariffs
from mqmesh.pipeline.tables.tables import Tables
from support.command import run

pytestmark = pytest.mark.process

TARIFFS = """
currency = "EUR"
[[tariff]]
name = "standard"
[[tariff.price]]
tiers = [{ upto = 100, price = "0.10" }, { price = "0.01" }]
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The output of a pipeline with an invoice of November."""
    (tmp_path / "tariffs.toml").write_text(TARIFFS)
    tariffs, period = read_tariffs(tmp_path / "tariffs.toml"), Period(2026, 11)
    made = invoices(tariffs, [Usage("acme/1", "plant", date(2026, 11, 3), Role.ORIGINATOR, 200, 2000)], period)
    store = Invoices(Place(tmp_path / "out"))
    for one in made:
        store.write(one, tariffs, {1: "message\n"})
    store.finish(period, made, tariffs)
    Trail(store.place).append(Trail(store.place).state(), [{"what": "managed", "account": "ops"}, {"what": "refused"}], {(1, 1): [(1, 2)]})
    return tmp_path / "out"


def test_an_invoice_is_listed_paid_and_the_standing_written(out: Path, tmp_path: Path) -> None:
    listed = json.loads(run("billing", "invoices", "--out", out, "--on", "2026-12-20", "--json").stdout)
    assert listed == [
        {"invoice": "INV-2026-11-acme/1", "account": "acme/1", "due": "2026-12-15", "total": "11.00", "open": "11.00", "currency": "EUR"}
    ]
    assert (out / "invoices/2026-11/acme%2F1/lines/1.csv").read_text() == "message\n"
    file = tmp_path / "standing.json"
    assert run("billing", "standing", "--out", out, "--on", "2026-12-20", "--write", file).returncode == 0
    assert read_standings(file).refusal("acme/1") == "the account acme/1 is overdue since 2026-12-16: 11.00 EUR for INV-2026-11-acme/1"
    for amount, said in (("1", b"10.00 is open"), ("10.00", b"is paid")):
        done = run("billing", "paid", "INV-2026-11-acme/1", amount, "--out", out, "--on", "2026-12-19")
        assert done.returncode == 0
        assert said in done.stderr
    assert run("billing", "standing", "--out", out, "--on", "2026-12-20", "--write", file).returncode == 0
    assert read_standings(file).refusal("acme/1") is None


def test_tariffs_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "tariffs.toml"
    file.write_text(TARIFFS)
    found = json.loads(run("billing", "tariffs", file, "--json").stdout)
    assert [price["price"] for price in found["prices"]] == ["0.10", "0.01"]
    file.write_text(TARIFFS.replace('"0.10"', "0.1"))
    done = run("billing", "tariffs", file)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"mqmesh: {file}: tariff[1].price[1].tiers[1].price = 0.1: ")


def test_usage_of_a_service_is_reported(tmp_path: Path) -> None:
    import pyarrow as pa

    rows = [
        {"date": f"2026-11-0{day}", "account": account, "service": service, "role": "originator", "messages": day, "bytes": 10 * day}
        for day in (1, 2, 3)
        for account in ("acme", "bee")
        for service in ("plant", "shop")
    ]
    Tables(tmp_path).write_arrow("usage", pa.Table.from_pylist(rows))
    found = json.loads(run("billing", "usage", "--out", tmp_path, "--service", "plant", "--until", "2026-11-03", "--json").stdout)
    assert found == [
        {"account": account, "service": "plant", "role": "originator", "messages": 3, "bytes": 30} for account in ("acme", "bee")
    ]
    by_day = json.loads(
        run("billing", "usage", "--out", tmp_path, "--account", "bee", "--since", "2026-11-03", "--by-day", "--json").stdout
    )
    assert [(row["date"], row["service"], row["messages"]) for row in by_day] == [("2026-11-03", "plant", 3), ("2026-11-03", "shop", 3)]
    Tables(tmp_path).write_arrow("service_usage", pa.Table.from_pylist([rows[0] | {"service": "credit", "role": "recipient"}]))
    exchanged = json.loads(run("billing", "usage", "--out", tmp_path, "--service", "credit", "--json").stdout)
    assert exchanged == [{"account": "acme", "service": "credit", "role": "recipient", "messages": 1, "bytes": 10}]
    done = run("billing", "usage", "--out", tmp_path / "nowhere")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("paid", "INV-1", "1"), 'invoice = "INV-1": give the number of an invoice; the last one is INV-2026-11-acme/1'),
        (("paid", "INV-2026-11-acme/1", "much"), "AMOUNT much: give an amount, as 30.75"),
        (("invoices", "--on", "today"), "--on today: give a day, as 2026-12-01"),
    ],
)
def test_mistakes_are_one_line(out: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run("billing", *arguments, "--out", out)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert done.stderr.decode().count("\n") == 1


def test_the_trail_is_checked_and_shown(out: Path) -> None:
    done = run("audit", "verify", "--out", out, "--json")
    head = json.loads(done.stdout)["head"]
    assert head.startswith("2:")
    assert run("audit", "verify", "--out", out, "--head", head).stdout.decode().strip() == head
    shown = run("audit", "show", "--out", out, "--account", "ops").stdout.decode().splitlines()
    assert [json.loads(line)["what"] for line in shown] == ["managed"]
    file = next((out / "audit/trail").iterdir())
    file.write_text(file.read_text().replace("ops", "cat"))
    done = run("audit", "verify", "--out", out)
    assert (done.returncode, done.stderr.decode()) == (1, "mqmesh: audit: record 1 was changed: its hash does not fit its content\n")
    assert run("audit", "verify", "--out", out, "--head", "x").returncode == 2


def test_usage_of_a_damaged_table(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.write_arrow("usage", pa.table({"account": ["acme"], "service": ["plant"]}))
    Path(tables.paths("usage")[0]).write_bytes(b"PAR1")
    done = run("billing", "usage", "--out", tmp_path, "--account", "acme")
    assert done.returncode == 2
    assert b"usage: a file cannot be read" in done.stderr
    assert done.stderr.count(b"\n") == 1
