"""Quotes names that peers choose, for `key=value` in a line of the log.

A peer that chooses a client identifier, a user name or a topic must not be able to write lines or keys of its own into the log.
"""

from __future__ import annotations

import json
import re

LONGEST = 256  # characters of one name that are shown: a name may have 65,535, and a flood of these fills a disk
_PLAIN = re.compile(r"""[^\s"'=\\]+""")


def quoted(name: str | None) -> str:
    """One value: unchanged if that is unambiguous, else in double quotes with JSON's escapes; `-` for None.

    A name longer than `LONGEST` is cut, and its length in characters is added.
    """
    if name is None:
        return "-"
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}...({len(name)} characters)"
    if name != "-" and name.isprintable() and _PLAIN.fullmatch(name):
        return name
    return json.dumps(name, ensure_ascii=not name.isprintable())


def one_line(text: str) -> str:
    """The text in one line: line breaks and other control characters become escapes."""
    return text if text.isprintable() else "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
