"""Plain numbers that the hot path may touch: what one broker has counted."""

from __future__ import annotations


class Counters:
    """Totals since the start; `$SYS` and metrics read them. Messages are counted by run, bytes by chunk."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "clients",
        "clients_expired",
        "clients_maximum",
        "connect_timeouts",
        "connects",
        "denied_connects",
        "denied_messages",
        "denied_subscriptions",
        "dropped",
        "errors",
        "evicted",
        "expired",
        "late_maximum",
        "packets_received",
        "packets_sent",
        "publish_bytes_received",
        "publish_bytes_sent",
        "refused_connections",
        "refused_holders",
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
        "withheld",
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
        self.clients = 0  # that are connected
        self.clients_maximum = 0  # at the same time
        self.clients_expired = 0
        self.errors = 0  # connections ended because of what the client sent
        self.connect_timeouts = 0  # connections that did not send CONNECT in time
        self.refused_connections = 0  # for want of room: closed at once, or their CONNECT
        self.refused_holders = 0  # because a user or an address has its share of memory: CONNECT, subscriptions
        self.evicted = 0  # connections closed for that reason
        self.refused_subscriptions = 0  # beyond `limits.subscriptions`
        self.withheld = 0  # messages whose publisher waits, or waited, for room in the mesh
        self.slowed = 0  # how often a client was not read for a while, because of `limits.message_rate`
        self.stalls = 0  # pieces of work that held the event loop for too long (`turns.py`)
        self.stall_maximum = 0.0  # seconds of processor time of the longest of them
        self.late_maximum = 0.0  # seconds by which the broker's own timer came too late, at most, whatever the cause
        self.tls_handshakes = 0  # of listeners, done
        self.tls_refused = 0  # of listeners, failed or not finished
        self.websocket_handshakes = 0  # done
        self.websocket_refused = 0  # failed or not finished
        self.websocket_broken = 0  # closed behind the handshake, because the peer broke a rule of WebSocket
