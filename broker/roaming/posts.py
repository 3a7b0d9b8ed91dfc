"""Posts between brokers about roaming clients: what carries them, and what takes them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .shell import Roaming

log = logging.getLogger("mqmesh.mesh")


class Handler(Protocol):
    """Takes the messages of one kind that other brokers send to this one."""

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        """A message has come from a broker."""

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        """A message did not reach a broker."""


class PeerMessages(Protocol):
    """Carries messages between the brokers themselves."""

    def send(self, brokers: int, kind: str, body: bytes, must: bool = False) -> Any:
        """Send to brokers, bit n for broker n. Raises UsageError."""

    def register(self, kind: str, handler: Handler, ahead: bool = False) -> None:
        """Have messages of a kind handled. ahead: they go before messages of clients that wait for room."""


class Posts:
    """What takes the posts of one kind."""

    def __init__(self, roaming: Roaming, kind: str) -> None:
        self._roaming = roaming
        self._kind = kind

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        self._roaming.received(origin, self._kind, body)

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        log.warning("event=roaming-returned kind=%s destination=%d reason=%s", self._kind, destination, reason)
        self._roaming.roamer.returned(destination, self._kind, body)
