"""The three forms of an invoice say the same, and say it the same way each time."""

from __future__ import annotations

import csv
import io
from datetime import date
from decimal import Decimal
from html.parser import HTMLParser

from mqmesh.pipeline.billing.rating import Invoice, Period, Usage, invoice
from mqmesh.pipeline.billing.render import as_csv, as_html, as_pdf
from mqmesh.pipeline.billing.tariff import Price, Role, Seller, Tariff, Tariffs, Tier

TARIFFS = Tariffs(
    seller=Seller("Example & Sons", ("1 Wharf Road", "Πόρτο"), "PT 123"),
    tax_name="VAT",
    tax=Decimal(23),
    tariffs=(
        Tariff(
            "standard",
            ("*",),
            Decimal(10),
            Decimal(25),
            (Price(("*",), "message", (Tier(1000, Decimal(0)), Tier(None, Decimal("0.002"))), ((Role.ORIGINATOR, Decimal(1)),)),),
        ),
    ),
)


def made(account: str = "acme <b>", service: str = "=plant") -> Invoice:
    usage = [Usage(account, service, date(2026, 11, day), Role.ORIGINATOR, 1000, 5000) for day in (3, 4)]
    found = invoice(TARIFFS, account, usage, Period(2026, 11))
    assert found is not None
    return found


class Text(HTMLParser):
    """Collects texts and links, and checks that elements nest."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_is_well_formed_and_escaped() -> None:
    page = Text()
    page.feed(as_html(made(), TARIFFS, {2: 'lines/2.csv?a="b"'}))
    assert not page.open
    assert page.links == ['lines/2.csv?a="b"']
    said = " ".join(page.texts)
    for text in (
        "Example & Sons",
        "acme <b>",
        "monthly fee",
        "published, above 1000",
        "VAT 23 %",
        "5.75 EUR",
        "30.75 EUR",
        "2026-11-03 to 2026-11-04",
    ):
        assert text in said, text


def test_csv_has_exact_numbers_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(made(), TARIFFS))))
    assert [row["amount"] for row in rows] == ["10.00", "0.00", "2.00", "13.00", "25.00", "5.75", "30.75"]
    assert rows[2]["service"] == "'=plant"
    assert (rows[2]["messages"], rows[2]["bytes"], rows[2]["exact"]) == ("2000", "10000", "2.000")
    assert [row["role"] for row in rows[-3:]] == ["sum", "tax", "total"]


def test_pdf_is_the_same_each_time() -> None:
    one, other = as_pdf(made(), TARIFFS), as_pdf(made(), TARIFFS)
    assert one == other
    assert one.startswith(b"%PDF-")
    assert one.rstrip().endswith(b"%%EOF")


def test_a_long_invoice_has_pages() -> None:
    usage = [Usage("acme", f"service-{n}", date(2026, 11, 3), Role.ORIGINATOR, 5000, 1) for n in range(120)]
    found = invoice(TARIFFS, "acme", usage, Period(2026, 11))
    assert found is not None
    assert as_pdf(found, TARIFFS).count(b"/Type /Page\n") > 3
