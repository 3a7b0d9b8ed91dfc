"""The codec in one place: `decode` (bytes to packet, also in steps) and `encode` (packet to bytes)."""

from __future__ import annotations

from .decode import check_first_byte, decode, decode_in_steps
from .encode import encode

__all__ = ["check_first_byte", "decode", "decode_in_steps", "encode"]
