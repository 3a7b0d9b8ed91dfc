"""Says why a message goes where it goes: each comparison with what it found, the rules that held, the deliveries. Nothing is sent."""

from __future__ import annotations

from typing import Any

from .calls import Step
from .message import Kind, Message
from .refusals import Refusal
from .route import Calculation, Route, Services
from .rules.compiling import Values
from .rules.conditions import Condition, Leaf
from .rules.rules import RuleSet

LONGEST = 120  # characters of a value that is shown


def explain(services: Services, message: Message, now: int, to: str = "") -> dict[str, Any]:
    """An explanation in plain values, as JSON has them. NeedsValues comes through.

    to: of a response, the service that has posted the request.
    """
    calculation = Calculation(services, message, now)
    calculation.trace = []
    made: dict[str, Any] = {}
    try:
        route = calculation.back(to) if message.header.kind is Kind.RESPONSE else calculation.route()
        made["routes"] = _routes(route)
    except Refusal as refusal:
        made["refusal"] = refusal.fields()
    return {"services": [_service(one.chain, one.role, rules, values) for one, rules, values in calculation.trace], **made}


def _routes(route: Route) -> list[dict[str, Any]]:
    return [
        {"recipient": fork.recipient, "refusal": fork.refusal.fields()}
        if fork.refusal is not None
        else {"recipient": fork.recipient, "deliveries": [_delivery(step) for step in (*route.common, *fork.steps)]}
        for fork in route.forks
    ]


def _delivery(step: Step) -> dict[str, Any]:
    """A delivery, with what is not as in the post."""
    made: dict[str, Any] = {"service": step.to.service}
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


def _service(chain: tuple[str, ...], role: str, rules: RuleSet, values: Values) -> dict[str, Any]:
    shown = []
    ended = False
    for rule in rules.rules:
        holds = rules.holds(rule.condition, values)
        one = {"name": rule.name, "holds": holds, "condition": _condition(rule.condition, rules, values)}
        if ended:
            one["skipped"] = True  # an earlier rule has ended the sequence
        ended = ended or (holds and rule.ends)
        shown.append(one)
    return {"service": chain[-1], "role": role, "chain": list(chain), "rules": shown}


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
