"""Queues through the API, over both transports that reach a broker: consumers share, give back, and browsers disturb nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mqmesh.client import (
    AckMode,
    AsyncContext,
    ConnectionFactory,
    Context,
    IllegalStateError,
    InvalidDestinationError,
    InvalidSelectorError,
    JMSError,
    Message,
    MessageConsumer,
    Queue,
    ResourceAllocationError,
    Topic,
    TransactionRolledBackError,
)
from mqmesh.client.api.consumer import QueueConsumer
from mqmesh.client.api.questions import QueueRequests
from mqmesh.client.core.settings import Waiter
from mqmesh.client.message.wire import encode
from support.brokers import RunningBroker, running_broker
from support.jms_client import PATIENCE, Collected, texts
from support.paho_client import Paho
from support.services import wait_until

pytestmark = pytest.mark.process

FRESH = 60  # queues that tests may use up
TABLES = """
[queues.limited]
deliveries = 2
dead_letters = "dead"

[queues.dead]

[queues.small]
messages = 1

[queues.confirmed]
acknowledge = "request"
""" + "".join(f"\n[queues.fresh-{number}]\n" for number in range(FRESH))


@dataclass
class Broker:
    """A broker with queues, and how clients come to it."""

    url: str
    used: int = 0

    def factory(self, **settings: Any) -> ConnectionFactory:
        settings.setdefault("send_timeout", PATIENCE)
        return ConnectionFactory(self.url, **settings)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker"), "mqmesh", web=True, queues=TABLES) as made:
        yield made


@pytest.fixture(scope="module", params=["tcp", "websocket"])
def broker(request: pytest.FixtureRequest, running: RunningBroker) -> Broker:
    return Broker(running.url, 0) if request.param == "tcp" else Broker(running.web_url, FRESH // 2)


@pytest.fixture
def queue(broker: Broker) -> Queue:
    """An empty queue."""
    broker.used += 1
    return Queue(f"fresh-{broker.used - 1}")


@pytest.fixture
def shop(broker: Broker) -> Iterator[Context]:
    with broker.factory().create_context() as made:
        yield made


def put(context: Context, queue: Queue, *words: str) -> None:
    producer = context.create_producer()
    for word in words:
        producer.send(queue, word)


def received(consumer: MessageConsumer) -> Message:
    message = consumer.receive(PATIENCE)
    assert message is not None
    return message


def cut(consumer: MessageConsumer) -> None:
    """Break the connection of a consumer's link. Returns when the consumer knows."""
    told, disconnected = threading.Event(), consumer.disconnected

    def tell(text: str, word: str = "") -> None:
        disconnected(text, word)
        told.set()

    consumer.disconnected = tell  # type: ignore[method-assign]
    sock = consumer.link._client.socket()  # type: ignore[attr-defined]
    with contextlib.suppress(AttributeError, OSError):  # it is broken already
        getattr(sock, "_socket", sock).shutdown(2)
        assert told.wait(PATIENCE)


def test_a_message_comes_as_it_was_sent(broker: Broker, shop: Context, queue: Queue) -> None:
    producer = shop.create_producer().set_property("n", 3).set_property("JMSXGroupID", "g").set_reply_to(queue).set_priority(7)
    producer.send(queue, {"article": "bolt"})
    with broker.factory().create_context() as context:
        message = received(context.create_consumer(queue))
        assert (message.body, message.destination, message.reply_to) == ({"article": "bolt"}, queue, queue)
        assert dict(message.properties) == {"n": 3, "JMSXGroupID": "g", "JMSXDeliveryCount": 1}
        assert (message.priority, message.redelivered, message.delivery_count) == (7, False, 1)


