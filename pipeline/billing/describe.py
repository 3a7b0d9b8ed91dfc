"""What the three forms of an invoice say in the same words."""

from __future__ import annotations

from decimal import Decimal

from .rating import Invoice, Line
from .tariff import Role, Seller

HEADINGS = ("service", "what", "quantity", "unit", "price", "share", "amount")
_ROLES = {Role.ORIGINATOR: "published", Role.RECIPIENT: "received", Role.INTERMEDIARY: "passed on"}


def plain(number: Decimal) -> str:
    """A decimal without an exponent and without zeros at its end."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def what(line: Line) -> str:
    """What a line charges, in a few words."""
    if line.role is None:
        return line.text
    return f"{_ROLES[line.role]}, {line.text}" if line.text else _ROLES[line.role]


def days(line: Line) -> str:
    """The days of a line's usage; "": it has none."""
    if line.first is None or line.last is None:
        return ""
    return str(line.first) if line.first == line.last else f"{line.first} to {line.last}"


def cells(line: Line) -> tuple[str, ...]:
    """A line as texts, in the order of `HEADINGS`."""
    if line.role is None:
        return ("", line.text, "", "", "", "", f"{line.amount:f}")
    share = "" if line.share == 1 else plain(line.share)
    return (line.service, what(line), plain(line.quantity), line.unit, plain(line.price), share, f"{line.amount:f}")


def sums(invoice: Invoice, currency: str, tax_name: str, tax: Decimal) -> list[tuple[str, str]]:
    """The last rows: sum, tax, total."""
    rows = [("sum", f"{invoice.net:f} {currency}")]
    if tax:
        rows.append((f"{tax_name} {plain(tax)} %", f"{invoice.tax:f} {currency}"))
    return [*rows, ("total", f"{invoice.total:f} {currency}")]


def facts(invoice: Invoice, seller: Seller) -> list[tuple[str, str]]:
    """The rows above the table."""
    made = [
        ("invoice", invoice.number),
        ("account", invoice.account),
        ("period", f"{invoice.period.first} to {invoice.period.last} (UTC)"),
        ("tariff", invoice.tariff),
        ("date", str(invoice.issued)),
        ("due", str(invoice.due)),
    ]
    return [*made, ("tax number", seller.tax_number)] if seller.tax_number else made
