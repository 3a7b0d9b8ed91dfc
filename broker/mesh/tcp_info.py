"""What the system counts of a TCP connection, so that nobody has to do it beside the messages (Linux: tcp(7), TCP_INFO)."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any

_SIZE = 136  # bytes of `struct tcp_info` up to tcpi_bytes_received
_BYTES = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
_AT = 120
_ESTABLISHED_BY_US = 1  # the SYN counts as a byte that was acknowledged


def tcp_bytes(sock: Any) -> tuple[int | None, int | None]:
    """(bytes that the peer has confirmed, bytes that have come); (None, None) where that is not known: no TCP, or not Linux."""
    if sock is None or sys.platform != "linux" or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None, None
    try:
        found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
        return None, None
    if len(found) < _SIZE:
        return None, None
    confirmed, received = _BYTES.unpack_from(found, _AT)
    return max(0, confirmed - _ESTABLISHED_BY_US), received
