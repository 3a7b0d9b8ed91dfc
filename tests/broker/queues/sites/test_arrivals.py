"""Parcels of other sites at the home of their queue: each is put once, whatever is on which disk when the home ends."""

from __future__ import annotations

from mqmesh.broker.queues.committer import Gate
from mqmesh.broker.queues.sites.arrivals import Arrivals
from mqmesh.broker.queues.sites.keeping import Keeping
from mqmesh.broker.queues.sites.wire import PutPost, encode


def parcel(number: bytes) -> bytes:
    return encode(PutPost(number, "orders", "shop", "", b"", None, [b"x"]))


def test_a_parcel_that_the_log_has_comes_once_more() -> None:
    """The log of the queues was on the disk before the store, which still had to say that the parcel has come."""
    came: list[bytes] = []

    def put(post: PutPost) -> Gate | None:
        came.append(post.parcel)
        return None

    arrivals = Arrivals(Keeping(), put)
    arrivals.restore({}, {b"a"})
    arrivals.arrive(parcel(b"a"))
    arrivals.arrive(parcel(b"b"))
    assert came == [b"b"]
