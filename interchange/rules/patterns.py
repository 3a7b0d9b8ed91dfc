"""Regular expressions of services. RE2 matches them in a time that grows with the text only, whatever the expression is.

Python's `re` takes 0.45 s of processor time for 24 characters of a bad pattern and four times that for 26.
"""

from __future__ import annotations

from typing import Any

import re2

from ..reading import read_text, wrong

LONGEST_PATTERN = 1024  # bytes
MEMORY = 1 << 18  # bytes that a compiled pattern and its states may take
LARGEST_PROGRAM = 512  # instructions of RE2


def compiled(value: object, where: str) -> Any:
    """A pattern that is looked for anywhere in a value, as CEL and JSON Schema do."""
    text = read_text(value, where, LONGEST_PATTERN)
    options = re2.Options()
    options.max_mem = MEMORY
    options.log_errors = False
    try:
        pattern = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        raise wrong(where, text, f"give a regular expression that RE2 takes ({reason})") from None
    if pattern.programsize > LARGEST_PROGRAM:
        raise wrong(where, text, f"RE2 makes {pattern.programsize} instructions of it; {LARGEST_PROGRAM} may be: write shorter repetitions")
    return pattern


def cost(pattern: Any, value: str) -> int:
    """The most that a search takes, in units of `budget`: without its table of states RE2 looks at each instruction for each character."""
    return 20 + len(value) * int(pattern.programsize)


def found(pattern: Any, value: str) -> bool:
    try:
        return pattern.search(value) is not None
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON may have
        return False
