"""When an archive has its turns: each hour, day, week or second week, in UTC. Weeks begin on Monday.

What it does not know: queues. Times are milliseconds since 1970.
"""

from __future__ import annotations

HOUR = 3_600_000
DAY = 24 * HOUR
MONDAY = 4 * DAY  # the first one, 1970-01-05
NEVER = ""
PERIODS = {"hourly": (HOUR, 0), "daily": (DAY, 0), "weekly": (7 * DAY, MONDAY), "biweekly": (14 * DAY, MONDAY)}


def turn_from(period: str, at: int) -> int:
    """The first turn at a time or after it."""
    length, first = PERIODS[period]
    return at + (first - at) % length
