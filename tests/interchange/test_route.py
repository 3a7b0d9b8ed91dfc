"""Routes: order, inclusion, logical and physical delivery, context, visible parts, validation, bounds."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.interchange.message import Declaration, Header, Kind, Message, Part
from mqmesh.interchange.refusals import Code, Refusal
from mqmesh.interchange.route import DEEPEST, MOST_SERVICES, Calculation
from msgspec.structs import replace

from .registries import NEVER, Registry, names, request, rule, ways


def include(service: str, where: str = "before", **more: Any) -> dict[str, Any]:
    return {"include": service, "where": where, **more}


def refusal(registry: Registry, message: Message, **more: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ways(registry, message, **more)
    return caught.value


def test_the_order_of_the_source() -> None:
    """l. 152: the sender's rules, what they include, the recipients in order, what those include; l. 120: the header's services."""
    registry = Registry(
        {
            "s/s": [rule(include("a/1", "after"), role="out"), rule(include("a/2", "after"), role="out"), rule(include("a/9"))],
            "a/1": [rule(include("a/3"))],
            "a/2": [],
            "a/3": [],
            "e/e": [],
            "r/1": [rule(include("f/1"), include("g/1", "after"))],
            "r/2": [rule(include("f/1"))],
            "f/1": [],
            "g/1": [],
        }
    )
    message = request("r/2", "r/1", services=("e/e",))
    assert ways(registry, message) == [["a/3", "a/1", "a/2", "e/e", "f/1", "r/2"], ["a/3", "a/1", "a/2", "e/e", "f/1", "r/1", "g/1"]]
    order = [one.chain for one in Calculation(registry, message, 0).route().order]
    assert order == [
        ("s/s",), ("s/s", "a/1"), ("s/s", "a/1", "a/3"), ("s/s", "a/2"), ("s/s", "e/e"),
        ("r/2",), ("r/2", "f/1"), ("r/1",), ("r/1", "f/1"), ("r/1", "g/1"),
    ]  # fmt: skip


def test_a_service_may_be_in_the_route_only_logically() -> None:
    """l. 174: X includes A, A includes B and is not delivered to."""
    registry = Registry({"s/s": [], "x/x": [rule(include("a/a"))], "a/a": [rule(include("b/b"), {"exclude": True})], "b/b": []})
    assert ways(registry, request("x/x")) == [["b/b", "x/x"]]


def test_a_redirect_takes_the_place_of_the_service_and_keeps_its_name() -> None:
    """l. 50."""
    registry = Registry(
        {"s/s": [], "v/v": [rule({"redirect": "w/w"}), rule(include("b/b"))], "w/w": [rule(include("f/f"))], "f/f": [], "b/b": []}
    )
    (way,) = Calculation(registry, request("v/v"), 0).route().ways()
    assert names(way) == ["f/f", "w/w"]
    assert {one.recipient for one in way} == {"v/v"}


def test_end_and_conditions_end_the_sequence() -> None:
    registry = Registry(
        {"s/s": [], "r/r": [rule(include("a/a"), when=NEVER), rule(include("b/b"), {"end": True}), rule(include("c/c"))], "b/b": []}
    )
    assert ways(registry, request("r/r")) == [["b/b", "r/r"]]


def test_contexts_are_set_returned_and_restored() -> None:
    """l. 178-180."""
    registry = Registry(
        {
            "s/s": [rule({"set": {"tier": "gold"}}, role="out")],
            "r/r": [rule(include("a/a"), {"set": {"x": "1"}}, include("b/b"), include("c/c", "after"))],
            "a/a": [rule({"set": {"inner": "1"}}, include("d/d"), {"return": {"score": "7", "x": "a"}})],
            "b/b": [rule({"reject": "x is not 1"}, when={"not": {"header": "context.x", "equals": 1}})],
            "c/c": [],
            "d/d": [],
        }
    )
    (way,) = Calculation(registry, request("r/r"), 0).route().ways()
    assert [(one.to.service, dict(one.context)) for one in way] == [
        ("d/d", {"inner": "1"}),
        ("a/a", {}),
        ("b/b", {"score": "7", "x": "1"}),  # what the invoker sets counts more than what a service has returned
        ("r/r", {"tier": "gold", "score": "7", "x": "a"}),
        ("c/c", {"score": "7", "x": "1"}),
    ]


def test_topic_and_expiry_go_on_to_the_next_service() -> None:
    registry = Registry(
        {
            "s/s": [rule({"topic": "one"}, {"expires": 60}, role="out")],
            "r/1": [rule(include("a/a"), when={"header": "topic", "equals": "one"}), rule({"topic": "two"}, {"expires": 90})],
            "r/2": [],
            "a/a": [rule({"expires": 30})],
        }
    )
    forks = Calculation(registry, request("r/1", "r/2", expires=100_000), 0).route().forks
    assert [(one.to.service, one.topic, one.expires) for fork in forks for one in fork.steps] == [
        ("a/a", "two", 30_000),
        ("r/1", "two", 30_000),
        ("r/2", "one", 60_000),
    ]


def test_visible_parts_only_become_fewer() -> None:
    registry = Registry(
        {"s/s": [], "r/r": [rule(include("a/a", visible=["body", "x"]))], "a/a": [rule(include("b/b", visible=["x", "y"]))], "b/b": []},
        {"r/r": {"includes": {"a/*": None, "b/*": frozenset({"x", "z"})}}},
    )
    (way,) = Calculation(registry, request("r/r"), 0).route().ways()
    assert [one.to.visible for one in way] == [frozenset("x"), frozenset({"body", "x"}), None]


def test_a_service_that_includes_itself_is_refused_with_the_chain() -> None:
    registry = Registry({"s/s": [], "r/r": [rule(include("a/a"))], "a/a": [rule(include("b/b"))], "b/b": [rule(include("a/a"))]})
    found = refusal(registry, request("r/r"))
    assert (found.code, found.what) == (Code.SERVICE_CYCLE, "a service includes itself: r/r -> a/a -> b/b -> a/a")


def test_one_may_write_to_oneself() -> None:
    assert ways(Registry({"s/s": []}), request("s/s")) == [["s/s"]]


def test_depth_is_bounded() -> None:
    many = DEEPEST + 1
    registry = Registry({"s/s": [], **{f"a/{n}": [rule(include(f"a/{n + 1}"))] for n in range(many)}, f"a/{many}": []})
    assert refusal(registry, request("a/0")).code is Code.ROUTE_TOO_LONG
    assert len(ways(registry, request("a/3"))[0]) == DEEPEST - 1


def test_services_of_a_route_are_bounded() -> None:
    """Each of six services includes the next one six times: 6 ** 6 invocations, had nobody counted."""
    registry = Registry({"s/s": [], **{f"a/{n}": [rule(*[include(f"a/{n + 1}")] * 6)] for n in range(6)}, "a/6": []})
    calculation = Calculation(registry, request("a/0", "a/6"), 0)
    refused, also = calculation.route().forks
    assert (refused.refusal and refused.refusal.code, also.refusal and also.refusal.code) == (Code.ROUTE_TOO_LONG, Code.ROUTE_TOO_LONG)
    assert len(calculation.order) <= MOST_SERVICES + 2


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"forbidden": frozenset({("s/s", "r/r")})}, Code.UNKNOWN_SERVICE),
        ({"forbidden": frozenset({("r/r", "f/f")})}, Code.UNKNOWN_SERVICE),
        ({"suspended": frozenset({"s/s"})}, Code.SUSPENDED),
        ({"suspended": frozenset({"r/r"})}, Code.SUSPENDED),
        ({"suspended": frozenset({"f/f"})}, Code.SUSPENDED),
        ({"more": {"f/f": {"needs": frozenset({"tls"})}}}, Code.NOT_SECURE_ENOUGH),
        ({"more": {"s/s": {"needs": frozenset({"tls"})}}}, Code.NOT_SECURE_ENOUGH),
        ({"more": {"r/r": {"includes": {"g/*": None}}}}, Code.NOT_PERMITTED),
    ],
)
def test_a_route_that_is_invalid_is_refused(more: dict[str, Any], code: Code) -> None:
    """l. 184-186."""
    assert refusal(Registry({"s/s": [], "r/r": [rule(include("f/f"))], "f/f": []}, **more), request("r/r")).code is code


def test_what_the_connection_has_is_enough() -> None:
    registry = Registry({"s/s": [], "r/r": []}, {"r/r": {"needs": frozenset({"tls"})}})
    assert ways(registry, request("r/r"), has=frozenset({"tls", "password"})) == [["r/r"]]


def test_a_reject_of_one_recipient_leaves_the_others() -> None:
    """l. 188."""
    registry = Registry({"s/s": [], "r/1": [rule({"reject": "not on Mondays"})], "r/2": []})
    one, two = Calculation(registry, request("r/1", "r/2"), 0).route().forks
    assert one.refusal is not None
    assert (one.refusal.code, one.refusal.what) == (Code.REJECTED, "r/1: not on Mondays")
    assert names(two.steps) == ["r/2"]


def test_a_recipient_that_excludes_itself_needs_another() -> None:
    assert refusal(Registry({"s/s": [], "r/r": [rule({"exclude": True})]}), request("r/r")).code is Code.INVALID_ROUTE


def test_rules_are_evaluated_when_the_message_comes_where_the_service_wants_it() -> None:
    """l. 158, 168: the message that comes is another one than the message that was posted."""
    rich = {"json": "$.amount", "greaterThan": 10}
    registry = Registry(
        {
            "s/s": [],
            "r/r": [rule(include("m/m"), include("d/d"), include("c/c"), {"set": {"z": "1"}}, include("k/k", "after"))],
            "m/m": [],
            "d/d": [rule(include("b/b"), {"return": {"rich": "yes"}}, when=rich)],
            "b/b": [],
            "c/c": [],
            "k/k": [],
        },
        {"d/d": {"dynamic": True}},
    )
    message = request("r/r")
    (way,) = Calculation(registry, message, 0).route().ways()
    assert names(way) == ["m/m", "d/d", "c/c", "r/r", "k/k"]
    assert [one.dynamic for one in way] == [False, True, False, False, False]
    now = replace(message, body=Part(b'{"amount": 50}'))
    later = Calculation(registry, now, 0).arrive(way, 1)
    assert names(later) == ["m/m", "b/b", "d/d", "c/c", "r/r", "k/k"]
    assert [dict(one.context) for one in later] == [{}, {}, {}, {"rich": "yes"}, {"rich": "yes"}, {"rich": "yes", "z": "1"}]
    assert not any(one.dynamic for one in later)
    assert {one.recipient for one in later} == {"r/r"}
    assert names(Calculation(registry, message, 0).arrive(way, 1)) == ["m/m", "d/d", "c/c", "r/r", "k/k"]


def test_responses_are_routed_by_rules_of_both() -> None:
    """l. 204."""
    registry = Registry(
        {
            "s/s": [rule(include("f/f"), when={"header": "kind", "equals": "response"})],
            "r/r": [rule(include("o/o", "after"), {"expires": 1}, role="out")],
            "f/f": [],
            "o/o": [],
        },
        forbidden=frozenset({("r/r", "s/s")}),
    )
    answer = Message(Header(Kind.RESPONSE, "r/r", call="0" * 16), Part(b""))
    (way,) = Calculation(registry, answer, 0).back("s/s").ways()
    assert names(way) == ["o/o", "f/f", "s/s"]
    assert {one.expires for one in way} == {None}


def test_arguments_of_a_declaration_are_seen_by_the_rules_of_its_service() -> None:
    registry = Registry({"s/s": [], "r/r": [rule(include("a/a"), when={"header": "argument.deep", "equals": True})], "a/a": []})
    header = Header(Kind.REQUEST, "s/s", (Declaration("r/r", {"deep": "true"}),))
    assert ways(registry, Message(header)) == [["a/a", "r/r"]]
