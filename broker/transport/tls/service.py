"""TLS of one broker: its contexts, the connections in their handshake, who was refused, and looking at the files again.

Strangers that fail get one line in the log (`base/refusals.py`). Nothing that one of them does reaches another connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....base.process.happy_eyeballs import connect
from ....base.refusals import Refusals
from ....base.settings import ConfigError
from ....mesh.topology.tls import TlsSettings
from .certificate import covers
from .contexts import SOON, Contexts, day
from .transport import TlsTransport

if TYPE_CHECKING:
    from ...ports import Admission, Context

log = logging.getLogger("mqmesh.tls")

READ = 256 * 2**10  # bytes read from a socket at once
LOOK = 86400.0  # seconds between looks at the certificate's end


class TlsError(ConnectionError):
    """A TLS connection could not be made; a clause about the peer."""


class TlsService:
    """Makes the TLS layer of connections, accepted or dialled. Raises ConfigError when the files are not right.

    listens: it is used by a listener.
    named: the broker's name, if its certificate has to have it.
    """

    def __init__(self, context: Context, admission: Admission, settings: TlsSettings, listens: bool, named: str | None) -> None:
        self._context = context
        self._admission = admission
        self.settings = settings
        self._listens = listens
        self._named = named
        self.contexts = Contexts(settings, self._listens, self._named)
        self._buffer = memoryview(bytearray(READ))
        self._shaking: set[TlsTransport] = set()
        self._refusals = Refusals(log, "tls-refused")
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Say what is in use."""
        self._say("tls")
        self._look_later()

    def stop(self) -> None:
        """End what is in its handshake."""
        if self._timer is not None:
            self._timer.cancel()
        for transport in list(self._shaking):
            transport.abort()

    def reload(self) -> bool:
        """Look at the files again: new connections begin with what is in them now, others go on. False: they are not right, nothing
        has changed."""
        try:
            self.contexts = Contexts(self.settings, self._listens, self._named)
        except (ConfigError, OSError) as error:
            log.error("event=tls-not-reloaded text=%s", error)
            return False
        self._say("tls-reloaded")
        if self._timer is not None:
            self._timer.cancel()
            self._look_later()
        return True

    def _say(self, event: str) -> None:
        own, settings = self.contexts.own, self.settings
        shown = ",".join(sorted(own.names)) if own else "-"
        ends = day(own.ends).replace(" ", "T", 1).removesuffix(" UTC") + "Z" if own else "-"
        files = [str(file or "-") for file in (settings.certificate, settings.ca)]
        text = "event=%s certificate=%s ca=%s names=%s ends=%s client_certificates=%s"
        log.info(text, event, *files, shown, ends, settings.client_certificates)
        for warning in self.contexts.warnings:
            log.warning("event=tls-certificate text=%s", warning)

    def _look(self) -> None:
        """Once a day, and when the certificate or a revocation list ends: does the certificate end soon, has the list ended?"""
        own = self.contexts.own
        left = own.ends - self._context.wall() if own else SOON
        if own and left < SOON:
            text = f"{self.settings.certificate} {'expired' if left <= 0 else 'expires'} on {day(own.ends)}: renew it, then send SIGHUP"
            log.warning("event=tls-certificate text=%s", text)
        lists_end = self.contexts.lists_end
        if lists_end is not None and lists_end <= self._context.wall():
            log.warning("event=tls-certificate text=%s", self.contexts.lists_ended())
        self._look_later()

    def _look_later(self) -> None:
        own, lists_end, wall = self.contexts.own, self.contexts.lists_end, self._context.wall()
        ends = [end - wall + 1.0 for end in (own.ends if own else None, lists_end) if end is not None]
        self._timer = self._context.loop.call_later(min([LOOK, *(left for left in ends if left > 0.0)]), self._look)

    @property
    def shaking(self) -> int:
        """Accepted connections in their handshake."""
        return len(self._shaking)

    def values(self) -> dict[str, str]:
        """name below `$SYS/broker` -> value."""
        counters, own = self._context.counters, self.contexts.own
        values = {"tls/handshakes": str(counters.tls_handshakes), "tls/refused": str(counters.tls_refused)}
        if own is not None:
            values["tls/certificate/ends"] = day(own.ends)
        return values

    # Listeners

    def accept(self, factory: Callable[[], asyncio.BaseProtocol]) -> TlsTransport:
        """The protocol for a new connection of a TLS listener; `factory` makes the one above it when the handshake is done."""
        context = self.contexts.server
        assert context is not None
        ours, admission = self._context, self._admission

        def established(transport: TlsTransport) -> None:
            self._shaking.discard(transport)
            ours.counters.tls_handshakes += 1
            admission.end(transport)
            protocol = factory()
            admission.begin(protocol, transport.address)
            transport.begin(protocol)

        transport = TlsTransport(ours.loop, context, self._buffer, ours.limits.connect_timeout, established, self._refused)
        self._shaking.add(transport)
        return transport

    def _refused(self, transport: TlsTransport, text: str) -> None:
        self._shaking.discard(transport)
        self._admission.end(transport)
        self._context.counters.tls_refused += 1
        self._refusals.say(self._context.loop.time(), transport.address, text, what=text)  # one of a few

    # Links

    async def dial(self, host: str, port: int) -> TlsTransport:
        """A TLS connection whose peer's certificate leads to `ca`; call `begin` on it. Raises TlsError and OSError."""
        context = self.contexts.client
        assert context is not None
        loop = self._context.loop
        outcome: asyncio.Future[None] = loop.create_future()

        def established(transport: TlsTransport) -> None:
            if not outcome.done():
                outcome.set_result(None)

        def failed(transport: TlsTransport, text: str) -> None:
            if not outcome.done():
                outcome.set_exception(TlsError(text))

        patience = self._context.limits.connect_timeout
        transport = TlsTransport(loop, context, self._buffer, patience, established, failed, False, host)
        await connect(lambda: transport, host, port)
        try:
            await outcome
        except TlsError:
            raise  # the layer closes once its alert has gone
        except BaseException:
            transport.abort()
            raise
        return transport


def trusted_names(transport: TlsTransport, host: str) -> frozenset[str] | None:
    """The names to compare with the broker's own; None when the certificate names the host that was dialled."""
    given = transport.names
    return None if covers(given, host) else given
