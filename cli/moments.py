"""Times on the command line."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def moment(option: str, value: str, now: float | None = None) -> int:
    """Microseconds since 1970 from a time (UTC) or from how long ago. Raises ValueError, one line."""
    ago = _AGO.fullmatch(value.strip())
    if ago is not None:
        return int(((time.time() if now is None else now) - float(ago[1]) * _UNITS[ago[2]]) * 1e6)
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{option} {value}: give a time (UTC) such as 2026-11-22T10:00, or how long ago, such as 10min") from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1e6)
