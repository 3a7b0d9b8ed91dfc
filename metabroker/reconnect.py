"""Stays connected: tries the addresses of a broker in turn, with growing pauses between the rounds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ..base.address import Address
from ..base.backoff import Backoff

PAUSES = (0.5, 30.0)  # seconds between attempts: first, longest; a random part is left out
CONNECT_TIMEOUT = 20.0


def why_not(error: OSError, host: str) -> str:
    """Why a connection could not be made, one line that tells a mistake in the address from an outage."""
    if isinstance(error, socket.gaierror):
        return f"the host name {host!r} is not known ({error.strerror}): is the address right?"
    if isinstance(error, ConnectionRefusedError) or "Errno 111" in str(error):  # asyncio has one error for several addresses of a name
        return "connection refused: does a broker listen there?"
    return error.strerror or str(error)


class Ended(NamedTuple):
    """One connection from beginning to end. accepted: by the server. refused: it did not accept us, because of our credentials (True) or
    for another reason (False); None: it did not refuse us. text: why the connection ended, one line."""

    accepted: bool
    refused: bool | None
    text: str


async def stay_connected(
    addresses: Callable[[], list[Address]],
    attempt: Callable[[Address], Awaitable[Ended]],
    on_down: Callable[[bool | None, str], None],
) -> None:
    """Until it is cancelled. addresses: asked for before each round. on_down: told after a connection, or when all were tried in vain."""
    backoff = Backoff(*PAUSES, spread=(0.5, 1.0))
    while True:
        ended = Ended(False, None, "")
        for address in addresses():
            ended = await attempt(address)
            if ended.accepted:
                backoff.reset()
                break
        on_down(ended.refused, ended.text)
        await asyncio.sleep(backoff.next())
