"""Routes of an exchange: where no rule has a say they are calculated once for a registry, and never for another one."""

from __future__ import annotations

from typing import Any, cast

import pytest
from mqmesh.interchange.message import Header, Kind, Message
from mqmesh.interchange.refusals import Refusal
from mqmesh.interchange.registry import records
from mqmesh.interchange.rule_routes import RuleRoutes

from .registries import NEVER, Registry, names, request, rule

PLAIN: dict[str, list[dict[str, Any]]] = {"s/s": [], "r/1": [], "r/2": []}
RESPONSE = Message(Header(Kind.RESPONSE, "r/1", call="0" * 16))


class Known:
    """What is known now."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.routes = RuleRoutes(lambda: cast(records.Registry, self.registry))

    def out(self, *recipients: str) -> list[list[str]]:
        return [names(way) for way in self.routes.out(request(*recipients), 0)]


def test_a_route_without_rules_is_calculated_once() -> None:
    known = Known(Registry(PLAIN))
    assert known.out("r/1") == known.out("r/1") == [["r/1"]]
    assert known.out("r/2", "r/1") == [["r/2"], ["r/1"]]
    assert known.routes.out(request("r/1"), 0)[0] is known.routes.out(request("r/1"), 1)[0]
    assert known.routes.back(request("r/1").header, RESPONSE, 0) == known.routes.back(request("r/1").header, RESPONSE, 0) == ()


@pytest.mark.parametrize("where", ["s/s", "r/1"])
def test_a_rule_is_evaluated_each_time(where: str) -> None:
    """It may look at anything of the message, whether it holds now or not."""
    known = Known(Registry({**PLAIN, where: [rule({"topic": "x"}, role="out" if where == "s/s" else "in", when=NEVER)]}))
    assert known.routes.out(request("r/1"), 0)[0] is not known.routes.out(request("r/1"), 0)[0]


def test_another_registry_has_other_routes() -> None:
    known = Known(Registry(PLAIN))
    assert known.out("r/1") == [["r/1"]]
    known.registry = Registry({**PLAIN, "r/1": [rule({"redirect": "r/2"})]})
    assert known.out("r/1") == [["r/2"]]
    known.registry = Registry(PLAIN, forbidden=frozenset({("s/s", "r/1")}))
    with pytest.raises(Refusal):
        known.out("r/1")


def test_what_a_connection_had_belongs_to_the_route() -> None:
    known = Known(Registry(PLAIN, {"r/1": {"needs": frozenset({"tls"})}}))
    known.routes.out(Message(request("r/1").header, has=frozenset({"tls"})), 0)
    with pytest.raises(Refusal):
        known.out("r/1")


def test_arguments_of_a_recipient_stay_its_own() -> None:
    known = Known(Registry(PLAIN))
    known.out("r/1")
    header = request("r/1").header
    told = Message(Header(Kind.REQUEST, "s/s", (type(header.recipients[0])("r/1", {"a": "1"}),)))
    assert known.routes.out(told, 0)[0][0].to.arguments == {"a": "1"}
    assert known.routes.out(request("r/1"), 0)[0][0].to.arguments == {}
