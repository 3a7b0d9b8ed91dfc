"""How many messages each service with a limit has posted here this month (UTC), in one commit with the posts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgpack

from ..refusals import Code, Refusal

if TYPE_CHECKING:
    from .keeping import Keeping


class Limits:
    """The monthly limits of services at one home."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._posted: dict[str, tuple[int, int]] = {}  # service -> month, messages

    def restore(self, kept: dict[str, bytes]) -> None:
        """Take up what an earlier process has counted."""
        for service, value in kept.items():
            month, count = msgpack.unpackb(value)
            self._posted[service] = month, count

    def check(self, service: str, limit: int, now: int) -> None:
        """Raise Refusal over-limit if a service has posted all that it may this month. now: milliseconds since 1970."""
        if self._count(service, now) >= limit:
            raise Refusal(
                Code.OVER_LIMIT, f"{service} has posted {limit:,} messages this month", "post again next month, or have it raised"
            )

    def count(self, service: str, now: int) -> None:
        """It has posted one more."""
        self._posted[service] = _month(now), self._count(service, now) + 1
        self._keeping.put_posted(service, msgpack.packb(self._posted[service]))

    def _count(self, service: str, now: int) -> int:
        month, count = self._posted.get(service, (0, 0))
        return count if month == _month(now) else 0


def _month(now: int) -> int:
    at = datetime.fromtimestamp(now / 1000, UTC)
    return 12 * at.year + at.month
