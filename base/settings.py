"""Configuration files: tables of TOML, read with errors that name file, key and value and say what would be right.

A `Section` is one table of a file. A getter takes the value of one key, checks it and says what would be right. `done()` complains about
keys that no getter asked for. Every mistake ends in `ConfigError`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .address import parse_address

LINK_FORMS = "mqtt://HOST:PORT, mqtts://HOST:PORT or unix:///PATH"
SECRET = "key"  # the key whose value stays out of messages
NAME = re.compile(r"\w[\w.-]{0,63}")
_LONGEST_KEY, _LONGEST_VALUE, _LONGEST_TEXT = 200, 80, 1000  # characters in an error
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")


class Placeholder:
    """Stands in an error for a value that is missing or must not be shown."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return f"({self._text})"


MISSING = Placeholder("missing")


class ConfigError(Exception):
    """A mistake of whoever wrote a configuration: one line that names file, key, value and what would be right.

    file: as the user gave it, or "command line". key: dotted, with the place in a list as `broker[2].number`; "" for
    the file as a whole. value: what stands there, `MISSING` when nothing does. text: what would be right.
    """

    def __init__(self, file: str, key: str, value: object, text: str) -> None:
        self.file, self.key, self.value, self.text = file, key, value, text
        super().__init__(file, key, value, text)

    def __str__(self) -> str:
        text = _short(_printable(self.text), _LONGEST_TEXT)  # it may quote what stands in the file
        if not self.key:
            return f"{self.file}: {text}"
        key = _short(_printable(self.key), _LONGEST_KEY)
        if self.value is MISSING:
            return f"{self.file}: {key} is missing: {text}"
        if isinstance(self.value, Path):  # the name of a file is no use in part
            return f'{self.file}: {key} = "{_short(_printable(str(self.value)), _LONGEST_TEXT)}": {text}'
        shown = _shown(self.value)
        if isinstance(self.value, str):
            shown = f'"{_printable(self.value)}"'
        return f"{self.file}: {key} = {_short(shown, _LONGEST_VALUE)}: {text}"


def _shown(value: object) -> str:
    """`repr`, also of values for which it fails: numbers of thousands of figures, lists nested very deeply."""
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return "(too much to be shown)"


def _printable(text: str) -> str:
    """The text in one line, without control characters."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


def parse_size(value: object) -> int:
    """A size in bytes: a whole number, or a string such as "64 MiB" (KiB, MiB, GiB, kB, MB, GB). ValueError otherwise."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    matched = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if matched is None or matched[2].upper() not in _UNITS:
        raise ValueError('give bytes as a whole number or a string such as "64 MiB"')
    return int(matched[1]) * _UNITS[matched[2].upper()]


