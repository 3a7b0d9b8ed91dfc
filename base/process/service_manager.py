"""Tells systemd how the process is: the datagrams of sd_notify(3), for a unit with `Type=notify`."""

from __future__ import annotations

import contextlib
import os
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"


def tell(*lines: str) -> None:
    """Send the lines to the service manager that started this process; without one, nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:  # systemd says what it misses
        channel.settimeout(1.0)
        channel.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        channel.send("\n".join(lines).encode())
