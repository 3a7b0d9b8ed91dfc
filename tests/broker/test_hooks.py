"""Extension points: who is told what, and that a fault of a hook stays the hook's."""

from __future__ import annotations

import pytest
from mqmesh.broker.config import BrokerConfig
from mqmesh.broker.hooks import HookCalls, Hooks
from mqmesh.broker.server import Broker
from mqmesh.mesh.topology.settings import Limits
from support.broker_site import Site

METHODS = [name for name in vars(Hooks) if not name.startswith("_")]


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
