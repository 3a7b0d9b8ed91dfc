"""What the registry says of a service that routes need: its rules, and what it allows and asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..reading import read_names, read_text, wrong
from .rules import EMPTY, Script

NEEDS = ("tls", "password", "certificate")  # what a connection may have had (l. 84, 90)


@dataclass(frozen=True, slots=True)
class Routing:
    """What the registry says of one service that routes need.

    dynamic: its rules are evaluated when the message comes to it, not at the post.
    includes: patterns of services that may be included into its part of a route, with the parts that they may see (None: all); None: any.
    needs: what the post must have had, of NEEDS.
    revision: of its rules.
    """

    script: Script = EMPTY
    dynamic: bool = False
    includes: Mapping[str, frozenset[str] | None] | None = None
    needs: frozenset[str] = frozenset()
    revision: int = 0


NO_RULES = Routing()


def read_includes(value: object, where: str) -> dict[str, frozenset[str] | None]:
    """`{"map/*": true, "score/credit": ["body"]}`: patterns of services, with the parts that they may see."""
    if not isinstance(value, Mapping):
        raise wrong(where, value, "give an object: pattern of services -> true, or a list of parts")
    return {
        read_text(pattern, where, 255): None if parts is True else read_names(parts, f"{where}.{pattern}", "parts, or true for all")
        for pattern, parts in value.items()
    }
