"""Settings of a connection and acknowledgement modes; waiting for an outcome."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import IntEnum

from .errors import JMSError, error_from_outcome
from .transport import NEVER, Outcome

INBOX = 4096  # messages
INBOX_BYTES = 16 << 20


class AckMode(IntEnum):
    """When a received message counts as consumed (6.2.10). INDIVIDUAL is an extension: `Message.acknowledge` acknowledges that message."""

    SESSION_TRANSACTED = 0
    AUTO = 1
    CLIENT = 2
    DUPS_OK = 3
    INDIVIDUAL = 101


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a connection.

    prefetch: messages that the broker sends to one consumer before it waits for acknowledgements (Receive Maximum), 1 to 65535.
    queue_prefetch: the same for a consumer of a queue. What one consumer has prefetched no other gets.
    inbox: messages of QoS 0 that wait at one consumer at most. Further ones are dropped, counted and reported.
    inbox_bytes: the same, bytes of their payloads.
    once_window: acknowledged messages that a consumer remembers to recognise repeats; 0 turns once-only off.
    persistent_qos: QoS of PERSISTENT messages, 1 or 2.
    connect_timeout: seconds for a connection or a subscription.
    send_timeout: seconds for the broker's acknowledgement of one message.
    redeliveries: how often a message is delivered again after its listener raised, before it is given up; of a queue the broker counts.
    session_keep: seconds that the broker keeps sessions that are not durable while the connection is broken.
    durable_keep: the same for durable subscriptions; for ever by default.
    instance: identifies the program among those that share a shared durable subscription. Each needs its own, the same after a restart.
    own_links: each consumer has an MQTT connection of its own. Without it, those that are neither durable nor shared have one together.
    async_sends: sends with a completion listener that may be under way in a session before the next one waits.
    """

    prefetch: int = 256
    queue_prefetch: int = 16
    inbox: int = INBOX
    inbox_bytes: int = INBOX_BYTES
    once_window: int = 16384
    persistent_qos: int = 1
    connect_timeout: float = 30.0
    send_timeout: float = 30.0
    redeliveries: int = 6
    session_keep: int = 300
    durable_keep: int = NEVER
    instance: str = "main"
    own_links: bool = False
    async_sends: int = 1000

    def __post_init__(self) -> None:
        ranges = {
            "prefetch": (1, 65535),
            "queue_prefetch": (1, 65535),
            "inbox": (1, 1 << 30),
            "inbox_bytes": (1, 1 << 40),
            "once_window": (0, 1 << 30),
            "persistent_qos": (1, 2),
            "connect_timeout": (0.001, 1e9),
            "send_timeout": (0.001, 1e9),
            "redeliveries": (0, 1 << 30),
            "session_keep": (0, NEVER),
            "durable_keep": (1, NEVER),
            "async_sends": (1, 65535),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
                raise JMSError(f"{name} = {value!r}: expected a number from {low} to {high}", name)
        if not isinstance(self.own_links, bool):
            raise JMSError(f"own_links = {self.own_links!r}: expected True or False", "own_links")
        if not self.instance:
            raise JMSError("instance = '': expected a word that no other program of the subscription uses", "instance")


class Waiter:
    """Waits for one outcome. The network thread calls it as a `transport.Done`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.outcome = Outcome()

    def __call__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._event.set()

    def wait(self, timeout: float, what: str, late: str) -> None:
        """Wait for the outcome. Raises the error of a failed one, and `JMSError` (with `late` in its text) after `timeout` seconds."""
        if not self._event.wait(timeout):
            raise JMSError(f"{what}: not answered within {timeout:g} s; {late}", "timeout")
        if self.outcome.failed:
            raise error_from_outcome(self.outcome, f"{what}{self.outcome.text and ': '}{self.outcome.text}")
