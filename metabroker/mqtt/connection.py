"""The MQTT connection of the metabroker on asyncio: it connects, tries again with growing pauses, and tells its owner what comes in.

One task a broker. `ClientMachine` speaks the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from ...base.address import Address, interchangeable
from ...base.process.happy_eyeballs import connect, connected_socket, hand_over
from ...broker.embedded.direct import Guest
from ...broker.transport.tls.openssl_errors import explain
from ...broker.transport.websocket.client import dial
from ...mqtt.errors import PeerError
from ...mqtt.packets import Publish
from ...mqtt.reasons import Reason
from ..protocol.events import Event, Refused, State, Up
from ..reconnect import CONNECT_TIMEOUT, Ended, stay_connected, why_not
from .client import ClientMachine
from .read_pacing import REST, ReadPacing

TAKEN = "another client has our identifier there, and took the session over: is there a copy of the data folder?"
STANDS_BY = "another client has our identifier there; we stand by, and connect when that one is gone"
LEAVING = 5.0  # seconds for the server to answer when we take our leave
AT_ONCE = 64  # events that the owner is given in one turn of the loop: each may be an answer to a client, or a message
log = logging.getLogger(__name__)
# A broker that leaves Nagle's algorithm on (Mosquitto) holds a second small packet back until the kernel has confirmed the first, which it
# puts off for 40 ms. Linux can be told not to.
QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)


class Connection:
    """Stays connected to one broker while its task `run` lives.

    on_events: is given what came in with one chunk, `AT_ONCE` events in one turn of the loop.
    on_down: see `Owner`.
    forget: whether the server is to forget our session when we leave.
    forgetting: connects once more after leaving, so that a server of MQTT 3.1.1 forgets the session.
    reads_pause: reading may pause for a moment, so that more comes at once (`read_pacing.py`).
    inside: the connection is to the broker of this process.
    guest: the direct lane of that broker's requests.
    direct_lane: is given each chunk first, with the time. True: it has handled the chunk.
    taken: the server has given our session to another client of our identifier.
    still_ours: whether we, and nobody else, are to be the client of this identifier; asked before each attempt. None: as long as no other
    one has taken the session, and again when that one is gone, if the server can tell.
    """

    reads_pause = True
    inside = False

    def __init__(
        self,
        addresses: list[Address],
        machine: ClientMachine,
        ca: str | None,
        on_events: Callable[[list[Event]], None],
        on_down: Callable[[bool | None, str], None],
    ) -> None:
        self.machine = machine
        self.addresses = addresses
        self._ca = ca
        self._on_events = on_events
        self._on_down = on_down
        self._line: Line | None = None
        self._paused = False
        self.guest: Guest | None = None
        self.direct_lane: Callable[[bytes, float], bool] | None = None
        self.forget = True
        self.taken = False
        self.still_ours: Callable[[], bool] | None = None
        self.forgetting: ClientMachine | None = None  # connects once more, where leaving is not enough

    async def run(self) -> None:
        """Until it is cancelled; the connection is left in order then."""
        try:
            await stay_connected(lambda: self.addresses, self._attempt, self._on_down)
        finally:
            await self._leave()
            if self.forget and self.forgetting is not None and self.machine.login.version == 4:
                await self._forget(self.forgetting)

    async def _attempt(self, address: Address) -> Ended:
        """One connection from beginning to end."""
        if self.still_ours is not None and not self.still_ours():
            return Ended(False, None, f"{address}: another metabroker may have this connection")
        if self.still_ours is None and self.taken and not self.machine.tells:
            return Ended(False, False, f"{address}: {TAKEN}")
        self.machine.exclusive = self.taken
        line = Line(self)
        try:
            context = await self._context(address)
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await self._dial(line, address, context)
        except TimeoutError:
            return Ended(False, None, f"{address}: no answer")
        except OSError as error:
            why = explain(error) if isinstance(error, ssl.SSLError) else why_not(error, address.host)
            return Ended(False, None, f"{address}: {why}")
        except ValueError:  # of the codec for host names
            return Ended(False, None, f"{address}: this is no host name")
        await line.closed.wait()
        machine = self.machine
        if not machine.understood and line.refused is not True:
            machine.speak(4 if machine.login.version == 5 else 5)
            if machine.login.version == 4:
                log.info("event=version-falls-back address=%s version=3.1.1 error=%r", address, line.error or "connection lost")
                return await self._attempt(address)
        if self.taken and line.refused is False:
            line.error = f"{line.error}: {STANDS_BY}"
        return Ended(line.accepted, line.refused, f"{address}: {line.error or 'connection lost'}")

    async def _context(self, address: Address) -> ssl.SSLContext | None:
        """For TLS. The authorities of a system are hundreds of certificates: they are read in a thread."""
        return await asyncio.to_thread(ssl.create_default_context, cafile=self._ca) if address.tls else None

    async def _dial(self, line: Line, address: Address, context: ssl.SSLContext | None) -> None:
        """Connect a transport to a line."""
        if address.websocket:
            await dial(line, address.host, address.port, address.path, context, CONNECT_TIMEOUT)
            return
        await connect(lambda: line, address.host, address.port, context)

    async def _leave(self) -> None:
        line = self._line
        if line is not None:
            answered = self.machine.end(line.now(), self.forget)
            line.write()
            if answered:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEAVING):
                        await line.closed.wait()
            line.transport.close()

    async def _forget(self, machine: ClientMachine) -> None:
        """Make a server of MQTT 3.1.1 forget our session: it does when we come once more and want none."""
        for address in self.addresses:
            with contextlib.suppress(OSError, TimeoutError, PeerError):
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    context = await self._context(address)
                    sock = await connected_socket(address.host, address.port)
                    name = address.host if context is not None else None
                    reader, writer = await hand_over(sock, asyncio.open_connection(sock=sock, ssl=context, server_hostname=name))
                    machine.begin(0.0)
                    writer.write(machine.take())
                    machine.receive(await reader.read(64), 0.0)
                    machine.end(0.0)
                    writer.write(machine.take())
                    writer.close()
                    return

    # What a connector does (connectors/connector.py)

    def publish(self, publish: Publish, token: int, now: float) -> None:
        """See `Connector`, as all of these."""
        self.machine.publish(publish, token, now)

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        self.machine.subscribe(filter_, qos, identifier, token, now)

    def unsubscribe(self, filter_: str, now: float) -> None:
        self.machine.unsubscribe(filter_, 0, now)

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        self.machine.acknowledge(packet_id, epoch, now)

    def pause(self, paused: bool) -> None:
        """Read nothing, or read on."""
        if paused != self._paused:
            self._paused = paused
            self.machine.reading = not paused
            if self._line is not None:
                self._line.pause(paused)

    def move(self, addresses: list[Address]) -> None:
        """See `Connector`."""
        self.addresses = interchangeable(self.addresses[0], addresses) or self.addresses

    def connect_anew(self) -> None:
        """End the connection; the next one is made at once, nearly."""
        if self._line is not None:
            self._line.transport.abort()

    def flush(self) -> None:
        """Write what the machine has to say."""
        if self._line is not None:
            self._line.write()

    def write_directly(self, frame: bytes, now: float) -> bool:
        """Write a PUBLISH of QoS 0, if the server has taken all that stands before it. False: nothing was done."""
        line, machine = self._line, self.machine
        if line is None or not machine.may_write_directly(now):
            return False
        transport = line.transport
        if transport.get_write_buffer_size() or transport.is_closing():
            return False
        transport.write(frame)
        return True

    def tick(self) -> None:
        """Let the machine see the time."""
        if self._line is not None:
            self._line.tick()

    @property
    def backlog(self) -> int:
        """Bytes that the broker has not taken."""
        return self.machine.bytes + (self._line.transport.get_write_buffer_size() if self._line is not None else 0)


class Line(asyncio.Protocol):
    """One transport."""

    transport: asyncio.Transport

    def __init__(self, owner: Connection) -> None:
        self.owner = owner
        self.closed = asyncio.Event()
        self.accepted = False
        self.refused: bool | None = None
        self.error = ""
        self.now = asyncio.get_running_loop().time
        self._socket: socket.socket | None = None
        self._pace: ReadPacing | None = None
        self._events: deque[Event] = deque()  # that the owner has not been given; nothing is read meanwhile
        self._packets = owner.machine.packets  # that had come with what was read before

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if QUICK_ACK is not None and (found := transport.get_extra_info("socket")) is not None:
            # one of our own: uvloop's makes a new one for each call
            self._socket = socket.socket(found.family, found.type, found.proto, fileno=os.dup(found.fileno()))
        if self.owner.reads_pause:
            self._pace = ReadPacing()
        self.owner._line = self
        if self.owner._paused:
            transport.pause_reading()
        try:
            self.owner.machine.begin(self.now())
        except PeerError as error:
            self.fail(error)
            return
        self.write()

    def data_received(self, data: bytes) -> None:
        if self.owner._line is not self or self.transport.is_closing():
            return
        owner, now = self.owner, self.now()
        machine = owner.machine
        if self._events or owner.direct_lane is None or data[0] != 0x30 or not owner.direct_lane(data, now):
            self._receive(data, now)
        if self._pace is not None:
            packets, self._packets = machine.packets - self._packets, machine.packets
            if self._pace.rests(packets, len(data), self.now()) and not owner._paused and not self.transport.is_closing():
                self.transport.pause_reading()
                asyncio.get_running_loop().call_later(REST, self._go_on)
        if QUICK_ACK is not None and self._socket is not None:
            with contextlib.suppress(OSError):  # once only, so after every read; last, because what has been written confirms too
                self._socket.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)

    def _receive(self, data: bytes, now: float) -> None:
        """Take bytes the general way."""
        try:
            events = self.owner.machine.receive(data, now)
        except PeerError as error:
            self.fail(error)
            return
        for event in events:
            if isinstance(event, Up):
                self.accepted, self.owner.taken = True, False
            elif isinstance(event, Refused):
                self.refused, self.error = event.credentials, event.text
                self.transport.close()
        if self._events:
            self._events += events  # a layer between had them already
        elif len(events) <= AT_ONCE:
            self.owner._on_events(events)
            self.write()
        else:
            self._events += events
            self.transport.pause_reading()
            self._give_some()

    def _give_some(self) -> None:
        """Give the owner some of the events, and the rest in the next turns of the loop."""
        events = self._events
        if self.owner._line is not self:
            return
        self.owner._on_events([events.popleft() for _ in range(min(AT_ONCE, len(events)))])
        self.write()
        if events:
            asyncio.get_running_loop().call_soon(self._give_some)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Read again, after a rest or when the owner has been given all."""
        if self.owner._line is self and not self.owner._paused and not self._events and not self.transport.is_closing():
            self.transport.resume_reading()

    def resume_writing(self) -> None:
        """What was to be written has gone out, nearly: whoever waits for that may go on, though nothing comes from the broker."""
        if self.owner._line is self:
            self.owner._on_events([])
            self.write()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._events:  # what came before the loss counts
            self.owner._on_events(list(self._events))
            self._events.clear()
        if exc is not None and not self.error:
            self.error = getattr(exc, "strerror", None) or str(exc)
        if self.owner._line is self:
            self.owner._line = None
            self.owner.machine.lost()
        self.closed.set()

    def write(self) -> None:
        data = self.owner.machine.take()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def pause(self, paused: bool) -> None:
        if not self.transport.is_closing():
            if paused:
                self.transport.pause_reading()
            else:
                self._go_on()

    def tick(self) -> None:
        try:
            self.owner.machine.on_timer(self.now())
        except PeerError as error:
            self.fail(error)
            return
        self.write()

    def fail(self, error: PeerError) -> None:
        """The server broke a rule, or ended the connection."""
        self.error = error.text
        self.owner.taken |= error.reason is Reason.SESSION_TAKEN_OVER
        if error.reason in (Reason.NOT_AUTHORIZED, Reason.BAD_USER_NAME_OR_PASSWORD) and self.owner.machine.state is not State.UP:
            self.refused = True
        self.transport.abort()
