"""What paho-mqtt leaves at the system's default: small packets shall leave at once.

Without TCP_NODELAY an acknowledgement holds back the publication behind it until the broker's TCP acknowledges it,
which takes up to 40 ms.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any


def no_delay(_client: object, _userdata: object, sock: Any) -> None:
    """For paho's `on_socket_open`: switch Nagle's algorithm off; a Unix socket has none, a WebSocket has it below paho's own layer."""
    with contextlib.suppress(OSError, AttributeError):
        sock = getattr(sock, "_socket", sock) if not hasattr(sock, "setsockopt") else sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
