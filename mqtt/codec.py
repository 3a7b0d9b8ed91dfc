"""The codec's two functions in one place: `decode` (bytes to packet) and `encode` (packet to bytes)."""

from __future__ import annotations

from .decode import check_first_byte, decode
from .encode import encode

__all__ = ["check_first_byte", "decode", "encode"]
