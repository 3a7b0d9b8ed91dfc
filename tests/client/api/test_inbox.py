"""What a consumer holds: once only, order, priority, time. Fed with publications, without a network."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from mqmesh.client import Selector, TextMessage, Topic
from mqmesh.client.api.inbox import Inbox, QueueInbox, ReceivedMessage
from mqmesh.client.core.transport import Incoming, Properties
from mqmesh.client.message.wire import encode
from support.examples import examples


def publication(name: str | None, packet: int, token: object = None, duplicate: bool = False, **headers: Any) -> Incoming:
    message = TextMessage(name or "foreign")
    message.destination, message.message_id, message.timestamp = Topic("a"), name, 1000
    for key, value in headers.items():
        setattr(message, key, value)
    properties = encode(message, 1, 1000).properties if name else Properties()
    return Incoming("a", message.encode_body(), 1, duplicate, properties, (7,), token or packet, packet)


def take(inbox: Inbox, now: int = 5000) -> ReceivedMessage:
    held, tokens = inbox.next_message(now)
    assert held is not None
    assert not tokens
    return held


def test_a_repeat_is_known_while_held_and_after() -> None:
    inbox = Inbox(window=2)
    assert inbox.add(publication("ID:1", 1), 0) is None
    assert inbox.add(publication("ID:1", 2, "second"), 0) is None  # the publisher's repeat: acknowledged with the first
    held = take(inbox)
    assert inbox.next_message(5000) == (None, [])
    assert inbox.acknowledge([held]) == [1, "second"]
    assert inbox.add(publication("ID:1", 3, "third"), 0) == "third"
    for number in (2, 3):
        inbox.add(publication(f"ID:{number}", number), 0)
        inbox.acknowledge([take(inbox)])
    assert inbox.add(publication("ID:1", 1), 0) is None  # beyond the window


def test_without_once_only_repeats_are_let_in() -> None:
    inbox = Inbox(window=0)
    inbox.add(publication("ID:1", 1), 0)
    inbox.add(publication("ID:1", 2), 0)
    assert [take(inbox).incoming.packet, take(inbox).incoming.packet] == [1, 2]


def test_messages_without_an_identifier() -> None:
    """Two equal ones are two; the broker's repeat of one that is held is not; of one that is not held, it is marked."""
    inbox = Inbox()
    inbox.add(publication(None, 1), 0)
    inbox.add(publication(None, 2), 0)
    inbox.add(publication(None, 1, "again", duplicate=True), 0)
    first, second = take(inbox), take(inbox)
    assert inbox.next_message(5000)[0] is None
    assert inbox.acknowledge([first, second]) == [1, "again", 2]
    inbox.add(publication(None, 3, duplicate=True), 0)
    message = take(inbox).message
    assert (message.redelivered, message.delivery_count) == (True, 2)


def test_priority_then_order_and_recover_brings_back_the_order() -> None:
    inbox = Inbox()
    for name, priority in (("a", 4), ("b", 9), ("c", 4), ("d", 0)):
        inbox.add(publication(name, ord(name), priority=priority), 0)
    taken = [take(inbox) for _ in range(4)]
    assert [held.message.body for held in taken] == ["b", "a", "c", "d"]
    inbox.recover(random.Random(1).sample(taken, 4), 5000)
    again = [take(inbox) for _ in range(4)]
    assert [held.message.body for held in again] == ["b", "a", "c", "d"]
    assert all(held.message.redelivered and held.message.delivery_count == 2 for held in again)
    assert again[0].message.get_int_property("JMSXDeliveryCount") == 2


def test_what_is_not_wanted_is_acknowledged_at_once() -> None:
    inbox = Inbox(Selector("JMSPriority > 5"), own="ID:me:", identifier=7)
    assert inbox.add(publication("ID:1", 1), 0) == 1
    assert inbox.add(publication("ID:me:1", 2, priority=9), 0) == 2
    stale = publication("ID:3", 3, priority=9)
    assert inbox.add(Incoming(stale.topic, stale.payload, 1, False, stale.properties, (8,), 3, 3), 0) == 3
    assert inbox.add(publication("ID:4", 4, priority=9), 0) is None
    assert take(inbox).incoming.packet == 4


def test_time_to_live_and_delivery_delay() -> None:
    inbox = Inbox()
    inbox.add(publication("dead", 1, expiration=2000), 1000)
    inbox.add(publication("later", 2, delivery_time=3000), 1000)
    inbox.add(publication("now", 3), 1000)
    held, tokens = inbox.next_message(2000)
    assert held is not None
    assert (held.message.body, tokens) == ("now", [1])
    assert inbox.next_message(2999) == (None, [])
    assert inbox.next_due() == 3000
    assert take(inbox, 3000).message.body == "later"


