"""Names that peers chose, as values of `key=value` in a line of a log.

Whoever may choose a client identifier, a user name or a topic must not be able to write lines or keys of his own into a log.
"""

from __future__ import annotations

import json
import re

LONGEST = 256  # characters of one name that are shown: a name may have 65,535, and a flood of these fills a disk
_PLAIN = re.compile(r"""[^\s"'=\\]+""")


def quoted(name: str | None) -> str:
    """One value: as it is where that is clear, else in double quotes with JSON's escapes; `-` for none.

    What goes beyond `LONGEST` is left out, and the whole length in characters stands instead.
    """
    if name is None:
        return "-"
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}...({len(name)} characters)"
    if name != "-" and name.isprintable() and _PLAIN.fullmatch(name):
        return name
    return json.dumps(name, ensure_ascii=not name.isprintable())


def one_line(text: str) -> str:
    """A text with line breaks and other control characters written as escapes."""
    return text if text.isprintable() else "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
