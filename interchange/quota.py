"""How much of each service may be open at a home: calls, and bytes that are kept of them."""

from __future__ import annotations

from collections import Counter

from .refusals import Code, Refusal

CALLS = 100_000
BYTES = 256 << 20


class Quota:
    """What is open, by sender. calls, size: of one sender, at most; the last call may be larger than what is left."""

    def __init__(self, calls: int = CALLS, size: int = BYTES) -> None:
        self._most_calls, self._most_bytes = calls, size
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self._calls or self._bytes)

    def check(self, sender: str) -> None:
        """Raise Refusal if a service may not begin one more call."""
        if self._calls[sender] >= self._most_calls:
            raise Refusal(Code.OVER_LIMIT, f"{self._most_calls:,} calls of {sender} are open", "post again when some have ended")
        if self._bytes[sender] >= self._most_bytes:
            text = f"open calls of {sender} have {self._most_bytes:,} bytes"
            raise Refusal(Code.OVER_LIMIT, text, "post again when some have ended")

    def opened(self, sender: str) -> None:
        """A call of a sender is open."""
        self._calls[sender] += 1

    def grown(self, sender: str, size: int) -> None:
        """So many bytes more are kept of its open calls."""
        self._bytes[sender] += size

    def closed(self, sender: str, size: int) -> None:
        """A call of so many bytes is open no more."""
        self._calls[sender] -= 1
        self._bytes[sender] -= size
        if not self._calls[sender]:
            del self._calls[sender], self._bytes[sender]
