"""A broker that dies and comes back under load: nothing lost, nothing twice at the application, without its help.

mqmesh is killed with SIGKILL: what it acknowledged is on disk. Mosquitto keeps its state when it ends, so it is ended with SIGTERM.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from mqmesh.client import AckMode, Connection, ConnectionFactory, Message, Queue, Topic
from support.jms_client import Collected
from support.services import PATIENCE, free_port, require, wait_for_port

pytestmark = pytest.mark.keeps
DEATHS = 3
BETWEEN = 300  # messages that are sent, and that each consumer gets, between two deaths
AHEAD = 250


class Restartable:
    """A broker at a fixed port that keeps its state in `folder`."""

    def __init__(self, kind: str, folder: Path, config: str = "") -> None:
        self.kind, self.port = kind, free_port()
        if kind == "mosquitto":
            config = folder / "mosquitto.conf"
            config.write_text(
                f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
                f"persistence true\npersistence_location {folder}/\nuser root\n"
            )
            self._command, self._deadly = [require("mosquitto"), "-c", str(config)], signal.SIGTERM
        else:
            address = f"mqtt://127.0.0.1:{self.port}"
            self._command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--listen", address, "--data", str(folder / "data")]
            if config:
                (folder / "mqmesh.toml").write_text(config)
                self._command += ["--config", str(folder / "mqmesh.toml")]
            self._deadly = signal.SIGKILL
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port)

    def die(self) -> None:
        self._process.send_signal(self._deadly)
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(params=["mqmesh", pytest.param("mosquitto", marks=pytest.mark.service)])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restartable]:
    broker = Restartable(request.param, tmp_path)
    yield broker
    broker.stop()


class Publisher(threading.Thread):
    """Sends 0, 1, 2, ... with many under way, not further ahead of the slowest consumer than AHEAD. `completed`: the broker's answers."""

    def __init__(self, connection: Connection, consumers: Iterable[Collected]) -> None:
        super().__init__(daemon=True)
        self.sent, self.completed, self._consumers = 0, Collected(), list(consumers)
        self.ending = threading.Event()
        self._session = connection.create_session()

    def run(self) -> None:
        producer = self._session.create_producer(Topic("load"))
        while not self.ending.is_set():
            producer.send(self._session.create_text_message(str(self.sent)), completion_listener=self.completed)
            self.sent += 1
            for consumer in self._consumers:
                consumer.wait(self.sent - AHEAD)
        self._session.close()  # waits for what is under way


@pytest.mark.slow
@pytest.mark.parametrize("qos", [1, 2])
def test_durable_consumers_get_each_message_once(mortal: Restartable, qos: int) -> None:
    factory = ConnectionFactory(f"mqtt://127.0.0.1:{mortal.port}", client_id="plant", send_timeout=120, retry_last=0.5)
    publishing = ConnectionFactory(f"mqtt://127.0.0.1:{mortal.port}", send_timeout=120, retry_last=0.5, async_sends=100, persistent_qos=qos)
    told = Collected()
    with factory.create_connection() as connection, publishing.create_connection() as source:
        source.exception_listener = told
        seen = {mode: Collected() for mode in (AckMode.AUTO, AckMode.CLIENT, AckMode.SESSION_TRANSACTED)}
        for mode, collected in seen.items():
            session = connection.create_session(acknowledge_mode=mode)

            def consume(message: Message, mode: AckMode = mode, session: object = session, collected: Collected = collected) -> None:
                collected(message)
                if mode is AckMode.SESSION_TRANSACTED:
                    session.commit()  # type: ignore[attr-defined]
                elif int(message.body) % 7 == 0:
                    message.acknowledge()

            session.create_durable_consumer(Topic("load"), mode.name).message_listener = consume
        connection.start()
        publisher = Publisher(source, seen.values())
        publisher.start()
        for death in range(1, DEATHS + 1):
            for collected in (*seen.values(), publisher.completed):
                collected.wait(death * BETWEEN)
            mortal.die()
            told.wait(death)
            mortal.start()
        for collected in (*seen.values(), publisher.completed):
            collected.wait((DEATHS + 1) * BETWEEN)
        publisher.ending.set()
        publisher.join(PATIENCE)
        assert not publisher.is_alive()
        assert [message.body for message in publisher.completed.items] == [str(number) for number in range(publisher.sent)]
        for mode, collected in seen.items():
            found = [int(message.body) for message in collected.wait(publisher.sent)]
            assert found == list(range(publisher.sent)), mode
        assert all(error.error_code == "connection_lost" for error in told.items)


