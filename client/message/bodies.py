"""Messages whose body has several values: bytes, maps and streams (3.11)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, cast

import msgpack

from ...base.selector.terms import Value
from ..core.errors import MessageEOFError, MessageFormatError, MessageNotReadableError
from .messages import Message
from .values import BODY_KINDS, Typed, check_text, convert, typed

V = TypeVar("V")
_FORMATS = {
    "boolean": ">?",
    "byte": ">b",
    "unsigned_byte": ">B",
    "short": ">h",
    "unsigned_short": ">H",
    "int": ">i",
    "long": ">q",
    "float": ">f",
    "double": ">d",
}


class _Cursor(Message):
    """A body that is written and then read from its start. A new one is written. `reset` makes it readable; a received one is readable."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0
        self._reading = False

    def reset(self) -> None:
        """Make the body readable, from its start."""
        self._position, self._reading, self.body_read_only = 0, True, True

    def freeze(self) -> None:
        super().freeze()
        self.reset()

    def clear_body(self) -> None:
        self._position, self._reading = 0, False
        super().clear_body()

    def _readable(self) -> None:
        if not self._reading:
            raise MessageNotReadableError("the body is being written: call reset() first")


def _bytes(data: object) -> bytes | bytearray | memoryview:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise MessageFormatError(f"{type(data).__name__} is not bytes: encode a text first")
    return data


def _writer(kind: str, value_type: type[V]) -> Callable[[BytesMessage, V], None]:
    def write(self: BytesMessage, value: V) -> None:
        self.write(kind, value)

    return write


def _reader(kind: str, value_type: type[V]) -> Callable[[BytesMessage], V]:
    def read(self: BytesMessage) -> V:
        return cast(V, self.read(kind))

    return read


class BytesMessage(_Cursor):
    """Uninterpreted bytes; numbers are big-endian."""

    kind = "bytes"

    def __init__(self, data: bytes = b"") -> None:
        super().__init__()
        self._data = bytearray(_bytes(data))

    @property
    def body(self) -> bytes:
        return bytes(self._data)

    @property
    def body_length(self) -> int:
        """Bytes of a readable body."""
        self._readable()
        return len(self._data)

    def _clear(self) -> None:
        self._data.clear()

    def encode_body(self) -> bytes:
        return bytes(self._data)

    def decode_body(self, payload: bytes) -> None:
        self._data = bytearray(payload)

    def write(self, kind: str, value: Any) -> None:
        """Append a number of `kind`: boolean, byte, short, int, long, float, double."""
        self._writing()
        try:
            self._data += struct.pack(_FORMATS[kind], value)
        except (struct.error, KeyError, OverflowError) as error:
            raise MessageFormatError(f"{value!r} is not a {kind}: {error}") from error

    def read(self, kind: str) -> Any:
        """The next number of `kind`. Raises `MessageEOFError` when too few bytes are left."""
        if kind not in _FORMATS:
            raise MessageFormatError(f"bytes cannot be read as a {kind}: use {', '.join(_FORMATS)}")
        return struct.unpack(_FORMATS[kind], self._take(struct.calcsize(_FORMATS[kind])))[0]

    def _take(self, count: int) -> bytes:
        self._readable()
        if self._position + count > len(self._data):
            raise MessageEOFError(f"{count} bytes wanted, {len(self._data) - self._position} left")
        self._position += count
        return bytes(self._data[self._position - count : self._position])

    def write_bytes(self, data: bytes) -> None:
        self._writing()
        self._data += _bytes(data)

    def read_bytes(self, count: int = -1) -> bytes:
        """The next `count` bytes, or fewer at the end. A negative count: all that are left."""
        self._readable()
        left = len(self._data) - self._position
        return self._take(left if count < 0 else min(count, left))

    def write_utf(self, text: str) -> None:
        """Append a text: a length of two bytes, then UTF-8."""
        self._writing()
        data = check_text(text, "the text").encode()
        if len(data) > 65535:
            raise MessageFormatError("a text of more than 65535 bytes cannot be written so")
        self.write("unsigned_short", len(data))
        self._data += data

    def read_utf(self) -> str:
        """The next text that `write_utf` wrote. After an error the position is as before."""
        begin = self._position
        try:
            return self._take(self.read("unsigned_short")).decode()
        except UnicodeDecodeError as error:
            self._position = begin
            raise MessageFormatError(f"the next bytes are no text: {error}") from error
        except MessageEOFError:
            self._position = begin
            raise

    write_boolean = _writer("boolean", bool)
    write_byte = _writer("byte", int)
    write_short = _writer("short", int)
    write_int = _writer("int", int)
    write_long = _writer("long", int)
    write_float = _writer("float", float)
    write_double = _writer("double", float)
    read_boolean = _reader("boolean", bool)
    read_byte = _reader("byte", int)
    read_unsigned_byte = _reader("unsigned_byte", int)
    read_short = _reader("short", int)
    read_unsigned_short = _reader("unsigned_short", int)
    read_int = _reader("int", int)
    read_long = _reader("long", int)
    read_float = _reader("float", float)
    read_double = _reader("double", float)


