"""The job `invoices`: from the table `usage` to invoices in three forms, each line with the messages behind it.

Options: `usage.tariffs` (needed), `invoices.month` (as 2026-11; without it every month of the run that has ended), `invoices.messages` (how
many rows the list of a line has at most).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from ...base.settings import ConfigError
from ...broker.journal.kinds import MessageId
from ..errors import PipelineError
from .exchanges import TABLE as EXCHANGES
from .exchanges import hops_of
from .rating import Invoice, Line, Period, Usage, invoices
from .render import safe
from .store import Invoices, folder_of
from .tariff import Role, Tariffs, read_tariffs

if TYPE_CHECKING:
    from ..context import Context
    from ..tables.tables import Tables

TARIFFS, MONTH = "usage.tariffs", "invoices.month"
LISTED = 100_000  # rows of a list of messages
COLUMNS = ("message", "count", "published", "topic", "recipient", "bytes")


def run(context: Context) -> None:
    """Write the invoices of each month, and the table `invoice_lines` with their lines."""
    path = context.options.get(TARIFFS)
    if path is None:
        raise PipelineError(f"invoices need tariffs: --set {TARIFFS}=FILE")
    try:
        tariffs = read_tariffs(path)
        month = context.options.get(MONTH)
        wanted = Period.parse(month) if month else None
    except (ConfigError, ValueError) as error:
        raise PipelineError(str(error)) from None
    used = read_usage(context.tables)
    today = datetime.fromtimestamp(context.now / 1e6, UTC).date()
    store, rows = Invoices(context.tables.place), []
    periods = [wanted] if wanted is not None else months(used, context.dates, today)
    for period in periods:
        context.say(f"invoices of {period}")
        made = invoices(tariffs, used, period)
        for one in made:
            store.write(one, tariffs, lists(context.tables, one, tariffs, context.option("invoices.messages", LISTED)))
            rows += list(as_rows(one, tariffs))
        store.finish(period, made, tariffs)
        context.counts["invoices"] = context.counts.get("invoices", 0) + len(made)
    write_lines(context, rows, periods)


def months(used: list[Usage], dates: list[str] | None, today: date) -> list[Period]:
    """The months of usage that have ended. dates: of the run; None: all."""
    days = {one.day for one in used if dates is None or str(one.day) in dates}
    return [period for period in sorted({Period.of(day) for day in days}, key=str) if period.after <= today]


def read_usage(tables: Tables) -> list[Usage]:
    """The tables `usage` and, where there is an interchange, `service_usage`. Raises PipelineError when the first one is not there."""
    found = tables.arrow("usage").to_pylist()
    if tables.version(EXCHANGES) is not None:
        found += tables.arrow(EXCHANGES).to_pylist()
    return [
        Usage(row["account"], row["service"], date.fromisoformat(row["date"]), Role(row["role"]), row["messages"], row["bytes"])
        for row in found
    ]


def lists(tables: Tables, invoice: Invoice, tariffs: Tariffs, most: int) -> dict[int, str]:
    """Number of a line -> its messages as CSV; lines of which no message is journalled have none."""
    made: dict[int, str] = {}
    known: dict[tuple[str, Role], str] = {}
    for number, line in enumerate(invoice.lines, 1):
        if line.role is not None:
            key = (line.service, line.role)
            if key not in known:
                known[key] = _listed(tables, invoice, line, tariffs, most)
            if known[key]:
                made[number] = known[key]
    return made


def _listed(tables: Tables, invoice: Invoice, line: Line, tariffs: Tariffs, most: int) -> str:
    rows = _messages(tables, invoice, line, most)
    rows += _hops(tables, invoice, line, tariffs, most - len(rows))
    if not rows:
        return ""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for message, count, published, topic, recipient, size in sorted(rows, key=lambda row: (row[2], row[0])):
        moment = datetime.fromtimestamp(published // 1_000_000, UTC).replace(microsecond=published % 1_000_000)
        writer.writerow([message, count, moment.isoformat(timespec="microseconds"), safe(topic), safe(recipient), size])
    return out.getvalue()


def _messages(tables: Tables, invoice: Invoice, line: Line, most: int) -> list[tuple[Any, ...]]:
    """`COLUMNS` of the messages behind a line."""
    import pyarrow.compute as pc

    assert line.role is not None
    if tables.version("charged") is None:
        return []
    chosen = (pc.field("account") == invoice.account) & (pc.field("service") == line.service) & (pc.field("role") == line.role.value)
    chosen = chosen & (pc.field("date") >= str(invoice.period.first)) & (pc.field("date") <= str(invoice.period.last))
    made = []
    for row in tables.dataset("charged").head(most, filter=chosen).to_pylist():
        message = MessageId(row["origin"], row["origin_epoch"], row["stream"], row["sequence"]) if row["origin"] >= 0 else ""
        made.append((str(message), row["count"], row["published"], row["topic"], row["recipient"], row["bytes"]))
    return made


def _hops(tables: Tables, invoice: Invoice, line: Line, tariffs: Tariffs, most: int) -> list[tuple[Any, ...]]:
    """The same of what services of the interchange have sent each other: the message is a hop, the topic its sender."""
    assert line.role is not None
    used = Usage(invoice.account, line.service, invoice.period.first, line.role, line.messages, line.bytes)
    found = hops_of(tables, tariffs, used, invoice.period.last, most)
    return [(row["hop"], 1, row["given"], row["sender"], row["receiver"], row["size"]) for row in found]


def as_rows(invoice: Invoice, tariffs: Tariffs) -> Iterator[dict[str, Any]]:
    """The lines of an invoice as rows of the table `invoice_lines`. Money is text: exact, and any program reads it."""
    for number, line in enumerate(invoice.lines, 1):
        yield {
            "date": str(invoice.period.first),
            "invoice": invoice.number,
            "account": invoice.account,
            "line": number,
            "service": line.service,
            "role": line.role.value if line.role is not None else "",
            "text": line.text,
            "unit": line.unit,
            "quantity": f"{line.quantity:f}",
            "price": f"{line.price:f}",
            "share": f"{line.share:f}",
            "amount": f"{line.amount:f}",
            "currency": tariffs.currency,
            "messages": line.messages,
            "bytes": line.bytes,
            "folder": folder_of(invoice),
        }


def write_lines(context: Context, rows: list[dict[str, Any]], periods: list[Period]) -> None:
    """Replace the rows of these months in the table `invoice_lines`."""
    import pyarrow as pa

    numbers = ("line", "messages", "bytes")
    names = (
        "date", "invoice", "account", "line", "service", "role", "text", "unit", "quantity", "price", "share", "amount", "currency",
        "messages", "bytes", "folder",
    )  # fmt: skip
    schema = pa.schema([(name, pa.int64() if name in numbers else pa.string()) for name in names])
    version = context.tables.write_arrow("invoice_lines", pa.Table.from_pylist(rows, schema), [str(period.first) for period in periods])
    context.counts["lines"] = len(rows)
    context.counts["files"] = len(version.files)
