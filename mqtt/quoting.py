"""Names that peers chose, as values of `key=value` in a line of a log.

Whoever may choose a client identifier, a user name or a topic must not be able to write lines or keys of his own into a log.
"""

from __future__ import annotations

import json
import re

_PLAIN = re.compile(r"""[^\s"'=\\]+""")


def quoted(name: str | None) -> str:
    """One value: as it is where that is clear, else in double quotes with JSON's escapes; `-` for none."""
    if name is None:
        return "-"
    if name != "-" and name.isprintable() and _PLAIN.fullmatch(name):
        return name
    return json.dumps(name, ensure_ascii=not name.isprintable())


def one_line(text: str) -> str:
    """A text with line breaks and other control characters written as escapes."""
    return text if text.isprintable() else "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
