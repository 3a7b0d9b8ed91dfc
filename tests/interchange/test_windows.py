"""Delivery windows: open, closed, over midnight, and where clocks change."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from mqmesh.interchange.windows import opens_in

HOUR = 3_600_000
ONE_TO_TWO = ((60, 120),)


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@pytest.mark.parametrize(
    ("windows", "zone", "now", "hours"),
    [
        ((), "UTC", "2026-01-01T12:00", 0),
        (ONE_TO_TWO, "UTC", "2026-01-01T00:30", 0.5),
        (ONE_TO_TWO, "UTC", "2026-01-01T01:00", 0),
        (ONE_TO_TWO, "UTC", "2026-01-01T01:59:59", 0),
        (ONE_TO_TWO, "UTC", "2026-01-01T02:00", 23),
        (ONE_TO_TWO, "Asia/Tokyo", "2026-01-01T00:00", 1),
        (((1380, 60),), "UTC", "2026-01-01T00:30", 0),
        (((1380, 60),), "UTC", "2026-01-01T23:30", 0),
        (((1380, 60),), "UTC", "2026-01-01T01:00", 22),
        (((480, 720), (780, 1080)), "UTC", "2026-01-01T12:30", 0.5),
        (((0, 1440),), "UTC", "2026-01-01T23:59", 0),
        (ONE_TO_TWO, "Europe/Lisbon", "2026-03-29T00:00", 1),  # the hour from one to two is left out there
        (ONE_TO_TWO, "Europe/Lisbon", "2026-10-25T02:00", 23),  # and repeated here
        (ONE_TO_TWO, "Europe/Berlin", "2026-03-28T12:00", 13),
        (((180, 240),), "Europe/Berlin", "2026-03-28T12:00", 14),  # that night has an hour less
        (((180, 240),), "Europe/Berlin", "2026-10-24T12:00", 16),  # that one has one more
    ],
)
def test_a_window_opens(windows: tuple[tuple[int, int], ...], zone: str, now: str, hours: float) -> None:
    assert opens_in(windows, zone, at(now, zone)) == hours * HOUR