class MapMessage(Message, MutableMapping[str, Value]):
    """Names and typed values: a mapping. ``message["n"] = 3`` takes the kind from Python's type. `set` states the kind. `read` converts.

    Unlike other mappings it is true when it is empty, and equal to itself only, as any message is.
    """

    kind = "map"
    content_type = "application/msgpack"

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._values: dict[str, Typed] = {}
        for name, value in (values or {}).items():
            self.set(name, value)

    @property
    def body(self) -> dict[str, Value]:
        return {name: value for name, (_, value) in self._values.items()}

    def set(self, name: str, value: Any, kind: str | None = None) -> None:
        """kind: boolean, byte, short, char, int, long, float, double, string, bytes."""
        self._writing()
        if not isinstance(name, str) or not name:
            raise MessageFormatError("a name in a map is a string that is not empty")
        self._values[check_text(name, "the name")] = typed(value, kind, BODY_KINDS)

    def read(self, name: str, kind: str) -> Value:
        """The value of a name, converted to `kind` as the specification says (3.11.3). A missing one converts like a null."""
        return convert(self._values.get(name), kind)

    def item_exists(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Value:
        return self._values[name][1]

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __delitem__(self, name: str) -> None:
        self._writing()
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __bool__(self) -> bool:
        return True

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _clear(self) -> None:
        self._values.clear()

    def encode_body(self) -> bytes:
        return cast(bytes, msgpack.packb([[name, kind, value] for name, (kind, value) in self._values.items()]))

    def decode_body(self, payload: bytes) -> None:
        self._values = {str(name): typed(value, kind, BODY_KINDS) for name, kind, value in msgpack.unpackb(payload)}


class StreamMessage(_Cursor):
    """A sequence of typed values. A value that cannot be converted stays the next one (3.11.3)."""

    kind = "stream"
    content_type = "application/msgpack"

    def __init__(self, *values: Any) -> None:
        super().__init__()
        self._values: list[Typed] = []
        for value in values:
            self.write(value)

    def is_body_receivable_as(self, wanted: type[Any]) -> bool:
        return False

    @property
    def body(self) -> list[Value]:
        return [value for _, value in self._values]

    def write(self, value: Any, kind: str | None = None) -> None:
        """Append a value. kind: boolean, byte, short, char, int, long, float, double, string or bytes; None: the Python type gives it."""
        self._writing()
        self._values.append(typed(value, kind, BODY_KINDS))

    def read(self, kind: str | None = None) -> Value:
        """The next value, converted to `kind` if given. Raises `MessageEOFError` after the last."""
        self._readable()
        if self._position >= len(self._values):
            raise MessageEOFError("the stream has no more values")
        stored = self._values[self._position]
        value = convert(stored, kind) if kind else stored[1]
        self._position += 1
        return value

    def _clear(self) -> None:
        self._values.clear()

    def encode_body(self) -> bytes:
        return cast(bytes, msgpack.packb([list(value) for value in self._values]))

    def decode_body(self, payload: bytes) -> None:
        self._values = [typed(value, kind, BODY_KINDS) for kind, value in msgpack.unpackb(payload)]
