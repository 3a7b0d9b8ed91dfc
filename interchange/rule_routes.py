"""The routes of an exchange, from the rules of the services that the registry knows (`route.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from .calls import Step
from .message import Declaration, Header, Message
from .refusals import Code, Refusal
from .registry.records import Registry
from .route import Calculation
from .rules.view import LARGE, NeedsValues

T = TypeVar("T")
Ways = list[tuple[Step, ...]]


class RuleRoutes:
    """The routes of one exchange, by rules. registry: gives the services that are known now. has_room: whether a service may get more."""

    def __init__(self, registry: Callable[[], Registry], has_room: Callable[[str], bool] = lambda service: True) -> None:
        self._registry = registry
        self._has_room = has_room

    def out(self, message: Message, now: int) -> Ways:
        ways = _calculated(lambda: Calculation(self._registry(), message, now, message.has).route().ways())
        found = [self.arrive(message, way, 0, now) for way in ways]
        full = next((step.to.service for way in found for step in way if not self._has_room(step.to.service)), None)
        if full is not None:
            raise Refusal(Code.UNAVAILABLE, f"too much waits here for {full}", "post it again later")
        return found

    def back(self, request: Header, response: Message, now: int) -> tuple[Step, ...]:
        to = Declaration(request.sender)
        header = replace(response.header, recipients=(to,), topic=response.header.topic or request.topic)
        known = replace(response, header=header)
        (way,) = _calculated(lambda: Calculation(self._registry(), known, now, known.has).back(request.sender).ways())
        last = next((at for at, step in enumerate(way) if step.chain == (request.sender,)), len(way))  # the exchange delivers that one
        return self.arrive(known, way[:last], 0, now)

    def arrive(self, message: Message, steps: tuple[Step, ...], at: int, now: int) -> tuple[Step, ...]:
        while at < len(steps) and steps[at].dynamic:
            before = steps
            steps = _calculated(lambda: Calculation(self._registry(), message, now, message.has).arrive(before, at))  # noqa: B023 - called at once
        return steps

    def refuses_duplicates(self, service: str) -> bool:
        known = self._registry().services.get(service)
        return known is None or known.refuses_duplicates

    def follows(self, service: str) -> bool:
        known = self._registry().services.get(service)
        return known is not None and known.follows


def _calculated(calculate: Callable[[], T]) -> T:
    try:
        return calculate()
    except NeedsValues:
        raise Refusal(
            Code.TOO_LARGE, "rules of this route look into a part that is too large", f"at most {LARGE:,} bytes of JSON or XML"
        ) from None
