"""A transport above another one: what TLS and WebSocket have in common, and hand down as it is."""

from __future__ import annotations

import asyncio
from typing import Any


class Layer(asyncio.Transport):
    """`NAME`: under which `get_extra_info` gives this layer. _closing: nothing more is read or written for the protocol above."""

    __slots__ = ("_closing", "_protocol", "_under")

    NAME = ""

    def __init__(self) -> None:
        super().__init__()
        self._under: asyncio.Transport = None  # type: ignore[assignment]
        self._protocol: Any = None
        self._closing = False

    def is_closing(self) -> bool:
        return self._closing or self._under.is_closing()

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol  # type: ignore[no-any-return]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == self.NAME:
            return self
        return self._under.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._under.pause_reading()

    def resume_reading(self) -> None:
        self._under.resume_reading()

    def is_reading(self) -> bool:
        return self._under.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._under.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._under.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._under.get_write_buffer_limits()