def test_what_nothing_holds_back_is_bounded_dropped_and_counted() -> None:
    inbox = Inbox(room=(3, 10))

    def come(name: str, payload: bytes, qos: int = 0) -> None:
        assert inbox.add(Incoming("a", payload, qos, False, Properties(), (), name if qos else None, 1 if qos else 0), 0) is None

    for name in "abcd":
        come(name, b"x")
    assert (len(inbox), inbox.dropped) == (3, 1)
    come("acknowledged", b"y" * 100, 1)
    assert (len(inbox), inbox.dropped) == (4, 1), "what the broker holds back has room of its own"
    inbox.acknowledge([take(inbox)])
    come("e", b"x" * 9)
    assert inbox.dropped == 2, "too many bytes"
    come("f", b"x" * 8)
    held = [take(inbox) for _ in range(4)]
    inbox.recover(held[:1], 0)
    inbox.acknowledge(held)
    assert (len(inbox), inbox.dropped, inbox._loose, inbox._loose_bytes) == (0, 2, 0, 0)
    come("g", b"x" * 11)
    assert len(inbox) == 1, "one is held whatever its size"


class Conversation(RuleBasedStateMachine):
    """Any order of arrivals, repeats, deliveries, acknowledgements and recoveries: each message is delivered until it is
    acknowledged and not after; every token is acknowledged once and only with its message."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox()
        self.delivered: list[ReceivedMessage] = []
        self.waiting: set[str] = set()
        self.consumed: set[str] = set()
        self.tokens: dict[int, str] = {}  # open
        self.counts: dict[str, int] = {}
        self.packet = 0

    def _acknowledged(self, tokens: list[Any]) -> None:
        for token in tokens:
            assert self.tokens.pop(token) in self.consumed

    @rule(number=st.integers(0, 8), priority=st.integers(0, 9))
    def add(self, number: int, priority: int) -> None:
        name, self.packet = f"ID:{number}", self.packet + 1
        self.tokens[self.packet] = name
        known = name in self.waiting or name in {held.message.body for held in self.delivered} or name in self.consumed
        token = self.inbox.add(publication(name, self.packet, priority=priority), 0)
        assert (token is not None) == (name in self.consumed)
        self._acknowledged([token] if token else [])
        if not known:
            self.waiting.add(name)

    @rule()
    def deliver(self) -> None:
        held, tokens = self.inbox.next_message(5000)
        assert (held is None) == (not self.waiting)
        assert not tokens
        if held is not None:
            name = str(held.message.body)
            self.waiting.remove(name)
            self.counts[name] = self.counts.get(name, 0) + 1
            assert held.message.delivery_count == self.counts[name]
            self.delivered.append(held)

    @rule(index=st.integers(0, 8))
    def acknowledge(self, index: int) -> None:
        if index < len(self.delivered):
            held = self.delivered.pop(index)
            self.consumed.add(str(held.message.body))
            self._acknowledged(self.inbox.acknowledge([held]))

    @rule()
    def recover(self) -> None:
        self.inbox.recover(self.delivered, 5000)
        self.waiting |= {str(held.message.body) for held in self.delivered}
        self.delivered = []

    @invariant()
    def no_token_of_a_consumed_message_is_open(self) -> None:
        assert not self.consumed & set(self.tokens.values())
        assert len(self.inbox) == len(self.waiting) + len(self.delivered)


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3000)), max_size=20))
def test_due_messages_come_by_priority_then_arrival(messages: list[tuple[int, int]]) -> None:
    inbox = Inbox()
    for number, (priority, delay) in enumerate(messages):
        inbox.add(publication(f"ID:{number}", number + 1, priority=priority, delivery_time=1000 + delay), 0)
    found = []
    while (held := inbox.next_message(4001)[0]) is not None:
        found.append(held.order - 1)
    assert found == sorted(range(len(messages)), key=lambda number: (-messages[number][0], number))


def test_what_a_queue_takes_back_with_the_connection_is_forgotten() -> None:
    inbox = QueueInbox()
    for number in (1, 2, 3):
        inbox.add(publication(f"ID:{number}", number), 0)
    done, held = take(inbox), take(inbox)
    assert inbox.acknowledge([done]) == [1]
    inbox.connection_lost()
    assert inbox.next_message(5000) == (None, []), "the third one is for whom the broker gives it to"
    assert held.tokens == []
    assert inbox.add(publication("ID:1", 1, "first again"), 0) == "first again", "the acknowledgement was lost: it is done"
    assert inbox.add(publication("ID:2", 2, "second again"), 0) is None
    assert inbox.add(publication("ID:3", 3, "third again"), 0) is None
    assert take(inbox).incoming.token == "third again"
    assert inbox.acknowledge([held]) == ["second again"]


def test_what_is_given_back_to_a_queue_may_come_again() -> None:
    inbox = QueueInbox()
    inbox.add(publication("ID:1", 1), 0)
    held = take(inbox)
    assert inbox.give_back([held, held]) == [1]
    assert len(inbox) == 0
    inbox.add(publication("ID:1", 2), 0)
    assert take(inbox).incoming.packet == 2


def test_a_queues_message_expires_by_the_brokers_time_and_is_given_back() -> None:
    inbox = QueueInbox()
    inbox.add(publication("ID:1", 1, expiration=3000, delivery_time=9000), 10_000)  # two seconds left, says the broker
    assert inbox.next_message(12_000) == (None, [1])
    assert (len(inbox), inbox.expired, inbox.next_due()) == (0, 1, None)
    inbox.add(publication("ID:1", 2, expiration=3000), 10_000)
    assert take(inbox, 11_999).incoming.packet == 2
