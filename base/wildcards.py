"""Patterns of names: `*` stands for any characters, `?` for one. There are no character classes: `[::1]` is text.

A pattern takes time in proportion to the name, however many wildcards it has: each piece between two `*` is looked for once.
"""

from __future__ import annotations

import re
from functools import lru_cache


def fits(pattern: str, text: str, without: str = "") -> bool:
    """Whether the whole text fits a pattern. Upper and lower case differ.

    without: characters that no wildcard stands for.
    """
    return _compiled(pattern, without).fullmatch(text) is not None


@lru_cache(4096)
def _compiled(pattern: str, without: str) -> re.Pattern[str]:
    one = f"[^{re.escape(without)}]" if without else "."
    first, *others = ["".join([one if c == "?" else re.escape(c) for c in piece]) for piece in pattern.split("*")]
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    return re.compile(first + "".join([f"(?>{one}*?{piece})" for piece in middle]) + f"{one}*{last}", re.DOTALL)
