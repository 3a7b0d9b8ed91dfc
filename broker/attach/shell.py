"""Attached brokers on asyncio: dial the other broker, then take up the session here, relay until one of them ends, and begin again.

One task for each `[[attach]]`. The session at this broker is connected only while the other broker has accepted us. Until then it is away,
and what is for the other broker waits in it like a durable subscriber's messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...base.backoff import Backoff
from ...base.process.happy_eyeballs import connect
from ...base.quoting import quoted
from ...mesh.wire.policy import PolicyFilter
from ...mqtt.errors import PeerError
from ...mqtt.fields import doubtful
from ...mqtt.length import LONGEST_LENGTH
from ...mqtt.packets import Connect, Disconnect, Subscription
from ...mqtt.properties import Property
from ...mqtt.reasons import Reason
from ...mqtt.topics import overlaps
from ..auth.metabroker_secret import SecretError, read_secret
from ..settings.attach import AttachSettings, filters_here, filters_out, filters_there
from ..transport.in_process import InProcessPair
from ..transport.tls.openssl_errors import explain
from ..transport.websocket.client import dial
from .end import WINDOW, End, Refused
from .interest import Demand, Interest
from .relay import Counts, Later, Relay, Wants, unmark

if TYPE_CHECKING:
    from ..mesh.shell import MeshShell
    from ..session.session import Session
    from ..site import Site

log = logging.getLogger("mqmesh.broker")

PAUSES = (0.25, 15.0)  # seconds between attempts that the other broker hears of: first, longest
UNREACHED = 0.5  # seconds between attempts while nobody listens there: they cost that broker nothing, and it may come back any moment
CONNECT_TIMEOUT = 10.0
STEADY = 5.0  # seconds that messages have to cross before the next attempt comes soon
SILENCE = 5.0  # seconds in which nothing comes from the other broker, pings notwithstanding, until it counts as lost
WEEK = 7 * 86_400  # seconds that either broker keeps our session
KEEP_ALIVE = 20  # seconds, what the other broker is told
HIGH = 256 * 2**10  # bytes that one end has not taken, before the other one is not read
# Bytes beyond one piece that wait for an end, until it is lost: its own messages are acknowledged while the other end is not read.
MOST_WAITING = 16 * 2**20
LOOK = 0.2  # seconds between looks of a stand-by
JOINING = 5.0  # seconds that a stand-by waits at its start for a neighbour...
SAYING = 0.5  # ...and then for what the neighbour says
STANDBY_SILENCE = 1.0  # `SILENCE` where there is a stand-by
HERE = "this broker"
NOTED = 60.0  # seconds between two lines of one kind about messages
Join = Callable[[asyncio.Protocol, Callable[[Exception], None]], InProcessPair]


class Line(asyncio.Protocol):
    """One of the two connections. other: the other one, whose reading waits while this one takes nothing."""

    transport: asyncio.Transport

    def __init__(self, owner: Attachment, end: End) -> None:
        self._owner = owner
        self.end = end
        self.other: Line | None = None
        self.open = False
        self._largest = 0  # bytes of one piece that was written
        self.heard = asyncio.get_running_loop().time()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.open = True
        transport.set_write_buffer_limits(HIGH)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end.begin()
        self.write()

    def data_received(self, data: bytes) -> None:
        self.heard = asyncio.get_running_loop().time()
        if self.open:
            self._owner.took(self, data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.open:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.open:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._owner.ended(f"{self.end.name}: {getattr(exc, 'strerror', None) or exc or 'connection lost'}")

    def write(self) -> None:
        """Write what the end says."""
        if data := self.end.take():
            self.send(data)

    def send(self, data: bytes) -> None:
        """Write bytes."""
        if self.open and not self.transport.is_closing():
            self.transport.write(data)
            self._largest = max(self._largest, len(data))
            waiting = self.transport.get_write_buffer_size()
            if waiting > MOST_WAITING + self._largest:
                self._owner.ended(f"{self.end.name}: it sends messages, and does not read: {waiting:,} bytes wait for it")

    def leave(self, forget: bool = False) -> None:
        """Say DISCONNECT, which keeps the session unless it is to be forgotten, and close."""
        if self.open:
            if self.end.up:
                properties: dict[int, Any] = {Property.SESSION_EXPIRY_INTERVAL: 0} if forget and self.end.version == 5 else {}
                self.end.send(Disconnect(Reason.NORMAL_DISCONNECTION, properties))
                self.write()
            self.open = False
            self.transport.close()


class Attachment:
    """One attached broker. state: "down", "up" or "stand-by". trouble: why messages do not cross. faults: how often they ceased to."""

    def __init__(self, settings: AttachSettings, site: Site, join: Join) -> None:
        self.settings = settings
        self._site, self._join = site, join
        self._filter = PolicyFilter(settings.policy)
        self.counts = Counts()
        self.state, self.trouble, self.faults = "down", "not tried yet", 0
        self.since = site.context.wall()
        self._begun = False  # has subscribed
        self._lines: list[Line] = []
        self._relay: Relay | None = None
        self._pair: InProcessPair | None = None  # of our connection to this broker
        self._closed = asyncio.Event()
        self._why = ""
        self._noted: dict[str, float] = {}
        self._bridge = self._plain = False  # whether CONNECT has the bit of a bridge; whether it may not have it
        self._largest = site.config.limits.max_packet_size  # bytes of a packet from there
        self._joined = False
        self._fenced = False  # another client took over our session
        self._uncompared = False  # the other broker made a new session for us, and retained messages were not compared since
        self._mark_topic = settings.share[1].encode()
        self._silence = STANDBY_SILENCE if settings.standby else SILENCE
        self.demand = Demand(settings.wanted, settings.policy)
        self._interest: Interest | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        backoff, dials = (Backoff(*pauses, spread=(0.8, 1.2)) for pauses in (PAUSES, (UNREACHED, UNREACHED)))
        clock = asyncio.get_running_loop().time
        self._forget_mark()
        try:
            while True:
                began, reached = clock(), True
                try:
                    await self._life()
                except (OSError, ValueError, SecretError) as error:
                    self._why = self._reason(error)
                    reached = not isinstance(error, OSError) or isinstance(error, ssl.SSLError)
                except Exception as error:
                    self._failed(error)
                was, lasted = self.state, clock() - began
                self._leave()
                self._say("down", self._why)
                if was == "up" and lasted > STEADY:
                    backoff.reset()
                await self._rest((backoff if reached else dials).next())
        finally:
            self._leave()

    async def _stand_by(self) -> None:
        """Return when no other broker of the mesh serves."""
        mesh = self._site.mesh
        if mesh is None or not self.settings.standby:
            return
        while True:
            while await self._joining(mesh) or self._served():
                self._fenced = False
                self._say("stand-by", "another broker of the mesh serves")
                await asyncio.sleep(LOOK)
            if not self._fenced:
                return
            self._fenced = False  # by one that cannot be reached in the mesh: the two would take the session from each other without end
            await self._rest(PAUSES[1])

    def _served(self) -> bool:
        """Whether it is known that another broker of the mesh serves."""
        mesh, settings = self._site.mesh, self.settings
        return mesh is not None and settings.standby and bool(mesh.node.sharers(settings.share))

    async def _rest(self, seconds: float) -> None:
        """Wait before the next attempt, or until another broker serves: there is none to be made then, and nothing is wrong."""
        if not self.settings.standby:
            await asyncio.sleep(seconds)
            return
        for _ in range(math.ceil(seconds / LOOK)):
            if self._served():
                return
            await asyncio.sleep(LOOK)

    async def _joining(self, mesh: MeshShell) -> bool:
        """Wait once, after the start, until the mesh is here and can have said who serves. Always False."""
        if not self._joined:
            self._joined = True
            self._say("down", "it waits for the mesh")
            for _ in range(int(JOINING / LOOK)):
                if mesh.node.live() and not mesh.starting:
                    break
                await asyncio.sleep(LOOK)
            await asyncio.sleep(SAYING)
        return False

    async def _life(self) -> None:
        """One connection to the other broker, from beginning to end. Raises OSError, ValueError, SecretError."""
        await self._stand_by()
        self._closed.clear()
        self._why = ""
        self._relay = relay = self._make_relay()
        there = Line(self, relay.there)
        self._lines = [there]
        address, context = self.settings.address, await asyncio.to_thread(self._tls)
        async with asyncio.timeout(CONNECT_TIMEOUT):
            if address.websocket:
                await dial(there, address.host, address.port, address.path, context, CONNECT_TIMEOUT)
            else:
                await connect(lambda: there, address.host, address.port, context)
        while not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._silence / 4):
                    await self._closed.wait()
            self._look(there)

    def _make_relay(self) -> Relay:
        """Raises SecretError."""
        settings = self.settings
        there = End(str(settings.address), self._connect_there(), self._largest if settings.version == 5 else LONGEST_LENGTH)
        here = End(HERE, Connect(), LONGEST_LENGTH)
        wants = Wants(filters_here(settings.policy), settings.asked, settings.qos, self._begun, settings.mark, self._uncompared)
        names = (self._outwards, self._on_demand if settings.wanted else self._filter.inwards)
        return Relay(here, there, wants, names, self._retained, self._identifiers, self.counts, self._note, self._bare)

    def _look(self, there: Line) -> None:
        """See whether the other broker still says something."""
        silent = asyncio.get_running_loop().time() - there.heard
        if silent > self._silence:
            self.ended(f"{there.end.name}: nothing has come for {self._silence:g} s")
        elif silent > self._silence / 4 and there.end.up:
            there.end.ping()
            there.write()

    # What the lines call

    def took(self, line: Line, data: bytes) -> None:
        """Bytes have come."""
        relay = self._relay
        assert relay is not None
        try:
            if relay.single(line.end, data):
                self._pass(line, data)
                return
            if relay.feed(line.end, data):
                if relay.up:
                    self._cross(relay)
                else:
                    self._come_in(line, relay)
        except (Refused, Later, PeerError) as error:
            if self._bridge and isinstance(error, Refused) and error.level:
                self._without_bridge()
                return
            self._fenced = isinstance(error, Later) and error.fenced
            self.ended(error.text if isinstance(error, PeerError) else str(error))
            return
        if self._pair is None:
            self._write()
        else:
            self._pair.pump_after(self._write)

    def _pass(self, line: Line, data: bytes) -> None:
        """What has come at one end goes to the other one as it is."""
        assert line.other is not None
        assert self._pair is not None
        if line.other.end.name == HERE:
            self._pair.other.hand(data)
            self._pair.pump()
        else:
            line.other.send(data)

    def _write(self) -> None:
        for one in self._lines:
            one.write()

    def _without_bridge(self) -> None:
        """The other broker does not know the bit of a bridge, so it sends back what we publish: that may match nothing that comes in."""
        policy = self.settings.policy
        both = [f"{one} and {other}" for one in filters_there(policy) for other in filters_out(policy) if overlaps(one, other)]
        self._plain = not both
        text = "it does not know bridges: once more without that"
        if both:
            text = f"it does not know bridges, and would send back what we publish: {both[0]} overlap there; give other in and out"
        self.ended(f"{self.settings.address}: {text}")

    def ended(self, why: str) -> None:
        """One connection is of no use any more; so is the other one."""
        if not self._closed.is_set():
            self._why = why
            self._closed.set()

    def _come_in(self, there: Line, relay: Relay) -> None:
        """The other broker has accepted us: take up the session here. Until it is there, no more is read."""
        self._uncompared = self._uncompared or not relay.there.present
        relay.here.connect = self._connect_here(relay.there)
        here = Line(self, relay.here)
        here.other, there.other = there, here
        self._lines.append(here)
        there.transport.pause_reading()
        self._pair = self._join(here, self._failed)

    def _cross(self, relay: Relay) -> None:
        """Both brokers have accepted us."""
        relay.begin()
        self._begun, self._uncompared = True, False
        self._lines[0].transport.resume_reading()
        self._say("up", "")
        if self._pair is not None:
            self._pair.at_once = True  # from now on the lines only write
        if self.settings.wanted:
            self._interest = Interest(self.demand, self._site, self.settings.session, self._ask, relay.there.present)

    def _ask(self, new: list[str], gone: list[str]) -> None:
        """Subscribe at the other broker, and give up what is wanted no more."""
        if self._relay is not None:
            self._relay.ask(new, gone)
            self._lines[0].write()

    def _failed(self, error: Exception) -> None:
        log.error("event=attach-failed name=%s", self.settings.name, exc_info=error)
        self.ended(f"an internal error: {error!r}")

    def _forget_mark(self) -> None:
        """The session of an earlier life says that we serve: we do not."""
        session = self._site.sessions.get(self.settings.session)
        if session is not None and self.settings.mark:
            self._site.router.unsubscribe(session, self.settings.mark)

    def _leave(self) -> None:
        for line in self._lines:
            if line.end.name == HERE and line.end.up and self.settings.mark:
                unmark(line.end, self.settings.mark)
            # Who finds a session there takes retained messages for compared: one that was made just now, for nothing, goes.
            line.leave(self._uncompared and line.end.name != HERE and not line.end.present)
        self._lines, self._relay, self._pair = [], None, None
        if self._interest is not None:
            self._interest.stop()
            self._interest = None

    # As whom

    def _connect_there(self) -> Connect:
        settings, wide = self.settings, self.settings.version == 5
        password = settings.address.password.encode() if settings.address.password is not None else None
        if settings.password_file is not None:
            password = read_secret(settings.password_file)
        properties: dict[int, Any] = {}
        if wide:
            properties = {
                Property.SESSION_EXPIRY_INTERVAL: WEEK,
                Property.RECEIVE_MAXIMUM: WINDOW,
                Property.MAXIMUM_PACKET_SIZE: self._largest,
            }
        self._bridge = not wide and not self._plain
        return Connect(
            settings.client_id, settings.version, False, KEEP_ALIVE, settings.user, password, None, properties, bridge=self._bridge
        )

    def _connect_here(self, there: End) -> Connect:
        """What the other broker takes at once is what this one sends."""
        properties: dict[int, Any] = {Property.SESSION_EXPIRY_INTERVAL: WEEK, Property.RECEIVE_MAXIMUM: there.window}
        return Connect(self.settings.session, 5, False, 0, properties=properties)

    def _tls(self) -> ssl.SSLContext | None:
        """Reads files. Raises OSError."""
        settings = self.settings
        if not settings.address.tls:
            return None
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
        return context

    # What is here

    def _outwards(self, topic: bytes) -> bytes | None:
        return None if topic == self._mark_topic or doubtful(topic) else self._filter.outwards(topic)

    def _on_demand(self, name: bytes) -> bytes | None:
        topic = self._filter.inwards(name)
        if topic is not None and self._interest is not None and self.demand.stray(topic, name):
            self._interest.stray(name)
        return topic

    def _bare(self, topic: bytes) -> bool:
        return self.demand.of_demand(topic.decode())

    def _retained(self, topic: bytes) -> bool:
        return self._site.retained.has(topic)

    def _identifiers(self) -> list[int]:
        session = self._site.sessions.get(self.settings.session)
        return sorted(session.inbound.open) if session is not None else []

    # What is said

    def _reason(self, error: Exception) -> str:
        address = self.settings.address
        if isinstance(error, TimeoutError):
            return f"{address}: no answer"
        if isinstance(error, ssl.SSLError):
            return f"{address}: {explain(error)}"
        if isinstance(error, OSError):
            return f"{address}: {error.strerror or error}"
        return f"{address}: {error}"

    def _say(self, state: str, trouble: str) -> None:
        if state != self.state:
            self.faults += self.state == "up"
            self.since = self._site.context.wall()
        if (state, trouble) != (self.state, self.trouble):
            level = logging.INFO if state == "up" else logging.WARNING
            shown = quoted(trouble) if trouble else "-"
            log.log(level, "event=attach-%s name=%s address=%s text=%s", state, self.settings.name, self.settings.address, shown)
        self.state, self.trouble = state, trouble
        context, below = self._site.context, f"$SYS/broker/attach/{self.settings.name}"
        context.refresh()
        context.say(f"{below}/trouble", trouble)
        context.say(f"{below}/state", state)
        context.flush()

    def _note(self, text: str) -> None:
        """A line about messages, now and then."""
        now = asyncio.get_running_loop().time()
        kind = text[:12]
        if now - self._noted.get(kind, -NOTED) >= NOTED:
            self._noted[kind] = now
            log.warning("event=attach-refused name=%s text=%s", self.settings.name, quoted(text))


class Attachments:
    """All of one broker. join: connects a client of this process to the broker."""

    def __init__(self, settings: list[AttachSettings], site: Site, join: Join) -> None:
        self._site = site
        self.all = [Attachment(one, site, join) for one in settings]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(one.run(), name=f"attach {one.settings.name}") for one in self.all]

    def opening(self, session: Session) -> None:
        """See `Attached`. The session has its subscriptions from its first moment.

        A stand-by's session is cut off from that of the broker that served before: what is published from now on is for this one.
        """
        for settings in [one.settings for one in self.all if one.settings.session == session.client_id]:
            for filter_ in [one for one in filters_here(settings.policy) if one not in session.subscriptions]:
                subscription = Subscription(filter_, settings.qos, True, True)
                self._site.router.subscribe(session, subscription, 0)
                session.subscribed(subscription, 0)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def values(self) -> dict[str, str]:
        """name below `$SYS/broker` -> value."""
        return dict(self._values())

    def _values(self) -> Iterator[tuple[str, str]]:
        for one in self.all:
            counts, below = one.counts, f"attach/{one.settings.name}"
            yield f"{below}/state", one.state
            yield f"{below}/trouble", one.trouble
            yield f"{below}/since", str(int(one.since))
            for name in ("out", "into", "refused", "withheld"):
                yield f"{below}/messages/{name}", str(getattr(counts, name))
            yield f"{below}/faults", str(one.faults)
            if one.settings.wanted:
                yield f"{below}/subscriptions/wanted", str(len(one.demand.asked))
