"""What idle sessions share stays empty, and each has its own when it needs one."""

from __future__ import annotations

import pytest
from mqmesh.broker.empty import EMPTY_QUEUE, EMPTY_SET
from support.broker_site import Site, until

FOREVER = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("shared", "method"), [(EMPTY_QUEUE, "append"), (EMPTY_QUEUE, "appendleft"), (EMPTY_QUEUE, "insert"), (EMPTY_SET, "add")]
)
def test_nothing_can_be_put_in(shared, method):
    with pytest.raises((TypeError, AttributeError)):
        getattr(shared, method)(1)
    assert not EMPTY_QUEUE
    assert not EMPTY_SET


async def test_an_idle_session_has_nothing_of_its_own_and_a_busy_one_does():
    async with Site() as site:
        idle, busy = await site.client("idle", clean=False, expiry=FOREVER), await site.client("busy", clean=False, expiry=FOREVER)
        for client in (idle, busy):
            await client.subscribe("t" if client is busy else "u", qos=1)
            await client.leave()
            await site.gone(client.name)
        publisher = await site.client()
        await publisher.publish("t", b"x", 1)
        sessions = site.broker.site.sessions
        await until(lambda: sessions.get("busy").queued == 1)
        assert sessions.get("idle").queue is EMPTY_QUEUE
        assert sessions.get("busy").queue is not EMPTY_QUEUE
        assert not EMPTY_QUEUE
        back = await site.client("busy", clean=False, expiry=FOREVER)
        assert [message.payload for message in await back.messages(1)] == [b"x"]
        assert sessions.get("busy").resending is EMPTY_QUEUE
