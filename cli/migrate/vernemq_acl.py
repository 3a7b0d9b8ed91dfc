"""Turns VerneMQ's `vmq.acl` into rules of access.

VerneMQ asks for the topics of everybody (those before the first `user`), then for those of the user, then for the patterns. Nothing denies,
and what nothing allows is denied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .mosquitto_acl import ACTIONS, check_topic
from .remarks import Option, Remarks


def rules_of(options: Iterable[Option], remarks: Remarks) -> list[dict[str, Any]]:
    """The tables `[[access.rule]]`."""
    user: str | None = None
    found: dict[tuple[str | None, str], list[str]] = {}
    for option in options:
        remarks.lines += 1
        if option.name == "user":
            user = option.value
            if set(user) & set("*?"):
                remarks.lost(option, "a user's name with * or ? stands for several users here: give the user another name")
        elif option.name in ("topic", "pattern"):
            word, _, rest = option.value.partition(" ")
            access, topic = (word, rest.strip()) if word in ("read", "write") and rest.strip() else ("readwrite", option.value)
            if option.name == "pattern" and "%m" in topic:
                remarks.lost(option, "there are no mount points")
            elif check_topic(option, topic, remarks) and not set(user or "") & set("*?"):
                found.setdefault((None if option.name == "pattern" else user, access), []).append(topic)
        else:
            remarks.lost(option, "an ACL file has lines user, topic and pattern")
    return [
        {**({} if of is None else {"users": [of]}), "allow": ACTIONS[access], "topics": list(dict.fromkeys(topics))}
        for (of, access), topics in found.items()
    ]
