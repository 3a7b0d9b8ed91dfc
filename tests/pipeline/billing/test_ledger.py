"""Who has paid: from invoices and payments to the file that brokers read."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.base.standing import OPEN, OVERDUE, PAID, read_standings
from mqmesh.pipeline.billing.ledger import Due, Payment, read_payments, standings, written

NOVEMBER = Due("INV-2026-11-acme", "acme", date(2026, 12, 15), Decimal("30.75"), "EUR")
DECEMBER = Due("INV-2026-12-acme", "acme", date(2027, 1, 15), Decimal("10"), "EUR")
OTHER = Due("INV-2026-11-bee", "bee", date(2026, 12, 15), Decimal("1"), "EUR")


def paid(one: Due, amount: str, day: date = date(2026, 12, 10)) -> Payment:
    return Payment(one.number, day, Decimal(amount))


def test_an_invoice_is_open_then_overdue_then_paid() -> None:
    on_time = standings([NOVEMBER, OTHER], [], date(2026, 12, 15))
    assert on_time.of("acme").standing == OPEN
    assert on_time.refusal("acme") is None
    late = standings([NOVEMBER, OTHER], [paid(OTHER, "1")], date(2026, 12, 16))
    assert late.of("acme").standing == OVERDUE
    assert late.refusal("acme") == "the account acme is overdue since 2026-12-16: 30.75 EUR for INV-2026-11-acme"
    assert late.of("bee").standing == PAID
    assert late.overdue == {"acme"}
    assert standings([NOVEMBER], [paid(NOVEMBER, "30.75")], date(2026, 12, 16)).of("acme").standing == PAID


def test_a_part_is_not_enough_and_a_payment_counts_from_its_day() -> None:
    payments = [paid(NOVEMBER, "30"), paid(NOVEMBER, "0.75", date(2026, 12, 20))]
    assert standings([NOVEMBER], payments, date(2026, 12, 19)).of("acme").owed == "0.75 EUR"
    assert standings([NOVEMBER], payments, date(2026, 12, 20)).of("acme").standing == PAID


def test_one_paid_too_much_does_not_pay_another() -> None:
    found = standings([NOVEMBER, DECEMBER], [paid(NOVEMBER, "100")], date(2027, 1, 16)).of("acme")
    assert (found.standing, found.owed, found.invoices, found.since) == (OVERDUE, "10 EUR", ("INV-2026-12-acme",), "2027-01-16")


def test_who_is_not_named_is_served() -> None:
    made = standings([NOVEMBER], [], date(2027, 1, 1))
    assert made.refusal("stranger") is None
    assert made.refusal(None) is None


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = standings([NOVEMBER, OTHER], [paid(OTHER, "1")], date(2026, 12, 16))
    path = tmp_path / "standing.json"
    path.write_text(made.dumped())
    assert read_standings(path) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "version is missing"),
        ('{"version": 2}', "version = 2"),
        ('{"version": 1, "accounts": []}', "accounts = []"),
        ('{"version": 1, "accounts": {"a": {"standing": "late"}}}', 'accounts.a.standing = "late": give paid, open or overdue'),
        ('{"version": 1, "accounts": {"a": {"standing": "paid", "since": "now"}}}', "accounts.a.since"),
    ],
)
def test_mistakes_of_the_file_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "standing.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_standings(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_payments_are_read_as_they_were_written() -> None:
    some = [paid(NOVEMBER, "30.75"), paid(OTHER, "-1")]
    assert read_payments(written(some), "payments.csv") == some


@pytest.mark.parametrize(("line", "said"), [("a,b", "line 1"), ("a,today,1", "line 1, day"), ("a,2026-12-01,much", "line 1, amount")])
def test_mistakes_in_payments_are_named(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"payments.csv: {said}"):
        read_payments(line, "payments.csv")
