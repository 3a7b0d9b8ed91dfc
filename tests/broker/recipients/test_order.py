"""Order holds while messages are taken away from a dead recipient, and nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from mqmesh.broker.persistence.commits import Persistence
from mqmesh.broker.recipients.handover.failover import FENCE, SEND
from mqmesh.mesh.node.actions import PeerMessage
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site
from support.storage.failing_store import FailingStore

from .test_mesh import Mesh, app, hung, state_is
from .test_recipients import application, served, site, state
from .test_restart import kept


class Gate:
    """The next answers of the store wait until the gate is opened. hold: how many of them. held: those that wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[Callable[[], None]] = []
        self.hold = 0
        original = Persistence.read

        def read(persistence: Persistence, ask: Callable[[], Any], take: Callable[[Any, Any], None]) -> None:
            original(persistence, ask, partial(self._came, take))

        monkeypatch.setattr(Persistence, "read", read)

    def _came(self, take: Callable[[Any, Any], None], answer: Any, error: Any) -> None:
        if self.hold:
            self.hold -= 1
            self.held.append(partial(take, answer, error))
        else:
            take(answer, error)

    def open(self) -> None:
        """Let the answers through."""
        self.hold = 0
        held, self.held = self.held, []
        for call in held:
            call()


class Held:
    """Posts of some kinds that come to a broker wait until they are let through, in their order."""

    def __init__(self, at: Site, *kinds: str) -> None:
        assert at.broker.site.mesh is not None
        self._posts, self._kinds = at.broker.site.mesh.peer_messages, kinds
        self._received = self._posts.received
        self.held: list[PeerMessage] = []
        self._posts.received = self._came  # type: ignore[method-assign]

    def _came(self, action: PeerMessage) -> None:
        if action.kind in self._kinds:
            self.held.append(action)
        else:
            self._received(action)

    def open(self, at: Site) -> None:
        """Let them through."""
        self._posts.received = self._received  # type: ignore[method-assign]
        for action in self.held:
            self._received(action)
        at.broker.flush()


async def until_idle(at: Site) -> None:
    """The store's thread has answered all that it was asked."""
    persistence = at.broker.site.persistence
    assert persistence is not None
    answered: list[object] = []
    persistence.read(lambda: None, lambda *answer: answered.append(answer))
    await at.until(lambda: bool(answered))


async def test_what_comes_while_messages_are_taken_away_goes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with site(MemoryStore(), message_interval=3, application=[application("a", "b"), application("b")]) as at:
        b = await served(at, "b")
        sender = await at.client("shop")
        await sender.publish("app/a/x", b"probe", 1)
        gate.hold = 1
        await at.later(3.1)
        await at.until(lambda: bool(gate.held))
        assert state(at, "a") == "fault"
        await sender.publish("app/a/x", b"1", 1)  # nothing comes later that would have it taken along
        gate.open()
        assert (await b.messages(1))[0].payload == b"1"
        assert state(at, "a") == "fault"


