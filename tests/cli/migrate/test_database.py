"""A real mosquitto.db: after the import clients find what they find at the Mosquitto that wrote it."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.cli.main import app
from mqmesh.cli.migrate.mosquitto_database import CLIENT, MAGIC, SUB, Database, DatabaseError, read
from mqmesh.cli.migrate.stored_records import batch_of
from mqmesh.mqtt.packets import Connack, Connect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from support.brokers import running_broker
from support.mosquittos import Mosquitto
from support.raw_client import RawClient
from typer.testing import CliRunner, Result

WINDOW = 3  # messages in flight to a client


@contextmanager
def client(port: int, name: str, clean: bool = False) -> Iterator[RawClient]:
    found = RawClient(port)
    expiry = {} if clean else {Property.SESSION_EXPIRY_INTERVAL: 3600}
    found.send(Connect(name, 5, clean, 0, properties={**expiry, Property.RECEIVE_MAXIMUM: WINDOW}))
    found.expect(Connack)
    yield found
    found.close()


def subscribe(one: RawClient, *subscriptions: Subscription, **properties: Any) -> None:
    one.send(Subscribe(1, list(subscriptions), {Property[key]: value for key, value in properties.items()}))
    one.expect(Suback)


def publish(one: RawClient, topic: str, payload: bytes, qos: int, retain: bool = False, **properties: Any) -> None:
    values = {Property[key]: value for key, value in properties.items()}
    one.send(Publish(topic, payload, qos, retain, packet_id=9 if qos else 0, properties=values))
    if qos == 1:
        one.expect(Puback)
    elif qos:
        one.expect(Pubrec)
        one.send(Pubrel(9))
        one.expect(Pubcomp)


def received(one: RawClient, last: str) -> list[tuple[Any, ...]]:
    """Acknowledge messages until one of the topic `last` comes: what they were, without when they expire."""
    found: list[tuple[Any, ...]] = []
    while not found or found[-1][0] != last:
        packet = one.expect(object)
        if isinstance(packet, Pubrel):
            one.send(Pubcomp(packet.packet_id))
            continue
        assert isinstance(packet, Publish)
        properties = {key: value for key, value in packet.properties.items() if key != Property.MESSAGE_EXPIRY_INTERVAL}
        found.append((packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, properties))
        if packet.qos:
            one.send((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
    return found


def before(port: int) -> None:
    """Leave something of each kind."""
    with client(port, "lasting") as lasting, client(port, "publisher", True) as publisher:
        subscribe(lasting, Subscription("a/#", 2, retain_as_published=True), SUBSCRIPTION_IDENTIFIER=[7])
        subscribe(lasting, Subscription("b/+", 1))
        for number in range(WINDOW):
            publish(publisher, f"a/{number}", b"in flight", number % 2 + 1)
            lasting.expect(Publish)
    with client(port, "publisher", True) as publisher:
        publish(publisher, "a/x", b"waits" * 20, 1, CONTENT_TYPE="text/x", USER_PROPERTY=[("k", "v")], MESSAGE_EXPIRY_INTERVAL=5000)
        publish(publisher, "b/y", b"", 2)
        publish(publisher, "a/kept", b"kept", 1, True)
        publish(publisher, "other/kept", b"all\0bytes", 2, True, RESPONSE_TOPIC="r", CORRELATION_DATA=b"\1")
        publish(publisher, "gone", b"x", 1, True)
        publish(publisher, "gone", b"", 1, True)
    with client(port, "half") as half:  # a message of QoS 2 that is not released
        half.send(Publish("a/half", b"half", 2, packet_id=33))
        half.expect(Pubrec)
    with client(port, "releasing") as one:  # one whose PUBREL is not answered
        subscribe(one, Subscription("r", 2))
        publish(one, "elsewhere", b"", 1)
        with client(port, "publisher", True) as publisher:
            publish(publisher, "r", b"r", 2)
        one.send(Pubrec(one.expect(Publish).packet_id))
        one.expect(Pubrel)


def after(port: int) -> list[Any]:
    """What clients find."""
    with client(port, "half") as half:
        half.send(Pubrel(33))
        found: list[Any] = [half.expect(Pubcomp).packet_id]
    with client(port, "releasing") as one, client(port, "publisher", True) as publisher:
        released = one.expect(Pubrel)
        one.send(Pubcomp(released.packet_id))
        publish(publisher, "r", b"last", 1)
        found += [released.packet_id, received(one, "r")]
    with client(port, "lasting") as lasting, client(port, "publisher", True) as publisher:
        found.append(received(lasting, "a/half"))
        publish(publisher, "b/last", b"", 1)
        found.append(received(lasting, "b/last"))
    with client(port, "late", True) as late, client(port, "publisher", True) as publisher:
        subscribe(late, Subscription("#", 2))
        publish(publisher, "end", b"", 1)
        found.append(sorted(received(late, "end"), key=lambda one: one[0]))
    return found


def migrate(*words: object) -> Result:
    return CliRunner().invoke(app, ["migrate", *map(str, words)])


@pytest.mark.process
def test_clients_find_what_they_find_at_mosquitto(tmp_path: Path) -> None:
    its = Mosquitto(tmp_path, f"max_inflight_messages {WINDOW}\n")
    with its:
        before(its.port)
        its.stop()
        database = next(tmp_path.rglob("mosquitto.db"))
        config = tmp_path / "broker.toml"
        config.write_text('data = "data"\n')
        result = migrate("--database", database, "--config", config, "--json")
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert {key: report[key] for key in ("sessions", "subscriptions", "retained")} == {"sessions": 3, "subscriptions": 3, "retained": 2}
        again = migrate("--database", database, "--config", config)
        assert again.exit_code == 2
        assert "it has sessions or messages already" in again.stderr
        its.start()
        expected = after(its.port)
    with running_broker(tmp_path, "mqmesh", queues="\n") as ours:
        assert after(ours.port) == expected
    assert [len(one) for one in expected[2:]] == [1, WINDOW + 4, 1, 3]


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    config, database = tmp_path / "broker.toml", tmp_path / "mosquitto.db"
    config.write_text("")
    database.write_bytes(b"SQLite")
    for words, text in (
        (["--database", database], "--database takes --config"),
        (["--database", database, "--config", config, "a.conf"], "and nothing else"),
        (["--database", database, "--config", config], "this broker keeps nothing on disk"),
        ([], "give a mosquitto.conf"),
    ):
        result = migrate(*words)
        assert (result.exit_code, text in result.stderr) == (2, True), result.stderr
    config.write_text('data = "data"\n')
    for data, text in ((b"SQLite", "this is no mosquitto.db"), (header(5), "this is format 5"), (header() + b"\0", "it is damaged")):
        database.write_bytes(data)
        result = migrate("--database", database, "--config", config)
        assert (result.exit_code, text in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "data").exists()


# The file's parts


def header(version: int = 6) -> bytes:
    return MAGIC + struct.pack(">II", 0, version)


def client_chunk(name: str, user: bytes) -> bytes:
    body = struct.pack(">8sIHHHH4x", bytes(8), 0xFFFFFFFF, 0, len(name), 0, len(user)) + name.encode() + user
    return struct.pack(">II", CLIENT, len(body)) + body


def users(*clients: tuple[str, bytes]) -> dict[str, str | None]:
    found = read(header() + b"".join(client_chunk(*one) for one in clients))
    return {name: one.user for name, one in found.clients.items()}


def test_a_user_that_may_be_another_clients_is_none() -> None:
    wrong = b"alice\0\0garbage"
    assert users(("a", b"alice"), ("b", b"alice"), ("c", b"bob")) == {"a": "alice", "b": "alice", "c": "bob"}
    assert users(("a", b"alice"), ("b", wrong), ("c", b"alice"), ("d", wrong), ("e", b"bob")) == {
        "a": "alice",
        "b": None,
        "c": None,
        "d": None,
        "e": "bob",
    }


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_file_that_ends_early_is_damaged_and_not_taken(cut: int) -> None:
    body = struct.pack(">IHHBB2x", 0, 1, 3, 1, 0) + b"ca/#"
    data = header() + client_chunk("c", b"") + struct.pack(">II", SUB, len(body)) + body
    assert len(read(data).clients["c"].subscriptions) == 1
    if cut == len(body) + 8:
        assert isinstance(read(data[:-cut]), Database)  # it ends between two chunks
        return
    with pytest.raises(DatabaseError):
        read(data[:-cut])


@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4))
def test_any_bytes_are_read_or_damaged(tail: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(client_chunk("c", b"alice") + client_chunk("d", b"") + tail)
    for place, value in changes:
        data[place % len(data)] = value
    with contextlib.suppress(DatabaseError):
        batch_of(read(header() + bytes(data)), 0.0)
