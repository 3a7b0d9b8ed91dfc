"""Who has paid: invoices and payments make the standing of each account.

Payments stand in CSV files, one a line: invoice, day, amount. A payment counts for its invoice only. An invoice is
overdue from the day after its due date, as long as something of it is open.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation

from ...base.settings import MISSING, ConfigError
from ...base.standing import OPEN, OVERDUE, PAID, Standing, Standings

FIELDS = ["invoice", "day", "amount"]


@dataclass(frozen=True, slots=True)
class Due:
    """What is known of an invoice without its lines."""

    number: str
    account: str
    due: date
    total: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class Payment:
    """Something that was paid for an invoice. amount: negative when money went back."""

    invoice: str
    day: date
    amount: Decimal


def open_amounts(invoices: Iterable[Due], payments: Iterable[Payment], on: date) -> dict[str, Decimal]:
    """What is open of each invoice at the end of a day; below 0: more was paid."""
    paid: dict[str, Decimal] = defaultdict(Decimal)
    for one in payments:
        if one.day <= on:
            paid[one.invoice] += one.amount
    return {one.number: one.total - paid[one.number] for one in invoices}


def standings(invoices: Iterable[Due], payments: Iterable[Payment], on: date) -> Standings:
    """The standing of each account that has an invoice. on: the day, with all that was paid until its end."""
    known = list(invoices)
    left = open_amounts(known, payments, on)
    of_account: dict[str, list[Due]] = defaultdict(list)
    for one in known:
        of_account[one.account].append(one)
    return Standings(str(on), {account: _standing(sorted(some, key=lambda one: one.due), left, on) for account, some in of_account.items()})


def _standing(invoices: list[Due], left: dict[str, Decimal], on: date) -> Standing:
    unpaid = [one for one in invoices if left[one.number] > 0]
    late = [one for one in unpaid if one.due < on]
    if not unpaid:
        return Standing(PAID)
    shown = late or unpaid
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for one in shown:
        sums[one.currency] += left[one.number]
    owed = ", ".join(f"{amount:f} {currency}" for currency, amount in sorted(sums.items()))
    numbers = tuple(one.number for one in shown)
    if late:
        return Standing(OVERDUE, str(late[0].due + timedelta(days=1)), owed, numbers)
    return Standing(OPEN, "", owed, numbers)


def read_payments(text: str, file: str) -> list[Payment]:
    """Payments from CSV. file: for errors. Raises ConfigError."""
    made = []
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row or row == FIELDS:
            continue
        if len(row) != len(FIELDS):
            raise ConfigError(file, f"line {number}", ",".join(row), f"give {', '.join(FIELDS)}")
        made.append(Payment(row[0], _day(row[1], file, number), _amount(row[2], file, number)))
    return made


def written(payments: Iterable[Payment]) -> str:
    """Payments as CSV, with a line of headings."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    writer.writerows([one.invoice, one.day, f"{one.amount:f}"] for one in payments)
    return out.getvalue()


def _day(text: str, file: str, number: int) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(file, f"line {number}, day", text, "give a day, as 2026-12-01") from None


def _amount(text: str, file: str, number: int) -> Decimal:
    try:
        found = Decimal(text)
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite():
        raise ConfigError(file, f"line {number}, amount", text or MISSING, "give an amount, as 12.30")
    return found
