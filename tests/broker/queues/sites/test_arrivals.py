"""Messages that go by the store of a broker into the log of its queues."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mqmesh.broker.queues.committer import Gate
from mqmesh.broker.queues.refused import Refused
from mqmesh.broker.queues.sites import wire
from mqmesh.broker.queues.sites.arrivals import Arrivals
from mqmesh.broker.queues.sites.keeping import Keeping
from mqmesh.broker.queues.sites.wire import PutPost
from mqmesh.mqtt.reasons import Reason


class Slow(Keeping):
    """A store whose commits are awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []

    def when_kept(self, then: Callable[[], None]) -> None:
        self.waiting.append(then)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_message_is_put_when_the_store_has_it(elsewhere: bool) -> None:
    """Else the log could have it alone after a kill, and a client's repeat, or custody's, would be put once more."""
    put: list[bytes] = []
    keeping = Slow()

    def taken(post: PutPost) -> None:
        put.append(post.parcel)

    arrivals = Arrivals(keeping, taken)
    post = PutPost(b"a" * 12, "orders", "shop", "", b"", None, [b"x"])
    if elsewhere:
        arrivals.arrive(wire.encode(post))
    else:
        arrivals.keep(post)
    assert not put
    keeping.waiting.pop()()
    assert put == [post.parcel]


def test_no_segment_goes_while_the_store_has_parcels_of_an_earlier_life() -> None:
    """The log has them, and was not there to say so. If it forgot them first, a kill would have them put again."""
    keeping, heard = Slow(), list[str]()
    arrivals = Arrivals(keeping, lambda post: Gate())
    post = PutPost(b"1" * 12, "orders", "shop", "", b"", None, [b"x"])
    arrivals.restore({b"\0" * 7 + b"\1": wire.encode(post)}, {post.parcel})
    arrivals.when_settled(lambda: heard.append("settled"))
    assert not heard
    keeping.waiting.pop()()
    assert heard == ["settled"]


def test_messages_whose_commit_fails_stay_before_those_that_came_later() -> None:
    put: list[bytes] = []
    gates: list[Gate] = []
    room = 2

    def taken(post: PutPost) -> Gate:
        if len(put) == room:
            raise Refused(Reason.QUOTA_EXCEEDED, "the queue is full")
        put.append(post.parcel)
        gates.append(Gate())
        return gates[-1]

    arrivals = Arrivals(Keeping(), taken)
    for number in range(4):
        arrivals.arrive(wire.encode(PutPost(bytes([number]) * 12, "orders", "shop", "", b"", None, [b"x"])))
    assert len(put) == 2
    put.clear()
    for gate in gates:
        gate.let_go("the disk takes nothing")
    room = 4
    arrivals.look()
    assert [one[0] for one in put] == [0, 1, 2, 3]


def test_who_waits_for_parcels_does_not_wait_for_later_ones() -> None:
    """Else no segment of the log would ever go while parcels come all the time."""
    keeping, gates, heard = Slow(), list[Gate](), list[str]()

    def taken(post: PutPost) -> Gate:
        gates.append(Gate())
        return gates[-1]

    arrivals = Arrivals(keeping, taken)
    for number in (b"1", b"2"):
        arrivals.arrive(wire.encode(PutPost(number * 12, "orders", "shop", "", b"", None, [b"x"])))
        keeping.waiting.pop()()
    gates[0].let_go()
    arrivals.when_settled(lambda: heard.append("settled"))
    arrivals.arrive(wire.encode(PutPost(b"3" * 12, "orders", "shop", "", b"", None, [b"x"])))
    keeping.waiting.pop()()
    keeping.waiting.pop()()  # the store has forgotten the first one
    assert not heard
    gates[1].let_go()
    assert not heard
    keeping.waiting.pop()()
    assert heard == ["settled"]
    assert len(arrivals.unsettled) == 1
    arrivals.when_settled(lambda: heard.append("again"))
    gates[2].let_go("the disk takes nothing")
    assert heard == ["settled", "again"]


class Numbered(Slow):
    """The same, where commits have numbers."""

    number = 1

    @property
    def commit(self) -> int:
        return self.number


def post_of(number: int, name: str = "orders") -> PutPost:
    return PutPost(bytes([number]) * 12, name, "\0inside", "", b"", None, [b"x"])


@pytest.mark.parametrize("refused", [False, True])
def test_parcels_of_one_commit_are_put_together(refused: bool) -> None:
    """Those of each queue; if they may not be, one by one, in the same order."""
    keeping, gate = Numbered(), Gate()
    together: list[list[int]] = []
    single: list[int] = []

    def one(post: PutPost) -> Gate:
        single.append(post.parcel[0])
        return gate

    def several(posts: list[PutPost]) -> Gate | None:
        together.append([post.parcel[0] for post in posts])
        return None if refused else gate

    arrivals = Arrivals(keeping, one, several)
    for number, name in ((1, "orders"), (2, "bills"), (3, "orders"), (4, "orders")):
        arrivals.keep(post_of(number, name))
    keeping.number = 2
    arrivals.keep(post_of(5))
    first, second = keeping.waiting
    keeping.waiting.clear()
    first()
    second()
    assert together == [[1, 3, 4]]
    assert single == ([1, 3, 4, 2, 5] if refused else [2, 5])
    gate.let_go()
    arrivals.when_settled(lambda: None)
    assert len(arrivals.unsettled) == 5
    keeping.waiting.pop()()
    assert not arrivals.unsettled


def test_parcels_that_were_put_together_wait_in_order_after_a_commit_that_fails() -> None:
    keeping, gate = Numbered(), Gate()
    single: list[int] = []

    def one(post: PutPost) -> Gate:
        single.append(post.parcel[0])
        return Gate()

    arrivals = Arrivals(keeping, one, lambda posts: gate)
    for number in (1, 2, 3):
        arrivals.keep(post_of(number))
    keeping.waiting.pop()()
    gate.let_go("the disk takes nothing")
    assert not single
    assert not arrivals.unsettled
    keeping.number = 2
    arrivals.keep(post_of(4))
    keeping.waiting.pop()()
    arrivals.look()
    assert single == [1, 2, 3, 4]