class Section:
    """One table of a configuration: each getter takes a key, checks its value and raises `ConfigError` if it is wrong.

    A getter whose `default` is left out requires its key.
    """

    def __init__(self, file: str, table: Mapping[str, Any], path: str = "") -> None:
        self.file, self.table, self.path = file, table, path
        self._taken: set[str] = set()

    def key(self, key: str) -> str:
        """The key with the tables around it, as in `mesh.peer[1].cost`."""
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, text: str) -> ConfigError:
        """The error to raise about the value of `key`, or about its absence."""
        return ConfigError(self.file, self.key(key), self.table.get(key, MISSING), text)

    def secret_error(self, key: str, text: str) -> ConfigError:
        """The same, without showing the value."""
        value = self.table[key]
        shown = f"{len(value.encode())} bytes" if isinstance(value, str) else "not a string"
        return ConfigError(self.file, self.key(key), Placeholder(shown), text)

    def has(self, key: str) -> bool:
        """Whether the key is there. The key counts as known from now on."""
        self._taken.add(key)
        return key in self.table

    def _take(self, key: str, default: Any, right: str) -> Any:
        self._taken.add(key)
        if key not in self.table:
            if default is MISSING:
                near = [word for word in difflib.get_close_matches(key, self.table, 1, 0.8) if word.isidentifier()]
                raise self.error(key, f'{right}; is "{near[0]}" misspelled?' if near else right)
            return default
        return self.table[key]

    def string(self, key: str, default: Any = MISSING, right: str = "give a string") -> str:
        value = self._take(key, default, right)
        if not isinstance(value, str) or not value:
            raise self.error(key, right)
        return value

    def name(self, key: str, default: Any = MISSING) -> str:
        """A name that is also a part of file names, client identifiers and topics."""
        right = "give a name of 1 to 64 letters, digits, '.', '_' and '-' that does not start with '.' or '-'"
        value = self.string(key, default, right)
        if not NAME.fullmatch(value):
            raise self.error(key, right)
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: Any = MISSING) -> str:
        right = "give " + " or ".join(f'"{choice}"' for choice in choices)
        value = self.string(key, default, right)
        if value not in choices:
            raise self.error(key, right + guess(value, choices))
        return value

    def flag(self, key: str, default: Any = MISSING) -> bool:
        value = self._take(key, default, "write true or false")
        if not isinstance(value, bool):
            raise self.error(key, "write true or false")
        return value

    def whole(self, key: str, low: int, high: int, default: Any = MISSING) -> int:
        right = f"give a whole number from {low} to {high}"
        value = self._take(key, default, right)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, right)
        return value

    def size(self, key: str, low: int, high: int, default: Any = MISSING) -> int:
        """Bytes, as a whole number or with a unit."""
        try:
            value = parse_size(self._take(key, default, "give a size in bytes"))
        except ValueError as error:
            raise self.error(key, str(error)) from None
        if not low <= value <= high:
            raise self.error(key, f"give from {low} to {high} bytes")
        return value

    def seconds(self, key: str, low: float, high: float, default: Any = MISSING) -> float:
        right = f"give seconds from {low:g} to {high:g}"
        value = self._take(key, default, right)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.error(key, right)
        return float(value)

    def strings(self, key: str, default: Any = MISSING, right: str = "give a list of strings") -> list[str]:
        value = self._take(key, default, right)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, right)
        return list(value)

    def path_of(self, key: str, folder: Path | None, right: str = "give a path") -> Path:
        """A path. folder: what a relative one is relative to; None: to where the program runs."""
        text = self.string(key, right=right)
        try:
            path = expanded(text)
        except ValueError as error:
            raise self.error(key, str(error)) from None
        return path if folder is None else folder / path

    def address(self, key: str, default: Any = MISSING) -> str:
        """An address that links can dial, unchanged."""
        value = self.string(key, default, f"write {LINK_FORMS}")
        if self.checked_address(key, value).startswith(("ws://", "wss://")):
            raise ConfigError(self.file, self.key(key), value, f"links do not run over WebSocket: write {LINK_FORMS}")
        return value

    def checked_address(self, key: str, value: str) -> str:
        """A value that `parse_address` accepts, unchanged."""
        try:
            parse_address(value)
        except ValueError as error:
            raise ConfigError(self.file, self.key(key), value, str(error)) from None
        return value

    def section(self, key: str) -> Section:
        """The table under `key`, empty when there is none."""
        value = self._take(key, {}, "")
        if not isinstance(value, dict):
            raise self.error(key, f"make it a table: [{self.key(key)}]")
        return Section(self.file, value, self.key(key))

    def sections(self, key: str) -> list[Section]:
        """The tables of the list under `key` (`[[key]]` in TOML), counted from 1 in errors."""
        value = self._take(key, [], "")
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(key, f"make it a list of tables: [[{self.key(key)}]]")
        return [Section(self.file, item, f"{self.key(key)}[{i}]") for i, item in enumerate(value, 1)]

    def done(self) -> None:
        """Complain about the first key that no getter asked for."""
        self.only(sorted(self._taken))

    def only(self, known: Sequence[str]) -> None:
        """Complain about the first key that is not known."""
        names = frozenset(known)
        for key in self.table:
            if key not in names:
                near = guess(key, known)
                text = f"unknown key{near}" if near else f"unknown key; known: {', '.join(known)}"
                secret = SECRET in near or "password" in key
                raise self.secret_error(key, text) if secret else self.error(key, text)


def guess(word: str, known: Sequence[str]) -> str:
    """`; did you mean "..."?` when something known is near the word, else ""."""
    near = difflib.get_close_matches(word, known, 1, 0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


def read(path: str | Path) -> Section:
    """The table of a whole file. Raises ConfigError when it cannot be read or is not TOML."""
    file = str(path)
    try:
        return Section(file, tomllib.loads(Path(path).read_text(encoding="utf-8-sig")))
    except OSError as error:
        text = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        text = "is not UTF-8 text"
    except RecursionError:
        text = "is not TOML: lists or tables stand in each other too deeply"
    except ValueError as error:  # TOMLDecodeError; also numbers of thousands of figures and impossible dates, which tomllib lets through
        text = f"is not TOML: {error}"
    raise ConfigError(file, "", MISSING, text)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A table in which the values of `over` stand for those of `under`; tables in both are merged in turn."""
    found = dict(under)
    for key, value in over.items():
        below = found.get(key)
        found[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return found


def is_file(path: Path) -> bool:
    """Whether the file exists; False also for a name that no file can have."""
    try:
        return path.is_file()
    except OSError:  # too long
        return False


def expanded(text: str) -> Path:
    """A path with ~ replaced by the home folder. Raises ValueError, one line, for a text that cannot be a path."""
    if "\0" in text:
        raise ValueError("a path holds no zero byte")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("there is no home folder of this user: write the path without ~") from None
