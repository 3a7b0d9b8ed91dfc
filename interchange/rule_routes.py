"""The routes of an exchange, from the rules of the services that the registry knows (`route.py`)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from .calls import Step
from .message import Declaration, Header, Message
from .refusals import Code, Refusal
from .registry.records import Registry
from .route import Calculation
from .rules.view import LARGE, NeedsValues

Ways = list[tuple[Step, ...]]
Plain = tuple[str, tuple[str, ...], str, frozenset[str]]  # sender, recipients, who gets the response (or ""), what the connection had
MOST_KNOWN = 10_000  # routes


class RuleRoutes:
    """The routes of one exchange, by rules. registry: gives the services that are known now. has_room: whether a service may get more.

    Where no service has a rule, a route depends on nothing but the services: it is calculated once for each registry.
    """

    def __init__(self, registry: Callable[[], Registry], has_room: Callable[[str], bool] = lambda service: True) -> None:
        self._registry = registry
        self._has_room = has_room
        self._known: dict[Plain, Ways] = {}
        self._known_of: Registry | None = None

    def out(self, message: Message, now: int) -> Ways:
        header, plain = message.header, None
        if not header.services and not any(one.arguments or one.visible is not None for one in header.recipients):
            plain = (header.sender, tuple([one.service for one in header.recipients]), "", message.has)
        ways = self._found(plain, lambda: Calculation(self._registry(), message, now, message.has), lambda one: one.route().ways())
        found = [self.arrive(message, way, 0, now) for way in ways]
        full = next((step.to.service for way in found for step in way if not self._has_room(step.to.service)), None)
        if full is not None:
            raise Refusal(Code.UNAVAILABLE, f"too much waits here for {full}", "post it again later")
        return found

    def back(self, request: Header, response: Message, now: int) -> tuple[Step, ...]:
        header = response.header

        def known() -> Message:
            to = (Declaration(request.sender),)
            return replace(response, header=replace(header, recipients=to, topic=header.topic or request.topic))

        plain = (header.sender, (), request.sender, response.has)
        (way,) = self._found(
            plain, lambda: Calculation(self._registry(), known(), now, response.has), lambda one: one.back(request.sender).ways()
        )
        last = next((at for at, step in enumerate(way) if step.chain == (request.sender,)), len(way))  # the exchange delivers that one
        return self.arrive(known(), way[:last], 0, now) if last else ()

    def _found(self, plain: Plain | None, begin: Callable[[], Calculation], ways: Callable[[Calculation], Ways]) -> Ways:
        """The ways of a message. plain: all that a route without rules depends on; None: it depends on more. Raises Refusal."""
        registry = self._registry()
        if registry is not self._known_of or len(self._known) >= MOST_KNOWN:
            self._known, self._known_of = {}, registry
        known = self._known.get(plain) if plain is not None else None
        if known is None:
            calculation = begin()
            known = _calculated(calculation, ways)
            if plain is not None and not calculation.ruled:
                self._known[plain] = known
        return known

    def arrive(self, message: Message, steps: tuple[Step, ...], at: int, now: int) -> tuple[Step, ...]:
        while at < len(steps) and steps[at].dynamic:
            before = steps
            (steps,) = _calculated(Calculation(self._registry(), message, now, message.has), lambda one: [one.arrive(before, at)])  # noqa: B023 - called at once
        return steps

    def delivery(self, service: str) -> str:
        known = self._registry().services.get(service)
        return "" if known is None else known.delivery

    def refuses_duplicates(self, service: str) -> bool:
        known = self._registry().services.get(service)
        return known is None or known.refuses_duplicates

    def responses(self, service: str) -> int:
        known = self._registry().services.get(service)
        return 1 if known is None else known.responses

    def follows(self, service: str) -> bool:
        known = self._registry().services.get(service)
        return known is not None and known.follows


def _calculated(calculation: Calculation, ways: Callable[[Calculation], Ways]) -> Ways:
    try:
        return ways(calculation)
    except NeedsValues:
        raise Refusal(
            Code.TOO_LARGE, "rules of this route look into a part that is too large", f"at most {LARGE:,} bytes of JSON or XML"
        ) from None
