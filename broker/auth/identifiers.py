"""Which client identifiers a user may use: `client_ids` of `[access]`.

    client_ids = ["%u", "%u-*", "display-*"]     # %u the user's name, * any characters

The user's name is taken as it is, whatever characters it has. A pattern with `%u` is for nobody without a proven name.
"""

from __future__ import annotations

import secrets

from ...mesh.roaming.names import ASIDE, LEAVING, PARKED, client_of

USER, ANY = "%u", "*"


def identifier_of(session: str) -> str:
    """The client identifier of a session by its name, which differs while it moves to another site (`roaming/shell.py`):
    NUL "leaving." time "." broker "." client's name, NUL "parked." client's name, NUL "aside." client's name."""
    if not session.startswith("\0"):
        return session
    rest = session.partition(".")[2]
    return client_of(rest.split(".", 2)[2] if session.startswith(LEAVING) else rest)


def is_our_own(session: str) -> bool:
    """Whether a session of this name is the broker's own, where messages of recipients wait: no client's, so that no rule speaks of it."""
    return session.startswith("\0") and not session.startswith((ASIDE, LEAVING, PARKED))


class Identifiers:
    """The patterns; none: every identifier is allowed."""

    def __init__(self, patterns: tuple[str, ...] = ()) -> None:
        self.patterns = patterns

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def _parts(self, user: str | None) -> list[list[str]]:
        """What stands between the `*` of each pattern that is for this user."""
        return [
            [part.replace(USER, user or "") for part in pattern.split(ANY)]
            for pattern in self.patterns
            if user is not None or USER not in pattern
        ]

    def allow(self, user: str | None, client_id: str) -> bool:
        """Whether a user (None: nobody) may use a client identifier."""
        return not self.patterns or any(_fits(parts, client_id) for parts in self._parts(user))

    def assigned(self, user: str | None) -> str | None:
        """A new client identifier that nobody can guess, for a client that gives none; None: no pattern has room for one."""
        chance = secrets.token_hex(12)
        if not self.patterns:
            return f"auto-{chance}"
        found = next((parts for parts in self._parts(user) if len(parts) > 1), None)
        return None if found is None else found[0] + chance + "".join(found[1:])


def _fits(parts: list[str], text: str) -> bool:
    """Whether a text has these parts in order, the first at its beginning and the last at its end. The time is that of `str.find`."""
    if len(parts) == 1:
        return text == parts[0]
    first, *between, last = parts
    end = len(text) - len(last)
    if end < len(first) or not text.startswith(first) or not text.endswith(last):
        return False
    at = len(first)
    for part in between:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
