"""One link for many consumers, fed by a network that is a list: who gets what, when the broker has its acknowledgement, and the ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqmesh.client.core.shared_link import SLOW, Lane, SharedLinks
from mqmesh.client.core.transport import Done, Incoming, LinkHandler, LinkSpec, Outcome, Properties, Publication

REFUSED = Outcome(0x87, "no")


class Wire:
    """A link that writes down what is asked of it. `ask` answers SUBSCRIBE and UNSUBSCRIBE."""

    has_queues = has_delays = False

    def __init__(self, handler: LinkHandler) -> None:
        self.handler = handler
        self.filters: dict[str, int] = {}
        self.asked: list[tuple[str, Done]] = []
        self.acknowledged: list[object] = []
        self.closed = False

    def subscribe(self, filter_: str, qos: int, identifier: int, done: Done, said: tuple[tuple[str, str], ...] = ()) -> None:
        self.filters[filter_] = identifier
        self.asked.append((filter_, done))

    def unsubscribe(self, filter_: str, done: Done) -> None:
        del self.filters[filter_]
        self.asked.append((f"-{filter_}", done))

    def publish(self, publication: Publication, done: Done) -> None:
        done(Outcome())

    def acknowledge(self, token: object, reason: int = 0) -> None:
        self.acknowledged.append(token)

    def close(self, forget: bool, done: Done) -> None:
        self.closed = True
        done(Outcome())

    def answer(self, outcome: Outcome | None = None) -> str:
        """Answer the oldest request."""
        text, done = self.asked.pop(0)
        done(outcome or Outcome())
        return text


class Network:
    """A transport that runs everything at once."""

    declares = True

    def __init__(self) -> None:
        self.links: list[Wire] = []

    def open(self, spec: LinkSpec, handler: LinkHandler) -> Wire:
        self.links.append(Wire(handler))
        return self.links[-1]

    def call(self, command: Callable[[], None]) -> None:
        command()

    def close(self) -> None: ...


class Consumer:
    """The user of a lane."""

    def __init__(self, links: SharedLinks, filter_: str = "a", prefetch: int = 2) -> None:
        self.events: list[Any] = []
        self.got: list[Incoming] = []
        self.lane: Lane = links.open(self, prefetch)
        self.answers: list[Outcome] = []
        self.lane.subscribe(filter_, 1, 7, self.answers.append)

    @property
    def bodies(self) -> list[bytes]:
        return [one.payload for one in self.got]

    def received(self, incoming: Incoming) -> None:
        self.got.append(incoming)

    def connected(self, resumed: bool) -> None:
        self.events.append(resumed)

    def disconnected(self, text: str, word: str = "") -> None:
        self.events.append(text)

    def notified(self, text: str, word: str) -> None:
        self.events.append(text)

    def failed(self, outcome: Outcome) -> None:
        self.events.append(outcome)

    def acknowledge(self) -> None:
        self.lane.acknowledge(self.got[0].token)

    def close(self) -> list[Outcome]:
        done: list[Outcome] = []
        self.lane.close(True, done.append)
        return done


def setting() -> tuple[Network, SharedLinks]:
    network = Network()
    return network, SharedLinks(network, lambda: "link", 300)


def come(wire: Wire, body: bytes, packet: int = 1, filters: tuple[str, ...] = ("a",), topic: str = "a", duplicate: bool = False) -> None:
    identifiers = tuple(wire.filters[one] for one in filters)
    token = f"{body.decode()}{packet}" if packet else None
    wire.handler.received(Incoming(topic, body, 1 if packet else 0, duplicate, Properties(), identifiers, token, packet))


def test_consumers_share_one_link_and_subscriptions_are_told_apart() -> None:
    network, links = setting()
    one, two, other = Consumer(links), Consumer(links), Consumer(links, "a/+")
    wire = network.links[0]
    wire.handler.connected(False)
    while wire.asked:
        wire.answer()
    assert (len(network.links), one.events, other.answers) == (1, [False], [Outcome()])
    come(wire, b"for a")
    come(wire, b"for a/+", 2, ("a/+",), "a/b")
    come(wire, b"for both", 3, ("a", "a/+"))
    come(wire, b"by topic", 4, (), "a/c")
    come(wire, b"at most once", 0)
    assert one.bodies == two.bodies == [b"for a", b"for both", b"at most once"]
    assert other.bodies == [b"for a/+", b"for both", b"by topic"]
    assert [message.subscriptions for message in one.got] == [(), (), ()], "the identifiers are the link's"
    late = Consumer(links, "b")
    assert late.events == [False], "the link is there"


def test_a_later_consumer_gets_nothing_older_than_itself() -> None:
    network, links = setting()
    Consumer(links)
    wire = network.links[0]
    wire.answer()
    late = Consumer(links)
    come(wire, b"under way")
    third = Consumer(links)
    assert len(wire.asked) == 1, "one SUBSCRIBE at a time"
    wire.answer()
    come(wire, b"for two", 2)
    wire.answer()
    come(wire, b"for three", 3)
    assert (late.bodies, third.bodies) == ([b"for two", b"for three"], [b"for three"])
    assert late.answers == third.answers == [Outcome()]


def test_the_broker_is_answered_when_each_consumer_has_room() -> None:
    network, links = setting()
    slow, quick = Consumer(links), Consumer(links)
    wire = network.links[0]
    while wire.asked:
        wire.answer()
    for number in range(1, 5):
        come(wire, b"m", number)
        quick.acknowledge()
    assert wire.acknowledged == ["m1", "m2"], "the slow one takes two"
    assert len(slow.got) == 4
    slow.acknowledge()
    assert wire.acknowledged == ["m1", "m2", "m3"]
    assert slow.close() == [Outcome()]
    assert wire.acknowledged == ["m1", "m2", "m3", "m4"], "what nobody waits for is answered"
    assert len(quick.got) == 4


def test_a_repeat_has_the_number_of_the_first_while_that_is_not_acknowledged() -> None:
    network, links = setting()
    consumer = Consumer(links, prefetch=1)
    wire = network.links[0]
    wire.answer()
    come(wire, b"taken", 1)
    come(wire, b"held", 2)
    wire.handler.connected(True)
    come(wire, b"held", 2, duplicate=True)
    come(wire, b"taken", 1, duplicate=True)
    first, held, again, unknown = (one.packet for one in consumer.got)
    assert held == again
    assert len({first, held, unknown}) == 3, "1 was acknowledged: it may stand for another message"
    for _ in range(4):
        consumer.acknowledge()
    assert set(wire.acknowledged) == {"taken1", "held2"}


def test_a_subscription_ends_with_its_last_consumer_and_the_link_with_the_last_of_all() -> None:
    network, links = setting()
    one, two, other = Consumer(links), Consumer(links), Consumer(links, "b")
    wire = network.links[0]
    while wire.asked:
        wire.answer()
    assert one.close() == [Outcome()]
    assert set(wire.filters) == {"a", "b"}
    closing = two.close()
    assert (set(wire.filters), closing) == ({"b"}, [])
    assert wire.answer() == "-a"
    assert closing == [Outcome()]
    come(wire, b"late", 9, ())
    assert wire.acknowledged == ["late9"]
    assert (wire.closed, other.close(), wire.closed) == (False, [Outcome()], True)
    assert one.close() == [Outcome()], "again"
    Consumer(links)
    assert len(network.links) == 2, "a new one for the next consumer"


def test_refusals_are_of_the_consumer_and_failures_of_all() -> None:
    network, links = setting()
    refused, fine = Consumer(links, "secret"), Consumer(links)
    wire = network.links[0]
    wire.answer(REFUSED)
    wire.answer()
    assert (refused.answers, fine.answers) == ([REFUSED], [Outcome()])
    wire.handler.disconnected("gone")
    wire.handler.notified("hint", "word")
    wire.handler.failed(REFUSED)
    assert [event for event in fine.events if event != "hint"] == ["gone", REFUSED]
    assert (refused.events + fine.events).count("hint") == 1, "said once"
    late: list[Outcome] = []
    fine.lane.subscribe("b", 1, 0, late.append)
    assert late == [REFUSED]
    assert fine.close() == refused.close() == [Outcome()]
    Consumer(links)
    assert len(network.links) == 2


def test_a_consumer_that_will_hold_up_others_is_told() -> None:
    network, links = setting()
    slow, quick = Consumer(links, "a"), Consumer(links, "b")
    wire = network.links[0]
    for number in range(1, SLOW + 2):
        come(wire, b"m", number)
    assert (slow.events, quick.events) == ([], [])
    come(wire, b"m", SLOW + 2)
    assert [str(SLOW) in event for event in slow.events] == [True]
    assert quick.events == []
