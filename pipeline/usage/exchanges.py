"""The job `exchanges`: what services of the interchange have sent each other, by account, product, day and role (rows IH1, IH3).

    originator      the account of the service that sent a message
    recipient       the account of the service that got it

Accounts are those of the parties of the tariffs (`[[party]] services`); a service that is nobody's has the account "". A product is a
`[[service]]` whose `exchanges` fit the service that got the message, else the first level of its name. The table is apart from `usage`,
whose sums are those of the counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any

from ..billing.rating import Usage
from ..billing.tariff import Role, Tariffs
from .job import tariffs_of

if TYPE_CHECKING:
    from ..context import Context
    from ..tables.tables import Tables

HOPS, TABLE = "service_hops", "service_usage"


def run(context: Context) -> None:
    """Write `service_usage`."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    if context.tables.version(HOPS) is None:
        return  # there is no interchange
    parties = (F.coalesce(name, F.lit("")).alias(name) for name in ("sender", "receiver"))
    groups = context.table(HOPS).select("date", *parties, "size").groupBy("date", "sender", "receiver")
    sums = groups.agg(F.count("*").alias("messages"), F.sum("size").alias("bytes")).collect()
    tariffs = tariffs_of(context)
    made: dict[tuple[str, str, str, str], list[int]] = {}
    for row in sums:
        for role, account in accounts_of(row.sender, row.receiver, tariffs):
            total = made.setdefault((row.date, account, tariffs.product_of(row.receiver), role.value), [0, 0])
            total[0] += row.messages
            total[1] += row.bytes
    keys = ("date", "account", "service", "role")
    rows = [dict(zip(keys, key, strict=True)) | {"messages": count, "bytes": size} for key, (count, size) in sorted(made.items())]
    schema = pa.schema([*((key, pa.string()) for key in keys), ("messages", pa.int64()), ("bytes", pa.int64())])
    context.write_arrow(TABLE, pa.Table.from_pylist(rows, schema))


def accounts_of(sender: str, receiver: str, tariffs: Tariffs) -> Iterator[tuple[Role, str]]:
    """Who is charged for a message between two services, as what."""
    yield Role.ORIGINATOR, tariffs.account_of_service(sender)
    yield Role.RECIPIENT, tariffs.account_of_service(receiver)


def hops_of(tables: Tables, tariffs: Tariffs, used: Usage, last: date, most: int) -> list[dict[str, Any]]:
    """The hops behind usage, of the days from `used.day` to `last`: `most` of them at most."""
    import pyarrow.compute as pc

    if tables.version(HOPS) is None:
        return []
    found: list[dict[str, Any]] = []
    days = (pc.field("date") >= str(used.day)) & (pc.field("date") <= str(last))
    for batch in tables.dataset(HOPS).to_batches(columns=["hop", "sender", "receiver", "size", "given"], filter=days):
        for row in batch.to_pylist():
            sender, receiver = row["sender"] or "", row["receiver"] or ""
            charged = (used.role, used.account) in accounts_of(sender, receiver, tariffs)
            if charged and tariffs.product_of(receiver) == used.service and len(found) < most:
                found.append({**row, "sender": sender, "receiver": receiver})
    return found


__all__ = ["HOPS", "TABLE", "accounts_of", "hops_of", "run"]
