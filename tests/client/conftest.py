"""The client's tests run against our broker and against Mosquitto, directly and through a metabroker beside the other one: what they
state is the client's, not one broker's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from mqmesh.client import Connection, ConnectionFactory, Context, MetabrokerConnectionFactory
from support.brokers import RunningBroker, running_broker
from support.remotes import POLICY, running_metabroker
from support.services import PATIENCE


@dataclass(frozen=True)
class Way:
    """How a client reaches `broker`: directly, or through a metabroker beside `community`."""

    broker: RunningBroker
    community: RunningBroker | None = None

    @property
    def first(self) -> RunningBroker:
        """The broker that the client connects to."""
        return self.community or self.broker

    def factory(self, url: str | None = None, **settings: Any) -> ConnectionFactory:
        """url: of a proxy before the first broker."""
        settings.setdefault("send_timeout", PATIENCE)  # a busy machine is no reason to give up
        if self.community is None:
            return ConnectionFactory(url or self.broker.url, **settings)
        return MetabrokerConnectionFactory(url or self.community.url, self.broker.url, **settings)


SERVICE = pytest.mark.service
WAYS = [
    pytest.param("mqmesh", marks=pytest.mark.process),
    pytest.param("mosquitto", marks=SERVICE),
    pytest.param("mqmesh through mosquitto", marks=SERVICE),
    pytest.param("mosquitto through mqmesh", marks=SERVICE),
]


@pytest.fixture(scope="session", params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    kind, _, community_kind = request.param.partition(" through ")
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(running_broker(tmp_path_factory.mktemp("broker"), kind))
        if not community_kind:
            yield Way(broker)
            return
        folder = tmp_path_factory.mktemp("community")
        community = stack.enter_context(running_broker(folder, community_kind))
        stack.enter_context(running_metabroker(folder, community.port, POLICY, "", "--data", str(folder / "data")))
        yield Way(broker, community)


@pytest.fixture(autouse=True)
def _directly(request: pytest.FixtureRequest) -> None:
    """Skip what is marked `direct` on ways through a metabroker."""
    mark = request.node.get_closest_marker("direct")
    if mark is not None and "way" in request.fixturenames and request.getfixturevalue("way").community is not None:
        pytest.skip(mark.args[0])


@pytest.fixture
def broker(way: Way) -> RunningBroker:
    """The broker where the messages are."""
    return way.broker


@pytest.fixture
def factory(way: Way, name: str) -> ConnectionFactory:
    return way.factory(client_id=f"client-{name}")


@pytest.fixture
def context(factory: ConnectionFactory) -> Iterator[Context]:
    with factory.create_context() as made:
        yield made


@pytest.fixture
def connection(factory: ConnectionFactory) -> Iterator[Connection]:
    with factory.create_connection() as made:
        made.start()
        yield made
