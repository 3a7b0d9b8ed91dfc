"""The metabroker's clients of the load generator: what they find, and that the rows run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.services import require

from benchmarks import runner
from benchmarks.load_generator import gateway, wire
from benchmarks.load_generator.connection import Connection
from benchmarks.load_generator.gateway import FIRST, Asker, Hearer
from benchmarks.load_generator.subscriber import Source
from benchmarks.load_generator.traffic import Traffic
from benchmarks.peers import PEERS
from benchmarks.scenarios import SCENARIOS

REMOTE = ("127.0.0.1", 1)
START = 70_000  # an `id` whose size in msgpack is that of all later ones


class Granted:
    """A member that has all it asked for."""

    def __init__(self, *_: object) -> None:
        self.session = "abc"

    def ask(self, verb: str, **keys: Any) -> dict[str, Any]:
        return {"codes": [keys["qos"]]}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without sockets."""

    def begin(connection: Any, *_: object, **__: object) -> None:
        connection.version = 4
        connection.left, connection.kept, connection.pushed = bytearray(), bytearray(), bytearray()
        connection.slow_packets = 0
        connection.receive_maximum = 65535

    def push(connection: Any, data: bytes) -> None:
        connection.pushed += data

    monkeypatch.setattr(Connection, "__init__", begin)
    monkeypatch.setattr(Connection, "push", push)
    monkeypatch.setattr(gateway, "Member", Granted)


def fed(client: Any, frames: list[bytes]) -> None:
    """The client gets the frames in pieces of random length."""
    data, chance = b"".join(frames), random.Random(1)
    while data:
        size = chance.randint(1, 3000)
        client.read(memoryview(data)[:size])
        data = data[size:]


def heard(qos: int, number: int, payload: bytes, **more: Any) -> bytes:
    body = msgpack.packb({"id": number, "topic": "bench/00", "payload": payload, "qos": qos, "retain": False, **more})
    return wire.publish(b"metabroker/response/abc/publish", body, qos, 4, number % 60_000 + 1)


def hearer(qos: int) -> tuple[Hearer, Traffic]:
    """A subscriber that has heard a probe."""
    traffic = Traffic(0, qos, 4, 1, (16, 16), 50)
    client = Hearer(REMOTE, "c", traffic, REMOTE)
    client.last = START - 1
    fed(client, [heard(qos, START, traffic.probe_payload(0))])
    return client, traffic


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("qos", [0, 1])
def test_what_comes_in_order_is_right_and_not_unpacked(qos: int) -> None:
    client, traffic = hearer(qos)
    fed(client, [heard(qos, START + 1 + i, traffic.payloads[i % traffic.cycle]) for i in range(3000)])
    source: Source = client.sources[0]
    assert (source.received, len(source.missing), source.duplicates, source.disorder, source.corrupt) == (3000, 0, 0, 0, 0)
    assert client.slow_packets == 1
    assert len(client.pushed) == qos * 4 * 3001  # type: ignore[attr-defined]


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("qos", [0, 1])
def test_each_fault_is_counted(qos: int) -> None:
    client, traffic = hearer(qos)
    source = client.sources[0]
    numbers = iter(range(START + 1, START + 100_000))

    def some(*indexes: int) -> list[bytes]:
        return [heard(qos, next(numbers), traffic.payloads[i]) for i in indexes]

    fed(client, some(0, 1, 2, 4, 5))
    assert source.missing == {3}
    fed(client, some(6, 6, 7))
    assert source.duplicates == 1
    fed(client, [heard(qos, next(numbers), b"x" * 16)])
    assert source.corrupt == 1
    fed(client, some(8, 9))
    again = heard(qos, client.last, traffic.payloads[9])
    fed(client, [again])
    assert source.duplicates == 2
    fed(client, [heard(qos, next(numbers), traffic.payloads[10], retain=True)])
    assert source.corrupt == 2


def asker() -> Asker:
    """A publisher that has its first answer and has published the whole cycle but one message."""
    traffic = Traffic(0, 1, 4, 1, (16, 16), 50)
    client = Asker(REMOTE, "c", traffic, [], REMOTE, 50)
    client.probe(0)
    fed(client, [wire.acknowledgement(wire.PUBACK, 65_000), answer(gateway.FIRST_PROBE)])
    assert client.probes == 0
    client.start()
    client.sent = traffic.cycle - 1
    return client


def answer(message: int, code: int = 0) -> bytes:
    return wire.publish(b"metabroker/response/abc/puback", msgpack.packb({"message": message, "code": code}), 1, 4, message % 60_000 + 1)


@pytest.mark.usefixtures("offline")
def test_answers_are_compared_and_not_unpacked() -> None:
    client = asker()
    frames = []
    for i in range(1000):
        frames += [wire.acknowledgement(wire.PUBACK, i + 1), answer(FIRST + i)]
    fed(client, frames)
    assert client.answered == 1000
    assert client.slow_packets == 0
    assert client.in_flight() == client.sent - 1000
    fed(client, [answer(FIRST + 1001)])
    assert (client.answered, client.slow_packets) == (1000, 1)
    fed(client, [answer(FIRST + 1000)])
    assert client.answered == 1002


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("frame", [answer(FIRST + 5), answer(FIRST + 2047), answer(FIRST + 6, 9)], ids=["twice", "unsent", "refused"])
def test_an_answer_that_is_wrong_ends_the_measurement(frame: bytes) -> None:
    client = asker()
    fed(client, [answer(FIRST + i) for i in range(6)])
    with pytest.raises(wire.WireError):
        fed(client, [frame])


@pytest.mark.usefixtures("offline")
def test_at_qos_0_nothing_is_answered_and_what_is_refused_ends_the_measurement() -> None:
    traffic = Traffic(0, 0, 4, 1, (16, 16), 50)
    client = Asker(REMOTE, "c", traffic, [], REMOTE, 50)
    client.probe(0)
    client.start()
    client.sent = 40
    assert (client.probes, client.in_flight(), client.expected) == (0, 0, {})
    [found] = [wire.next_packet(client.pushed, 0)]  # type: ignore[attr-defined]
    assert found is not None
    assert found.first == 0x30
    assert set(msgpack.unpackb(wire.decode_publish(found.first, found.body, 4).payload)) == {"topic", "payload"}
    for body in ({"code": 9, "refused": 1}, {"message": FIRST, "code": 0}):
        with pytest.raises(wire.WireError):
            fed(client, [wire.publish(b"metabroker/response/abc/puback", msgpack.packb(body), 1, 4, 1)])


@pytest.mark.parametrize("peer", ["mqmesh", "mosquitto"])
@pytest.mark.parametrize("name", ["mb-out-qos0", "mb-out-qos1", "mb-in-qos1", "mb-out-latency"])
def test_the_rows_run(name: str, peer: str, tmp_path: Path) -> None:
    require("mosquitto")
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    result = runner.measure(scenario, PEERS[peer], runner.Settings(0.1, 0.05, 1), tmp_path / "brokers")
    assert result["error"] == ""
    assert [result[key] for key in ("lost", "duplicates", "disorder", "corrupt")] == [0, 0, 0, 0]
    assert result["deliveries"] >= 100
