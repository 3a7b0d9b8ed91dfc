"""The messages that sessions and contexts make (Jakarta Messaging 3.1, chapter 3)."""

from __future__ import annotations

from typing import Any

from ..message.bodies import BytesMessage, MapMessage, StreamMessage
from ..message.messages import Message, ObjectMessage, TextMessage


class MessageMaker:
    """What makes one message of each kind."""

    __slots__ = ()

    def create_message(self) -> Message:
        """A message without a body."""
        return Message()

    def create_text_message(self, text: str | None = None) -> TextMessage:
        """A message whose body is text."""
        return TextMessage(text)

    def create_bytes_message(self, data: bytes = b"") -> BytesMessage:
        """A message whose body is bytes."""
        return BytesMessage(data)

    def create_map_message(self, values: dict[str, Any] | None = None) -> MapMessage:
        """A message whose body is named values."""
        return MapMessage(values)

    def create_stream_message(self, *values: Any) -> StreamMessage:
        """A message whose body is values in order."""
        return StreamMessage(*values)

    def create_object_message(self, value: Any = None, form: str = "msgpack") -> ObjectMessage:
        """A message whose body is one value. form: "msgpack" or "json"."""
        return ObjectMessage(value, form)
