"""A session that has ended is freed at once: the broker sets old objects apart, where cycles would stay (`base/process/collector.py`)."""

from __future__ import annotations

import gc

from mqmesh.broker.routing.route import Target
from mqmesh.broker.session.session import Session
from mqmesh.mqtt.packets import Disconnect, Publish, Subscription
from support.models.broker_wire import Wire, run, started


def alive() -> int:
    return sum(isinstance(one, Session | Target) for one in gc.get_objects())


def test_a_session_that_has_ended_holds_no_cycle() -> None:
    async def story() -> None:
        broker = await started()
        gc.collect()
        before = alive()
        gc.disable()
        try:
            for number in range(10):
                wire = Wire(broker, 5).connect(f"c{number}", Subscription(f"t/{number}", 2), Subscription("t/+", 1, no_local=True))
                wire.send(Publish(f"t/{number}", b"x", 1, packet_id=1), Publish("t/x", b"x", 1, retain=True, packet_id=2))
                wire.send(Disconnect())
                wire.connection.connection_lost(None)
            del wire
            broker.site.rounds._latest = None  # the broker remembers who wrote last
            assert not list(broker.site.sessions)
            assert alive() == before
        finally:
            gc.enable()

    run(story())
