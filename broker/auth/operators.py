"""Who may look into a broker and change it over MQTT.

Users named in `access.operators`, and whoever comes over a Unix socket as the user that runs the broker, or as root.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..auth.guard import Guard
    from ..ports import Connection

DENIED = "not permitted: name the user in access.operators, or come over a unix:// listener as the user that runs the broker"
CREDENTIALS = struct.Struct("3i")  # process, user, group (Linux: unix(7), SO_PEERCRED)


def operates(guard: Guard, connection: Connection) -> bool:
    """Whether a client is an operator's."""
    settings = guard.settings
    if settings is not None and guard.authenticator is not None and connection.user in settings.operators:
        return True
    sock = connection.transport.get_extra_info("socket")
    if connection.address != "unix" or sock is None or not hasattr(socket, "SO_PEERCRED"):
        return False
    return peer(sock) in (0, os.getuid())


def peer(sock: socket.socket) -> int:
    """The number of the user who has the other end of a Unix socket."""
    _, user, _ = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(user)
