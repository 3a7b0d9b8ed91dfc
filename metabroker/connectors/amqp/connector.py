"""AMQP 0-9-1 remotes, with aio-pika: one connection at a time, four channels on it, because a mistake closes the whole channel that it was
made on: bindings, the queue (`consumer.py`), messages with confirmations, messages without (`publisher.py`).

Of aio-pika's connections the plain one is taken: when to try again, and where, is the metabroker's own affair, and what a connection that
repairs itself would bind and publish again is known better here. Messages go through its lower layer, aiormq, because the upper one makes
a second task of each message and refuses what it cannot put into an object.

A message that has come is acknowledged to the remote when the owner says so, and not before. One whose routing key is no topic is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from dataclasses import dataclass

import aio_pika
from aio_pika.connection import make_url
from aiormq import exceptions

from ....base.address import Address, interchangeable
from ....broker.transport.tls.openssl_errors import explain
from ....mqtt.packets import Publish
from ...policy import EXCHANGE
from ...protocol.events import Abilities, Event, Trouble, Up
from ...reconnect import CONNECT_TIMEOUT, Ended, stay_connected, why_not
from ..connector import Owner
from . import mapping
from .consumer import Consumer
from .errors import Over, words
from .guard import LARGEST_FRAME, Guard, Transport
from .publisher import Plain, Publisher

HEARTBEAT = 20  # seconds; the library takes a server for dead that has said nothing for three times that
LEAVING = 20.0  # seconds for each step of taking leave: for the server's answers, for what is still to be sent
LARGEST_MESSAGE = 134_217_728  # bytes that RabbitMQ takes, unless it is configured otherwise

# What the libraries log comes from here, too, as events in one line each.
for library in ("aio_pika", "aiormq"):
    logging.getLogger(library).setLevel(logging.CRITICAL)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Login:
    """As whom and how. name: of our queue, with `exchange` behind it where that is not the usual one; messages' identifiers begin with it.
    expiry, length: of the queue, seconds, messages."""

    name: str
    username: str | None = None
    password: bytes | None = None
    vhost: str = "/"
    exchange: str = EXCHANGE
    expiry: int = 3600
    length: int = 100_000


def url_of(login: Login) -> str:
    """User, password and virtual host as the library takes them. Raises ValueError, one line, for those that it would change."""
    user, password, vhost = login.username, (login.password or b"").decode(), login.vhost
    if user is None:
        user = password = "guest"  # RabbitMQ lets it in from its own machine
    if not user or not password:  # the library would take `guest`
        raise ValueError("AMQP takes a user name with a password, or neither")
    url = make_url(host="localhost", login=user, password=password, virtualhost=vhost, heartbeat=HEARTBEAT)
    if url.path[1:].replace("%2F", "/") != vhost or len(vhost) > 127:
        raise ValueError("the AMQP library cannot write the name of this virtual host")
    return str(url)


class _Connection(aio_pika.Connection):
    """aio-pika's, over a transport of ours."""

    def __init__(self, login: Login, transport: Transport) -> None:
        super().__init__(url_of(login), client_properties={"connection_name": login.name, "product": "mqmesh"})  # type: ignore[arg-type]
        self.kwargs["transport_factory"] = transport