def test_plain_clients_put_and_take(broker: Broker, shop: Context, running: RunningBroker, queue: Queue) -> None:
    with Paho(running.port) as plain:
        plain.publish(f"$queue/{queue.name}", "a", 1, UserProperty=[("mqmesh-priority", "8"), ("mqmesh-handle", "1"), ("color", "red")])
        with broker.factory().create_context() as context:
            message = received(context.create_consumer(queue))
            assert (message.body, message.priority, message.message_id) == (b"a", 8, None)
            assert dict(message.properties) == {"color": "red", "JMSXDeliveryCount": 1}
        sent = shop.create_text_message("b")
        shop.create_producer().set_delivery_delay(1).set_property("JMSXGroupID", "g").set_time_to_live(60_000).send(queue, sent)
        plain.subscribe(f"$queue/{queue.name}", 1)
        found = plain.next()
        said = dict(found.properties.UserProperty)
        assert (said["mqmesh-handle"], said["mqmesh-delay"], said["JMSXGroupID"]) == (sent.message_id, "1ms", "g")
        assert 0 < found.properties.MessageExpiryInterval <= 61


def test_8_2_two_consumers_share_the_work(broker: Broker, shop: Context, queue: Queue) -> None:
    factory = broker.factory(queue_prefetch=1)
    with factory.create_context(AckMode.CLIENT) as one, factory.create_context(AckMode.CLIENT) as two:
        consumers = [one.create_consumer(queue), two.create_consumer(queue)]
        put(shop, queue, *map(str, range(10)))
        found: list[str] = []
        for _ in range(5):
            messages = [received(consumer) for consumer in consumers]  # each has one that it has not acknowledged
            found += [message.body for message in messages]
            for message in messages:
                message.acknowledge()
        assert sorted(found) == list(map(str, range(10)))


@pytest.mark.parametrize("mode", [AckMode.AUTO, AckMode.DUPS_OK])
def test_what_is_received_is_done(broker: Broker, shop: Context, queue: Queue, mode: AckMode) -> None:
    put(shop, queue, "a", "b", "c")
    with broker.factory(queue_prefetch=1).create_context(mode) as context:
        assert texts(context.create_consumer(queue), 2) == ["a", "b"]
    with broker.factory().create_context() as context:
        assert texts(context.create_consumer(queue), 1) == ["c"]


def test_rollback_counts_until_the_dead_letters(broker: Broker, shop: Context) -> None:
    put(shop, Queue("limited"), "poison")
    with broker.factory().create_context(AckMode.SESSION_TRANSACTED) as context:
        consumer = context.create_consumer(Queue("limited"))
        for count in (1, 2):
            message = received(consumer)
            assert (message.body, message.delivery_count, message.redelivered) == ("poison", count, count > 1)
            context.rollback()
        dead = received(context.create_consumer(Queue("dead")))
        context.commit()
        assert (dead.body, dead.destination) == ("poison", Queue("dead"))
        assert dead.properties["mqmesh-dead-queue"] == "limited"
        assert "given to members 2 times" in str(dead.properties["mqmesh-dead-reason"])


def test_commit_takes_out_what_was_received_and_sends(broker: Broker, shop: Context, queue: Queue, name: str) -> None:
    put(shop, queue, "a", "b")
    with broker.factory().create_context(AckMode.SESSION_TRANSACTED) as context, broker.factory().create_context() as hears:
        results = hears.create_consumer(Topic(name))
        consumer = context.create_consumer(queue)
        for word in ("a", "b"):
            assert received(consumer).body == word
            put(context, Topic(name), f"result of {word}")  # type: ignore[arg-type]
        context.commit()
        assert texts(results, 2) == ["result of a", "result of b"]
        put(shop, queue, "c")
        assert received(consumer).body == "c"
    with shop.create_browser(queue) as browser:
        assert [message.body for message in browser] == ["c"]


