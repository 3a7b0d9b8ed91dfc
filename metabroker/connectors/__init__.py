"""How remotes are reached: one connector for each protocol, all with the same face to the metabroker (docs/connectors.md)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

from ..actions import Open
from ..address import Address
from ..wire import Event, Login, Wire
from .connector import Connector

__all__ = ["Connector", "Owner", "make"]


class Owner(NamedTuple):
    """Whom a connector tells. on_events: what has come. on_down: a connection has ended, or every address was tried in vain; whether the
    server refused our credentials (None: it did not refuse us), and one line."""

    on_events: Callable[[list[Event]], None]
    on_down: Callable[[bool | None, str], None]


def make(action: Open, addresses: list[Address], owner: Owner) -> Connector:
    """The connector for addresses of one kind."""
    from ..connection import Connection

    rule = action.rule
    login = Login(f"metabroker-{secrets.token_hex(6)}", rule.version, action.username, action.password)
    return Connection(addresses, Wire(login), str(rule.ca) if rule.ca is not None else None, owner.on_events, owner.on_down)
