"""One push: a POST to a receiver's URL, and nothing but its status comes back.

Where a push may go: public addresses, over TLS. Loopback, link-local, private, multicast addresses, and those of IPv6 that stand for an
address of IPv4, are for networks that the configuration names; there TLS may be left out. The address that is looked at is the one that is
connected to. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import h11

PATIENCE = 15.0  # seconds for all of one push
LARGEST_HEAD = 65_536  # bytes of the answer
LONGEST_RETRY = 86_400.0  # seconds of Retry-After
NAMES = 32  # names that are looked up at a time
STAND_INS = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))  # for addresses of IPv4

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class PushError(Exception):
    """The receiver cannot be reached, or has not answered. The text says why."""


class Answer(NamedTuple):
    """The answer of a receiver. retry: seconds that the receiver asks to be left alone; 0: it does not say."""

    status: int
    retry: float = 0.0


class Sender:
    """Posts to receivers.

    networks: those that policy names. ca: PEM file of authorities beside the system's. certificate, key: PEM files of what a receiver is
    shown that asks for a certificate (us-9037726, l. 92). Raises OSError.
    """

    def __init__(
        self, networks: Sequence[Network] = (), ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        self._networks = networks
        self._tls = ssl.create_default_context()
        if ca is not None:
            self._tls.load_verify_locations(ca)
        if certificate is not None:
            self._tls.load_cert_chain(certificate, key)
        self._names = ThreadPoolExecutor(NAMES, "push-names")

    def close(self) -> None:
        self._names.shutdown(wait=False, cancel_futures=True)

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        """Post a body. Raises PushError."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._post(url, headers, body)
        except TimeoutError:
            raise PushError(f"no answer within {PATIENCE:g} s") from None
        except ssl.SSLError as error:
            raise PushError(f"TLS: {error.reason or error}") from None
        except OSError as error:
            raise PushError(error.strerror or str(error)) from None
        except h11.RemoteProtocolError as error:
            raise PushError(f"the answer is no HTTP: {error}") from None
        except ValueError as error:
            raise PushError(f"the URL: {error}") from None

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        to = urlsplit(url)
        tls = to.scheme == "https"
        host, port = (to.hostname or "").encode("idna").decode() if ":" not in (to.hostname or "") else to.hostname or "", to.port
        address = await self._address(host, port or (443 if tls else 80), tls)
        shown = f"[{host}]" if ":" in host else host
        target = (to.path or "/") + (f"?{to.query}" if to.query else "")
        head = {"Host": shown if port is None else f"{shown}:{port}", "Content-Length": str(len(body)), "Connection": "close", **headers}
        reader, writer = await asyncio.open_connection(
            address, port or (443 if tls else 80), ssl=self._tls if tls else None, server_hostname=host if tls else None
        )
        try:
            machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
            request = h11.Request(method="POST", target=target.encode("ascii"), headers=list(head.items()))
            for event in (request, h11.Data(data=body), h11.EndOfMessage()):
                writer.write(machine.send(event) or b"")
            return await _answered(machine, reader, writer)
        finally:
            writer.transport.abort()

    async def _address(self, host: str, port: int, tls: bool) -> str:
        """The address to connect to. Raises PushError where policy allows none."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._names, socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in found]
        for address in addresses:
            if is_in(address, self._networks) or (tls and is_public(address)):
                return address
        raise PushError("https is needed" if any(map(is_public, addresses)) else "policy does not let pushes go to this address")


async def _answered(machine: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
    """The head of the answer, which may come before all is sent."""
    sent = asyncio.ensure_future(writer.drain())
    try:
        while True:
            event: Any = machine.next_event()
            if event is h11.NEED_DATA:
                machine.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Response):
                return Answer(event.status_code, _retry(dict(event.headers).get(b"retry-after", b"").decode("latin-1")))
            elif not isinstance(event, h11.InformationalResponse):
                raise PushError("the connection was closed without an answer")
    finally:
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)


def is_public(address: str) -> bool:
    """Whether an address is one of the public network, and of nothing nearer."""
    found = _plain(address)
    return found.is_global and not found.is_multicast and not any(found in one for one in STAND_INS)


def is_in(address: str, networks: Sequence[Network]) -> bool:
    return any(_plain(address) in one for one in networks)


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(address.partition("%")[0])
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def _retry(text: str) -> float:
    """Seconds of a Retry-After: a number, or a date."""
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_RETRY)
    try:
        wanted = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
    return min(max(0.0, wanted), LONGEST_RETRY)


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """As Standard Webhooks has it. secret: `whsec_` and base64."""
    text = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = text.encode()
    return "v1," + base64.b64encode(hmac.digest(key, f"{id}.{timestamp}.".encode() + body, hashlib.sha256)).decode()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
