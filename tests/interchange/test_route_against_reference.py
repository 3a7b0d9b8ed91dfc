"""Order and recursion of routes against a reference of its own: generated registries, with cycles, redirects, contexts, failures.

The reference makes a nested tree first and reads deliveries and evaluations off it. MQMESH_REGISTRIES: how many; `make soak` has 10,000.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from mqmesh.interchange.refusals import Code, Refusal
from mqmesh.interchange.route import DEEPEST, Calculation
from support.examples import how_many

from .registries import ALWAYS, NEVER, Registry, request

REGISTRIES = how_many("MQMESH_REGISTRIES", 400)
PARTS = ("body", "x", "y")


def action(r: random.Random, names: list[str], role: str) -> dict[str, Any]:
    roll = r.random()
    if roll < 0.55:
        made: dict[str, Any] = {"include": r.choice(names)}
        if role == "in" and r.random() < 0.5:
            made["where"] = "after"
        if r.random() < 0.2:
            made["visible"] = r.sample(PARTS, 2)
        return made
    if roll < 0.65 and role == "in":
        return {"exclude": True}
    if roll < 0.8:
        return {"set": {r.choice("pq"): str(r.randrange(9))}}
    return {"return": {r.choice("pq"): str(r.randrange(9))}}


def a_rule(r: random.Random, names: list[str]) -> dict[str, Any]:
    role = "in" if r.random() < 0.7 else "out"
    actions = [action(r, names, role) for _ in range(r.randrange(1, 4))]
    roll = r.random()
    if roll < 0.1:
        actions.append({"end": True})
    elif roll < 0.2 and role == "in":
        actions.append({"redirect": r.choice(names)})
    elif roll < 0.23:
        actions.append({"reject": "no"})
    return {"role": role, "when": ALWAYS if r.random() < 0.6 else NEVER, "then": actions}


@dataclass
class Node:
    """An invocation: what comes before it, whether it is delivered to, what comes after it."""

    chain: tuple[str, ...]
    visible: set[str] | None
    context: dict[str, str]
    before: list[Node] = field(default_factory=list)
    own: bool = True
    after: list[Node] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    returned: dict[str, str] = field(default_factory=dict)


class Reference:
    def __init__(self, scripts: dict[str, list[dict[str, Any]]], sender: str) -> None:
        self.scripts, self.sender = scripts, sender
        self.evaluated: list[tuple[str, ...]] = []

    def expand(self, node: Node, role: str) -> Node:
        """Raises Refusal."""
        service = node.chain[-1]
        if service in node.chain[:-1]:
            raise Refusal(Code.SERVICE_CYCLE, service)
        if len(node.chain) > DEEPEST:
            raise Refusal(Code.ROUTE_TOO_LONG, service)
        if service not in self.scripts:
            raise Refusal(Code.UNKNOWN_SERVICE, service)
        self.evaluated.append(node.chain)
        given: dict[str, str] = {}
        befores, afters = [], []
        holding = [one for one in self.scripts[service] if one["role"] == role and one["when"] == ALWAYS]
        ends = [at for at, one in enumerate(holding) if {"end", "redirect", "reject"} & set(one["then"][-1])]
        for one in holding[: ends[0] + 1] if ends else holding:
            for do in one["then"]:
                given = {**given, **do.get("set", {})}
                node.returned.update(do.get("return", {}))
                if "reject" in do:
                    raise Refusal(Code.REJECTED, service)
                if "exclude" in do or "redirect" in do:
                    node.own = False
                if "redirect" in do:
                    afters.insert(0, (do["redirect"], None, given))
                if "include" in do:
                    late = role == "out" or do.get("where") == "after"
                    (afters if late else befores).append((do["include"], do.get("visible"), given))
        for wanted, made in ((befores, node.before), (afters, node.after)):
            for name, visible, variables in wanted:
                made.append(self.child(node, name, visible, variables))
        self.given = given
        return node

    def child(self, node: Node, name: str, visible: list[str] | None, variables: dict[str, str]) -> Node:
        sees = node.visible if visible is None else set(visible) if node.visible is None else node.visible & set(visible)
        made = self.expand(Node((*node.chain, name), sees, {**node.told, **variables}), "in")
        node.told.update(made.returned)
        return made

    def deliveries(self, node: Node) -> list[tuple[str, Any, dict[str, str]]]:
        found: list[Any] = []
        for one in node.before:
            found += self.deliveries(one)
        if node.own:
            so_far: dict[str, str] = {}
            for one in node.before:
                so_far.update(one.returned)
            found.append((node.chain[-1], node.visible, {**node.context, **so_far}))
        for one in node.after:
            found += self.deliveries(one)
        return found

    def route(self, recipients: list[str], explicit: list[str]) -> list[Any]:
        """For each recipient the deliveries, or the code of a refusal. Raises Refusal for all of them."""
        sender = self.expand(Node((self.sender,), None, {}), "out")
        sender.own = False
        given = self.given
        sender.after += [self.child(sender, name, None, given) for name in explicit]
        common = self.deliveries(sender)
        made = []
        for name in recipients:
            try:
                way = self.deliveries(self.expand(Node((name,), None, {**sender.told, **given}), "in"))
                made.append(common + way if way else Code.INVALID_ROUTE)
            except Refusal as refusal:
                made.append(refusal.code)
        return made


def test_routes_are_those_of_the_reference() -> None:
    valid = cycles = 0
    for seed in range(REGISTRIES):
        r = random.Random(seed)
        names = [f"o/{n}" for n in range(r.randrange(3, 9))]
        scripts = {name: [a_rule(r, [*names, "o/none"] if r.random() < 0.05 else names) for _ in range(r.randrange(3))] for name in names}
        recipients, explicit = r.sample(names, r.randrange(1, 3)), r.choices(names, k=r.randrange(2))
        message = request(*recipients, services=tuple(explicit), sender="o/0")
        calculation, reference = Calculation(Registry(scripts), message, 0), Reference(scripts, "o/0")
        try:
            expected: Any = reference.route(recipients, explicit)
        except Refusal as refusal:
            expected = refusal.code
        try:
            route = calculation.route()
            found: Any = [
                fork.refusal.code
                if fork.refusal
                else [
                    (one.to.service, None if one.to.visible is None else set(one.to.visible), dict(one.context))
                    for one in (*route.common, *fork.steps)
                ]
                for fork in route.forks
            ]
        except Refusal as refusal:
            found = refusal.code
        assert found == expected, (seed, scripts, recipients, explicit)
        assert [one.chain for one in calculation.order] == reference.evaluated, (seed, scripts, recipients, explicit)
        valid += isinstance(found, list) and any(isinstance(one, list) and len(one) > 1 for one in found)
        cycles += found == Code.SERVICE_CYCLE or (isinstance(found, list) and Code.SERVICE_CYCLE in found)
    assert valid > REGISTRIES / 10
    assert cycles > REGISTRIES / 20
