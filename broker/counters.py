"""Plain numbers that the hot path may touch: what one broker has counted, and how much it holds."""

from __future__ import annotations


class Counters:
    """Totals since the start; `$SYS` and metrics read them. Messages are counted by run, bytes by chunk."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "clients_expired",
        "clients_maximum",
        "connect_timeouts",
        "connects",
        "denied_connects",
        "denied_messages",
        "denied_subscriptions",
        "dropped",
        "errors",
        "expired",
        "late_maximum",
        "packets_received",
        "packets_sent",
        "publish_bytes_received",
        "publish_bytes_sent",
        "refused_connections",
        "refused_subscriptions",
        "slowed",
        "sockets",
        "stall_maximum",
        "stalls",
        "tls_handshakes",
        "tls_refused",
        "websocket_broken",
        "websocket_handshakes",
        "websocket_refused",
    )

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        self.packets_received = 0  # all but PUBLISH, which connections count
        self.packets_sent = 0
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        self.dropped = 0  # messages that a subscriber or publisher does not get through, for want of room or permission
        self.expired = 0  # messages whose lifetime ended before they were sent
        self.sockets = 0
        self.connects = 0
        self.denied_connects = 0  # by `access.py`: CONNECT and wills, subscriptions, messages
        self.denied_subscriptions = 0
        self.denied_messages = 0
        self.clients_maximum = 0
        self.clients_expired = 0
        self.errors = 0  # connections ended because of what the client sent
        self.connect_timeouts = 0  # connections that did not send CONNECT in time
        self.refused_connections = 0  # for want of room: closed at once, or their CONNECT
        self.refused_subscriptions = 0  # beyond `limits.subscriptions`
        self.slowed = 0  # how often a client was not read for a while, because of `limits.message_rate`
        self.stalls = 0  # pieces of work that held the event loop for too long (`turns.py`)
        self.stall_maximum = 0.0  # seconds of processor time of the longest of them
        self.late_maximum = 0.0  # seconds by which the broker's own timer came too late, at most, whatever the cause
        self.tls_handshakes = 0  # of listeners, done
        self.tls_refused = 0  # of listeners, failed or not finished
        self.websocket_handshakes = 0  # done
        self.websocket_refused = 0  # failed or not finished
        self.websocket_broken = 0  # closed behind the handshake, because the peer broke a rule of WebSocket


class Account:
    """Bytes of all messages that the broker holds, against the bound for them.

    limit: the bound. queued: in the queues of sessions, and in flight to sessions that are away. retained: as retained messages. buried:
    as deletions of retained messages that the mesh remembers. measured: in flight to connected sessions, unsent, and received in
    part, as of the last look (`Backpressure.check`).
    """

    __slots__ = ("buried", "limit", "measured", "queued", "retained")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queued = 0
        self.retained = 0
        self.buried = 0
        self.measured = 0

    @property
    def total(self) -> int:
        return self.queued + self.retained + self.buried + self.measured

    @property
    def full(self) -> bool:
        """Nothing more may be kept."""
        return self.queued + self.retained + self.buried + self.measured >= self.limit

    @property
    def tight(self) -> bool:
        """Half of the bound is used: publishers are slowed early."""
        return 2 * (self.queued + self.retained + self.buried + self.measured) >= self.limit
