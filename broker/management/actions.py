"""Actions: what can be done at a site, which role it takes, and which values it needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..auth.roles import Rights, Role
from .errors import Refused

WORDS = {"true": True, "false": False}
DIGITS = 16  # of a number that comes as text

Values = Mapping[str, Any]
Told = Callable[[str, bool], None]  # (one line, whether it is done; else it says why not)
Later = Callable[[Told], None]  # begins what takes longer, and tells once
Deed = Callable[[Values, bool], str | Later]  # (values, dry_run) -> one line, or what is still to do; raises Refused or UsageError


@dataclass(frozen=True, slots=True)
class Action:
    """Something that can be done.

    role: which it takes. values: names of its values, with an example each as JSON has it. optional: those that may be left out.
    do: does it, or with dry_run says what it would do, as one line.
    topic, queues: names of the values that are the topic or the queues that it is about, for roles that are for some of these.
    unnoted: values that are in no log and audit.
    """

    name: str
    help: str
    role: Role
    values: Mapping[str, str]
    do: Deed
    optional: tuple[str, ...] = ()
    topic: str | None = None
    queues: tuple[str, ...] = ()
    unnoted: tuple[str, ...] = ()

    def taken(self, values: Values) -> dict[str, Any]:
        """Its values; flags and numbers may come as text. Raises Refused."""
        unknown = [name for name in values if name not in self.values]
        missing = [name for name in self.values if name not in self.optional and values.get(name) in (None, "")]
        if unknown:
            raise Refused(f"{self.name} has no {str(unknown[0])[:80]!r}: it takes {', '.join(self.values) or 'no values'}")
        if missing:
            raise Refused(f'{self.name} needs "{missing[0]}", as {self.values[missing[0]]}')
        return {name: self._value(name, value) for name, value in values.items()}

    def _value(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or self.values[name].startswith('"'):
            return value
        if value in WORDS:
            return WORDS[value]
        if value.isdecimal() and len(value) < DIGITS:
            return int(value)
        if self.values[name].startswith("{") and (found := _object(value)) is not None:
            return found
        raise Refused(f"{name}: {value[:80]!r}: give it as {self.values[name]}")

    def permitted(self, rights: Rights, values: Values) -> bool:
        """Whether somebody may do it."""
        if self.topic is not None and isinstance(topic := values.get(self.topic), str):
            return rights.may_topic(self.role, topic)
        queues = [values[name] for name in self.queues if isinstance(values.get(name), str)]
        return all(rights.may_queue(self.role, queue) for queue in queues) if queues else rights.may(self.role)

    def noted(self, values: Values) -> dict[str, Any]:
        """Its values as an audit has them: no passwords that stand in URLs, and nothing large."""
        plain = {name: value for name, value in values.items() if name not in self.unnoted and isinstance(value, str | int | float | bool)}
        return {name: without_password(value) if isinstance(value, str) else value for name, value in plain.items()}

    def described(self) -> dict[str, Any]:
        """What an answer says of the action itself."""
        return {"do": self.name, "text": self.help, "role": self.role.value, "values": dict(self.values), "optional": list(self.optional)}


class Actions:
    """The actions of one broker, by name."""

    def __init__(self) -> None:
        self._actions: dict[str, Action] = {}

    def add(self, action: Action) -> None:
        """From now on it can be asked for; a later one of the same name takes its place."""
        self._actions[action.name] = action

    def get(self, name: str) -> Action:
        """An action by its name. Raises Refused."""
        found = self._actions.get(name)
        if found is None:
            raise Refused(f"there is no action {name[:80]!r}: one of {', '.join(sorted(self._actions))}")
        return found

    def all(self) -> list[Action]:
        """By name."""
        return [self._actions[name] for name in sorted(self._actions)]


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def without_password(text: str) -> str:
    """A text; if it is a URL, without the user and password that may stand in it."""
    scheme, separator, rest = text.partition("://")
    return scheme + separator + rest.rpartition("@")[2] if separator else text


def text_of(values: Values, name: str) -> str:
    """A value that is text. Raises Refused."""
    value = values.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 65_535:
        raise Refused(f"{name}: give a text")
    return value
