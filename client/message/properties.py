"""Message properties (3.5): named, typed values beside the body, which selectors can see."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from typing import Any, cast

from ..core.errors import JMSError, MessageNotWriteableError
from .values import Typed, Value, convert, typed

_IDENTIFIER = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
_RESERVED = {"NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"}


def check_name(name: str) -> str:
    """Raises `JMSError` unless this is the name of a property: an identifier (3.8.1.1), no word of selectors, not of the JMS headers."""
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name) or name.upper() in _RESERVED:
        raise JMSError(
            f"{name!r} is not the name of a property: use letters, digits, _ and $, and no word of the selector language", "name"
        )
    if name.startswith("JMS") and name not in ("JMSXGroupID", "JMSXGroupSeq") and not name.startswith("JMS_"):
        raise JMSError(f"{name!r}: names that begin with JMS are reserved (3.5.1)", "name")
    return name


class PropertyValues(MutableMapping[str, Value]):
    """A message's properties, or what a producer of a context sets on each message: a mapping of names to values.

    ``values["n"] = 3`` takes the kind from Python's type (`values.kind_of`), `set` says it. What writes raises
    `MessageNotWriteableError` on a received message.
    """

    def __init__(self) -> None:
        self.typed: dict[str, Typed] = {}
        self.read_only = False

    def set(self, name: str, value: Any, kind: str | None = None) -> None:
        """Set one; kind: boolean, byte, short, int, long, float, double, string, or what the Python type says."""
        self._writing()
        self.typed[check_name(name)] = typed(value, kind)

    def read(self, name: str, kind: str) -> Value:
        """One, read as `kind` by the specification's conversions; what is not there reads as nothing."""
        return convert(self.typed.get(name), kind)

    def kind(self, name: str) -> str:
        """The kind of one; KeyError."""
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


class Properties:
    """The typed setters and getters, for messages and for producers of a context."""

    properties: PropertyValues

    def property_exists(self, name: str) -> bool:
        return name in self.properties

    def property_names(self) -> list[str]:
        return list(self.properties)

    def clear_properties(self) -> None:
        """Remove all; they can be written again."""
        self.properties = PropertyValues()

    def set_boolean_property(self, name: str, value: bool) -> None:
        self.properties.set(name, value, "boolean")

    def set_byte_property(self, name: str, value: int) -> None:
        self.properties.set(name, value, "byte")

    def set_short_property(self, name: str, value: int) -> None:
        self.properties.set(name, value, "short")

    def set_int_property(self, name: str, value: int) -> None:
        self.properties.set(name, value, "int")

    def set_long_property(self, name: str, value: int) -> None:
        self.properties.set(name, value, "long")

    def set_float_property(self, name: str, value: float) -> None:
        self.properties.set(name, value, "float")

    def set_double_property(self, name: str, value: float) -> None:
        self.properties.set(name, value, "double")

    def set_string_property(self, name: str, value: str | None) -> None:
        self.properties.set(name, value, "string")

    def set_object_property(self, name: str, value: bool | int | float | str | None) -> None:
        """The kind follows from the Python type."""
        self.properties.set(name, value)

    def get_boolean_property(self, name: str) -> bool:
        return cast(bool, self.properties.read(name, "boolean"))

    def get_byte_property(self, name: str) -> int:
        return cast(int, self.properties.read(name, "byte"))

    def get_short_property(self, name: str) -> int:
        return cast(int, self.properties.read(name, "short"))

    def get_int_property(self, name: str) -> int:
        return cast(int, self.properties.read(name, "int"))

    def get_long_property(self, name: str) -> int:
        return cast(int, self.properties.read(name, "long"))

    def get_float_property(self, name: str) -> float:
        return cast(float, self.properties.read(name, "float"))

    def get_double_property(self, name: str) -> float:
        return cast(float, self.properties.read(name, "double"))

    def get_string_property(self, name: str) -> str | None:
        return cast("str | None", self.properties.read(name, "string"))

    def get_object_property(self, name: str) -> Value:
        """The value as it was set, None when there is none."""
        return self.properties.typed.get(name, ("string", None))[1]
