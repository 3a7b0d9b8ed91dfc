"""Those tests here that talk to other people's brokers carry the marker `service`."""

from __future__ import annotations

import pytest

SERVICES = {
    "shell/test_server.py",
    "connectors/amqp/test_connector.py",
    "connectors/amqp/test_bad_messages.py",
    "connectors/nats/test_server.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).endswith(tuple(SERVICES)):
            item.add_marker("service")
