"""What a broker says of messages of other sites for queues that are not here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.publishers import Publishers
from mqmesh.broker.queues.refused import Refused
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.sites.wire import PutPost

POST = PutPost(b"1", "orders", "shop", "", b"", None, [b"one"])


@pytest.mark.parametrize(("shared", "text"), [({"orders": Rules()}, "is not the home of queue 'orders' now"), ({}, "declare it")])
def test_a_queue_that_has_its_home_elsewhere_now_need_not_be_declared(shared: dict[str, Rules], text: str) -> None:
    broker: Any = SimpleNamespace(_settings=QueueSettings(shared=shared))
    with pytest.raises(Refused, match=text):
        Publishers.put_parcel(broker, POST)
