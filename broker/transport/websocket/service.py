"""WebSocket listeners of one broker: who is in the handshake, who may connect, who was refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ....base.refusals import Refusals
from ....mqtt.websocket.frames import FrameError
from ....mqtt.websocket.opening import Answer, ServerOpening
from ...client.connection import Connection
from .transport import WebSocketTransport

if TYPE_CHECKING:
    from ...server import Broker

log = logging.getLogger("mqmesh.websocket")

LEAST_LIMIT = 64 * 2**10  # bytes of a message that are taken however small the largest packet is: one message may hold many packets


class WebSocketService:
    """Makes the WebSocket layer of accepted connections.

    origins: of web pages that may connect, as `normal_origin` writes them; another set takes effect for connections to come.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.origins = frozenset(broker.config.websocket.origins)
        self._limit = max(broker.config.limits.max_packet_size, LEAST_LIMIT)
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
        counters = self.broker.counters
        return {
            "websocket/handshakes": str(counters.websocket_handshakes),
            "websocket/refused": str(counters.websocket_refused),
            "websocket/broken": str(counters.websocket_broken),
        }

    def accept(self, path: str) -> WebSocketTransport:
        """The protocol for a new connection of a listener that serves `path`."""
        transport = WebSocketTransport(
            self.broker.loop,
            ServerOpening(path, self.origins),
            self._limit,
            self.broker.config.limits.connect_timeout,
            self._established,
            self._refused,
            self._broken,
            self._gone,
        )
        self._opening.add(transport)
        return transport

    def _gone(self, transport: WebSocketTransport) -> None:
        self._opening.discard(transport)
        self.broker.entrance.end(transport)

    def _established(self, transport: WebSocketTransport) -> None:
        self._gone(transport)
        self.broker.counters.websocket_handshakes += 1
        transport.begin(Connection(self.broker))

    def _refused(self, transport: WebSocketTransport, answer: Answer) -> None:
        self.broker.counters.websocket_refused += 1
        text = f"{answer.text} (status {answer.status})" if answer.status else answer.text
        self._refusals.say(self.broker.loop.time(), transport.address, text)

    def _broken(self, transport: WebSocketTransport, error: FrameError) -> None:
        self.broker.counters.websocket_broken += 1
        self._violations.say(self.broker.loop.time(), transport.address, f"{error.text} (code {error.code})")
