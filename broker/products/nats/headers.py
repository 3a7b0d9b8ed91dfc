"""Headers of NATS messages as nats-py takes and gives them: it knows a mapping, we need each pair in its order."""

from __future__ import annotations

from typing import Any

FIRST_LINE = b"NATS/1.0"


class Headers(dict[str, str]):
    """What has come. status: empty: it is a message like any other. pairs: names and values; what is no pair or no text is left out.

    As a mapping it has what the library looks for in answers: the status, and the last value of each name.
    """

    __slots__ = ("pairs", "status")

    def __init__(self, data: bytes) -> None:
        first, *lines = data.split(b"\r\n")
        self.status = first.removeprefix(FIRST_LINE).strip()[:3].decode("ascii", "replace")
        self.pairs: list[tuple[str, str]] = []
        for line in lines:
            name, colon, value = line.partition(b":")
            try:
                if colon and name:
                    self.pairs.append((name.decode(), value.strip(b" \t").decode()))
            except UnicodeDecodeError:
                continue
        super().__init__(self.pairs)
        self.pop("Status", None)
        if self.status:
            self["Status"] = self.status


class Pairs(dict[str, str]):
    """What is sent: names may repeat."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__()
        self._pairs = pairs

    def items(self) -> Any:
        """Each pair in order: what the library writes."""
        return self._pairs
