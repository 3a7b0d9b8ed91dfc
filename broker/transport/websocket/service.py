"""WebSocket listeners of one broker: who is in the handshake, who may connect, who was refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ....base.refusals import Refusals
from ....mqtt.websocket.frames import FrameError
from ....mqtt.websocket.opening import Answer, ServerOpening
from .transport import WebSocketTransport

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from ...ports import Admission, Context

log = logging.getLogger("mqmesh.websocket")

LEAST_LIMIT = 64 * 2**10  # bytes of a message that are taken however small the largest packet is: one message may hold many packets


class WebSocketService:
    """Makes the WebSocket layer of accepted connections.

    make_protocol: makes the protocol of MQTT above the layer.
    origins: of web pages that may connect, as `normal_origin` writes them; another set takes effect for connections to come.
    """

    def __init__(
        self, context: Context, admission: Admission, origins: Iterable[str], make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._context = context
        self._admission = admission
        self._make_protocol = make_protocol
        self.origins = frozenset(origins)
        self._limit = max(context.limits.max_packet_size, LEAST_LIMIT)
        self._opening: set[WebSocketTransport] = set()
        self._refusals = Refusals(log, "websocket-refused")
        self._violations = Refusals(log, "websocket-broken")

    def stop(self) -> None:
        """End what is in its handshake."""
        for transport in list(self._opening):
            transport.abort()

    @property
    def opening(self) -> int:
        """Connections in their handshake."""
        return len(self._opening)

    def values(self) -> dict[str, str]:
        """name below `$SYS/broker` -> value."""
        counters = self._context.counters
        return {
            "websocket/handshakes": str(counters.websocket_handshakes),
            "websocket/refused": str(counters.websocket_refused),
            "websocket/broken": str(counters.websocket_broken),
        }

    def accept(self, path: str) -> WebSocketTransport:
        """The protocol for a new connection of a listener that serves `path`."""
        transport = WebSocketTransport(
            self._context.loop,
            ServerOpening(path, self.origins),
            self._limit,
            self._context.limits.connect_timeout,
            self._established,
            self._refused,
            self._broken,
            self._gone,
        )
        self._opening.add(transport)
        return transport

    def _gone(self, transport: WebSocketTransport) -> None:
        self._opening.discard(transport)
        self._admission.end(transport)

    def _established(self, transport: WebSocketTransport) -> None:
        self._gone(transport)
        self._context.counters.websocket_handshakes += 1
        transport.begin(self._make_protocol())

    def _refused(self, transport: WebSocketTransport, answer: Answer) -> None:
        self._context.counters.websocket_refused += 1
        text = f"{answer.text} (status {answer.status})" if answer.status else answer.text
        self._refusals.say(self._context.loop.time(), transport.address, text, what=str(answer.status))

    def _broken(self, transport: WebSocketTransport, error: FrameError) -> None:
        self._context.counters.websocket_broken += 1
        self._violations.say(self._context.loop.time(), transport.address, f"{error.text} (code {error.code})", what=str(error.code))