def test_recover_and_a_listener_that_raises_give_back(broker: Broker, shop: Context, queue: Queue) -> None:
    put(shop, queue, "a")
    with broker.factory().create_context(AckMode.CLIENT) as context:
        consumer = context.create_consumer(queue)
        assert received(consumer).delivery_count == 1
        context.recover()
        assert received(consumer).delivery_count == 2

    def raises_twice(message: Message) -> None:
        if message.delivery_count < 5:
            raise ValueError("not yet")

    with broker.factory().create_context() as context:
        listener = Collected(raises_twice)
        context.create_consumer(queue).message_listener = listener
        assert [(one.delivery_count, one.redelivered) for one in listener.wait(3)] == [(3, True), (4, True), (5, True)]
    with shop.create_browser(queue) as browser:
        assert list(browser) == []


def test_4_1_a_browser_disturbs_nothing(broker: Broker, shop: Context, queue: Queue) -> None:
    words = list(map(str, range(250)))
    for word in words:
        shop.create_producer().set_property("n", int(word)).send(queue, word)
    shop.create_producer().set_delivery_delay(3_600_000).send(queue, "later")
    with shop.create_browser(queue) as browser:
        assert [message.body for message in browser] == words
        assert [message.body for message in browser] == words, "each iteration begins anew"
    with shop.create_browser(queue, "n >= 248") as browser:
        assert [(message.body, message.destination, message.redelivered) for message in browser] == [
            ("248", queue, False),
            ("249", queue, False),
        ]
    with broker.factory().create_context(AckMode.CLIENT) as context:
        consumer = context.create_consumer(queue)
        assert received(consumer).delivery_count == 1
        with shop.create_browser(queue) as browser:
            left = [message.body for message in browser]
            assert "0" not in left, "a consumer has it"
            assert left[-1] == "249"
        for word in words[1:]:
            message = received(consumer)
            assert (message.body, message.delivery_count) == (word, 1)
            message.acknowledge()
    with pytest.raises(JMSError, match="closed"):
        next(iter(browser))
    with shop.create_browser(Queue("unknown")) as browser, pytest.raises(JMSError, match="no queue 'unknown'"):
        next(iter(browser))


