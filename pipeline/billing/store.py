"""Where invoices stand: files below the output folder, which any program can read, and a list of them.

    invoices/2026-11/acme/invoice.html, .pdf, .csv
    invoices/2026-11/acme/lines/2.csv                the messages behind line 2, where they are journalled
    invoices/2026-11/index.json                      numbers, accounts, amounts and due dates of the month
    payments/                                        payments, as CSV files: invoice, day, amount

The index is written last: a month is there whole, or as it was before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from decimal import Decimal, InvalidOperation
from urllib.parse import quote
from uuid import uuid4

from ...base.settings import ConfigError
from ...broker.journal.place import Place
from .ledger import Due, Payment, read_payments, written
from .rating import Invoice
from .render import MissingLibrary, as_csv, as_html, as_pdf
from .tariff import Tariffs

FOLDER = "invoices"
PAYMENTS = "payments"


def folder_of(invoice: Invoice) -> str:
    """Where an invoice stands. An account's name may have any characters; here it has those of a URL."""
    return f"{FOLDER}/{invoice.period}/{quote(invoice.account, safe='').replace('.', '%2E')}"


class Invoices:
    """The invoices below a root, a folder or URL."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def write(self, invoice: Invoice, tariffs: Tariffs, lists: dict[int, str]) -> list[str]:
        """Write one in all forms. lists: number of a line -> CSV of its messages. Returns the names of the files.

        Without fpdf2 there is no PDF.
        """
        folder = folder_of(invoice)
        links = {number: f"lines/{number}.csv" for number in lists}
        files = {f"{folder}/{link}": lists[number].encode() for number, link in links.items()}
        files[f"{folder}/invoice.csv"] = as_csv(invoice, tariffs).encode()
        files[f"{folder}/invoice.html"] = as_html(invoice, tariffs, links).encode()
        with suppress(MissingLibrary):
            files[f"{folder}/invoice.pdf"] = as_pdf(invoice, tariffs)
        for name, data in files.items():
            self.place.write(name, data)
        for name in self.place.files(folder, ""):  # of an earlier run that had more lines
            if name not in files:
                self.place.remove(name)
        return list(files)

    def finish(self, period: object, made: Iterable[Invoice], tariffs: Tariffs) -> None:
        """Write the index of a month, and remove the invoices that it does not name any more."""
        some = list(made)
        rows = [
            {
                "number": one.number,
                "account": one.account,
                "due": str(one.due),
                "total": f"{one.total:f}",
                "currency": tariffs.currency,
                "folder": folder_of(one),
            }
            for one in some
        ]
        kept = tuple(f"{folder_of(one)}/" for one in some)
        self.place.write(f"{FOLDER}/{period}/index.json", (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode())
        for name in self.place.files(f"{FOLDER}/{period}", ""):
            if not name.startswith(kept) and not name.endswith("/index.json"):
                self.place.remove(name)

    def all(self) -> list[Due]:
        """Every invoice, by number. Raises ConfigError."""
        made = []
        for name in self.place.files(FOLDER, "index.json"):
            try:
                rows = json.loads(self.place.read(name))
                made += [
                    Due(row["number"], row["account"], date.fromisoformat(row["due"]), Decimal(row["total"]), row["currency"])
                    for row in rows
                ]
            except (ValueError, KeyError, TypeError, InvalidOperation) as error:
                raise ConfigError(self.place.url(name), "", "", f"is no list of invoices: {error}; run the job `invoices` again") from None
        return sorted(made, key=lambda one: one.number)

    def payments(self) -> list[Payment]:
        """What was paid. Raises ConfigError."""
        made = []
        for name in sorted(self.place.files(PAYMENTS, ".csv")):
            made += read_payments(self.place.read(name).decode("utf-8-sig", "replace"), self.place.url(name))
        return made

    def pay(self, payment: Payment) -> None:
        """Note a payment, in a file of its own, so that two at once are both kept. Raises ConfigError where the invoice is not known."""
        numbers = [one.number for one in self.all()]
        if payment.invoice not in numbers:
            known = f"; the last one is {numbers[-1]}" if numbers else "; there is none"
            raise ConfigError(self.place.url(FOLDER), "invoice", payment.invoice, f"give the number of an invoice{known}")
        self.place.write(f"{PAYMENTS}/{payment.day}-{uuid4().hex[:12]}.csv", written([payment]).encode())
