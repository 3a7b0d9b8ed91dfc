"""Messages: headers, properties, and the six kinds of body (Jakarta Messaging 3.1, chapter 3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar, cast

import msgpack

from ..core.errors import MessageFormatError, MessageNotWriteableError
from .destinations import Destination
from .properties import Properties, PropertyValues
from .values import check_text

B = TypeVar("B")


class DeliveryMode(IntEnum):
    """NON_PERSISTENT: at most once, QoS 0. PERSISTENT: once and only once (3.4.2), QoS 1 with identifiers or QoS 2."""

    NON_PERSISTENT = 1
    PERSISTENT = 2


DEFAULT_PRIORITY = 4


class Message(Properties):
    """A message without a body, and the base class of those that have one.

    Sending sets `destination`, `delivery_mode`, `message_id`, `timestamp`, `expiration`, `delivery_time` and `priority`. Times are
    milliseconds since 1970; `expiration` 0 means never.
    The application sets `correlation_id`, `reply_to` and `jms_type`.
    Receipt sets `redelivered` and `delivery_count` (1 for the first delivery).
    """

    kind = "none"

    def __init__(self) -> None:
        self.properties = PropertyValues()
        self.message_id: str | None = None
        self.timestamp = 0
        self.correlation_id: str | bytes | None = None
        self.reply_to: Destination | None = None
        self.destination: Destination | None = None
        self.delivery_mode = DeliveryMode.PERSISTENT
        self.redelivered = False
        self.delivery_count = 0
        self.jms_type: str | None = None
        self.expiration = 0
        self.delivery_time = 0
        self.priority = DEFAULT_PRIORITY
        self.body_read_only = False
        self.acknowledger: Callable[[], None] | None = None

    def acknowledge(self) -> None:
        """Acknowledge in mode CLIENT everything that the session has delivered, in mode INDIVIDUAL this message. Else do nothing."""
        if self.acknowledger is not None:
            self.acknowledger()

    def clear_body(self) -> None:
        """Empty the body, and make it writable."""
        self.body_read_only = False
        self._clear()

    def _clear(self) -> None: ...

    def _writing(self) -> None:
        if self.body_read_only:
            raise MessageNotWriteableError("the body of a received message can only be read: call clear_body() first")

    @property
    def body(self) -> Any:
        """The body as a Python value, None when there is none."""
        return None

    def is_body_assignable_to(self, wanted: type[Any]) -> bool:
        return self.body is None or isinstance(self.body, wanted)

    def is_body_receivable_as(self, wanted: type[Any]) -> bool:
        """Whether `receive_body` can return the body: it has this type and is no stream (8.6)."""
        return self.body is not None and isinstance(self.body, wanted)

    def get_body(self, wanted: type[B]) -> B:
        """The body. Raises `MessageFormatError` if it has another type."""
        body = self.body
        if body is None or isinstance(body, wanted):
            return cast(B, body)
        raise MessageFormatError(f"the body is {type(body).__name__}, not {wanted.__name__}")

    # the wire format, see wire.py

    content_type: str | None = None

    def encode_body(self) -> bytes:
        return b""

    def decode_body(self, payload: bytes) -> None:
        """Set the body from its wire format. Raises ValueError for other bytes."""

    def freeze(self) -> None:
        """Make body and properties read-only, as in a received message."""
        self.body_read_only = self.properties.read_only = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message_id or 'not sent'} to {self.destination}>"


class TextMessage(Message):
    """A string."""

    kind = "text"

    def __init__(self, text: str | None = None) -> None:
        super().__init__()
        self._text = text if text is None else check_text(text, "the text")

    @property
    def text(self) -> str | None:
        return self._text

    @text.setter
    def text(self, text: str | None) -> None:
        self._writing()
        self._text = text if text is None else check_text(text, "the text")

    @property
    def body(self) -> str | None:
        return self._text

    def _clear(self) -> None:
        self._text = None

    def encode_body(self) -> bytes:
        return (self._text or "").encode()

    def decode_body(self, payload: bytes) -> None:
        self._text = payload.decode()


class ObjectMessage(Message):
    """A value of None, bool, int, float, str, bytes, list and dict with string keys, as msgpack, or without bytes as JSON."""

    kind = "object"

    def __init__(self, value: Any = None, form: str = "msgpack") -> None:
        super().__init__()
        if form not in ("msgpack", "json"):
            raise MessageFormatError(f"form {form!r}: use msgpack or json")
        self.content_type = f"application/{form}"
        self._packed = self._pack(value)

    @property
    def object(self) -> Any:
        """A new copy of the value on each call."""
        return self._unpack(self._packed)

    @object.setter
    def object(self, value: Any) -> None:
        self._writing()
        self._packed = self._pack(value)

    @property
    def body(self) -> Any:
        return self.object

    def _clear(self) -> None:
        self._packed = self._pack(None)

    def _pack(self, value: Any) -> bytes:
        try:
            if self.content_type == "application/json":
                return json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
            return cast(bytes, msgpack.packb(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise MessageFormatError(f"the object cannot be sent as {self.content_type}: {error}") from error

    def _unpack(self, packed: bytes) -> Any:
        return json.loads(packed) if self.content_type == "application/json" else msgpack.unpackb(packed, strict_map_key=False)

    def encode_body(self) -> bytes:
        return self._packed

    def decode_body(self, payload: bytes) -> None:
        self._unpack(payload)
        self._packed = payload
