"""What the library's exceptions mean: a code of AMQP's, MQTT's reason, one line of text."""

from __future__ import annotations

import asyncio
import struct

from aiormq import exceptions

from ....mqtt.reasons import Reason

REASONS = {403: Reason.NOT_AUTHORIZED, 404: Reason.TOPIC_NAME_INVALID, 311: Reason.PACKET_TOO_LARGE, 406: Reason.PACKET_TOO_LARGE}
CODES: dict[type[BaseException], int] = {
    exceptions.ChannelAccessRefused: 403,
    exceptions.ChannelNotFoundEntity: 404,
    exceptions.ChannelLockedResource: 405,
    exceptions.ChannelPreconditionFailed: 406,
}
# What a message or a name that cannot be written is told with.
UNWRITABLE = (ValueError, TypeError, struct.error)


class Over(Exception):
    """A connection is to be given up; the text says why, in one line."""


def reason_of(code: int) -> Reason:
    """MQTT's reason for a code with which a channel was closed."""
    return REASONS.get(code, Reason.IMPLEMENTATION_SPECIFIC_ERROR)


def code_of(error: BaseException | None) -> int:
    """The code with which the server has closed a channel or a connection; 0: it has not."""
    if error is not None and type(error) in CODES:
        return CODES[type(error)]
    first = error.args[0] if isinstance(error, exceptions.ChannelClosed | exceptions.ConnectionClosed) and error.args else 0
    return first if isinstance(first, int) else 0


def words(error: BaseException | None) -> str:
    """One line: what the server said, or what happened."""
    if isinstance(error, BaseExceptionGroup):
        return words(error.exceptions[0])
    if isinstance(error, asyncio.CancelledError):  # with it the library ends what has been silent
        return "the server does not answer"
    said = [one for one in error.args if isinstance(one, str)] if error is not None else []
    return " ".join(said[-1].split()) if said else "connection lost"
