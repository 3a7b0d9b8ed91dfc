"""Posts of one piece of work that go together: one run in custody, in order with all other posts, bounded, given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mqmesh.broker.mesh.peer_message import MOST_TOGETHER, PeerMessages
from mqmesh.mesh.node.actions import Verdict
from mqmesh.mqtt.errors import UsageError

TWO, THREE = 1 << 2, 1 << 3


class Node:
    """Notes what it is told to send. room: whether custody has any. brokers: those that it knows."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str, list[bytes]]] = []
        self.room = True
        self.brokers = TWO | THREE

    def known(self) -> int:
        return self.brokers

    def send_to_brokers(
        self, brokers: int, kind: str, body: bytes, now: float, must: bool = False, expiry: int | None = None, more: Any = ()
    ) -> Verdict:
        if brokers & ~self.brokers:
            raise UsageError("not known")
        if not (self.room or must):
            return Verdict.REFUSED
        self.sent.append((brokers, kind, [body, *more]))
        return Verdict.TAKEN


class Handler:
    """Notes what is given back."""

    def __init__(self) -> None:
        self.back: list[tuple[int, bytes, str]] = []

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        self.back.append((destination, body, reason))


class Posts:
    """The posts of one broker. saves, gathers: how often it says so."""

    def __init__(self) -> None:
        self.node, self.handler = Node(), Handler()
        self.saves = self.gathers = 0
        context: Any = SimpleNamespace(now=0.0)
        node: Any = self.node
        self.messages = PeerMessages(context, node, self._save, self._gather)
        handler: Any = self.handler
        self.messages.register("k", handler)

    def _save(self) -> None:
        self.saves += 1

    def _gather(self) -> None:
        self.gathers += 1

    def send(self, body: bytes, brokers: int = TWO, kind: str = "k", **more: Any) -> bool:
        return self.messages.send(brokers, kind, body, **{"together": True, **more})


def test_posts_that_are_alike_go_as_one() -> None:
    posts = Posts()
    assert all(posts.send(b"%d" % number) for number in range(5))
    assert (posts.node.sent, posts.saves, posts.gathers) == ([], 0, 1)
    posts.messages.write_state()
    assert posts.node.sent == [(TWO, "k", [b"0", b"1", b"2", b"3", b"4"])]
    assert (posts.saves, posts.messages.counts["sent"]) == (1, 5)
    posts.messages.write_state()
    assert posts.saves == 1
    posts.send(b"5")
    assert posts.gathers == 2, "another piece of work"


@pytest.mark.parametrize("other", [{"body": b"xx"}, {"brokers": THREE}, {"kind": "other"}, {"expiry": 5}, {"together": False}])
def test_another_post_does_not_overtake_them(other: dict[str, Any]) -> None:
    posts = Posts()
    posts.send(b"0")
    posts.send(b"1")
    posts.send(**{"body": b"2", **other})
    posts.messages.write_state()
    assert [bodies for _, _, bodies in posts.node.sent] == [[b"0", b"1"], [other.get("body", b"2")]]


def test_many_bytes_do_not_wait() -> None:
    posts = Posts()
    half = bytes(MOST_TOGETHER // 2 + 1)
    posts.send(half)
    assert not posts.node.sent
    posts.send(half)
    assert [len(bodies) for _, _, bodies in posts.node.sent] == [2]


def test_without_room_those_that_were_taken_go_and_the_next_are_refused() -> None:
    posts = Posts()
    posts.node.room = False
    assert posts.send(b"0")
    assert posts.send(b"1")
    posts.messages.write_state()
    assert posts.node.sent == [(TWO, "k", [b"0", b"1"])]
    assert not posts.send(b"2")
    assert posts.send(b"3", must=True)
    posts.node.room = True
    assert all(posts.send(body) for body in (b"4", b"5", b"6"))
    posts.messages.write_state()
    assert [bodies for _, _, bodies in posts.node.sent[1:]] == [[b"3"], [b"4"], [b"5", b"6"]]


def test_a_broker_that_is_given_up() -> None:
    posts = Posts()
    posts.send(b"0", TWO | THREE)
    posts.node.brokers = THREE
    posts.messages.write_state()
    assert posts.handler.back == [(2, b"0", "absent"), (3, b"0", "absent")]
    with pytest.raises(UsageError):
        posts.send(b"1")
