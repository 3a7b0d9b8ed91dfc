"""TCP_NODELAY for paho-mqtt, so that small packets are sent at once.

Without it, an acknowledgement delays the publication after it until the broker's TCP acknowledges it, which takes up to 40 ms.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any


def no_delay(_client: object, _userdata: object, sock: Any) -> None:
    """Turn Nagle's algorithm off, as paho's `on_socket_open`. A Unix socket has none. A WebSocket wraps the TCP socket."""
    with contextlib.suppress(OSError, AttributeError):
        sock = getattr(sock, "_socket", sock) if not hasattr(sock, "setsockopt") else sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
