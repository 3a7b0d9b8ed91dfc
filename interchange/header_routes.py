"""Routes that the header alone says: the services that it names, before each of its recipients."""

from __future__ import annotations

from collections.abc import Callable

from .calls import Step
from .message import Header, Message
from .registry.records import Registry


class HeaderRoutes:
    """See `Routes`. registry: gives the services that are known now."""

    def __init__(self, registry: Callable[[], Registry]) -> None:
        self._registry = registry

    def out(self, message: Message) -> list[tuple[Step, ...]]:
        registry, header = self._registry(), message.header
        registry.check_sends(header.sender)
        for one in (*header.services, *header.recipients):
            registry.check_reaches(header.sender, one.service)
        before = tuple(Step(one) for one in header.services)
        return [(*before, Step(one)) for one in header.recipients]

    def back(self, request: Header, response: Message) -> tuple[Step, ...]:
        return ()

    def refuses_duplicates(self, service: str) -> bool:
        return self._registry().services[service].refuses_duplicates
