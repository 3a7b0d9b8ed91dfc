"""A NATS remote: a `Connector` on nats-py, which speaks the protocol; this decides what is said.

One connection at a time, each with a client of the library of its own, and a few tasks that live as long: the library reads, `Publisher`
writes, `Subscriber` asks. When one of them ends the connection does, and the metabroker's own back-off begins. The library's reconnection
is off: it would go on with subscriptions whose consumers are gone, and tell nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import RawCredentials
from nats.errors import Error

from ....base.address import Address, interchangeable
from ....broker.products.nats.client import Client
from ....broker.products.nats.transport import Transport, Unfit
from ....broker.transport.tls.openssl_errors import explain
from ....mqtt.packets import Publish
from ....mqtt.reasons import Reason
from ...credentials import is_seed
from ...mqtt.client import PATIENCE
from ...protocol.events import Abilities, Event, Trouble, Up
from ...reconnect import CONNECT_TIMEOUT, Ended, stay_connected, why_not
from . import jetstream
from .jetstream import Streams
from .publisher import Publisher
from .subscriber import Subscriber

KEEP_ALIVE = 30.0  # seconds of silence until we ask whether the server is there
LEAVING = 1.5  # seconds for our consumers to go, and for what is to be written
ENDING = 0.2  # seconds for tasks to see that they are cancelled; then they are told again
_VIOLATION = re.compile(r'permissions violation for (publish|subscription)[^"]*"(.*?)"( using queue .*)?$')
_CREDENTIALS = ("authorization violation", "authentication", "account authentication", "revoked", "nkey", "jwt")


@dataclass(frozen=True, slots=True)
class Login:
    """As whom. name: of our consumers, and what messages' identifiers begin with. expiry: seconds that consumers outlive us.
    credentials: the text of a credentials file (`credentials.py`), in place of the others."""

    name: str
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    expiry: int = 3600
    credentials: str | None = field(default=None, repr=False)

    def options(self) -> dict[str, Any]:
        """As nats-py takes them. A user name without a password is a token."""
        if self.credentials is not None:
            if is_seed(self.credentials):
                return {"nkeys_seed_str": self.credentials}
            return {"user_credentials": RawCredentials(self.credentials)}
        if self.username is None:
            return {}
        if self.password is None:
            return {"token": self.username}
        return {"user": self.username, "password": self.password.decode(errors="replace")}


class NatsConnector:
    """See `Connector`. life: makes the identifiers of messages differ from those of an earlier connector of this name."""

    def __init__(
        self,
        addresses: list[Address],
        login: Login,
        life: str,
        ca: str | None,
        on_events: Callable[[list[Event]], None],
        on_down: Callable[[bool | None, str], None],
    ) -> None:
        self.forget = True
        self._addresses = addresses
        self._login = login
        self._ca = ca
        self._on_events = on_events
        self._on_down = on_down
        self._events: list[Event] = []
        self._paused = False
        self._epoch = 0
        self._transport: Transport | None = None
        self._client: Client | None = None  # while the connection stands
        self._pinging: asyncio.Task[None] | None = None
        self._streams = Streams()
        self._publisher = Publisher(f"{login.name}-{life}", self._streams, self._tell, self._renew)
        self._subscriber = Subscriber(login.name, login.expiry, self._streams, self._tell, self._publisher.acknowledge)

    async def run(self) -> None:
        """See `Connector`, as all of these."""
        await stay_connected(lambda: self._addresses, self._attempt, self._on_down)

    # A connection

    async def _attempt(self, address: Address) -> Ended:
        """One connection from beginning to end."""
        self._transport = transport = Transport()
        client = Client(transport, self._on_error)
        try:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._open(address, transport, client)
            except TimeoutError:
                return Ended(False, None, f"{address}: no answer")
            except Unfit as error:
                return Ended(False, False if error.refused else None, f"{address}: {error}")
            except OSError as error:
                why = explain(error) if isinstance(error, ssl.SSLError) else why_not(error, address.host)
                return Ended(False, None, f"{address}: {why}")
            except Error as error:
                return _refusal(address, str(error))
            except UnicodeError:  # of the codec for host names
                return Ended(False, None, f"{address}: this is no host name")
            except Exception as error:  # of the library: what the server said of itself is not what it should be
                return Ended(False, None, f"{address}: the server does not speak NATS: {str(error)[:200]}")
            return Ended(True, None, f"{address}: {await self._use(client) or 'connection lost'}")
        finally:
            await self._close(client, transport)

    async def _open(self, address: Address, transport: Transport, client: Client) -> None:
        """Until the server accepts us, and its streams are known. Raises OSError, nats.errors.Error, ValueError."""
        context = ssl.create_default_context(cafile=self._ca) if address.tls else None
        await transport.dial(address.host, address.port, context)
        # subjects are checked by `mapping`: the library would refuse some that servers and their MQTT listeners know
        await client.open(name=self._login.name, tls=context, skip_subject_validation=True, **self._login.options())
        stream = client.jetstream(timeout=jetstream.PATIENCE)
        self._epoch += 1
        self._subscriber.open(self._epoch, asyncio.get_running_loop().time(), client, stream)
        if transport.info.get("jetstream"):
            await self._subscriber.find_streams()

    async def _use(self, client: Client) -> str:
        """As long as the connection stands; why it has ended."""
        assert self._transport is not None
        self._client = client
        largest = self._transport.info.get("max_payload")
        self._publisher.largest = largest if isinstance(largest, int) else 0
        self._tell(Up(False, Abilities(True, self._publisher.largest, 2, False, self._publisher.cannot)))
        self._transport.pause(self._paused)
        self._publisher.ready = True
        work = (client.gone.wait(), self._publisher.write(client), self._publisher.mark(client), self._subscriber.work())
        tasks = [asyncio.ensure_future(one) for one in work]
        self._publisher.more()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            errors = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        except asyncio.CancelledError:
            await _bounded(self._leave(client, tasks))
            raise
        finally:
            self._lost()
            self._transport.abort()
            await _end(tasks)
        return client.error or next((str(error) for error in errors if error is not None), "")

    async def _leave(self, client: Client, tasks: Sequence[asyncio.Future[Any]]) -> None:
        """Take leave, with what can still be written."""
        assert self._transport is not None
        self._transport.pause(False)
        await _end(tasks[3:])
        if self.forget:
            await self._subscriber.leave()
        else:
            await self._subscriber.stop_receiving()
        await self._publisher.idle.wait()
        await client.handled()

    def _lost(self) -> None:
        self._tell_now()
        self._client = None
        self._publisher.lost()
        self._subscriber.lost()

    async def _close(self, client: Client, transport: Transport) -> None:
        """Whatever the library still has of a connection. Its close does not end when something is in its way."""
        self._client = None
        transport.abort()
        if self._pinging is not None:
            await _end([self._pinging])
            self._pinging = None
        await _bounded(client.close())

    # What the library and its users tell

    def _tell(self, event: Event) -> None:
        if not self._events:
            asyncio.get_running_loop().call_soon(self._tell_now)
        self._events.append(event)

    def _tell_now(self) -> None:
        events, self._events = self._events, []
        if events:
            self._on_events(events)

    def _on_error(self, text: str) -> None:
        """The server refuses something, and the connection stays."""
        self._tell(Trouble(text))
        violation = _VIOLATION.search(text)
        if violation is None:
            if text.startswith("maximum subscriptions"):
                self._subscriber.refused(Reason.QUOTA_EXCEEDED)
        elif violation[1] == "subscription":
            self._subscriber.refused(Reason.NOT_AUTHORIZED)
        else:
            self._publisher.refused(violation[2])
            if violation[2].startswith(jetstream.API.lower()):
                self._subscriber.denied()

    def _renew(self) -> None:
        """Look for streams again; nothing is published meanwhile."""
        self._publisher.ready = False
        self._subscriber.renew(self._listed)

    def _listed(self) -> None:
        self._publisher.ready = True
        self._publisher.more()

    # What a connector does

    def publish(self, publish: Publish, token: int, now: float) -> None:
        self._publisher.publish(publish, token)

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        if self._client is not None:
            self._subscriber.subscribe(filter_, qos, identifier, token)

    def unsubscribe(self, filter_: str, now: float) -> None:
        if self._client is not None:
            self._subscriber.unsubscribe(filter_)

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        if self._client is not None:
            self._subscriber.acknowledge(packet_id, epoch)

    def pause(self, paused: bool) -> None:
        self._paused = paused
        if self._client is not None and self._transport is not None:
            self._transport.pause(paused)

    def move(self, addresses: list[Address]) -> None:
        self._addresses = interchangeable(self._addresses[0], addresses) or self._addresses

    def flush(self) -> None:
        self._publisher.more()

    def tick(self) -> None:
        client, transport = self._client, self._transport
        if client is None or transport is None:
            return
        now = asyncio.get_running_loop().time()
        self._publisher.on_timer(now)
        self._subscriber.settle(now)
        silent = 0.0 if transport.paused else now - transport.heard_at
        if silent > KEEP_ALIVE + PATIENCE:
            client.error = "the server does not answer"
            client.gone.set()
        elif silent > KEEP_ALIVE and (self._pinging is None or self._pinging.done()):
            self._pinging = asyncio.ensure_future(client.handled())

    @property
    def backlog(self) -> int:
        """See `Connector`."""
        client, transport = self._client, self._transport
        return self._publisher.bytes + (client.pending_data_size + transport.waiting if client is not None and transport is not None else 0)


def _refusal(address: Address, text: str) -> Ended:
    """The server's word that it does not take us; or the library's that it cannot read the server."""
    word = text.removeprefix("nats: ").strip()
    if not word.startswith("'"):
        return Ended(False, None, f"{address}: the server does not speak NATS: {word[:200]}")
    refused = any(one in word.lower() for one in _CREDENTIALS)
    return Ended(False, refused, f"{address}: {word.strip(chr(39))}")


async def _bounded(work: Any) -> None:
    """Do this, for a moment, whatever becomes of it. The library swallows cancellations: so it gets a task of its own."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=LEAVING)
    finally:
        await _end([task])


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks until they have seen it: the library swallows that now and then."""
    waiting = {task for task in tasks if not task.done()}
    for _ in range(10):
        if not waiting:
            break
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=ENDING)
    for task in tasks:
        if task.done() and not task.cancelled():
            with contextlib.suppress(Exception):
                task.result()
