"""The steady clock: it never goes back, does not notice jumps, and comes near the wall clock again; and a broker that goes by it."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.ports import Context
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.steady import DAY, PACE, Noted, SteadyClock
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until

HOUR = 3600.0
START = 1.8e9
steps = st.lists(st.tuples(st.floats(0.1, 100.0), st.just(0.0) | st.floats(-1e6, 1e6)), max_size=30)


@given(steps)
def test_it_goes_on_and_never_back_whatever_the_wall_clock_does(steps: list[tuple[float, float]]) -> None:
    now, wall = 0.0, START
    clock = SteadyClock(now, wall)
    before = clock.time(now)
    for seconds, jump in steps:
        now, wall = now + seconds, wall + seconds + jump
        passed = clock.time(now) - before
        assert (1 - PACE) * seconds - 1e-3 <= passed <= (1 + PACE) * seconds + 1e-3
        jumped = clock.look(now, wall)
        assert abs(jumped - jump) < 1e-3 if abs(jump) > 2.1 else abs(jumped) < 2.2
        assert clock.time(now) >= before + passed - 1e-3, "it does not go back"
        assert wall - clock.time(now) <= DAY
        before = clock.time(now)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_it_comes_near_the_wall_clock_again(jump: float) -> None:
    clock = SteadyClock(0.0, START)
    assert clock.look(1.0, START + 1 + jump) == pytest.approx(jump)
    for second in range(2, int(HOUR / PACE) + 20):
        assert clock.look(float(second), START + second + jump) == 0.0
    assert clock.time(float(second)) == pytest.approx(START + second + jump, abs=0.1)


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 0.0])
@pytest.mark.parametrize("stopped", [0.0, 10.0, DAY / 2])
def test_the_next_life_goes_on_from_there(jump: float, stopped: float) -> None:
    clock = SteadyClock(0.0, START)
    clock.look(10.0, START + 10 + jump)
    noted = clock.noted(10.0, START + 10 + jump)
    later = SteadyClock(77.0, START)
    assert later.resume(noted, 77.0, START + 10 + jump + stopped) == pytest.approx(0.0)
    assert later.time(77.0) == pytest.approx(START + 10 + stopped)


def test_a_clock_that_was_set_back_while_the_broker_was_stopped() -> None:
    clock = SteadyClock(0.0, START)
    assert clock.resume(Noted(START + HOUR, 0.0), 0.0, START) == -HOUR
    assert clock.time(0.0) == START + HOUR


def test_who_is_more_than_a_day_behind_follows_at_once() -> None:
    clock = SteadyClock(0.0, START)
    clock.look(1.0, START + 30 * DAY)
    assert clock.time(1.0) == START + 30 * DAY, "a clock that was not set at all: nothing that is worth it"


async def test_a_clock_that_brokers_share_takes_the_place_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site() as site:
        context = site.broker.context
        context.common = context.wall() - time.monotonic() - HOUR
        await look(site)
        before = context.reference()
        monkeypatch.setattr(Context, "wall", lambda self: time.time() + HOUR)
        await look(site)
        assert before <= context.reference() < before + HOUR / 2
        assert context.noted().behind == pytest.approx(context.reference() - context.steady(), abs=1.0)


async def look(site: Site) -> None:
    """Let the broker look at its clocks."""
    looked = site.broker.context.clock
    at = looked._at
    await until(lambda: looked._at != at)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_jump_ends_nothing_holds_nothing_up_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, jump: float
) -> None:
    """A session, messages that expire, a delay of a second: over the jump and over a restart after it."""
    store, queues = MemoryStore(), QueueSettings({"work": Rules()}, folder=tmp_path / "queues", durability="os")
    lives = {Property.MESSAGE_EXPIRY_INTERVAL: 1800}
    delayed = {Property.USER_PROPERTY: [("mqmesh-delay", "1s")]}
    async with Site(queues=queues, store=store) as site:
        client = await site.client("away", clean=False, expiry=1800)
        await client.subscribe("t", qos=1)
        await client.leave()
        shop = await site.client("shop")
        assert await shop.publish("t", b"kept", qos=1, properties=lives) == 0
        assert await shop.publish("$queue/work", b"work", qos=1, properties=lives) == 0
        assert await shop.publish("$queue/work", b"delayed", qos=1, properties=delayed) == 0
        worker = await site.client("worker")
        await worker.subscribe("$queue/work", qos=1)
        assert [one.payload for one in await worker.messages(1, acknowledge=False)] == [b"work"]
        await worker.cut()
        with caplog.at_level(logging.WARNING):
            monkeypatch.setattr(Context, "wall", lambda self: time.time() + jump)
            await look(site)
        (said,) = [one.getMessage() for one in caplog.records if "event=clock-jumped" in one.getMessage()]
        assert float(said.split()[1].removeprefix("seconds=")) == pytest.approx(jump, abs=2)
    async with Site(queues=queues, store=store) as site:
        client = await site.client("away", clean=False, expiry=1800)
        assert client.connack.session_present
        assert [one.payload for one in await client.messages(1)] == [b"kept"]
        worker = await site.client("worker")
        await worker.subscribe("$queue/work", qos=1)
        assert {one.payload for one in await worker.messages(2)} == {b"work", b"delayed"}
