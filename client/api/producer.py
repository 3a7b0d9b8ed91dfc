"""Producers send messages, with a delivery mode, priority, time to live and delivery delay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from ..core.errors import IllegalStateError, JMSError
from ..message.destinations import Destination
from ..message.messages import DEFAULT_PRIORITY, DeliveryMode, Message

if TYPE_CHECKING:
    from .session import Session

CompletionListener = Callable[[Message, "JMSError | None"], None]
"""Called by the session's thread with the message, and with the error if the broker does not accept it."""


@dataclass(frozen=True, slots=True)
class SendOptions:
    """Options of a send. time_to_live: milliseconds, 0: for ever. delivery_delay: milliseconds, 0: at once."""

    delivery_mode: DeliveryMode = DeliveryMode.PERSISTENT
    priority: int = DEFAULT_PRIORITY
    time_to_live: int = 0
    delivery_delay: int = 0

    def __post_init__(self) -> None:
        if self.delivery_mode not in (1, 2):
            raise JMSError(f"delivery_mode {self.delivery_mode!r}: use DeliveryMode.PERSISTENT or NON_PERSISTENT", "delivery_mode")
        object.__setattr__(self, "delivery_mode", DeliveryMode(self.delivery_mode))
        if not isinstance(self.priority, int) or not 0 <= self.priority <= 9:
            raise JMSError(f"priority {self.priority!r}: expected 0 (lowest) to 9", "priority")
        for name in ("time_to_live", "delivery_delay"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise JMSError(f"{name} {value!r}: expected milliseconds, 0 or more", name)


class MessageProducer:
    """Made by a session. A send returns once the broker has the message, with a completion listener at once."""

    def __init__(self, session: Session, destination: Destination | None) -> None:
        self.session, self.destination = session, destination
        self.options = SendOptions()
        self._closed = False

    def send(
        self,
        message: Message,
        destination: Destination | None = None,
        *,
        delivery_mode: DeliveryMode | None = None,
        priority: int | None = None,
        time_to_live: int | None = None,
        completion_listener: CompletionListener | None = None,
    ) -> None:
        """Send to the producer's destination, or to `destination` if it has none. Other arguments override the producer's options.

        Raises what the broker answers: `InvalidDestinationError`, `JMSSecurityError`, `ResourceAllocationError`, and `JMSError` when the
        broker does not answer within `send_timeout`.
        """
        self._check()
        if destination is not None and self.destination is not None:
            raise IllegalStateError("this producer has a destination of its own (7.1): create one without")
        target = destination or self.destination
        if target is None:
            raise IllegalStateError("this producer has no destination: give one to send()")
        changes = {"delivery_mode": delivery_mode, "priority": priority, "time_to_live": time_to_live}
        options = replace(self.options, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
        self.session.send(message, target, options, completion_listener)

    publish = send  # JMS 1.1

    @property
    def delivery_mode(self) -> DeliveryMode:
        return self.options.delivery_mode

    @delivery_mode.setter
    def delivery_mode(self, mode: DeliveryMode) -> None:
        self.options = replace(self.options, delivery_mode=mode)

    @property
    def priority(self) -> int:
        return self.options.priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self.options = replace(self.options, priority=priority)

    @property
    def time_to_live(self) -> int:
        """Milliseconds until a message expires; 0: never."""
        return self.options.time_to_live

    @time_to_live.setter
    def time_to_live(self, milliseconds: int) -> None:
        self.options = replace(self.options, time_to_live=milliseconds)

    @property
    def delivery_delay(self) -> int:
        """Milliseconds that pass before a message is delivered."""
        return self.options.delivery_delay

    @delivery_delay.setter
    def delivery_delay(self, milliseconds: int) -> None:
        self.options = replace(self.options, delivery_delay=milliseconds)

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise IllegalStateError("the producer is closed")
        self.session.check_open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
