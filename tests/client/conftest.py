"""The client's tests run against our broker and against Mosquitto: what they state is the client's, not one broker's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from brokers import RunningBroker, running_broker
from mqmesh.client import Connection, ConnectionFactory, Context


@pytest.fixture(scope="session", params=["mqmesh", pytest.param("mosquitto", marks=pytest.mark.service)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker"), request.param) as running:
        yield running


@pytest.fixture
def factory(broker: RunningBroker, name: str) -> ConnectionFactory:
    return ConnectionFactory(broker.url, client_id=f"client-{name}")


@pytest.fixture
def context(factory: ConnectionFactory) -> Iterator[Context]:
    with factory.create_context() as made:
        yield made


@pytest.fixture
def connection(factory: ConnectionFactory) -> Iterator[Connection]:
    with factory.create_connection() as made:
        made.start()
        yield made