async def test_a_session_is_emptied_before_the_queue_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client's session has on the disk is older than what waits in the recipient's queue."""
    gate = Gate(monkeypatch)
    async with site(MemoryStore(), message_interval=3, application=[application("a", "b"), application("b")]) as at:
        a, b = await served(at, "a", clean=False, expiry=1000, receive_maximum=1), await served(at, "b")
        sender = await at.client("shop")
        for number in range(3):
            await sender.publish("app/a/x", b"%d" % number, 1)
        a.transport.abort()
        await at.gone("a")
        for number in range(3, 6):
            await sender.publish("app/a/x", b"%d" % number, 1)
        gate.hold = 1
        await at.later(3.1)
        await at.until(lambda: bool(gate.held))
        await until_idle(at)
        gate.open()
        got = await b.messages(5)
        assert [one.payload for one in got] == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_message_on_its_way_to_an_alternative_that_died_is_not_overtaken() -> None:
    async with Mesh(app("a", 1, "b", "c"), app("b", 2), app("c", 3)) as mesh:
        a, b, c = [await served(mesh.at(number), name) for number, name in ((1, "a"), (2, "b"), (3, "c"))]
        sender = await mesh.at(1).client("shop")
        await hung(mesh, sender, "a", a)
        await sender.publish("app/b/x", b"probe", 1)
        await b.messages(1, acknowledge=False)
        under_way = Held(mesh.at(2), SEND, FENCE)
        await sender.publish("app/a/x", b"1", 1)
        await mesh.at(1).until(lambda: bool(under_way.held))
        await mesh.at(1).later(3.1)
        await state_is(mesh, "b", "fault")
        await sender.publish("app/a/x", b"2", 1)  # b is known to be dead: this one does not go there
        await mesh.at(1).until(lambda: len(under_way.held) == 2)
        under_way.open(mesh.at(2))
        got = await c.messages(2)
        assert [one.payload for one in got] == [b"1", b"2"]


async def test_a_fence_that_is_not_answered_is_given_up() -> None:
    async with Mesh(app("a", 1, "b", "c"), app("b", 2), app("c", 3)) as mesh:
        a, b, c = [await served(mesh.at(number), name) for number, name in ((1, "a"), (2, "b"), (3, "c"))]
        sender = await mesh.at(1).client("shop")
        await hung(mesh, sender, "a", a)
        await sender.publish("app/b/x", b"probe", 1)
        await b.messages(1, acknowledge=False)
        under_way = Held(mesh.at(2), SEND, FENCE)
        await sender.publish("app/a/x", b"1", 1)
        await mesh.at(1).later(3.1)
        await state_is(mesh, "b", "fault")
        await sender.publish("app/a/x", b"2", 1)
        await mesh.at(1).until(lambda: len(under_way.held) == 2)
        await mesh.at(1).later(2.1)
        assert (await c.messages(1))[0].payload == b"2"
        under_way.open(mesh.at(2))
        assert (await c.messages(1))[0].payload == b"1"


@pytest.mark.slow
async def test_an_identifier_that_was_freed_and_given_again_is_not_mixed_up() -> None:
    """Of three messages in one packet the client acknowledges the second; its identifier is another message's later."""
    async with site(application=[application("a", "b"), application("b")]) as at:
        a, b = await served(at, "a"), await served(at, "b")
        sender = await at.client("shop")
        sender.send(*(Publish("app/a/x", b"%d" % number, 1, packet_id=sender.next_id()) for number in (1, 2, 3)))
        for _ in range(3):
            await sender.expect(Puback)
        first, second, third = await a.messages(3, acknowledge=False)
        assert (first.packet_id, third.packet_id) == (second.packet_id - 1, second.packet_id + 1)
        a.send(Puback(second.packet_id))
        number = 4
        while True:
            await sender.publish("app/a/x", b"%d" % number, 1)
            (got,) = await a.messages(1, acknowledge=False)
            if got.packet_id == second.packet_id:
                break
            a.send(Puback(got.packet_id))
            number += 1
        await at.later(1.1)
        assert [one.payload for one in await b.messages(3)] == [b"1", b"3", b"%d" % number]
        again = await at.client("a", clean=False, expiry=1000)  # what has gone elsewhere holds no identifier any more
        await again.nothing()
        await b.nothing()


async def test_what_is_left_of_a_run_is_read_after_the_commit_that_took_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what has gone elsewhere is delivered here too, and the queue counts wrong from then on."""
    gate, store = Gate(monkeypatch), FailingStore(MemoryStore())
    async with site(store, message_interval=3, application=[application("a", "b"), application("b")]) as at:
        a, b = await served(at, "a", clean=False, expiry=1000), await served(at, "b")
        a.transport.abort()
        await at.gone("a")
        sender = await at.client("shop")
        sender.send(*[Publish("app/a/x", b"%d" % number, 1, packet_id=number + 1) for number in range(2)])  # one run
        for _ in range(2):
            await sender.expect(Puback)
        gate.hold = 1
        await at.later(3.1)
        await at.until(lambda: bool(gate.held))
        await kept(at)
        store.hold()
        gate.open()
        coming = asyncio.create_task(at.client("a", clean=False, expiry=1000))
        await at.until(lambda: state(at, "a") == "operational")
        await until_idle(at)
        store.release()
        again = await coming
        assert [one.payload for one in await again.messages(1)] == [b"0"]
        assert [one.payload for one in await b.messages(1)] == [b"1"]
        await again.nothing()


async def test_what_comes_while_messages_are_taken_away_does_not_take_the_place_of_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is in the queue; a message of the client's own subscription comes into its session, and is no probe."""
    gate = Gate(monkeypatch)
    async with site(MemoryStore(), message_interval=3, application=[application("a", "b"), application("b")]) as at:
        a, b = await served(at, "a", clean=False, expiry=1000), await served(at, "b")
        await a.subscribe("shop/#", qos=1)
        a.transport.abort()
        await at.gone("a")
        sender = await at.client("shop")
        for number in range(3):
            await sender.publish("app/a/x", b"%d" % number, 1)
        gate.hold = 1
        await at.later(3.1)
        await at.until(lambda: bool(gate.held))
        assert state(at, "a") == "fault"
        await sender.publish("shop/new", b"own", 1)
        gate.open()
        assert {one.payload for one in await b.messages(3)} == {b"1", b"2", b"own"}
        again = await at.client("a", clean=False, expiry=1000)
        assert [one.payload for one in await again.messages(1)] == [b"0"]
