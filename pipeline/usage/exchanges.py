"""The job `exchanges`: what services of the interchange have sent each other, by account, product, day and role (rows IH1, IH3).

    originator      the account of the service that sent a message
    recipient       the account of the service that got it

Accounts are those of the parties of the tariffs (`[[party]] services`); a service that is nobody's has the account "". A product is a
`[[service]]` whose `exchanges` fit the service that got the message, else the first level of its name. The table is apart from `usage`,
whose sums are those of the counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..billing.exchanges import HOPS, TABLE, accounts_of
from .job import tariffs_of

if TYPE_CHECKING:
    from ..context import Context


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
