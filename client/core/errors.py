"""The exceptions of Jakarta Messaging 3.1 (chapter 8) under Python names: `JMSException` is `JMSError` here, and so on.

One tree serves both interfaces. Where Jakarta has a checked exception and a `JMSRuntimeException`, there is one class.
`error_code` is a word, or the MQTT 5 reason code as `0x87`. The linked exception (8.1) is Python's ``__cause__``.
"""

from __future__ import annotations

from ...mqtt.reasons import Reason
from .transport import Outcome


class JMSError(Exception):
    """The root of all errors: of the client, the network or the broker."""

    def __init__(self, text: str, error_code: str = "") -> None:
        super().__init__(text)
        self.error_code = error_code


class IllegalStateError(JMSError):
    """A method was called at the wrong time: on something closed, from a listener that may not, in the wrong mode."""


class InvalidClientIDError(JMSError):
    """The broker refuses the client identifier, or another connection has taken it over."""


class InvalidDestinationError(JMSError):
    """The destination cannot be sent to or consumed from, or the broker refuses it."""


class InvalidSelectorError(JMSError):
    """The selector is not in the language of chapter 3.8; the text points to the place."""


class JMSSecurityError(JMSError):
    """The broker refuses the user name and password, or a permission."""


class MessageEOFError(JMSError):
    """A stream or bytes message has no more values."""


class MessageFormatError(JMSError):
    """A value has the wrong type, the specification has no such conversion, or a body cannot be read."""


class MessageNotReadableError(JMSError):
    """The body can only be written: `reset` it first."""


class MessageNotWriteableError(JMSError):
    """A received body or its properties can only be read: `clear_body` or `clear_properties` first."""


class ResourceAllocationError(JMSError):
    """The broker has no room: quota, rate, or memory."""


class TransactionInProgressError(JMSError):
    """Not possible while a transaction is open."""


class TransactionRolledBackError(JMSError):
    """The commit failed. Messages received in the transaction come again.

    already_sent: identifiers of the transaction's messages that the broker accepted before the failure.
    """

    def __init__(self, text: str, error_code: str = "", already_sent: tuple[str, ...] = ()) -> None:
        super().__init__(text, error_code)
        self.already_sent = already_sent


_BY_REASON: dict[int, type[JMSError]] = {
    Reason.CLIENT_IDENTIFIER_NOT_VALID: InvalidClientIDError,
    Reason.SESSION_TAKEN_OVER: InvalidClientIDError,
    Reason.BAD_USER_NAME_OR_PASSWORD: JMSSecurityError,
    Reason.NOT_AUTHORIZED: JMSSecurityError,
    Reason.BANNED: JMSSecurityError,
    Reason.BAD_AUTHENTICATION_METHOD: JMSSecurityError,
    Reason.TOPIC_FILTER_INVALID: InvalidDestinationError,
    Reason.TOPIC_NAME_INVALID: InvalidDestinationError,
    Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: InvalidDestinationError,
    Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: InvalidDestinationError,
    Reason.PACKET_TOO_LARGE: ResourceAllocationError,
    Reason.MESSAGE_RATE_TOO_HIGH: ResourceAllocationError,
    Reason.QUOTA_EXCEEDED: ResourceAllocationError,
    Reason.PAYLOAD_FORMAT_INVALID: MessageFormatError,
}


_BY_WORD: dict[str, type[JMSError]] = {  # what a metabroker answers (docs/metabroker-protocol.md)
    "no_such_service": InvalidDestinationError,
    "refused_by_policy": JMSSecurityError,
    "remote_refused_credentials": JMSSecurityError,
    "too_many_sessions": ResourceAllocationError,
    "too_many_requests": ResourceAllocationError,
    "too_large": ResourceAllocationError,
}


def error_from_outcome(outcome: Outcome, text: str) -> JMSError:
    """The exception for a failed outcome. text: what was tried, and the answer."""
    if outcome.word:
        return _BY_WORD.get(outcome.word, JMSError)(text or outcome.word.replace("_", " "), outcome.word)
    return error_from_reason(outcome.code, text)


def error_from_reason(code: int, text: str) -> JMSError:
    """The exception for an MQTT 5 reason code of 0x80 or more. text: what was tried, and what the broker said."""
    name = Reason(code).name.lower().replace("_", " ") if code in Reason._value2member_map_ else "unknown reason"
    return _BY_REASON.get(code, JMSError)(f"{text}: {name}" if text else name, f"{code:#04x}")
