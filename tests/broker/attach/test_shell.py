"""One connection of an attached broker on its transport."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from mqmesh.base.address import parse_address
from mqmesh.broker.attach import shell
from mqmesh.broker.attach.end import PUBACK, End
from mqmesh.broker.attach.shell import Attachment, Line
from mqmesh.broker.config import Limits
from mqmesh.broker.settings.attach import AttachSettings
from mqmesh.broker.transport.in_process import InProcessPair
from mqmesh.mqtt.encode import encode
from mqmesh.mqtt.packets import Connect, Disconnect
from mqmesh.mqtt.properties import Property
from support.broker_site import JumpingLoop


class Deaf(asyncio.Protocol):
    """A broker that does not read."""

    def connection_made(self, transport: Any) -> None:
        transport.pause_reading()


async def test_a_broker_that_sends_and_does_not_read_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "MOST_WAITING", 4000)
    lost: list[str] = []
    owner: Any = SimpleNamespace(ended=lost.append)
    line = Line(owner, End("there", Connect(), 2**20))
    InProcessPair(line, Deaf(), lambda error: None)
    line.end.out.append(bytes(10_000))  # one large message may wait
    line.write()
    assert not lost
    for number in range(1, 2000):
        line.end.answer(PUBACK, number)
        line.write()
    assert "does not read" in lost[0]


@pytest.mark.parametrize("fenced", [False, True])
async def test_one_that_another_broker_serves_for_stands_by_at_once(fenced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut off, and rests before its next attempt; when it hears that the other one serves, it is not down any more."""
    monkeypatch.setattr(shell, "PAUSES", (1000.0, 1000.0))
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    sharers: list[int] = []
    context = SimpleNamespace(wall=lambda: 0.0, refresh=lambda: None, say=lambda topic, value: None, flush=lambda: None)
    mesh = SimpleNamespace(node=SimpleNamespace(sharers=lambda share: sharers))
    site: Any = SimpleNamespace(context=context, mesh=mesh, config=SimpleNamespace(limits=Limits()), sessions={})
    settings = AttachSettings("plant", parse_address("mqtt://127.0.0.1:1"), standby=True)
    attachment = Attachment(settings, site, lambda protocol, on_end: InProcessPair(protocol, Deaf(), on_end))
    attachment._joined, attachment._fenced = True, fenced
    monkeypatch.setattr(attachment, "_make_relay", _refused)
    running = asyncio.create_task(attachment.run())
    for _ in range(20):
        loop.jump(1.0)
        await asyncio.sleep(0)
    assert attachment.state == "down"
    sharers.append(2)
    loop.jump(1.0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert attachment.state == "stand-by"
    running.cancel()
    await asyncio.wait([running])


async def test_a_session_that_was_made_in_vain_does_not_keep_retained_messages_from_being_compared() -> None:
    """The other broker has accepted us anew, and this one does not: the next that comes there would find a session, and compare nothing."""
    site: Any = SimpleNamespace(config=SimpleNamespace(limits=Limits()), sessions={}, context=SimpleNamespace(wall=lambda: 0.0))
    attachment = Attachment(AttachSettings("plant", parse_address("mqtt://127.0.0.1:1")), site, lambda protocol, on_end: site)
    relay = attachment._make_relay()
    assert not relay._wants.compare
    written: list[bytes] = []
    line = Line(attachment, relay.there)
    line.transport = SimpleNamespace(  # type: ignore[assignment]
        pause_reading=lambda: None,
        is_closing=lambda: False,
        close=lambda: None,
        get_write_buffer_size=lambda: 0,
        write=written.append,
        writelines=written.extend,
    )
    line.open, relay.there.up, relay.there.present = True, True, False
    attachment._lines, attachment._relay = [line], relay
    attachment._come_in(line, relay)
    attachment._leave()
    assert b"".join(written).endswith(encode(Disconnect(0, {Property.SESSION_EXPIRY_INTERVAL: 0}), 5))
    assert attachment._make_relay()._wants.compare


def _refused() -> Any:
    raise ValueError("it refuses us")
