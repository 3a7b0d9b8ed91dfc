"""The broker beside which a metabroker stands, and as whom the metabroker connects to it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...base.address import Address
from ..mqtt.client import ClientMachine
from ..mqtt.connection import Connection
from ..mqtt.login import Login
from ..protocol.events import Event


@dataclass(frozen=True)
class Community:
    """The broker beside which the metabroker stands, and as whom it connects.

    ca: PEM file of its authorities; None: those of the system.
    status: topic of the metabroker's status reports; empty: none.
    """

    address: Address
    login: Login
    ca: str | None = None
    status: str = ""

    @property
    def inside(self) -> str | None:
        """Name of the broker whose process this is; None: a process of its own."""
        return None

    @property
    def place(self) -> str:
        """Which metabroker has this place, as long as it is there: no other one."""
        return f"{self.login.client_id} {socket.gethostname()} {self.address}"

    @property
    def patient(self) -> bool:
        """Whether other metabrokers may be there that are not heard at once."""
        return False

    def renamed(self, number: int) -> Community:
        """The same under a client identifier that nobody else has, with a status topic of its own."""
        name = f"{self.login.client_id}-{number:08x}"
        status = self.status
        if status.rpartition("/")[2] == self.login.client_id:
            status = f"{status.rpartition('/')[0]}/{name}"
        will = replace(self.login.will, topic=status) if self.login.will is not None else None
        return replace(self, login=replace(self.login, client_id=name, will=will), status=status)

    def note(self, text: str) -> None:
        """Have a journal told of a line of the log; a broker in another process has none for that."""

    def connection(
        self, on_events: Callable[[list[Event]], None], on_down: Callable[[bool | None, str], None], on_error: Callable[[Exception], None]
    ) -> Connection:
        """A connection to it, not begun. on_events, on_down: see `Connection`. on_error: told of a fault of ours that ended it."""
        return Connection([self.address], ClientMachine(self.login), self.ca, on_events, on_down)
