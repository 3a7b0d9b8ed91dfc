"""Messages that go by the store of a broker into the log of its queues."""

from __future__ import annotations

from collections.abc import Callable

from mqmesh.broker.queues.sites.arrivals import Arrivals
from mqmesh.broker.queues.sites.keeping import Keeping
from mqmesh.broker.queues.sites.wire import PutPost


class Slow(Keeping):
    """A store whose commits are awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []

    def when_kept(self, then: Callable[[], None]) -> None:
        self.waiting.append(then)


def test_a_message_of_a_client_here_is_put_when_the_store_has_it() -> None:
    """Else the log could have it alone after a kill, and the client's repeat would be put once more."""
    put: list[bytes] = []
    keeping = Slow()

    def taken(post: PutPost) -> None:
        put.append(post.parcel)

    arrivals = Arrivals(keeping, taken)
    arrivals.keep(PutPost(b"a", "orders", "shop", "", b"", None, [b"x"]))
    assert not put
    keeping.waiting.pop()()
    assert put == [b"a"]
