"""What a broker writes on messages that failed over or came back (docs/recipients.md, "What messages carry")."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Message

FAILED_OVER, REPEATED = "mqmesh-failed-over", "mqmesh-repeated"
RETURNED, RETURNED_AT, TRIED, TOPIC = "mqmesh-returned", "mqmesh-returned-at", "mqmesh-tried", "mqmesh-topic"


@dataclass(frozen=True, slots=True)
class Returned:
    """Why a message came back to who published it.

    reason: one word, as fault, defunct or no-alternatives. at: time, ISO 8601. tried: the recipients that it was tried at, in order.
    topic: where it was published.
    """

    reason: str
    at: str
    tried: tuple[str, ...]
    topic: str


def failed_over(message: Message) -> tuple[str, ...]:
    """The recipients that did not take this message before, in order; empty for a message that did not fail over."""
    return _names(_text(message, FAILED_OVER))


def maybe_repeated(message: Message) -> bool:
    """Whether one of the recipients before may have this message: it was sent there, and not acknowledged."""
    return _text(message, REPEATED) == "1"


def returned(message: Message) -> Returned | None:
    """Why a message came back; None for one that is no returned message."""
    reason = _text(message, RETURNED)
    return Returned(reason, _text(message, RETURNED_AT), _names(_text(message, TRIED)), _text(message, TOPIC)) if reason else None


def _text(message: Message, name: str) -> str:
    return str(message.properties.typed.get(name, ("string", ""))[1] or "")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