TAKES = """
import sys
from mqmesh.client import AckMode, ConnectionFactory
context = ConnectionFactory(sys.argv[1]).create_context(AckMode.SESSION_TRANSACTED)
consumer = context.create_consumer(context.create_queue(sys.argv[2]))
print(consumer.receive().body, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_program_had_goes_to_another(broker: Broker, shop: Context, queue: Queue) -> None:
    put(shop, queue, "a", "b")
    with subprocess.Popen(
        [sys.executable, "-c", TAKES, broker.url, queue.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "a\n"
        with broker.factory().create_context() as context:
            consumer = context.create_consumer(queue)
            program.kill()
            messages = [received(consumer), received(consumer)]
            assert [(message.body, message.redelivered) for message in messages] == [("a", True), ("b", True)]


def test_a_delayed_message_is_not_early(broker: Broker, shop: Context, queue: Queue) -> None:
    shop.create_producer().set_delivery_delay(500).send(queue, "later")
    put(shop, queue, "now")
    with broker.factory().create_context() as context:
        assert texts(context.create_consumer(queue), 2) == ["now", "later"]


def test_a_repeat_is_not_put_again(broker: Broker, shop: Context, queue: Queue) -> None:
    message = shop.create_text_message("once")
    shop.create_producer().send(queue, message)
    assert message.message_id is not None
    repeated = Waiter()
    shop.connection.publisher.publish(encode(message, 1, message.timestamp), repeated)
    repeated.wait(PATIENCE, "the repeat", "")
    put(shop, queue, "next")
    with shop.create_browser(queue) as browser:
        assert [one.body for one in browser] == ["once", "next"]


def test_higher_priorities_come_first(broker: Broker, shop: Context, queue: Queue) -> None:
    for priority in (0, 4, 9, 5):
        shop.create_producer().set_priority(priority).send(queue, str(priority))
    with broker.factory(queue_prefetch=1).create_context() as context:
        assert texts(context.create_consumer(queue), 4) == ["9", "5", "4", "0"]


def test_a_transaction_whose_messages_went_to_another_is_rolled_back(broker: Broker, shop: Context, queue: Queue, name: str) -> None:
    results = shop.create_consumer(Topic(name))
    with broker.factory().create_context(AckMode.SESSION_TRANSACTED) as context, broker.factory().create_context(AckMode.CLIENT) as other:
        consumer = context.create_consumer(queue)
        put(shop, queue, "a")
        assert received(consumer).body == "a"
        put(context, Topic(name), "result")  # type: ignore[arg-type]
        waits = other.create_consumer(queue)
        cut(consumer)
        assert received(waits).redelivered
        with pytest.raises(TransactionRolledBackError, match="connection broke") as error:
            context.commit()
        assert error.value.already_sent == ()
    put(shop, Topic(name), "the first")  # type: ignore[arg-type]
    assert texts(results, 1) == ["the first"]


def test_what_comes_back_to_the_same_consumer_is_still_its_own(broker: Broker, shop: Context, queue: Queue) -> None:
    put(shop, queue, "a", "b")
    with broker.factory().create_context(AckMode.SESSION_TRANSACTED) as context:
        consumer = context.create_consumer(queue)
        assert received(consumer).body == "a"
        ((_, held),) = context.session._unacknowledged
        tokens = list(held.tokens)
        cut(consumer)
        wait_until(lambda: bool(held.tokens) and held.tokens != tokens, PATIENCE, "message that comes again")
        message = received(consumer)
        assert (message.body, message.delivery_count) == ("b", 2)
        context.commit()
    with shop.create_browser(queue) as browser:
        assert list(browser) == []


def test_an_acknowledgement_that_came_too_late_is_an_error(broker: Broker, shop: Context, queue: Queue) -> None:
    with broker.factory().create_context(AckMode.CLIENT) as context, broker.factory().create_context() as other:
        consumer = context.create_consumer(queue)
        put(shop, queue, "a")
        message = received(consumer)
        waits = other.create_consumer(queue)
        cut(consumer)
        assert received(waits).body == "a"
        with pytest.raises(JMSError, match="connection broke") as error:
            message.acknowledge()
        assert error.value.error_code == "connection_lost"
        message.acknowledge()  # there is nothing left to acknowledge


def counts(shop: Context, queue: Queue) -> tuple[int, int, int]:
    """Messages of a queue that wait, that consumers have, and that are done."""
    requests = QueueRequests(shop.connection.transport, shop.connection.link_id(), shop.connection.settings)
    requests.open()
    shown = requests.ask({"do": "show", "name": queue.name})["queue"]
    requests.close()
    return shown["waiting"], shown["in_flight"], shown["done"]


@pytest.mark.parametrize("mode", [AckMode.SESSION_TRANSACTED, AckMode.CLIENT, AckMode.INDIVIDUAL])
def test_a_commit_is_confirmed_by_a_queue_that_takes_requests(broker: Broker, shop: Context, mode: AckMode) -> None:
    queue = Queue("confirmed")
    *_, done = counts(shop, queue)
    put(shop, queue, *map(str, range(5)))
    with broker.factory(queue_prefetch=2).create_context(mode) as context:
        consumer = context.create_consumer(queue)
        for number in (0, 1, 2, 3):
            message = received(consumer)
            assert message.body == str(number)
            assert "mqmesh-position" not in message.properties
            if mode is not AckMode.SESSION_TRANSACTED:
                message.acknowledge()
            elif number % 2:
                context.commit()
        assert counts(shop, queue) == (0, 1, done + 4)
        with shop.create_browser(queue) as browser:
            assert list(browser) == [], "one is left, and the consumer has it"
        last = received(consumer)
        context.rollback() if mode is AckMode.SESSION_TRANSACTED else context.recover()
        last = received(consumer)
        assert (last.body, last.delivery_count) == ("4", 2)
        context.commit() if mode is AckMode.SESSION_TRANSACTED else last.acknowledge()
        assert counts(shop, queue) == (0, 0, done + 5)


class Worker(threading.Thread):
    """Works a queue in transactions of up to ten. Now and then it rolls back, closes, or its connection breaks.

    done: what it has committed. doubtful: what a commit without an answer was about.
    """

    def __init__(self, factory: ConnectionFactory, queue: Queue, seed: int, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.done: list[str] = []
        self.doubtful: set[str] = set()
        self._factory, self._queue, self._random, self._ended = factory, queue, random.Random(seed), ended

    def run(self) -> None:
        while not self._ended.is_set():
            with self._factory.create_context(AckMode.SESSION_TRANSACTED) as context:
                consumer = context.create_consumer(self._queue)
                for _ in range(self._random.randint(1, 8)):
                    self._transaction(context, consumer)

    def _transaction(self, context: Context, consumer: MessageConsumer) -> None:
        messages = [consumer.receive(0.05) for _ in range(self._random.randint(1, 10))]
        bodies = [message.body for message in messages if message is not None]
        way = self._random.random()
        if way < 0.2:
            cut(consumer)
        if way > 0.8:
            context.rollback()
            return
        try:
            context.commit()
            self.done += bodies
        except TransactionRolledBackError:
            self.doubtful.update(bodies)


def test_each_message_is_committed_once_whatever_breaks(broker: Broker, shop: Context) -> None:
    queue, words = Queue("confirmed"), list(map(str, range(300)))
    *_, before = counts(shop, queue)
    ended = threading.Event()
    factories = [broker.factory(client_id=f"worker-{number}", retry_first=0.01, once_window=0) for number in range(2)]
    workers = [Worker(factory, queue, number, ended) for number, factory in enumerate(factories)]
    for worker in workers:
        worker.start()
    put(shop, queue, *words)
    wait_until(lambda: counts(shop, queue) == (0, 0, before + len(words)), PATIENCE, "end of the work")
    ended.set()
    for worker in workers:
        worker.join(PATIENCE)
    done = [word for worker in workers for word in worker.done]
    assert len(done) == len(set(done)), "nothing twice"
    assert set(words) - set(done) <= {word for worker in workers for word in worker.doubtful}, "nothing lost"


def test_what_is_at_an_end_meanwhile_is_not_confirmed(broker: Broker, shop: Context) -> None:
    queue = Queue("confirmed")
    put(shop, queue, "a")
    with broker.factory().create_context(AckMode.SESSION_TRANSACTED) as context:
        consumer = context.create_consumer(queue)
        assert isinstance(consumer, QueueConsumer)
        assert received(consumer).body == "a"
        ((_, held),) = context.session._unacknowledged
        (token,) = held.tokens
        said = {"do": "unusable", "name": queue.name, "position": token.position}  # type: ignore[attr-defined]
        assert consumer._questions.ask(consumer.link, said).wait(PATIENCE)["state"] == "unusable"
        with pytest.raises(TransactionRolledBackError, match="does not have message"):
            context.commit()


def test_a_transaction_larger_than_its_prefetch_is_told(broker: Broker, shop: Context, queue: Queue) -> None:
    put(shop, queue, "a", "b", "c")
    with broker.factory(queue_prefetch=2).create_context(AckMode.SESSION_TRANSACTED) as context:
        consumer = context.create_consumer(queue)
        assert texts(consumer, 2) == ["a", "b"]
        assert consumer.receive_no_wait() is None
        with pytest.raises(IllegalStateError, match="queue_prefetch"):
            consumer.receive()
        context.commit()
        assert texts(consumer, 1) == ["c"]
        context.commit()


def test_members_have_names_that_stay(broker: Broker, queue: Queue, name: str) -> None:
    with broker.factory(client_id=f"clerk/{name}").create_context() as context:
        consumers = [context.create_consumer(queue) for _ in range(2)]
        requests = QueueRequests(context.connection.transport, "asks", context.connection.settings)
        requests.open()
        members = requests.ask({"do": "show", "name": queue.name})["queue"]["members"]
        assert [one["name"] for one in members] == [f"clerk%2F{name}:{queue.name}", f"clerk%2F{name}:{queue.name}:2"]
        consumers[0].close()
        again = context.create_consumer(queue)
        assert again.subscription.client_id == f"clerk%2F{name}:{queue.name}"
        requests.close()


def test_3_8_1_consumers_of_a_queue_select(broker: Broker, shop: Context, queue: Queue) -> None:
    with broker.factory().create_context() as context:
        small = context.create_consumer(queue, "amount < 10 AND JMSType = 'order'")
        large = context.create_consumer(queue, "amount >= 10")
        producer = shop.create_producer().set_type("order")
        for amount in (3, 30, 4, 40):
            producer.set_property("amount", amount).send(queue, str(amount))
        shop.create_producer().send(queue, "none")
        assert [received(small).body for _ in range(2)] == ["3", "4"]
        assert [received(large).body for _ in range(2)] == ["30", "40"]
        assert small.message_selector == "amount < 10 AND JMSType = 'order'"
        with shop.create_browser(queue) as browser:
            assert [message.body for message in browser] == ["none"]
        with shop.create_browser(queue, "amount IS NULL") as browser:
            assert [message.body for message in browser] == ["none"]
        with shop.create_browser(queue, "amount > 0") as browser:
            assert not list(browser)
        assert received(context.create_consumer(queue, "amount IS NULL")).body == "none"


def test_what_is_refused_says_why(broker: Broker, shop: Context, queue: Queue) -> None:
    with pytest.raises(InvalidDestinationError, match="no queue"):
        put(shop, Queue("unknown"), "a")
    with pytest.raises(InvalidDestinationError):
        shop.create_consumer(Queue("unknown"))
    with pytest.raises(InvalidDestinationError, match="cannot send"):
        put(shop, Queue("a/#"), "a")
    with pytest.raises(InvalidDestinationError, match="create_queue"):
        shop.create_consumer(Topic(f"$queue/{queue.name}"))
    with pytest.raises(InvalidDestinationError, match="not to the queue"):
        shop.create_shared_consumer(queue, "name")  # type: ignore[arg-type]
    with pytest.raises(JMSError, match="no no_local"):
        shop.create_consumer(queue, no_local=True)
    with pytest.raises(InvalidSelectorError, match="at character"):
        shop.create_consumer(queue, "n >")
    with shop.create_browser(Queue("small")) as browser:
        if not list(browser):
            put(shop, Queue("small"), "a")
    with pytest.raises(ResourceAllocationError, match="holds 1 of 1"):
        put(shop, Queue("small"), "b")


def test_asyncio(broker: Broker, queue: Queue) -> None:
    async def program() -> tuple[list[Any], Any]:
        async with AsyncContext(broker.factory(), AckMode.SESSION_TRANSACTED) as context:
            for word in "abc":
                await context.create_producer().send(context.create_queue(queue.name), word)
            await context.commit()
            async with await context.create_browser(queue) as browser:
                browsed = [message.body async for message in browser]
            consumer = await context.create_consumer(queue)
            first = await consumer.receive(PATIENCE)
            context.rollback()
            again = {message.body async for message in _some(consumer, 3)}
            await context.commit()
            return browsed, (first and first.body, again)

    async def _some(consumer: Any, count: int) -> Any:
        for _ in range(count):
            yield await consumer.receive(PATIENCE)

    assert asyncio.run(asyncio.wait_for(program(), PATIENCE)) == (["a", "b", "c"], ("a", {"a", "b", "c"}))


def test_a_closed_session_ends_its_browsers(broker: Broker, queue: Queue, tmp_path: Path) -> None:
    with broker.factory().create_context() as context:
        browser = context.create_browser(queue)
        assert list(browser) == []
    with pytest.raises(JMSError, match="closed"):
        list(browser)
