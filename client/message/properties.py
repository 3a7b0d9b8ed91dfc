"""Message properties (3.5): named, typed values beside the body, which selectors can see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TypeVar, cast

from ...base.selector.terms import Value
from ..core.errors import JMSError, MessageNotWriteableError
from .values import Typed, convert, typed

_IDENTIFIER = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
V = TypeVar("V")
_RESERVED = {"NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"}


def check_name(name: str) -> str:
    """The name. Raises `JMSError` unless it is an identifier (3.8.1.1), no word of selectors, and no JMS header."""
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name) or name.upper() in _RESERVED:
        raise JMSError(
            f"{name!r} is not the name of a property: use letters, digits, _ and $, and no word of the selector language", "name"
        )
    if name.startswith("JMS") and name not in ("JMSXGroupID", "JMSXGroupSeq") and not name.startswith("JMS_"):
        raise JMSError(f"{name!r}: names that begin with JMS are reserved (3.5.1)", "name")
    return name


class PropertyValues(MutableMapping[str, Value]):
    """Properties of a message, or those that a producer of a context sets on each message. Maps names to values.

    ``values["n"] = 3`` takes the kind from Python's type (`values.kind_of`). `set` states the kind. Writing to a received message raises
    `MessageNotWriteableError`.
    """

    def __init__(self) -> None:
        self.typed: dict[str, Typed] = {}
        self.read_only = False

    def set(self, name: str, value: Any, kind: str | None = None) -> None:
        """Set a property. kind: boolean, byte, short, int, long, float, double or string; None: the Python type gives it."""
        self._writing()
        self.typed[check_name(name)] = typed(value, kind)

    def read(self, name: str, kind: str) -> Value:
        """The value of a property, converted to `kind` as the specification says. A missing property converts like a null."""
        return convert(self.typed.get(name), kind)

    def kind(self, name: str) -> str:
        """The kind of a property. Raises KeyError."""
        return self.typed[name][0]

    def _writing(self) -> None:
        if self.read_only:
            raise MessageNotWriteableError("properties of a received message can only be read: call clear_properties() first")

    def __getitem__(self, name: str) -> Value:
        return self.typed[name][1]

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __delitem__(self, name: str) -> None:
        self._writing()
        del self.typed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.typed)

    def __len__(self) -> int:
        return len(self.typed)

    def __repr__(self) -> str:
        return repr(dict(self))


def _setter(kind: str, value_type: type[V]) -> Callable[[Properties, str, V], None]:
    def set_property(self: Properties, name: str, value: V) -> None:
        self.properties.set(name, value, kind)

    return set_property


def _getter(kind: str, value_type: type[V]) -> Callable[[Properties, str], V]:
    def get_property(self: Properties, name: str) -> V:
        return cast(V, self.properties.read(name, kind))

    return get_property


class Properties:
    """The typed setters and getters of properties, for messages and for producers of a context.

    Setters take a name and a value. Getters take a name and convert the value (3.5.4).
    """

    properties: PropertyValues

    def property_exists(self, name: str) -> bool:
        return name in self.properties

    def property_names(self) -> list[str]:
        return list(self.properties)

    def clear_properties(self) -> None:
        """Remove all properties. They can be written again."""
        self.properties = PropertyValues()

    set_boolean_property = _setter("boolean", bool)
    set_byte_property = _setter("byte", int)
    set_short_property = _setter("short", int)
    set_int_property = _setter("int", int)
    set_long_property = _setter("long", int)
    set_float_property = _setter("float", float)
    set_double_property = _setter("double", float)
    get_boolean_property = _getter("boolean", bool)
    get_byte_property = _getter("byte", int)
    get_short_property = _getter("short", int)
    get_int_property = _getter("int", int)
    get_long_property = _getter("long", int)
    get_float_property = _getter("float", float)
    get_double_property = _getter("double", float)

    def set_string_property(self, name: str, value: str | None) -> None:
        self.properties.set(name, value, "string")

    def get_string_property(self, name: str) -> str | None:
        return cast("str | None", self.properties.read(name, "string"))

    def set_object_property(self, name: str, value: bool | int | float | str | None) -> None:
        """The Python type gives the kind."""
        self.properties.set(name, value)

    def get_object_property(self, name: str) -> Value:
        """The value as it was set, None without one."""
        return self.properties.typed.get(name, ("string", None))[1]