class AmqpConnector:
    """See `Connector`."""

    def __init__(self, login: Login, addresses: list[Address], ca: str | None, owner: Owner) -> None:
        self.forget = True
        self.login = login
        self._addresses = addresses
        self._ca = ca
        self._owner = owner
        self._epoch = 0  # counts connections
        self._paused = False
        self._events: list[Event] = []
        self._transport: Transport | None = None
        self._plain = Plain(login.exchange, self._tell)
        self._publisher = Publisher(login.exchange, mapping.OURS + login.name, self._tell)
        # a queue for each exchange: one that the policy has left behind is not read, and goes with its bindings in its time
        queue = login.name if login.exchange == EXCHANGE else f"{login.name}.{login.exchange}"
        self._consumer = Consumer(login.exchange, queue, login.expiry, login.length, self._tell)

    # What a connector does

    async def run(self) -> None:
        await stay_connected(lambda: self._addresses, self._attempt, self._owner.on_down)

    def publish(self, publish: Publish, token: int, now: float) -> None:
        if publish.qos:
            self._publisher.publish(publish, token)
        else:
            self._plain.publish(publish)

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        self._consumer.subscribe(filter_, qos, token)

    def unsubscribe(self, filter_: str, now: float) -> None:
        self._consumer.unsubscribe(filter_)

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        self._consumer.acknowledge(packet_id, epoch)

    def pause(self, paused: bool) -> None:
        self._paused = paused
        if self._transport is not None:
            self._transport.guard.pause(paused)

    def move(self, addresses: list[Address]) -> None:
        self._addresses = interchangeable(self._addresses[0], addresses) or self._addresses

    def flush(self) -> None:
        """What there is to write is written by tasks of its own."""

    def tick(self) -> None:
        """The library has its own timers."""

    @property
    def backlog(self) -> int:
        waiting = self._transport.waiting if self._transport is not None else 0
        return self._plain.bytes + self._publisher.bytes + waiting

    # Events

    def _tell(self, event: Event) -> None:
        """Tell the owner, soon, with others."""
        if not self._events:
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._events.append(event)

    def _tell_all(self) -> None:
        events, self._events = self._events, []
        if events:
            self._owner.on_events(events)

    def _blocked(self, why: str | None) -> None:
        text = "the remote takes messages again" if why is None else f"the remote takes no messages for now: {why}"
        self._tell(Trouble(text))

    def _cannot(self, publish: Publish) -> str | None:
        if self._publisher.refused(publish.topic):
            return "the remote does not let this user write to this topic"
        return mapping.check(publish, LARGEST_FRAME)

    # A connection

    async def _attempt(self, address: Address) -> Ended:
        """One connection from beginning to end."""
        guard = Guard(self._blocked)
        connection = None
        try:
            transport = Transport(address, ssl.create_default_context(cafile=self._ca) if address.tls else None, guard)
            connection = _Connection(self.login, transport)
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await connection.connect()
                await self._consumer.open(connection)
        except Exception as error:
            ended = self._not_connected(address, error, guard)
            if connection is not None:
                await self._close(connection, transport)
            return ended
        self._transport = transport
        guard.pause(self._paused)
        try:
            text = await self._connected(connection, guard)
        finally:
            await self._close(connection, transport)
            self._transport = None
            self._tell_all()
        return Ended(True, None, f"{address}: {text}")

    def _not_connected(self, address: Address, error: Exception, guard: Guard) -> Ended:
        refused: bool | None = None
        text = guard.error
        match error:
            case _ if guard.error:
                refused = False if guard.wants_tls else None
            case _ if guard.closed is not None:
                code, text = guard.closed
                refused = code == 403
            case exceptions.AuthenticationError():
                refused, text = False, "it does not offer PLAIN, the only way to log in that is known here"
            case exceptions.AMQPChannelError():
                refused, text = False, words(error)
            case TimeoutError():
                text = "no answer"
            case ssl.SSLError():
                text = explain(error)
            case exceptions.AMQPError():
                text = "the server does not speak AMQP 0-9-1, or the connection was lost"
            case OSError():
                text = why_not(error, address.host)
            case UnicodeError():  # of the codec for host names, or of a password
                text = "this is no host name, or the password is no text"
            case ValueError():
                refused, text = False, str(error)
            case _:
                log.error("event=connector-failed address=%s error=%r", address, error, exc_info=error)
                text = "an error of ours"
        return Ended(False, refused, f"{address}: {text}")

    async def _connected(self, connection: _Connection, guard: Guard) -> str:
        """The time of a connection; why it has ended. Cancelled, it takes leave in order."""
        self._epoch += 1
        self._consumer.begin(self._epoch, guard)
        self._tell(Up(False, Abilities(False, LARGEST_MESSAGE, 2, False, self._cannot, keeps=True)))
        work = asyncio.get_running_loop().create_task(self._work(connection), name=f"amqp-{self.login.name}")
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await self._leave()
            raise
        except BaseExceptionGroup as group:
            _, other = group.split((Over, exceptions.AMQPError, exceptions.ChannelInvalidStateError, OSError))
            if other is not None:
                log.error("event=connector-failed error=%r", other.exceptions[0], exc_info=other)
            if guard.closed is not None:
                return f"the server ends the connection: {guard.closed[1]}"
            return guard.error or words(group)
        finally:
            work.cancel()
            await asyncio.wait([work])
        return "connection lost"

    async def _work(self, connection: _Connection) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(connection), name="amqp-watch")
            group.create_task(self._plain.run(connection, mapping.OURS + self.login.name), name="amqp-plain")
            group.create_task(self._publisher.run(connection), name="amqp-confirmed")
            group.create_task(self._consumer.run(connection), name="amqp-bindings")
            group.create_task(self._consumer.run_acks(), name="amqp-acks")

    @staticmethod
    async def _watch(connection: _Connection) -> None:
        """Raises Over with the end of the connection."""
        assert connection.transport is not None
        closing = connection.transport.connection.closing
        await asyncio.wait([closing])
        raise Over("the server does not answer" if closing.cancelled() else words(closing.exception()))

    async def _leave(self) -> None:
        """Take no more, and send what is to be sent."""
        with contextlib.suppress(TimeoutError, exceptions.AMQPError, exceptions.ChannelInvalidStateError):
            async with asyncio.timeout(LEAVING):
                await self._consumer.leave(self.forget)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING):
                await self._plain.idle()
                await self._publisher.idle()

    @staticmethod
    async def _close(connection: _Connection, transport: Transport) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LEAVING):
                await connection.close()
        transport.abort()
