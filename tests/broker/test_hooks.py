"""Extension points: who is told what, and that a fault of a hook stays the hook's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from mqmesh.broker.config import BrokerConfig
from mqmesh.broker.hooks import HookCalls, Hooks
from mqmesh.broker.server import Broker
from mqmesh.mesh.topology.settings import Limits
from mqmesh.mqtt.batch.batch import Batch
from mqmesh.mqtt.packets import Publish
from support.broker_site import Site

METHODS = [name for name, value in vars(Hooks).items() if not name.startswith("_") and callable(value)]


class Diary(Hooks):
    """Notes what it is told of sessions and links."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def session_opened(self, client_id: str, user: str | None, address: str, resumed: bool) -> None:
        self.lines.append(("opened", client_id, resumed))

    def session_closed(self, client_id: str, kept: bool) -> None:
        self.lines.append(("closed", client_id, kept))


class Faulty(Hooks):
    """Raises an exception whatever it is told."""

    def session_opened(self, client_id: str, user: str | None, address: str, resumed: bool) -> None:
        raise ZeroDivisionError


def site(*hooks: Hooks) -> Site:
    made = Site()
    made.broker = Broker(BrokerConfig("site", 0, listen=["mqtt://127.0.0.1:0"], limits=Limits(sys_interval=0)), hooks=hooks)
    return made


def test_each_method_is_passed_on() -> None:
    """What is added to `Hooks` has to be added to `HookCalls`."""
    assert [name for name in METHODS if name not in vars(HookCalls)] == []


class Journal(Hooks):
    """Notes what it is told of messages."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def admitted(self, publisher: str | None, batch: Batch) -> None:
        self.lines.append(("admitted", publisher, batch.messages()))

    def delivered(self, publisher: str | None, batch: Batch, recipients: Sequence[str]) -> None:
        self.lines.append(("delivered", publisher, list(recipients)))

    def acknowledged(self, publisher: str, batch: Batch) -> None:
        self.lines.append(("acknowledged", publisher, batch.count))

    def dropped(self, publisher: str | None, batch: Batch, count: int, reason: str) -> None:
        self.lines.append(("dropped", publisher, count))


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_are_told(qos: int) -> None:
    """Single messages, on topics that are known and that are not, and messages of several topics that come together."""
    journal = Journal()
    async with site(journal) as here:
        reader = await here.client("reader")
        await reader.subscribe("t/#", qos=qos)
        writer = await here.client("writer")
        told = [("delivered", "writer", ["reader"]), *([("acknowledged", "writer", 1)] if qos else [])]
        for payload in (b"first", b"second"):
            journal.lines.clear()
            await writer.publish("t/1", payload, qos)
            await reader.messages(1)
            assert journal.lines == [("admitted", "writer", [(b"t/1", payload)]), *told]
        await writer.publish("t/2", b"", qos)
        await reader.messages(1)
        journal.lines.clear()
        writer.send(*[Publish(f"t/{n % 2 + 1}", b"x" * n, qos, packet_id=50 + n if qos else 0) for n in range(1, 7)])
        await reader.messages(6)
        admitted = [message for name, _, messages in journal.lines if name == "admitted" for message in messages]  # type: ignore[attr-defined]
        assert admitted == [(b"t/%d" % (n % 2 + 1), b"x" * n) for n in range(1, 7)]


async def test_refused_messages_are_told() -> None:
    journal = Journal()
    async with site(journal) as here:
        writer = await here.client("writer")
        await writer.publish("$SYS/mine", b"x", 1)
        assert journal.lines == [("dropped", "writer", 1)]
        journal.lines.clear()
        await writer.publish("nobody/wants", b"x", 1)
        assert journal.lines == [
            ("admitted", "writer", [(b"nobody/wants", b"x")]),
            ("delivered", "writer", []),
            ("acknowledged", "writer", 1),
        ]


async def test_sessions_are_told() -> None:
    diary = Diary()
    async with site(diary) as here:
        client = await here.client("porto", expiry=100)
        client.transport.close()
        await here.gone("porto")
        client = await here.client("porto", clean=False)
        client.transport.close()
        await here.gone("porto")
        assert diary.lines == [
            ("opened", "porto", False),
            ("closed", "porto", True),
            ("opened", "porto", True),
            ("closed", "porto", False),
        ]


async def test_a_session_that_expires_is_told() -> None:
    diary = Diary()
    async with site(diary) as here:
        (await here.client("porto", expiry=10)).transport.close()
        await here.gone("porto")
        await here.later(11)
        assert diary.lines[1:] == [("closed", "porto", True), ("closed", "porto", False)]


async def test_a_fault_of_a_hook_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    diary = Diary()
    async with site(Faulty(), diary) as here:
        await here.client("porto")
        assert diary.lines == [("opened", "porto", False)]
        assert "event=hook-failed hook=Faulty method=session_opened" in caplog.text


def test_without_hooks_nothing_is_called() -> None:
    assert Broker(BrokerConfig()).context.hooks is None
