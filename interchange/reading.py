"""Reads what strangers wrote: plain values, as JSON and TOML have them.

Each function raises Refusal not-well-formed, which names the key, the value and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .refusals import Code, Refusal

MOST_ARGUMENTS = 64  # of one service, and variables of one context
MOST_NAMES = 64  # services or parts in one list
LONGEST_TEXT = 4096  # bytes of one value of the header
SHOWN = 100  # characters of a wrong value that a refusal says again
_NAME = re.compile(r"[^\s/\x00-\x1f\x7f#+$][^/\x00-\x1f\x7f#+]{0,126}/[^\s/\x00-\x1f\x7f#+][^/\x00-\x1f\x7f#+]{0,126}\Z")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")


def wrong(where: str, value: object, right: str) -> Refusal:
    shown = repr(value[:SHOWN] if isinstance(value, str | bytes | list) else value)
    return Refusal(Code.NOT_WELL_FORMED, f"{where}: {shown if len(shown) <= SHOWN else shown[: SHOWN - 1] + '…'}", right)


def only_keys(value: object, keys: frozenset[str], where: str) -> Mapping[str, object]:
    """`value` as an object that has no other keys than these."""
    if not isinstance(value, Mapping):
        raise wrong(where, value, f"give an object of {', '.join(sorted(keys))}")
    for key in value:
        if key not in keys:
            raise wrong(where, key, f"it has {', '.join(sorted(keys))}")
    return value


def read_text(value: object, where: str, most: int = LONGEST_TEXT) -> str:
    """A text of at most `most` bytes that every face can carry: whole characters, no NUL."""
    if not isinstance(value, str):
        raise wrong(where, value, "give a text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise wrong(where, value, "give whole characters, no half of a surrogate pair") from None
    if size > most or "\0" in value:
        raise wrong(where, value, f"give at most {most} bytes without U+0000")
    return value


def read_true(value: object, where: str) -> None:
    if value is not True:
        raise wrong(where, value, "give true, or leave it out")


def service_name(value: object, where: str) -> str:
    """`value` as the name of a service, organisation/name (l. 110)."""
    if not isinstance(value, str) or not _NAME.match(value) or value != value.strip():
        raise wrong(where, value, "give organisation/name, each 1 to 127 characters without /, #, + and control characters")
    return value


def key_name(value: object, where: str) -> str:
    if not isinstance(value, str) or not _KEY.match(value):
        raise wrong(where, value, "a name starts with a letter and has at most 64 letters, digits, '_', '-' and '.'")
    return value


def read_texts(value: object, where: str) -> dict[str, str]:
    """Arguments of a service, or variables of a context."""
    if not isinstance(value, Mapping) or len(value) > MOST_ARGUMENTS:
        raise wrong(where, value, f"give an object of at most {MOST_ARGUMENTS} texts")
    return {key_name(key, where): read_text(one, f"{where}.{key}") for key, one in value.items()}


def read_names(value: object, where: str, what: str) -> frozenset[str]:
    """A list of names of services or parts. what: says which, in the plural."""
    if not isinstance(value, list) or len(value) > MOST_NAMES or not all(isinstance(one, str) and len(one) < 256 for one in value):
        raise wrong(where, value, f"give a list of at most {MOST_NAMES} {what}")
    return frozenset(value)
