"""Times as people read them."""

from __future__ import annotations

import time


def iso(wall: float) -> str:
    """A time of the wall clock, in seconds since 1970, in ISO 8601 with milliseconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall)) + f".{int(wall * 1000) % 1000:03d}Z"
