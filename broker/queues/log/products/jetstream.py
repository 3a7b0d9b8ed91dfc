"""Entries in NATS JetStream: one stream, with a subject for each segment.

    NAME.SEGMENT     entries
    NAME.owner       a word of the broker that opened the log last

Each entry says which one is before it in the stream (`Nats-Expected-Last-Sequence`), and the server takes it only if that is so. So the
word of another broker shuts out the one before it, and what our own earlier connection left in the server's socket does not count.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
import uuid
from collections.abc import Awaitable, Coroutine
from typing import Any, NamedTuple

from nats.errors import Error, TimeoutError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from .....base.address import Address, AddressError, Form, parse_address
from ....products.nats.client import Client
from ....products.nats.transport import Transport
from ..port import Away
from .aside import AsideProduct, T
from .entries import HEAD, LARGEST, Place
from .url import Url, parsed, taken_over

FORM = Form("nats://HOST:4222 or tls://HOST:4222, with USER:PASSWORD@ before the host where needed", ("nats", "tls"), login=True)
PATIENCE = 5.0  # seconds for an answer
PAGE = 64  # entries that are asked for at once
ROOM = 4096  # bytes of a message that are not the entry's
LINGER = 30  # seconds until the server forgets a reader that has not left
FULL = (10023, 10047, 10077)  # insufficient resources, storage exceeded, maximum bytes
WRONG_SEQUENCE = 10071


class _Connection(NamedTuple):
    client: Client
    stream: JetStreamContext
    transport: Transport


class JetStream(AsideProduct):
    """See `Product`. url: `nats://` or `tls://`, with `name` and `replicas`."""

    def __init__(self, url: str) -> None:
        self._url: Url = parsed(url, "replicas", 1)
        super().__init__("jetstream")
        self.shown = self._url.shown
        self.largest = LARGEST
        self._word = str(uuid.uuid4()).encode()
        self._last = 0  # the sequence of the last message in the stream, of anything
        self._connection: _Connection | None = None
        self._lock = asyncio.Lock()  # one task connects

    def _subject(self, name: object) -> str:
        return f"{self._url.name}.{name}"

    # ---- errors

    async def _told(self, work: Coroutine[Any, Any, T]) -> T:
        """What the library raises, as the port has it. The connection ends: what was sent and not answered is unknown."""
        try:
            return await work
        except APIError as error:
            await self._lose()
            text = f"{self.shown}: {error.description or error}"
            raise OSError(errno.ENOSPC if error.err_code in FULL else errno.EIO, text) from error
        except (Error, OSError, ValueError) as error:
            await self._lose()
            if isinstance(error, OSError) and error.errno in (errno.EBUSY, errno.EINVAL):
                raise
            text = "no answer" if isinstance(error, TimeoutError | asyncio.TimeoutError) else str(error).removeprefix("nats: ")
            raise Away(errno.EIO, f"{self.shown}: {text}") from error

    # ---- the connection

    async def _connected(self) -> _Connection:
        async with self._lock:
            found = self._connection
            if found is None or found.client.gone.is_set():
                await self._lose()
                async with asyncio.timeout(PATIENCE):
                    found = await self._connect()
                if self._last:
                    await self._go_on(found.stream)
                self._connection = found
            return found

    async def _connect(self) -> _Connection:
        try:
            address = parse_address(self._url.bare, FORM)
        except AddressError as error:
            raise OSError(errno.EINVAL, f"{self.shown}: {error}") from None
        transport = Transport()
        client = Client(transport, lambda text: None)
        context = ssl.create_default_context() if address.tls else None
        await transport.dial(address.host, address.port, context)
        await client.open(name=f"mqmesh {self._url.name}", tls=context, **_login(address))
        self.largest = min(LARGEST, int(transport.info.get("max_payload", LARGEST)) - ROOM)
        return _Connection(client, client.jetstream(timeout=PATIENCE), transport)

    async def _go_on(self, stream: JetStreamContext) -> None:
        """After a lost connection: what is in the stream is ours, unless another broker has opened the log."""
        self._last = (await stream.stream_info(self._url.name)).state.last_seq
        owner = await stream.get_last_msg(self._url.name, self._subject("owner"))
        if owner.data != self._word:
            raise taken_over(self.shown)

    async def _lose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.transport.abort()
            await connection.client.close()

    # ---- entries

    async def _open(self) -> list[int]:
        stream = (await self._connected()).stream
        name = self._url.name
        try:
            await stream.stream_info(name)
        except NotFoundError:
            config = StreamConfig(name, subjects=[f"{name}.>"], storage=StorageType.FILE, num_replicas=self._url.number or 1)
            await stream.add_stream(config)
        self._last = (await stream.publish(self._subject("owner"), self._word)).seq
        await stream.purge_stream(name, subject=self._subject("owner"), keep=1)
        found = (await stream.stream_info(name, subjects_filter=">")).state.subjects or {}
        return [int(last) for last in (subject.rpartition(".")[2] for subject in found) if last.isdigit()]

    async def _fetch(self, number: int, start: Place | None, most: int | None) -> list[tuple[Place, bytes]]:
        stream = (await self._connected()).stream
        name = self._url.name
        config = ConsumerConfig(
            filter_subject=self._subject(number),
            deliver_policy=DeliverPolicy.ALL if start is None else DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=None if start is None else int(start),
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=LINGER,
        )
        reader = await stream.add_consumer(name, config)
        source = await stream.pull_subscribe_bind(reader.name, name)
        found: list[tuple[Place, bytes]] = []
        size, left = 0, reader.num_pending or 0
        while left and (most is None or size < most):
            for message in await source.fetch(min(left, PAGE), timeout=PATIENCE):
                found.append((message.metadata.sequence.stream, message.data))
                size += len(message.data) - HEAD.size
                left -= 1
        await source.unsubscribe()
        await stream.delete_consumer(name, reader.name)
        return found

    async def _send(self, entries: list[tuple[int, bytes]]) -> list[Place]:
        stream = (await self._connected()).stream
        waiting: list[Awaitable[Any]] = []
        for at, (number, data) in enumerate(entries):
            headers = {Header.EXPECTED_LAST_SEQUENCE.value: str(self._last + at)}
            waiting.append(stream.publish(self._subject(number), data, headers=headers))
        try:
            places = [found.seq for found in await asyncio.gather(*waiting)]
        except APIError as error:
            if error.err_code == WRONG_SEQUENCE:  # somebody else has written; or we have, and have not heard of it
                await self._lose()
                await self._connected()
            raise
        self._last = places[-1]
        return list(places)

    async def _delete(self, number: int) -> None:
        stream = (await self._connected()).stream
        await stream.purge_stream(self._url.name, subject=self._subject(number))


def _login(address: Address) -> dict[str, Any]:
    """As nats-py takes it. A user name without a password is a token."""
    if address.user is None:
        return {}
    return {"token": address.user} if address.password is None else {"user": address.user, "password": address.password}
