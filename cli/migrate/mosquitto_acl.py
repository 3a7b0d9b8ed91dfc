"""Turns the file of `acl_file` into rules of access.

Mosquitto asks in this order: the topics of the user, of these `deny` first; then the patterns, of these `deny` first; else it denies.
Topics before the first `user` are those of clients without a name. Our first rule that fits decides, so the same order says the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter
from .remarks import Option, Remarks

ACTIONS = {
    "read": ["subscribe"],
    "write": ["publish"],
    "readwrite": ["publish", "subscribe"],
    "deny": ["publish", "subscribe"],
}
NOBODY = ""  # the user of clients without a name
OUTSIDE = "$SYS/broker/connection/"  # where bridges say that they are there


class _Entry(NamedTuple):
    user: str | None  # None: everybody
    access: str
    topic: str


def rules_of(options: Iterable[Option], remarks: Remarks) -> list[dict[str, Any]]:
    """The tables `[[access.rule]]` that say what an ACL file says."""
    user, found = NOBODY, []
    for option in options:
        remarks.lines += 1
        if option.name == "user":
            user = option.value
            if set(user) & set("*?"):
                remarks.lost(option, "a user's name with * or ? stands for several users here: give the user another name")
        elif option.name in ("topic", "pattern"):
            access, topic = _parts(option)
            if _taken(option, access, topic, remarks) and not set(user) & set("*?"):
                found.append(_Entry(None if option.name == "pattern" else user, access, topic))
        else:
            remarks.lost(option, "an ACL file has lines user, topic and pattern")
    entries: dict[str | None, list[_Entry]] = {}
    for one in found:
        entries.setdefault(one.user, []).append(one)
    patterns = entries.pop(None, [])  # these come last
    return [rule for of, own in (*entries.items(), (None, patterns)) for rule in _rules_for(of, own)]


def _parts(option: Option) -> tuple[str, str]:
    first, _, rest = option.value.partition(" ")
    return (first, rest.strip()) if first in ACTIONS and rest.strip() else ("readwrite", option.value)


def _taken(option: Option, access: str, topic: str, remarks: Remarks) -> bool:
    if topic.startswith(OUTSIDE) and access in ("write", "readwrite"):
        remarks.note(option, "bridges need no permission to say that they are there")
        return False
    return check_topic(option, topic, remarks)


def check_topic(option: Option, topic: str, remarks: Remarks) -> bool:
    """Whether the topic of a line `topic` or `pattern` can be one of a rule."""
    try:
        check_filter(topic.replace("%u", "x").replace("%c", "x"))
    except MqttError:
        remarks.lost(option, "this is no topic filter")
        return False
    if option.name == "topic" and ("%u" in topic or "%c" in topic):
        remarks.lost(option, "a line topic takes %u and %c as they stand; write pattern to have the client's names there")
        return False
    return True


def _rules_for(user: str | None, entries: list[_Entry]) -> list[dict[str, Any]]:
    """Rules of one user, denials first; one rule for all topics of a kind."""
    found = []
    for access in ("deny", "readwrite", "read", "write"):
        topics = list(dict.fromkeys(one.topic for one in entries if one.access == access))
        if topics:
            word = "deny" if access == "deny" else "allow"
            found.append({**({} if user is None else {"users": [user]}), word: ACTIONS[access], "topics": topics})
    return found