@pytest.mark.slow
def test_a_broker_without_memory_gets_the_subscriptions_again(tmp_path: Path) -> None:
    """Not durable, and the broker comes back empty: the consumer is told, and goes on."""
    broker = Restartable("mqmesh", tmp_path)
    broker._command = broker._command[:-2]  # no data folder
    broker.stop()
    broker.start()
    told = Collected()
    try:
        with ConnectionFactory(f"mqtt://127.0.0.1:{broker.port}", retry_last=0.5).create_context() as context:
            context.exception_listener = told
            consumer = context.create_consumer(Topic("a"))
            broker.die()
            told.wait(1)
            broker.start()
            count = 2
            while (codes := {error.error_code for error in told.wait(count)}) == {"connection_lost"}:
                count += 1
            assert codes == {"connection_lost", "session_lost"}
            context.create_producer().send(Topic("a"), "still here")
            message = consumer.receive(PATIENCE)
            assert message is not None
            assert message.body == "still here"
    finally:
        broker.stop()


@pytest.mark.process
def test_what_a_queue_has_confirmed_never_comes_again(tmp_path: Path) -> None:
    mortal = Restartable("mqmesh", tmp_path, '[queues.orders]\nacknowledge = "request"\n')
    orders = Queue("orders")
    try:
        factory = ConnectionFactory(f"mqtt://127.0.0.1:{mortal.port}", send_timeout=PATIENCE, retry_last=0.5, once_window=0)
        with factory.create_context(AckMode.SESSION_TRANSACTED) as context:
            for number in range(30):
                context.create_producer().send(orders, str(number))
            context.commit()
            consumer = context.create_consumer(orders)
            found: list[str] = []
            for _ in range(DEATHS):
                for _ in range(10):
                    message = consumer.receive(PATIENCE)
                    assert message is not None
                    found.append(message.body)
                context.commit()
                mortal.die()
                mortal.start()
            assert sorted(found, key=int) == [str(number) for number in range(30)], "each once"
            context.create_producer().send(orders, "last")
            context.commit()
            last = consumer.receive(PATIENCE)
            assert last is not None
            assert last.body == "last"
            context.commit()
    finally:
        mortal.stop()


@pytest.mark.slow
def test_7_9_delayed_messages_that_the_broker_holds_survive_its_death_and_come_once(tmp_path: Path) -> None:
    broker = Restartable("mqmesh", tmp_path, "[queues.later]\npublish = true\n")
    try:
        factory = ConnectionFactory(f"mqtt://127.0.0.1:{broker.port}", client_id="clerk", send_timeout=PATIENCE, retry_last=0.2)
        with factory.create_context() as context, context.create_context() as other:
            got = Collected()
            context.create_durable_consumer(Topic("orders"), "desk").message_listener = got
            producer, sent = other.create_producer(), 0
            for _ in range(3):
                for delay in range(50, 1050, 50):
                    producer.set_delivery_delay(delay).send(Topic("orders"), str(sent))
                    sent += 1
                broker.die()
                broker.start()
            got.wait(sent)
            producer.set_delivery_delay(0).send(Topic("orders"), "last")
            assert sorted(message.body for message in got.wait(sent + 1)) == sorted([*map(str, range(sent)), "last"])
    finally:
        broker.stop()
