"""Says why a message goes where it goes: each comparison with what it found, the rules that held, the deliveries. Nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calls import Step
from .message import NEW, Kind, Message
from .reading import wrong
from .refusals import Code, Refusal
from .route import Calculation, Route, Services
from .rules.compiling import Values
from .rules.conditions import Condition, Leaf
from .rules.rules import RuleSet
from .rules.view import LARGE, NeedsValues

LONGEST = 120  # characters of a value that is shown


def explain(
    services: Services, message: Message, now: int, to: str = "", open_to: Callable[[str], bool] = lambda service: True
) -> dict[str, Any]:
    """An explanation in plain values, as JSON has them. NeedsValues comes through.

    to: of a response, the service that has posted the request.
    open_to: whether who asks may see the rules of a service, and what they give it; of others only the name is shown.
    """
    calculation = Calculation(services, message, now, message.has)
    calculation.trace = []
    made: dict[str, Any] = {}
    try:
        route = calculation.back(to) if message.header.kind is Kind.RESPONSE else calculation.route()
        made["routes"] = _routes(route, open_to)
    except Refusal as refusal:
        made["refusal"] = refusal.fields()
    evaluated = [
        {"service": one.service, "role": one.role, "chain": list(one.chain)} | (_shown(rules, values) if open_to(one.service) else {})
        for one, rules, values in calculation.trace
    ]
    return {"services": evaluated, **made}


def explained(services: Services, message: Message, now: int, open_to: Callable[[str], bool]) -> dict[str, Any]:
    """The same of a message that a service would post. Raises Refusal."""
    kind, recipients = message.header.kind, message.header.recipients
    if kind is Kind.RESPONSE and len(recipients) != 1:
        raise wrong("recipients", [one.service for one in recipients], "name the service that has posted the request")
    if kind not in (*NEW, Kind.RESPONSE):
        raise wrong("kind", kind.value, "only requests, notifications and responses have routes")
    try:
        return explain(services, message, now, recipients[0].service, open_to)
    except NeedsValues:
        raise Refusal(Code.TOO_LARGE, "rules look into a part that is too large", f"at most {LARGE:,} bytes") from None


def _routes(route: Route, open_to: Callable[[str], bool]) -> list[dict[str, Any]]:
    return [
        {"recipient": fork.recipient, "refusal": fork.refusal.fields()}
        if fork.refusal is not None
        else {"recipient": fork.recipient, "deliveries": [_delivery(step, open_to) for step in (*route.common, *fork.steps)]}
        for fork in route.forks
    ]


def _delivery(step: Step, open_to: Callable[[str], bool]) -> dict[str, Any]:
    """A delivery, with what is not as in the post."""
    made: dict[str, Any] = {"service": step.to.service}
    if not open_to(step.to.service):
        return made
    if step.dynamic:
        made["dynamic"] = True
    if step.to.arguments:
        made["arguments"] = dict(step.to.arguments)
    if step.to.visible is not None:
        made["visible"] = sorted(step.to.visible)
    if step.context:
        made["context"] = dict(step.context)
    if step.topic is not None:
        made["topic"] = step.topic
    if step.expires is not None:
        made["expires"] = step.expires
    return made


def _shown(rules: RuleSet, values: Values) -> dict[str, Any]:
    """Each rule of a service, and whether it holds."""
    shown = []
    ended = False
    for rule in rules.rules:
        holds = rules.holds(rule.condition, values)
        one = {"name": rule.name, "holds": holds, "condition": _condition(rule.condition, rules, values)}
        if ended:
            one["skipped"] = True  # an earlier rule has ended the sequence
        ended = ended or (holds and rule.ends)
        shown.append(one)
    return {"rules": shown}


def _condition(condition: Condition, rules: RuleSet, values: Values) -> dict[str, Any]:
    holds = rules.holds(condition, values)
    if not isinstance(condition, Leaf):
        return {condition.operator: [_condition(part, rules, values) for part in condition.parts], "holds": holds}
    value = rules.value(condition.look, values)
    there = value is not None
    text = str(value)
    return {
        "comparison": condition.shown,
        "holds": holds,
        "there": there,
        **({"value": text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"} if there and condition.operator != "exists" else {}),
    }
