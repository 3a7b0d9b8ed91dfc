"""The client at two sites of a mesh: what a durable consumer at one site missed while it was away, sent at another."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet
from mqmesh.client import AckMode, ConnectionFactory, Topic


@pytest.mark.slow
def test_durable_transacted_consumer_at_another_site(tmp_path: Path) -> None:
    with Fleet(ring(), tmp_path) as fleet:
        fleet.wait_settled(90)
        porto, turin = (fleet.members[name].address.port for name in ("porto", "turin"))
        clerk = ConnectionFactory(f"mqtt://127.0.0.1:{turin}", client_id="clerk")
        with ConnectionFactory(f"mqtt://127.0.0.1:{porto}").create_context() as shop:
            producer = shop.create_producer().set_property("amount", 3)
            with clerk.create_context() as context:
                consumer = context.create_durable_consumer(Topic("orders"), "desk", "amount > 2")
                while consumer.receive(0.2) is None:  # until turin's interest is known at porto
                    producer.send(Topic("orders"), "hello")
                consumer.close()
            words = [str(number) for number in range(100)]
            for word in words:
                producer.send(Topic("orders"), word)
        with clerk.create_context(AckMode.SESSION_TRANSACTED) as context:
            consumer = context.create_durable_consumer(Topic("orders"), "desk", "amount > 2")
            for attempt in ("rollback", "commit"):
                found = []
                while len(found) < 100:
                    message = consumer.receive(90)
                    assert message is not None
                    if message.body != "hello":
                        found.append(message.body)
                assert found == words
                getattr(context, attempt)()
            assert consumer.receive_no_wait() is None
            consumer.close()
            context.unsubscribe("desk")
