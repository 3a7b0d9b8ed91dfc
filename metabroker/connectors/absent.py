"""A connector for a protocol whose library is not installed: it says so, and does nothing."""

from __future__ import annotations

import asyncio

from ...base.address import Address
from ...mqtt.packets import Publish
from .connector import Owner


class Absent:
    """See `Connector`. text: told as a refusal."""

    backlog = 0

    def __init__(self, owner: Owner, text: str) -> None:
        self.forget = True
        self._owner = owner
        self._text = text

    async def run(self) -> None:
        """Tell, and wait until nobody wants this remote any more."""
        self._owner.on_down(False, self._text)
        await asyncio.Event().wait()

    def publish(self, publish: Publish, token: int, now: float) -> None:
        """See `Connector`, as all of these: nobody asks for anything before there is a connection."""

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        """Nothing."""

    def unsubscribe(self, filter_: str, now: float) -> None:
        """Nothing."""

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        """Nothing."""

    def pause(self, paused: bool) -> None:
        """Nothing."""

    def move(self, addresses: list[Address]) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""
