"""Recipients: what an application declares, to its broker and to a directory, and what it consumes (docs/client.md, "Recipients")."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from mqmesh.client import (
    AckMode,
    AsyncContext,
    ConnectionFactory,
    IllegalStateError,
    JMSError,
    Recipient,
    Returned,
    failed_over,
    maybe_repeated,
    returned,
)
from mqmesh.client.api.inbox import Inbox
from mqmesh.client.core.transport import Incoming, Properties
from mqmesh.client.message.wire import decode
from paho.mqtt.client import Client
from support.jms_client import PATIENCE

DIRECT = pytest.mark.direct("a recipient needs a direct connection")


class Book:
    """A directory: `mqmesh.client.core.directory.Directory`. It can be away, or refuse."""

    def __init__(self) -> None:
        self.registered: dict[str, dict[str, object]] = {}
        self.error: Exception | None = None
        self.calls = 0
        self._cond = threading.Condition()

    def register(self, name: str, seconds: float, fields: dict[str, object]) -> None:
        self._called()
        self.registered[name] = {"lease": seconds, **fields}

    def leave(self, name: str) -> None:
        self.registered.pop(name, None)
        self._called()

    def _called(self) -> None:
        with self._cond:
            self.calls += 1
            self._cond.notify_all()
        if self.error is not None:
            raise self.error

    def wait(self, calls: int) -> None:
        with self._cond:
            assert self._cond.wait_for(lambda: self.calls >= calls, PATIENCE)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, str]]]:
    """Client identifier -> User Properties of each CONNECT."""
    found: dict[str, list[tuple[str, str]]] = {}
    connect: Callable[..., Any] = Client.connect

    def spy(self: Client, *given: Any, **named: Any) -> Any:
        found[self._client_id.decode()] = list(getattr(named["properties"], "UserProperty", []))
        return connect(self, *given, **named)

    monkeypatch.setattr(Client, "connect", spy)
    return found


@DIRECT
def test_f18_an_application_says_in_connect_what_it_is(
    factory: ConnectionFactory, name: str, declared: dict[str, list[tuple[str, str]]]
) -> None:
    """F18, F20: alternatives and intervals through the API."""
    with factory.create_context() as context:
        orders = context.recipient(
            name,
            ["lyon", "graz"],
            message_interval=0.5,
            fault_interval=3,
            defunct_interval=10,
            consents=["*"],
            probe=True,
            prefix=f"{name}-app",
        )
        assert declared[name] == [
            ("mqmesh-recipient", name),
            ("mqmesh-alternatives", "lyon,graz"),
            ("mqmesh-message-interval", "0.5"),
            ("mqmesh-fault-interval", "3"),
            ("mqmesh-defunct-interval", "10"),
            ("mqmesh-consents", "*"),
            ("mqmesh-probe", "1"),
        ]
        context.create_producer().send(context.create_topic(f"{name}-app/{name}/new"), "one")
        message = orders.receive(PATIENCE)
        assert isinstance(orders, Recipient)
        assert message is not None
        assert (message.text, orders.name, failed_over(message), maybe_repeated(message), returned(message)) == (
            "one",
            name,
            (),
            False,
            None,
        )
        orders.close()
        context.create_producer().send(context.create_topic(f"{name}-app/{name}/new"), "two")
        again = context.session.create_recipient(name, prefix=f"{name}-app", client=name)
        message = again.receive(PATIENCE)
        assert message is not None
        assert message.text == "two", "the broker has kept it"
        assert declared[name] == [("mqmesh-recipient", name)]


@DIRECT
def test_f18_an_application_registers_itself_with_a_lease(factory: ConnectionFactory, name: str) -> None:
    book = factory.directory = Book()
    with factory.create_context(AckMode.CLIENT) as context:
        recipient = context.recipient(name, ["lyon"], fault_interval=4, client=f"{name}-1", lease=1, prefix=name)
        assert book.registered == {name: {"lease": 1, "alternatives": ["lyon"], "fault_interval": 4, "clients": [f"{name}-1"]}}
        book.wait(3)  # renewed
        recipient.close()
        assert book.registered == {}
        context.recipient(name, client=f"{name}-1", lease=1, prefix=name)
        assert name in book.registered
    assert book.registered == {}, "the context has closed it"


@DIRECT
def test_a_directory_that_is_away_stops_nothing(factory: ConnectionFactory, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mqmesh.client.api import recipient as module

    monkeypatch.setattr(module, "AGAIN", 0.01)
    book = factory.directory = Book()
    book.error = ConnectionError("nobody answers")
    told: list[JMSError] = []
    with factory.create_context() as context:
        context.exception_listener = told.append
        context.recipient(name, lease=1, prefix=name)
        book.wait(3)
        book.error = None
        book.wait(5)
        assert name in book.registered
    assert [one.error_code for one in told] == ["directory"], "each state is told once"


@DIRECT
def test_a_directory_that_refuses_is_told(factory: ConnectionFactory, name: str) -> None:
    book = factory.directory = Book()
    book.error = ValueError("E_userMismatch: not yours")
    with factory.create_context() as context:
        with pytest.raises(JMSError, match=f"the directory refuses the application '{name}': E_userMismatch: not yours"):
            context.recipient(name, prefix=name)
        book.error = None
        context.recipient(name, prefix=name).close()


@DIRECT
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "a/b"}, "name: 'a/b' is no name"),
        ({"name": ""}, "name"),
        ({"name": "$a"}, "name"),
        ({"name": "a,b"}, "without / \\+ # ,"),
        ({"alternatives": "lyon"}, "alternatives = 'lyon': expected a list of names"),
        ({"alternatives": ["orders"]}, "'orders' is no alternative of its own"),
        ({"alternatives": ["a", "a"]}, "each name once"),
        ({"alternatives": [str(one) for one in range(10_000)]}, "at most 64 names, not 10000"),
        ({"consents": [3]}, "consents: 3 is no name"),
        ({"message_interval": 10, "fault_interval": 9}, "fault_interval = 9: expected at least message_interval = 10"),
        ({"message_interval": 0}, "message_interval = 0: expected seconds, more than 0"),
        ({"defunct_interval": "1h"}, "defunct_interval = '1h'"),
        ({"lease": 0}, "lease = 0: expected seconds from 1 to 86400"),
    ],
)
def test_f02_what_contradicts_is_refused(factory: ConnectionFactory, given: dict[str, Any], says: str) -> None:
    with factory.create_context() as context, pytest.raises(JMSError, match=says):
        context.recipient(**{"name": "orders", **given})


@DIRECT
def test_one_session_for_each_client_identifier(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context() as context:
        with pytest.raises(IllegalStateError, match="give the factory another client_id, or the recipient a client"):
            context.recipient(str(factory.client_id), prefix=name)
        context.recipient(name, prefix=name)
        with pytest.raises(IllegalStateError, match="has a consumer"):
            context.recipient(name, prefix=name)


def test_a_recipient_needs_a_direct_connection(way: Any, factory: ConnectionFactory, name: str) -> None:
    if way.community is None:
        pytest.skip("this connection is direct")
    with factory.create_context() as context, pytest.raises(JMSError, match="a recipient needs a direct connection to its broker"):
        context.recipient(name)


@DIRECT
def test_in_asyncio(factory: ConnectionFactory, name: str) -> None:
    async def scenario() -> None:
        async with AsyncContext(factory) as context, await context.recipient(name, prefix=name) as orders:
            await context.create_producer().send(context.create_topic(f"{name}/{name}/a"), "one")
            message = await orders.receive(PATIENCE)
            assert message is not None
            assert message.text == "one"

    asyncio.run(scenario())


def test_a_probe_is_acknowledged_in_its_turn() -> None:
    """It shows that the application takes messages: what came before it has been taken."""
    inbox = Inbox()
    inbox.probe_topic = "app/orders/probe"

    def incoming(topic: str, payload: bytes, packet: int) -> Incoming:
        return Incoming(topic, payload, 1, False, Properties(), (), packet, packet)

    for packet, (topic, payload) in enumerate(
        [("app/orders/new", b"a"), ("app/orders/probe", b""), ("app/orders/probe", b"not empty"), ("app/orders/new", b"")], 1
    ):
        assert inbox.add(incoming(topic, payload, packet), 0) is None
    first, tokens = inbox.next_message(0)
    assert first is not None
    assert (first.incoming.payload, tokens, inbox.probes) == (b"a", [], 0)
    second, tokens = inbox.next_message(0)
    assert second is not None
    assert (second.incoming.payload, tokens, inbox.probes) == (b"not empty", [2], 1)
    third, tokens = inbox.next_message(0)
    assert third is not None
    assert (third.incoming.topic, tokens, inbox.probes) == ("app/orders/new", [], 1)


def test_what_a_broker_writes_on_messages_is_read() -> None:
    def message(*user: tuple[str, str]) -> Any:
        return decode(Incoming("app/orders/new", b"a", 1, False, Properties(user=user)))

    moved = message(("mqmesh-failed-over", "orders,orders-lyon"), ("mqmesh-repeated", "1"))
    assert (failed_over(moved), maybe_repeated(moved), returned(moved)) == (("orders", "orders-lyon"), True, None)
    back = message(
        ("mqmesh-returned", "no-alternatives"),
        ("mqmesh-returned-at", "2026-11-22T10:00:00Z"),
        ("mqmesh-tried", "orders,orders-lyon"),
        ("mqmesh-topic", "app/orders/new"),
    )
    assert returned(back) == Returned("no-alternatives", "2026-11-22T10:00:00Z", ("orders", "orders-lyon"), "app/orders/new")
