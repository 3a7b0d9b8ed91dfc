"""Every request of docs/metabroker-protocol.md with each key missing, of other types and too long, sent twice, and in another's name.

Each is answered once with the code that the page names, and changes nothing.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest
from mqmesh.base.metabroker import ANSWERS, CONNECT, Code
from mqmesh.metabroker.core.actions import Open, Respond, Send, Subscribe

from .test_core import REMOTE, World

PAGE = Path(__file__).parents[3] / "docs" / "metabroker-protocol.md"
PROPERTIES = {"format": 1, "expiry": 5, "content_type": "t", "response_topic": "r", "correlation": b"c", "user": [["a", "b"]]}
WHOLE: dict[str, dict[str, Any]] = {  # requests with all their keys
    "connect": {"client": "c", "remote": REMOTE, "username": "u", "password": b"p", "durable": False, "expiry": 60, "clean": False},
    "publish": {"message": 1, "topic": "up/a", "payload": b"x", "qos": 1, "retain": False, "properties": PROPERTIES},
    "subscribe": {"message": 2, "topics": ["down/a"], "qos": 1, "durable": False},
    "unsubscribe": {"message": 3, "topics": ["down/a"]},
    "resume": {"message": 4, "id": 0},
    "ack": {"id": 0},
    "disconnect": {"clean": True},
}
NEEDED = {("connect", "remote"), ("publish", "topic"), ("publish", "message")}
NEEDED |= {(verb, key) for verb in ("subscribe", "unsubscribe") for key in ("message", "topics")} | {("resume", "message")}
LONG = "x" * 70_000
VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    1 << 32,
    1 << 63,
    1.5,
    "",
    "a",
    LONG,
    b"",
    b"x" * 70_000,
    [],
    [1],
    [LONG],
    ["a", []],
    {},
    {"a": 1},
]
VALUES += [msgpack.ExtType(1, b"x"), msgpack.Timestamp(1)]
FITS: dict[str, Any] = {  # what the page allows
    "client": lambda v: type(v) is str and v in ("a", "c"),
    "remote": lambda v: type(v) is str and len(v) <= 1024,
    "username": lambda v: v is None or (type(v) is str and len(v) <= 1024),
    "password": lambda v: v is None or (type(v) in (str, bytes) and len(v) <= 65_535),
    "durable": lambda v: type(v) is bool,
    "clean": lambda v: type(v) is bool,
    "retain": lambda v: type(v) is bool,
    "expiry": lambda v: v is None or (type(v) is int and 0 < v < 1 << 32),
    "message": lambda v: (type(v) is int and 0 <= v < 1 << 63) or (type(v) is str and len(v) <= 1024),
    "topic": lambda v: type(v) is str and 0 < len(v) <= 65_535,
    "topics": lambda v: v == [],
    "payload": lambda v: type(v) in (str, bytes),
    "qos": lambda v: type(v) is int and v in (0, 1, 2),
    "properties": lambda v: v is None or v == {},
    "id": lambda v: type(v) is int and v == 0,
}


def started() -> World:
    world = World()
    world.session("c")
    return world


def ask(world: World, verb: str, body: bytes) -> list[Any]:
    return world.raw(f"c/{verb}" if verb == "connect" else f"c/s1/{verb}", body)


def state(world: World) -> Any:
    sessions = [(one.id, one.client, one.filters, one.done, one.open, one.number) for one in world.core.sessions.values()]
    return copy.deepcopy((sessions, list(world.core.remotes)))


def refused(world: World, verb: str, body: bytes) -> dict[str, Any]:
    """The one answer to a request that is not served, and changes nothing."""
    before = state(world)
    [answer] = ask(world, verb, body)
    assert isinstance(answer, Respond)
    assert answer.topic == f"metabroker/response/{'c/connack' if verb == 'connect' else f'c/s1/{ANSWERS[verb]}'}"
    assert state(world) == before
    read: dict[str, Any] = msgpack.unpackb(answer.body)
    assert read["code"] != Code.OK
    return read


def test_the_requests_here_are_those_of_the_page() -> None:
    """With the same keys."""
    said: dict[str, set[str]] = {}
    for verb, keys in re.findall(
        r"^\| publishes[^|]*\| `metabroker/request/(?:CLIENT|SESSION)/(\w+)` \|(.*)\|$", PAGE.read_text(), re.MULTILINE
    ):
        said[verb] = set(re.findall(r"`(\w+)`", keys))
    assert said == {verb: set(body) for verb, body in WHOLE.items()}


@pytest.mark.parametrize(("verb", "key"), [(verb, key) for verb, body in WHOLE.items() for key in body if verb != "disconnect"])
def test_a_key_of_another_kind(verb: str, key: str) -> None:
    for value in VALUES:
        if FITS[key](value):
            continue
        read = refused(started(), verb, msgpack.packb(WHOLE[verb] | {key: value}))
        assert read["code"] == Code.MALFORMED, (value, read)
        assert read.get("message") == (WHOLE[verb].get("message") if key != "message" else None), "which request it answers"
        assert read["reason"].startswith((f"{key}: ", "the body is not msgpack")), read


@pytest.mark.parametrize(("verb", "key"), [(verb, key) for verb, body in WHOLE.items() for key in body])
def test_a_key_that_is_missing(verb: str, key: str) -> None:
    body = msgpack.packb({name: value for name, value in WHOLE[verb].items() if name != key})
    if (verb, key) in NEEDED:
        read = refused(started(), verb, body)
        assert read["code"] == Code.MALFORMED
        assert read["reason"].startswith(f"{key}: ")
        return
    answers = [msgpack.unpackb(one.body)["code"] for one in ask(started(), verb, body) if isinstance(one, Respond)]
    assert set(answers) <= ({Code.MALFORMED} if (verb, key) == ("connect", "username") else {Code.OK}), "a password needs a username"


@pytest.mark.parametrize("verb", WHOLE)
def test_a_body_that_is_too_large_or_none(verb: str) -> None:
    if verb == "disconnect":
        return  # whatever it says, its session ends
    large = refused(started(), verb, msgpack.packb(WHOLE[verb] | {"more": bytes(1_100_000)}))
    assert (large["code"], large.get("message")) == (Code.TOO_LARGE, WHOLE[verb].get("message"))
    for body in (b"", b"\xc1", b"\x82\xa1a", msgpack.packb([1]), msgpack.packb({1: 2}), b"\xdf\xff\xff\xff\xff", b"\x91" * 5000):
        assert refused(started(), verb, body)["code"] == Code.MALFORMED


@pytest.mark.parametrize("verb", WHOLE)
def test_a_request_that_comes_twice(verb: str) -> None:
    """Its work is done once; a connect request begins another session."""
    world = started()
    body = msgpack.packb(WHOLE[verb])
    first, second = ask(world, verb, body), ask(world, verb, body)
    if verb == "publish":
        assert [type(one) for one in first] == [Send]
        assert second == []
    elif verb == "subscribe":
        assert [type(one) for one in first] == [Subscribe]
        assert second == []
    elif verb == "disconnect":
        assert first
        assert second == [], "not a session's name: it says that a program of this name has vanished"
        [answer] = world.raw(f"c/{'0' * 32}/disconnect", body)
        assert msgpack.unpackb(answer.body)["code"] == Code.UNKNOWN_SESSION
    elif verb == "connect":
        assert [type(one) for one in first] == [Open]
        assert len(world.core.sessions) == 3
    else:
        assert [one for one in first if isinstance(one, Respond)] == second


@pytest.mark.parametrize("place", [CONNECT, "metabroker/request/thief/connect"])
def test_a_connect_request_in_anothers_name(place: str) -> None:
    """Where the sender is not known, it is told where to ask; nothing counts for the other one."""
    world = started()
    before = state(world)
    world.core.on_request(place, msgpack.packb(WHOLE["connect"]), 0.0)
    [answer] = world.actions()
    assert msgpack.unpackb(answer.body)["code"] == Code.REFUSED_BY_POLICY
    assert answer.topic == f"metabroker/response/{'c' if place == CONNECT else 'thief'}/connack"
    assert state(world) == before


@pytest.mark.parametrize("name", ["connect", "a/b/c", "a/", "/b", "a/connect", "connect/b", "a/#", "+", "#", "a+", "", "x" * 2000])
def test_names_that_are_none(name: str) -> None:
    world = started()
    assert world.raw(f"{name}/connect", msgpack.packb({"remote": REMOTE})) == [], "there is nowhere to answer"
    assert len(world.core.sessions) == 1
