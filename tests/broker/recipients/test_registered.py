"""Recipients of the directory: lookups at publish, what is taken up and given up, what a broker registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mqmesh.broker.applications import Application as Registered
from mqmesh.broker.applications import Lookup
from mqmesh.broker.recipients.registered import application_of, registered_of
from mqmesh.broker.recipients.settings import Application, Intervals
from mqmesh.mqtt.packets import Will
from support.broker_site import Site

from .test_recipients import application, served, site, state

DEFAULT = Intervals(1, 3, 10)


class Book:
    """An `ApplicationDirectory` of the test's own. away: nobody answers for names that are not listed."""

    def __init__(self, *records: Registered) -> None:
        self.records = {one.name: one for one in records}
        self.unlisted: dict[str, Registered] = {}
        self.away = False
        self.declared: dict[str, Registered] = {}
        self.changed: Callable[[], None] = lambda: None

    def find(self, name: str, answer: Callable[[Lookup], None]) -> None:
        found = self.records.get(name)
        if found is None and self.away:
            answer(Lookup(None, "nobody answers"))
        else:
            answer(Lookup(found or self.unlisted.get(name)))

    def known(self) -> dict[str, Registered]:
        return dict(self.records)

    def watch(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def declare(self, application: Registered) -> None:
        self.declared[application.name] = application

    def withdraw(self, name: str) -> None:
        self.declared.pop(name, None)


class Registrar:
    """What stands for the broker's registration."""

    def __init__(self, book: Book) -> None:
        self.applications = book

    def where(self, name: str) -> list[str]:
        return []

    def values(self) -> dict[str, str]:
        return {}


def with_directory(book: Book, **table: Any) -> Site:
    made = site(**table)
    made.broker.site.registrar = Registrar(book)
    return made


async def test_f12_what_names_this_broker_is_taken_up_and_given_up() -> None:
    """F12: the application table, as it changes."""
    book = Book(Registered("elsewhere", "lyon"))
    async with with_directory(book, application=[application("own")]) as at:
        recipients = at.broker.site.recipients
        assert recipients is not None
        book.records["orders"] = Registered("orders", "site0", ("orders-1",), ("backup",), 0.5, 1.5)
        book.records["own"] = Registered("own", "site0", ("other",))
        book.changed()
        assert sorted(recipients.local) == ["orders", "own"]
        found = recipients.local["orders"].application
        assert (found.clients, found.alternatives, found.intervals) == (["orders-1"], ["backup"], Intervals(0.5, 1.5, 10))
        assert recipients.local["own"].application.clients == ["own"], "the file stands above the directory"
        book.records["orders"] = Registered("orders", "site0", ("orders-1",), ("other",))
        book.changed()
        assert recipients.local["orders"].application.alternatives == ["other"]
        del book.records["orders"]
        book.changed()
        await at.until(lambda: "orders" not in recipients.local)


async def test_f15_a_name_that_the_directory_knows_is_no_unknown_one() -> None:
    book = Book()
    async with with_directory(book) as at:
        sender, client = await at.client("shop"), await served(at, "orders-1")
        assert await sender.publish("app/orders/new", b"0", 1) == 0x90
        book.unlisted["orders"] = Registered("orders", "site0", ("orders-1",))
        assert await sender.publish("app/orders/new", b"1", 1) == 0
        await client.subscribe("app/orders/#", qos=1)
        assert (await client.messages(1))[0].payload == b"1"


@pytest.mark.parametrize("will", [False, True])
async def test_f15_a_name_that_cannot_be_looked_up_waits(will: bool) -> None:
    book = Book()
    book.away = True
    async with with_directory(book) as at:
        if will:
            sender = await at.client("shop", will=Will("app/orders/new", b"1", 1))
            await sender.cut()
            await at.gone("shop")
        else:
            sender = await at.client("shop")
            assert await sender.publish("app/orders/new", b"1", 1) == 0
        book.away = False
        book.records["orders"] = Registered("orders", "site0")
        book.changed()
        await at.later(1)
        orders = await served(at, "orders")
        assert (await orders.messages(1))[0].payload == b"1"


@pytest.mark.parametrize("directory", [False, True])
async def test_a_will_for_an_unknown_name_is_named_in_the_log(directory: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its client is not there to be refused."""
    async with with_directory(Book()) if directory else site() as at:
        sender = await at.client("shop", will=Will("app/orders/new", b"1", 1))
        await sender.cut()
        await at.gone("shop")
        assert "event=will-refused topic=app/orders/new text=no application is registered as orders" in caplog.messages
        assert at.broker.context.counters.dropped == 1


async def test_the_home_of_a_record_without_a_broker_is_where_its_client_is() -> None:
    """An MQTT 3.1.1 client by the directory alone."""
    book = Book(Registered("orders", clients=("till-7",), alternatives=("backup",)), Registered("backup", consents=("orders",)))
    async with with_directory(book, message_interval=3) as at:
        book.changed()
        sender = await at.client("shop")
        assert await sender.publish("app/orders/new", b"0", 1) == 0, "registered, and nowhere yet: it waits"
        till = await at.client("till-7", version=4)
        await till.subscribe("app/orders/#", qos=1)
        await at.later(1)
        await till.messages(1, acknowledge=False)
        backup = await served(at, "backup")
        await at.later(3.1)
        await at.until(lambda: state(at, "orders") == "fault")
        await sender.publish("app/orders/new", b"1", 1)
        assert (await backup.messages(1))[0].payload == b"1"


async def test_f18_what_a_client_declares_is_registered() -> None:
    """F18: by its broker, with the broker's lease; until it is forgotten."""
    book = Book()
    async with with_directory(book) as at:
        user = [("mqmesh-recipient", "orders"), ("mqmesh-alternatives", "backup"), ("mqmesh-consents", "*"), ("mqmesh-probe", "1")]
        orders = await at.client("orders", user_property=user)
        assert book.declared == {"orders": Registered("orders", "", ("orders",), ("backup",), 1, 3, 10, ("*",), True)}
        book.records["orders"] = Registered("orders", "site0", ("orders",), ("other",))
        book.changed()
        recipients = at.broker.site.recipients
        assert recipients is not None
        assert recipients.local["orders"].application.alternatives == ["backup"], "what the client said itself"
        await orders.leave()
        recipients.operating.defunct("orders")
        await at.until(lambda: book.declared == {})


async def test_f18_a_client_serves_a_name_that_the_directory_gives_it() -> None:
    book = Book(Registered("orders", clients=("till-7",)))
    async with with_directory(book) as at:
        user = [("mqmesh-recipient", "orders")]
        till = await at.client("till-7", user_property=user)
        await till.subscribe("app/orders/#", qos=1)
        sender = await at.client("shop")
        assert await sender.publish("app/orders/new", b"1", 1) == 0
        assert (await till.messages(1))[0].payload == b"1"


@pytest.mark.parametrize(
    ("message", "fault", "expected"),
    [(None, None, (1, 3)), (5, None, (5, 5)), (None, 0.5, (0.5, 0.5)), (2, 2, (2, 2)), (2, 9, (2, 9))],
)
def test_f02_an_interval_that_is_not_said_contradicts_nothing(
    message: float | None, fault: float | None, expected: tuple[float, float]
) -> None:
    found = application_of(Registered("orders", message_interval=message, fault_interval=fault), DEFAULT)
    assert found is not None
    assert found.intervals == Intervals(*expected, 10)


@pytest.mark.parametrize(
    "record",
    [
        Registered("a/b"),
        Registered("a,b"),
        Registered("orders", alternatives=("orders",)),
        Registered("orders", alternatives=tuple(map(str, range(65)))),
        Registered("orders", message_interval=5, fault_interval=2),
        Registered("orders", defunct_interval=1e9),
    ],
    ids=["name", "comma", "itself", "too many", "contradiction", "too long"],
)
def test_a_record_that_cannot_be_a_recipient_is_left_out(record: Registered, caplog: pytest.LogCaptureFixture) -> None:
    assert application_of(record, DEFAULT) is None
    assert caplog.text.count("event=recipient-not-usable") == 1


def test_an_older_record_names_brokers_as_alternatives() -> None:
    found = application_of(Registered("gauges", alternatives=("lyon", "porto", "lyon")), DEFAULT)
    assert found is not None
    assert (found.alternatives, found.clients, found.consents) == (["lyon", "porto"], ["gauges"], [])


def test_what_is_registered_is_what_was_declared() -> None:
    one = Application("orders", ["a", "b"], [], ["lyon"], DEFAULT, True, ["x", "*"], None)
    again = application_of(registered_of(one), Intervals())
    assert again == Application("orders", ["a", "b"], [], ["lyon"], DEFAULT, True, ["*"], None)
