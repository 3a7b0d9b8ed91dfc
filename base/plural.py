"""Numbers of things, as people write them."""

from __future__ import annotations


def counted(count: int, noun: str, limit: str = "") -> str:
    """`counted(1, "session")` is "1 session", `counted(2000, "session", " of 5,000")` is "2,000 of 5,000 sessions". noun: singular."""
    return f"{count:,}{limit} {noun}{'s' * (count != 1 or bool(limit))}"
