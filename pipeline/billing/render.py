"""An invoice as HTML, CSV and PDF. The same invoice gives the same bytes, so that a repeated run changes nothing.

PDF needs fpdf2 (the extra `mqmesh[invoices]`). Its built-in fonts know Latin-1 only. Where matplotlib is installed, its DejaVu font is
embedded, which knows most scripts. Without it other characters become `?`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from datetime import UTC, datetime, time
from html import escape
from pathlib import Path
from typing import Any

from ...base.extras import install
from .describe import HEADINGS, cells, days, facts, sums
from .rating import Invoice
from .tariff import Tariffs

Links = Mapping[int, str]  # number of a line, from 1 -> where its messages are listed, relative to the invoice

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; width: 100%; margin: 1.5rem 0 }
th, td { text-align: left; padding: .35rem .5rem; border-bottom: 1px solid #d5dae0; vertical-align: top }
.number { text-align: right; font-variant-numeric: tabular-nums }
.facts { width: auto } .facts th { font-weight: 500; color: #57606a; padding-right: 2rem }
tfoot td { border: 0 } tfoot tr:last-child td { font-weight: 600; border-top: 2px solid #1b1f24 }
small { color: #57606a }
"""
_NUMBERS = {"quantity", "price", "share", "amount"}
COLUMNS = ("invoice", "account", "line", *HEADINGS[:2], "role", "first", "last", *HEADINGS[2:], "currency", "exact", "messages", "bytes")
WIDTHS = (34, 44, 30, 20, 22, 14, 26)  # millimetres of the columns of a PDF


class MissingLibrary(Exception):
    """One line that says which extra is missing."""


def as_html(invoice: Invoice, tariffs: Tariffs, links: Links | None = None) -> str:
    """The invoice as one HTML page without scripts. links: where the messages of a line are listed."""
    links = links or {}
    rows = []
    for number, line in enumerate(invoice.lines, 1):
        row = []
        for heading, text in zip(HEADINGS, cells(line), strict=True):
            shown = escape(text)
            if heading == "what":
                shown += f"<br><small>{escape(days(line))}</small>" if days(line) else ""
                shown += f' <a href="{escape(links[number], quote=True)}">messages</a>' if number in links else ""
            row.append(f"<td{_class(heading)}>{shown}</td>")
        rows.append(f"<tr>{''.join(row)}</tr>")
    above = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts(invoice, tariffs.seller))
    below = "".join(
        f'<tr><td colspan="{len(HEADINGS) - 1}" class="number">{escape(name)}</td><td class="number">{escape(text)}</td></tr>'
        for name, text in sums(invoice, tariffs.currency, tariffs.tax_name, tariffs.tax)
    )
    head = "".join(f"<th{_class(heading)}>{heading}</th>" for heading in HEADINGS)
    seller = "<br>".join(escape(text) for text in (tariffs.seller.name, *tariffs.seller.address) if text)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(invoice.number)}</title><style>{_STYLE}</style></head>\n"
        f'<body><p>{seller}</p><h1>Invoice</h1>\n<table class="facts">{above}</table>\n'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{chr(10).join(rows)}</tbody>\n<tfoot>{below}</tfoot></table></body></html>\n"
    )


def _class(heading: str) -> str:
    return ' class="number"' if heading in _NUMBERS else ""


def as_csv(invoice: Invoice, tariffs: Tariffs) -> str:
    """The lines of the invoice as CSV, with numbers that a program reads; the sums follow as lines of their own."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    whole = {"invoice": safe(invoice.number), "account": safe(invoice.account), "currency": tariffs.currency}
    for number, line in enumerate(invoice.lines, 1):
        row = dict(zip(HEADINGS, map(safe, cells(line)), strict=True))
        if line.role is not None:
            row |= {
                "role": line.role.value,
                "first": str(line.first),
                "last": str(line.last),
                "messages": str(line.messages),
                "bytes": str(line.bytes),
            }
        writer.writerow(whole | row | {"line": str(number), "exact": f"{line.exact:f}"})
    for name, amount in (("sum", invoice.net), ("tax", invoice.tax), ("total", invoice.total)):
        writer.writerow(whole | {"role": name, "amount": f"{amount:f}", "exact": f"{amount:f}"})
    return out.getvalue()


def safe(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def as_pdf(invoice: Invoice, tariffs: Tariffs) -> bytes:
    """The invoice as PDF, A4. Raises MissingLibrary."""
    try:
        from fpdf import FPDF
    except ImportError:
        raise MissingLibrary(f"invoices as PDF need fpdf2: {install('invoices')}") from None
    pdf: Any = FPDF(format="A4")
    pdf.set_creation_date(datetime.combine(invoice.issued, time(), UTC))
    pdf.set_title(invoice.number)
    pdf.set_margin(10)
    family, known = _font(pdf)

    def text(value: str) -> str:
        return value if known else value.encode("latin-1", "replace").decode("latin-1")

    pdf.add_page()
    pdf.set_font(family, size=10)
    for line in (tariffs.seller.name, *tariffs.seller.address):
        if line:
            pdf.cell(0, 5, text(line), new_x="LMARGIN", new_y="NEXT")
    pdf.set_font(family, size=18)
    pdf.cell(0, 16, "Invoice", new_x="LMARGIN", new_y="NEXT")
    pdf.set_font(family, size=10)
    for name, value in facts(invoice, tariffs.seller):
        pdf.cell(40, 5.5, name)
        pdf.cell(0, 5.5, text(value), new_x="LMARGIN", new_y="NEXT")
    pdf.ln(4)
    _pdf_table(pdf, family, invoice, tariffs, text)
    return bytes(pdf.output())


def _pdf_table(pdf: Any, family: str, invoice: Invoice, tariffs: Tariffs, text: Any) -> None:
    pdf.set_font(family, size=8.5)
    align = tuple("RIGHT" if heading in _NUMBERS else "LEFT" for heading in HEADINGS)
    with pdf.table(col_widths=WIDTHS, text_align=align, borders_layout="HORIZONTAL_LINES", line_height=5, headings_style=_plain()) as table:
        for row in (HEADINGS, *map(cells, invoice.lines)):
            table.row([text(one) for one in row])
    pdf.ln(3)
    pdf.set_font(family, size=10)
    for name, value in sums(invoice, tariffs.currency, tariffs.tax_name, tariffs.tax):
        pdf.cell(150, 6, text(name), align="R")
        pdf.cell(0, 6, text(value), align="R", new_x="LMARGIN", new_y="NEXT")


def _plain() -> Any:
    """Headings in the font's only style."""
    from fpdf.fonts import FontFace

    return FontFace(emphasis="", fill_color=(240, 242, 245))


def _font(pdf: Any) -> tuple[str, bool]:
    """The font to use, and whether it knows more than Latin-1."""
    try:
        import matplotlib
    except ImportError:
        return "Helvetica", False
    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    if not file.exists():
        return "Helvetica", False
    pdf.add_font("DejaVu", fname=str(file))
    return "DejaVu", True
