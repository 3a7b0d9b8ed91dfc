"""Messages between services of the interchange: whose they are, and which of them stand behind a line of an invoice (row IH3)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any

from .rating import Usage
from .tariff import Role, Tariffs

if TYPE_CHECKING:
    from ..tables.tables import Tables

HOPS = "service_hops"  # the table of these messages
TABLE = "service_usage"  # their sums, as `usage` has those of the counters


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
