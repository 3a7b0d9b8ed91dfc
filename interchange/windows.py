"""Delivery windows: the minutes of the day, in a time zone, in which messages are pushed to a service (us-9037726, l. 202)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = 60_000  # milliseconds


def opens_in(windows: Iterable[tuple[int, int]], zone: str, now: int) -> int:
    """Milliseconds until a window is open; 0: one is, or there are none.

    windows: minutes of the day, from and before; one that ends before it begins goes over midnight. now: milliseconds since 1970. An hour
    that a change of clocks leaves out or repeats is as the zone has it.
    """
    listed = tuple(windows)
    if not listed:
        return 0
    place = ZoneInfo(zone)
    today = datetime.fromtimestamp(now / 1000, place).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    waits = []
    for day in (today - timedelta(days=1), today, today + timedelta(days=1), today + timedelta(days=2)):
        for begin, end in listed:
            start, stop = (_moment(day, minutes, place) for minutes in (begin, end if end > begin else end + 1440))
            if start <= now < stop:
                return 0
            if start > now:
                waits.append(start - now)
    return min(waits)


def _moment(day: datetime, minutes: int, place: ZoneInfo) -> int:
    return int((day + timedelta(minutes=minutes)).replace(tzinfo=place).timestamp() * 1000)
