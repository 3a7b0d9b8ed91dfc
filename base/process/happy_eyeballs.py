"""Sockets to hosts that have several addresses (RFC 8305).

A name may have addresses that do not answer: of IPv6 where a firewall swallows it, of a machine that is down. Whoever tries one after the
other waits for all of the time-out at the first of these, and never comes to those that answer. So the next address is tried `DELAY` after
the one before, or at once when that is refused; the first connection wins. `create_connection` of asyncio can do this, that of uvloop
cannot.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from asyncio.staggered import staggered_race
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import zip_longest
from typing import TypeAlias, TypeVar

AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[str | int, ...]]  # family, type, protocol, canonical name, address: getaddrinfo(3)
ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)
T = TypeVar("T")

MOST = 16  # addresses that are tried: whoever answers for a name may say thousands
DELAY = 0.25  # seconds: "Connection Attempt Delay", RFC 8305 section 5


async def connect(
    made: Callable[[], ProtocolT], host: str, port: int, context: ssl.SSLContext | None = None
) -> tuple[asyncio.Transport, ProtocolT]:
    """`create_connection` of the running loop, to whichever of a host's addresses answers first. context: for TLS. Raises OSError."""
    loop, name = asyncio.get_running_loop(), host if context is not None else None
    sock = await connected_socket(host, port)
    return await hand_over(sock, loop.create_connection(made, sock=sock, ssl=context, server_hostname=name))


async def hand_over(sock: socket.socket, opening: Awaitable[T]) -> T:
    """Await what makes a transport of a socket, which closes it from now on.

    uvloop takes the descriptor first, and the socket when the connection is made. Where the connection ends in between, for example
    because its first write fails, uvloop closes the descriptor, and the socket would close it once more when it is forgotten. By then
    another connection, or a file, has this number.
    """
    try:
        return await opening
    finally:
        if not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):  # whose transports close the socket itself
            sock.detach()


async def connected_socket(host: str, port: int) -> socket.socket:
    """A socket that is connected to a host. There is no time-out.

    Raises OSError: the name is not known (`socket.gaierror`), or why the first address could not be reached.
    """
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    found = interleaved(await addresses(host, port))[:MOST]
    sock: socket.socket | None
    sock, _, _ = await staggered_race([partial(_connect, loop, one, errors) for one in found], DELAY)
    if sock is None:
        raise errors[0]
    return sock


async def addresses(host: str, port: int) -> list[AddressInfo]:
    """What a host's name stands for, the best first (RFC 6724)."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)  # type: ignore[return-value]


def interleaved(found: list[AddressInfo]) -> list[AddressInfo]:
    """The same addresses, families in turns, so that one that does not work costs one delay (RFC 8305 section 4)."""
    first = [one for one in found if one[0] == found[0][0]]
    others = [one for one in found if one[0] != found[0][0]]
    return [one for pair in zip_longest(first, others) for one in pair if one is not None]


async def _connect(loop: asyncio.AbstractEventLoop, info: AddressInfo, errors: list[OSError]) -> socket.socket:
    family, kind, protocol, _, address = info
    try:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        if error.errno is not None:
            error.strerror = os.strerror(error.errno)  # asyncio puts "Connect call failed" and the address in its place
        errors.append(error)
        raise
    return sock
