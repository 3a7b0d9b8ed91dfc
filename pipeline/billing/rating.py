"""Rating: usage and a tariff make the lines of an invoice, in exact decimals.

Every amount is exact until its line is rounded to the currency's smallest unit (half up). The sum of an invoice is the sum of its rounded
lines, so that a reader who adds them up gets the same. Arithmetic traps what would not be exact.

Each party pays its share of the price for each message that it published, got or passed on itself. Tiers count the units of one service and
role in the whole period.
"""

from __future__ import annotations

import calendar
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact, InvalidOperation, Overflow, localcontext

from .tariff import UNITS, Price, Role, Tariff, Tariffs

# 36 figures of a quantity and price of the largest kind, and room for a share; what is not exact raises.
EXACT = Context(prec=96, traps=[Inexact, InvalidOperation, Overflow])


@dataclass(frozen=True, slots=True)
class Usage:
    """What one account used of one service on one day in one role. bytes: payload bytes of these messages."""

    account: str
    service: str
    day: date
    role: Role
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Period:
    """A calendar month (UTC)."""

    year: int
    month: int

    @classmethod
    def of(cls, day: date) -> Period:
        return cls(day.year, day.month)

    @classmethod
    def parse(cls, text: str) -> Period:
        """From `2026-11`. Raises ValueError, one line."""
        year, _, month = text.partition("-")
        if not (year.isdigit() and month.isdigit() and len(year) == 4 and 1 <= int(month) <= 12 and int(year) > 1969):
            raise ValueError(f'"{text[:40]}" is no month: write it as 2026-11')
        return cls(int(year), int(month))

    @property
    def first(self) -> date:
        return date(self.year, self.month, 1)

    @property
    def last(self) -> date:
        return date(self.year, self.month, calendar.monthrange(self.year, self.month)[1])

    @property
    def after(self) -> date:
        """The first day that is not in it any more: invoices have this date."""
        return self.last + timedelta(days=1)

    def __str__(self) -> str:
        return f"{self.year}-{self.month:02}"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an invoice.

    quantity: units of `unit`, exact. price: of one unit. share: the part of it that this role pays. exact: the amount before rounding.
    amount: what is charged. first, last: days of the usage. messages, bytes: of the service and role, in all tiers together.
    role, first, last: None in a flat fee or a minimum charge.
    """

    text: str
    service: str = ""
    role: Role | None = None
    unit: str = ""
    quantity: Decimal = Decimal(1)
    price: Decimal = Decimal(0)
    share: Decimal = Decimal(1)
    exact: Decimal = Decimal(0)
    amount: Decimal = Decimal(0)
    first: date | None = None
    last: date | None = None
    messages: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Invoice:
    """What one account owes for one month. net: the sum of the lines."""

    number: str
    account: str
    tariff: str
    period: Period
    issued: date
    due: date
    lines: tuple[Line, ...]
    net: Decimal
    tax: Decimal
    total: Decimal


def rounded(amount: Decimal, decimals: int) -> Decimal:
    """To the currency's smallest unit, half up."""
    with localcontext(EXACT) as context:
        context.traps[Inexact] = False
        return amount.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP)


def invoices(tariffs: Tariffs, usage: Iterable[Usage], period: Period) -> list[Invoice]:
    """The invoices of a month, by account. Usage of other months is left out.

    An account without a tariff, or with nothing to pay, gets none.
    """
    of_account: dict[str, list[Usage]] = defaultdict(list)
    for one in usage:
        if one.account and period.first <= one.day <= period.last:
            of_account[one.account].append(one)
    for tariff in tariffs.tariffs:  # a flat fee or minimum is due without any usage, where the account is named
        for account in tariff.accounts:
            if not set("*?") & set(account):
                of_account.setdefault(account, [])
    made = [invoice(tariffs, account, used, period) for account, used in sorted(of_account.items())]
    return [one for one in made if one is not None]


def invoice(tariffs: Tariffs, account: str, usage: Iterable[Usage], period: Period) -> Invoice | None:
    """The invoice of one account; None: nothing is due."""
    tariff = tariffs.tariff_of(account)
    if tariff is None:
        return None
    lines = list(_lines(tariffs, tariff, list(usage)))
    net = sum((line.amount for line in lines), Decimal(0))
    minimum = rounded(tariff.minimum, tariffs.decimals)
    if net < minimum:
        lines.append(Line(f"up to the minimum charge of {minimum}", exact=minimum - net, price=minimum - net, amount=minimum - net))
        net = minimum
    if not net:
        return None
    with localcontext(EXACT):
        tax = rounded(net * tariffs.tax / 100, tariffs.decimals)
    issued = period.after
    return Invoice(
        number=f"{tariffs.prefix}-{period}-{account}",
        account=account,
        tariff=tariff.name,
        period=period,
        issued=issued,
        due=issued + timedelta(days=tariffs.due_days),
        lines=tuple(lines),
        net=rounded(net, tariffs.decimals),
        tax=tax,
        total=rounded(net + tax, tariffs.decimals),
    )


def _lines(tariffs: Tariffs, tariff: Tariff, usage: list[Usage]) -> Iterator[Line]:
    if tariff.flat:
        amount = rounded(tariff.flat, tariffs.decimals)
        yield Line("monthly fee", exact=tariff.flat, price=tariff.flat, amount=amount)
    grouped: dict[tuple[str, Role], list[Usage]] = defaultdict(list)
    for one in usage:
        grouped[one.service, one.role].append(one)
    for price in tariff.prices:
        for role, share in price.shares:
            for (service, used_as), used in sorted(grouped.items()):
                if used_as == role and share and price.covers(service):
                    yield from _rated(price, share, service, role, used, tariffs.decimals)


def _rated(price: Price, share: Decimal, service: str, role: Role, used: list[Usage], decimals: int) -> Iterator[Line]:
    """The lines of one price, service and role: one for each tier that is reached."""
    messages, size = sum(one.messages for one in used), sum(one.bytes for one in used)
    first, last = min(one.day for one in used), max(one.day for one in used)
    for quantity, cost, text in _tiered(price, messages if price.per == "message" else size):
        with localcontext(EXACT):
            exact = quantity * cost * share
        amount = rounded(exact, decimals)
        yield Line(text, service, role, price.per, quantity, cost, share, exact, amount, first, last, messages, size)


def _tiered(price: Price, amount: int) -> Iterator[tuple[Decimal, Decimal, str]]:
    """Quantity in units, price of a unit and text of each tier that an amount (messages or bytes) reaches."""
    unit, below = UNITS[price.per], 0
    for tier in price.tiers:
        bound = amount if tier.upto is None else min(amount, tier.upto * unit)
        if bound > below:
            with localcontext(EXACT):
                quantity = Decimal(bound - below) / unit  # exact: units are products of 2 and 5
            first = f"above {below // unit}" if below else ""
            last = f"up to {tier.upto}" if tier.upto is not None else ""
            yield quantity, tier.price, " ".join(word for word in (first, last) if word)
            below = bound
