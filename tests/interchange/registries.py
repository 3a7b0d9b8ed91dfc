"""A registry for tests: services with their rules in the JSON form, everything allowed that is not forbidden."""

from __future__ import annotations

from typing import Any

from mqmesh.interchange.message import Declaration, Header, Kind, Message, Part
from mqmesh.interchange.refusals import Code, Refusal
from mqmesh.interchange.route import Calculation
from mqmesh.interchange.rules.routing import Routing
from mqmesh.interchange.rules.rules import read_script

ALWAYS = {"header": "kind", "exists": True}
NEVER = {"header": "kind", "equals": "nothing"}


def rule(*actions: dict[str, Any], role: str = "in", when: Any = ALWAYS) -> dict[str, Any]:
    return {"role": role, "when": when, "then": list(actions)}


class Registry:
    """scripts: service -> rules. more: service -> what else `Routing` has. forbidden: (from, to)."""

    def __init__(
        self,
        scripts: dict[str, list[dict[str, Any]]],
        more: dict[str, dict[str, Any]] | None = None,
        forbidden: frozenset[tuple[str, str]] = frozenset(),
        suspended: frozenset[str] = frozenset(),
    ) -> None:
        more = more or {}
        self._known = {name: Routing(read_script(rules), **more.get(name, {})) for name, rules in scripts.items()}
        self._forbidden = forbidden
        self._suspended = suspended

    def check_sends(self, sender: str) -> None:
        if sender in self._suspended:
            raise Refusal(Code.SUSPENDED, sender)

    def check_reaches(self, sender: str, to: str) -> None:
        if to not in self._known or (sender, to) in self._forbidden:
            raise Refusal(Code.UNKNOWN_SERVICE, to)
        if to in self._suspended:
            raise Refusal(Code.SUSPENDED, to)

    def routing(self, service: str) -> Routing:
        return self._known[service]


def request(*recipients: str, services: tuple[str, ...] = (), sender: str = "s/s", **more: Any) -> Message:
    header = Header(Kind.REQUEST, sender, tuple(map(Declaration, recipients)), tuple(map(Declaration, services)), **more)
    return Message(header, Part(b'{"amount": 5}', "application/json"))


def names(steps: Any) -> list[str]:
    return [one.to.service for one in steps]


def ways(registry: Registry, message: Message, **more: Any) -> list[list[str]]:
    """The deliveries to each recipient, by name."""
    return [names(way) for way in Calculation(registry, message, 0, **more).route().ways()]
