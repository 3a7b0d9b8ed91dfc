"""When what clients are given is written: at once when alone, together at the end of a round of the event loop otherwise."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.broker.server import Broker
from mqmesh.broker.write_rounds import SMALL, TOGETHER, WRITE_BYTES, WriteBacklog
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Puback, Publish, Subscription
from support.examples import examples
from support.models.broker_wire import Wire, run, started


def message(number: int, qos: int = 0, size: int = 10) -> bytes:
    """A PUBLISH whose payload begins with a number."""
    return encode(Publish("t", b"%d " % number + bytes(size), qos, packet_id=number + 1 if qos else 0), 4)


async def clients(publishers: int) -> tuple[Broker, Wire, list[Wire]]:
    """A broker with a subscriber of everything and some publishers, after a round of its own."""
    broker = await started()
    subscriber = Wire(broker, 4).connect("s", Subscription("#", 2))
    made = [Wire(broker, 4).connect(f"p{number}") for number in range(publishers)]
    await asyncio.sleep(0)
    return broker, subscriber, made


async def ended() -> None:
    """Let the event loop end its round."""
    await asyncio.sleep(0)


def test_a_message_that_comes_alone_is_written_at_once() -> None:
    async def story() -> None:
        _, subscriber, (one,) = await clients(1)
        for number in range(3):
            one.give(message(number), end_round=False)
            assert subscriber.transport.written == [message(number)]
            subscriber.take()
            await ended()
            assert subscriber.take() == b""

    run(story())


def test_messages_of_one_round_are_written_together() -> None:
    """The first one at once as long as the round before had no others; from then on all at the end."""

    async def story() -> None:
        _, subscriber, makers = await clients(4)
        for turn in range(3):
            for number, maker in enumerate(makers):
                maker.give(message(number), end_round=False)
            early = [] if turn else [message(0)]
            assert subscriber.transport.written == early
            await ended()
            assert subscriber.transport.written == [*early, b"".join([message(number) for number in range(len(early), 4)])]
            subscriber.take()
        makers[0].give(message(7), end_round=False)
        assert subscriber.take() == b""
        await ended()
        assert subscriber.take() == message(7)
        makers[0].give(message(8), end_round=False)
        assert subscriber.take() == message(8)  # a round with one message: the next one waits no more

    run(story())


def test_what_waits_is_bounded() -> None:
    async def story() -> None:
        _, subscriber, (one, two) = await clients(2)
        for number in range(TOGETHER):
            (one, two)[number % 2].give(message(number), end_round=False)
        assert subscriber.take() == b"".join(map(message, range(TOGETHER)))
        two.give(message(1), end_round=False)
        assert subscriber.take() == b""
        two.give(message(2, size=SMALL), end_round=False)
        assert subscriber.take() == message(1) + message(2, size=SMALL)

    run(story())


def test_an_acknowledgement_makes_no_company() -> None:
    """A message that comes beside one is written at once; what an acknowledgement causes waits for the end only if messages do."""

    async def story() -> None:
        _, subscriber, (one, two) = await clients(2)
        for number in range(3):
            one.give(message(number, 1), end_round=False)
            subscriber.take()
            acknowledgement = encode(Puback(number + 1), 4)
            subscriber.give(acknowledgement, end_round=False)
            await ended()
            subscriber.give(acknowledgement, end_round=False)
            two.give(message(9), end_round=False)
            assert subscriber.take() == message(9)
            await ended()

    run(story())


def test_large_messages_to_many_are_written_some_in_each_round_and_before_their_publisher_causes_more() -> None:
    """40 subscribers that read nothing, and pieces of 400 kB for each: all at once held the loop for 40 ms and more."""
    size = 1_000_000
    large = [message(number, size=size) for number in range(2)]

    async def story() -> None:
        broker = await started()
        publisher = Wire(broker, 4).connect("p")
        subscribers = [Wire(broker, 4).connect(f"s{number}", Subscription("t")) for number in range(9)]
        await ended()
        publisher.give(large[0], end_round=False)
        publisher.give(large[1], end_round=False)
        taken = [0]
        for _ in range(18):
            written = sum(len(wire.transport.written) for wire in subscribers)
            assert written <= taken[-1] + 2 * (WRITE_BYTES // size + 1)  # a round has room for two slices
            if written < 9:
                assert all(len(wire.transport.written) <= 1 for wire in subscribers)  # the first message, before the second is taken
            taken.append(written)
            await ended()
        assert [wire.take() for wire in subscribers] == [b"".join(large)] * 9

    run(story())


def test_an_error_in_one_write_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        broker, subscriber, _ = await clients(0)
        backlog = WriteBacklog(broker.context)
        broken = mock.Mock(flush=mock.Mock(side_effect=RuntimeError("broken")))
        for number in range(2):
            subscriber.connection.out.append(message(number))
            backlog.add([broken, subscriber.connection])
            for _ in range(3):
                await ended()
            assert subscriber.take() == message(number)
        assert "event=internal-error work=writes" in caplog.text

    run(story())


PIECES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans(), st.sampled_from([1, 2, 5000])), max_size=30)


@settings(max_examples=examples(100), deadline=None)
@given(PIECES)
def test_rounds_change_nothing_but_the_time(pieces: list[tuple[int, int, bool, int]]) -> None:
    """Whatever comes together in a round: each client gets the bytes that it gets when every piece comes alone."""

    async def story(together: bool) -> list[bytes]:
        _, subscriber, makers = await clients(3)
        for number, (maker, qos, last, size) in enumerate(pieces):
            makers[maker].give(message(number, qos, size), end_round=last or not together)
        await ended()
        return [wire.take() for wire in (subscriber, *makers)]

    assert run(story(True)) == run(story(False))
