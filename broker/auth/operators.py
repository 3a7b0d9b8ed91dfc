"""Who may look into a broker and change it: what the roles of a client's user are (`roles.py`).

Besides users with a role: users named in `access.operators`, who are administrators, and whoever comes over a Unix socket as the user that
runs the broker, or as root, who may do everything.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

from .roles import ALL, Grant, Rights, Role

if TYPE_CHECKING:
    from ..auth.guard import Guard
    from ..ports import Connection

DENIED = (
    "not permitted: give the user a role in [management] (or name it in access.operators), "
    "or come over a unix:// listener as the user that runs the broker"
)
UNBELIEVED = "this site does not believe {}: management.accept names the sites whose users it believes"
CREDENTIALS = struct.Struct("3i")  # process, user, group (Linux: unix(7), SO_PEERCRED)
_OPERATORS = Rights((Grant(Role.ADMINISTRATOR),))


def rights_of(guard: Guard, connection: Connection) -> Rights:
    """What a client may do, here and at sites that believe this one."""
    if _runs_the_broker(connection):
        return ALL
    return rights_of_user(guard, connection.user)


def rights_of_user(guard: Guard, user: str | None) -> Rights:
    """The same of a user's name, as far as the rules of this broker say it."""
    return rights_of_name(guard, user if guard.authenticator is not None else None)


def rights_of_name(guard: Guard, user: str | None) -> Rights:
    """The same of a user of another site that this one believes."""
    rights = guard.management.rights(user)
    if guard.settings is not None and user is not None and user in guard.settings.operators:
        rights = rights.joined(_OPERATORS)
    return rights


def operates(guard: Guard, connection: Connection, role: Role = Role.OPERATOR) -> bool:
    """Whether a client may do here what takes a role."""
    return rights_of(guard, connection).at(guard.site).may(role)


def _runs_the_broker(connection: Connection) -> bool:
    if connection.address != "unix" or not hasattr(socket, "SO_PEERCRED"):
        return False
    sock = connection.transport.get_extra_info("socket")
    return sock is not None and peer(sock) in (0, os.getuid())


def peer(sock: socket.socket) -> int:
    """The number of the user who has the other end of a Unix socket."""
    _, user, _ = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(user)
