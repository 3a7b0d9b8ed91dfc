"""Mistakes of operators and of peers, made with the real commands beside a healthy mesh of two: each gives one clear line that says
what to do, and the healthy rest goes on working."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.mesh.link.link import Link, LinkConfig, LinkUp
from mqmesh.mesh.wire.control import LinkRecord, encode
from mqmesh.mesh.wire.identity import Identity
from mqmesh.mesh.wire.keys import Keys, Signer
from mqmesh.mqtt import codec
from mqmesh.mqtt.packets import Connect, Disconnect, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from support.command import run, start
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.slow

KEY = "a key of sixteen bytes"
MESH = "sites"
_topics = itertools.count()


class Site:
    """One `mqmesh broker` of the mesh: its log, and what it says of itself."""

    def __init__(self, folder: Path, name: str, number: int, *options: object, key: str = KEY, mesh: str = MESH) -> None:
        self.name = name
        self.log_file = folder / f"{name}.log"
        named = ("--name", name, "--number", number, "--mesh", mesh)
        listen = () if "--listen" in options else ("--listen", "mqtt://127.0.0.1:0")
        if "--config" not in options:
            patient = folder / "patient.toml"
            patient.write_text("[mesh]\nsilence = 60\n")  # no link ends because a machine is busy
            options = ("--config", patient, *options)
        environment = {**os.environ, "MQMESH_KEY": key}
        self.process = start("broker", *listen, *named, *options, stderr=self.log_file, env=environment)
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        assert line.startswith("ready mqtt://127.0.0.1:"), self.log_file.read_text()
        self.port = int(line.split()[1].rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def warnings(self) -> list[str]:
        """What the log says beyond info, without the time."""
        return [line.partition(" logger=")[2] for line in self.log_file.read_text().splitlines() if "level=info" not in line]

    def warning(self, *words: str) -> str:
        """Wait for the one line that has all the words."""

        def found() -> list[str]:
            return [line for line in self.warnings() if all(word in line for word in words)]

        wait_until(lambda: bool(found()), PATIENCE, f"line with {words} in {self.name}'s log")
        assert len(found()) == 1, found()
        return found()[0]

    def status(self) -> dict[str, Any]:
        with Paho(self.port) as client:
            client.subscribe("$SYS/broker/mesh/status")
            return json.loads(client.next().payload)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self.process.communicate()
        assert "Traceback" not in self.log_file.read_text()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Pair:
    """Two healthy brokers with a link; `works` proves that a message still crosses it and that no client was disturbed."""

    def __init__(self, folder: Path) -> None:
        self.porto = Site(folder, "porto", 1)
        self.lyon = Site(folder, "lyon", 2, "--peer", self.porto.url)
        self.publisher = Paho(self.porto.port).open()
        self.subscriber = Paho(self.lyon.port).open()
        self.subscriber.subscribe("healthy/#", 2)
        self.works(first=True)

    def works(self, first: bool = False) -> None:
        """first: the interest may still be on its way."""
        topic = f"healthy/{next(_topics)}"

        def crosses() -> bool:
            self.publisher.publish(topic, b"x", 1)
            return not self.subscriber.messages.empty() or not first

        wait_until(crosses, PATIENCE, "message across the link")
        while self.subscriber.next().topic != topic:
            pass
        assert self.publisher.disconnects.empty()
        assert self.subscriber.disconnects.empty()

    def close(self) -> None:
        self.publisher.close()
        self.subscriber.close()
        self.lyon.stop()
        self.porto.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _healthy(pair: Pair) -> Iterator[None]:
    """After each mistake the pair still works, over the very same link."""

    def link() -> list[tuple[Any, ...]]:
        """What stays as long as the link does; its round trip and what is unsent change."""
        links = pair.lyon.status()["links"]
        return [(one["up"], one["incarnation"], one["since"], one["error"]) for one in links if one["name"] == "porto"]

    wait_until(lambda: bool(link()), PATIENCE, "link to porto")
    before = link()
    yield
    pair.works()
    assert link() == before


# Mistakes in what a broker is told


def test_a_taken_port(pair: Pair) -> None:
    done = run("broker", "--listen", pair.porto.url, "--name", "graz", "--number", 3)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert f"cannot listen on {pair.porto.url}: the address is taken by another program; give another port".encode() in done.stderr


def test_one_number_at_a_neighbours_neighbour(pair: Pair, tmp_path: Path) -> None:
    with Site(tmp_path, "graz", 1, "--peer", pair.lyon.url) as graz:
        line = "number 1 is porto's in this mesh; give graz another"
        graz.warning("event=link-down", line)
        pair.lyon.warning("event=link-refused", line)
        assert [(link["up"], line in link["error"]) for link in graz.status()["links"]] == [(False, True)]
    assert [member["name"] for member in pair.lyon.status()["members"]] == ["porto", "lyon"]


def test_the_number_of_the_peer_itself(pair: Pair, tmp_path: Path) -> None:
    with Site(tmp_path, "linz", 2, "--peer", pair.lyon.url) as linz:
        line = "number 2 is linz's here; give lyon another"
        linz.warning("event=link-down", line)
        pair.lyon.warning("event=link-refused", line)


def _met(site: Site, stranger: str) -> bool:
    """Whether a site warns of a broker that has the number 1 of another one."""
    ways = [f"event=key-refused number=1 broker={stranger} ", f" intruder={stranger} "]
    lines = [line for line in site.warnings() if "number=1 " in line and "another number" in line]
    return any(way in line for line in lines for way in ways)


def test_one_number_in_two_meshes_that_are_joined(tmp_path: Path) -> None:
    """Each side keeps the one that it knew first, who meets the other says so, and all others are one mesh."""
    with contextlib.ExitStack() as sites:

        def site(name: str, number: int, *peers: Site) -> Site:
            return sites.enter_context(Site(tmp_path, name, number, *(word for peer in peers for word in ("--peer", peer.url))))

        first = site("first", 1)
        west = site("west", 2, first)
        second = site("second", 1)
        east = site("east", 3, second)
        bridge = site("bridge", 4, west, east)

        def names(of: Site) -> list[str]:
            return sorted(member["name"] for member in of.status()["members"] if member["live"])

        def settled() -> bool:
            seen = {one.name: names(one) for one in (west, east, bridge)}
            others = all({"west", "east", "bridge"} <= set(members) and len(members) == 4 for members in seen.values())
            return others and "first" in seen["west"] and "second" in seen["east"]

        wait_until(settled, PATIENCE, "three brokers that see each other, and one of the two")
        known, refused, beyond = ("first", "second", east) if "first" in names(bridge) else ("second", "first", west)
        for one, stranger in ((bridge, refused), (beyond, known)):  # by whichever of its words it meets the other first
            wait_until(lambda one=one, name=stranger: _met(one, name), PATIENCE, f"line about {stranger} in {one.name}'s log")
        with Paho(west.port) as publisher, Paho(east.port) as subscriber:
            subscriber.subscribe("joined", 1)
            wait_until(lambda: _filters(west, "east") > 0, PATIENCE, "interest at west")
            publisher.publish("joined", b"x", 1)
            assert subscriber.next().payload == b"x"
        for one, neighbour in ((first, west), (second, east)):
            with Paho(one.port) as publisher, Paho(neighbour.port) as subscriber:
                subscriber.subscribe("near", 1)
                wait_until(lambda one=one, of=neighbour: _filters(one, of.name) > 0, PATIENCE, f"interest at {one.name}")
                publisher.publish("near", one.name.encode(), 1)
                assert subscriber.next().payload == one.name.encode()


def test_a_copied_data_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Site(tmp_path, "one", 1, "--data", data):
        pass
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "identity.json").write_bytes((data / "identity.json").read_bytes())
    with Site(tmp_path, "one", 1, "--data", data) as one, Site(tmp_path, "two", 2, "--data", copy, "--peer", one.url) as two:
        line = "runs on a copy of the data folder of"
        two.warning("event=link-down", line, "one (number 1)", "give it a data folder of its own")
        one.warning("event=link-refused", line)


def test_another_key(pair: Pair, tmp_path: Path) -> None:
    with Site(tmp_path, "graz", 3, "--peer", pair.lyon.url, key="another key of 16 bytes") as graz:
        line = "have different keys for their mesh: give both the same key"
        graz.warning("event=link-down", line)
        pair.lyon.warning("event=link-refused", line)
        assert all("another key" not in text and KEY not in text for text in (*graz.warnings(), *pair.lyon.warnings()))


def test_another_mesh(pair: Pair, tmp_path: Path) -> None:
    with Site(tmp_path, "oslo", 4, "--peer", pair.lyon.url, mesh="plants") as oslo:
        line = 'lyon (number 2) belongs to mesh "sites" and oslo (number 4) to mesh "plants": give both the same mesh name'
        oslo.warning("event=link-down", line)
        pair.lyon.warning("event=link-refused", line)


def test_a_link_to_itself(pair: Pair, tmp_path: Path) -> None:
    port = free_port()
    with Site(tmp_path, "graz", 3, "--listen", f"mqtt://127.0.0.1:{port}", "--peer", f"mqtt://127.0.0.1:{port}") as graz:
        graz.warning(f"mqtt://127.0.0.1:{port} leads graz (number 3) back to itself: remove the link")
        assert len(graz.warnings()) == 1


def test_an_unreachable_peer_beside_a_good_one(pair: Pair, tmp_path: Path) -> None:
    nobody = f"mqtt://127.0.0.1:{free_port()}"
    with Site(tmp_path, "graz", 3, "--peer", nobody, "--peer", pair.porto.url) as graz:
        graz.warning(f"{nobody} cannot be reached: Connection refused; is a broker listening there?")
        wait_until(lambda: len(graz.status()["members"]) == 3, PATIENCE, "mesh of three")
        with Paho(graz.port) as client:
            client.publish("healthy/graz", b"x", 1)


def test_another_broker_than_expected(pair: Pair, tmp_path: Path) -> None:
    """porto, as lyon has warned of other refusals with this reason and warns again after a minute only."""
    with Site(tmp_path, "graz", 3, "--peer", f"{pair.porto.url}?number=7") as graz:
        line = "is porto (number 1), where graz (number 3) expects number 7: correct the address or the number"
        graz.warning("event=link-down", line)
        pair.porto.warning("event=link-refused", line)


def test_a_broker_without_a_mesh(pair: Pair, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MQMESH_KEY"}
    alone = start("broker", "--listen", "mqtt://127.0.0.1:0", env=environment)
    address = alone.stdout.readline().split()[1]  # type: ignore[union-attr]
    with Site(tmp_path, "graz", 3, "--peer", address) as graz:
        graz.warning(f"{address} refused the link from graz (number 3): this broker is in no mesh")
    alone.terminate()
    alone.communicate()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b""], ids=["http", "ssh", "mute"]
)
def test_a_peer_that_is_no_broker(pair: Pair, tmp_path: Path, answer: bytes) -> None:
    (tmp_path / "graz.toml").write_text(f"[limits]\nconnect_timeout = {60 if answer else 1}\n")  # of the one that says nothing
    with _server(answer) as address, Site(tmp_path, "graz", 3, "--peer", address, "--config", tmp_path / "graz.toml") as graz:
        line = graz.warning("event=link-down", address)
        assert "is it an mqmesh broker with a mesh?" in line or "it seems to be no MQTT 5 broker" in line, line


@contextlib.contextmanager
def _server(answer: bytes) -> Iterator[str]:
    """Says `answer` to whoever connects and hangs up; nothing and for ever when it is empty."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    kept.append(connection)
                    if answer:
                        connection.recv(4096)
                        connection.sendall(answer)
                        connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"mqtt://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


# Mistakes in a topology

TOPOLOGY = """
[mesh]
name = "sites"
key = "a key of sixteen bytes"
[[broker]]
name = "porto"
number = 1
listen = "mqtt://127.0.0.1:{one}"
[[broker]]
name = "lyon"
number = 2
listen = "mqtt://127.0.0.1:{two}"
[[link]]
between = ["porto", "lyon"]
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[mesh]", "[mesh", ["not TOML"]),
        ('name = "sites"', "", ["mesh.name", "missing"]),
        ("key =", "kye =", ["mesh.key", "missing"]),
        ("a key of sixteen bytes", "short", ["mesh.key", "16 bytes"]),
        ("number = 2", "number = 1", ["broker[2].number", "porto"]),
        ("number = 2", 'number = "2"', ["broker[2].number", "whole number"]),
        ('name = "lyon"', 'name = "porto"', ["broker[2].name", "porto"]),
        ("mqtt://127.0.0.1:{two}", "127.0.0.1:{two}", ["broker[2].listen", "mqtt://"]),
        ("mqtt://127.0.0.1:{two}", "mqtt://127.0.0.1:{one}", ["broker[2].listen", "porto"]),
        ('["porto", "lyon"]', '["porto", "lyno"]', ["link[1].between", "lyon"]),
        ('["porto", "lyon"]', '["porto", "porto"]', ["link[1].between", "two different brokers"]),
        ('["porto", "lyon"]', '["porto", "lyon"]\ncost = 0', ["link[1].cost", "1 to 65535"]),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_a_broken_topology_file(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    file = tmp_path / "broken.toml"
    assert old in TOPOLOGY
    file.write_text(TOPOLOGY.replace(old, new).format(one=free_port(), two=free_port()))
    done = run("up", file, "--data", tmp_path / "data")
    error = done.stderr.decode()
    assert (done.returncode, done.stdout, error.count("\n")) == (2, b"", 1), error
    assert error.startswith(f"mqmesh: up: {file}: ")
    assert all(word in error for word in words), error
    assert not (tmp_path / "data").exists()


def test_a_topology_with_a_taken_port(pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "taken.toml"
    file.write_text(TOPOLOGY.format(one=free_port(), two=pair.lyon.port))
    done = run("up", file, "--data", tmp_path / "data")
    error = done.stderr.decode()
    assert (done.returncode, error.count("\n")) == (2, 1), error
    assert "lyon did not start" in error
    assert "taken by another program" in error


# What other programs send

CONNECT_5 = codec.encode(Connect("bad", 5), 5)
CONNECT_4 = codec.encode(Connect("bad", 4), 4)


def packet(first: int, body: bytes) -> bytes:
    """A packet of less than 128 bytes, whatever stands in it."""
    return bytes((first, len(body))) + body


@pytest.mark.parametrize(
    ("connect", "data", "reason"),
    [
        (CONNECT_5, packet(0x36, b"\0\1a\0\1\0x"), 0x81),  # QoS 3
        (CONNECT_5, packet(0x32, b"\0\1a\0\0\0x"), 0x81),  # packet identifier 0
        (CONNECT_5, packet(0x30, b"\0\1a\4\x26\0\1k"), 0x81),  # a property that is cut off
        (CONNECT_5, packet(0x30, b"\0\1a\4\1\1\1\1"), 0x82),  # a property twice
        (CONNECT_5, packet(0x30, b"\0\2\xc0\x80\0x"), 0x81),  # a topic that is no UTF-8
        (CONNECT_5, packet(0x30, b"\0\3a/#\0x"), 0x81),  # a topic with a wildcard
        (CONNECT_5, packet(0x82, b"\0\1\0\0\x09a/b\0"), 0x81),  # a filter that is longer than the packet
        (CONNECT_5, packet(0x82, b"\0\1\0"), 0x82),  # no filter at all
        (CONNECT_5, b"\x30\xff\xff\xff\xff\x7f", 0x81),  # a length of five bytes
        (CONNECT_5, packet(0xF1, b"\0"), 0x81),  # AUTH with flags
        (CONNECT_5, CONNECT_5, 0x82),  # a second CONNECT
        (CONNECT_5, packet(0x20, b"\0\0\0"), 0x82),  # what only a server sends
        (CONNECT_4, packet(0x36, b"\0\1a\0\1x"), None),  # MQTT 3.1.1 has no way to say so
        (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", None),
        (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", None),  # TLS on a plain port
        (b"", bytes(range(256)) * 4, None),
    ],
    ids=lambda value: value[:12].hex() if isinstance(value, bytes) else str(value),
)
def test_a_malformed_packet(pair: Pair, connect: bytes, data: bytes, reason: int | None) -> None:
    """The right reason code and a closed connection; the pair's clients notice nothing."""
    with socket.create_connection(("127.0.0.1", pair.lyon.port), PATIENCE) as sock:
        if connect:
            sock.sendall(connect)
            assert sock.recv(4096)[0] == 0x20
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
        answer = _to_the_end(sock)
    if reason is None:
        assert answer == b""
    else:
        assert answer[0] == 0xE0
        assert answer[2] == reason


def test_an_oversized_packet(pair: Pair, tmp_path: Path) -> None:
    """Refused by its length, before anything of it is kept, with 0x95."""
    (tmp_path / "small.toml").write_text('[limits]\nmax_packet_size = "1 KiB"\n')
    with Site(tmp_path, "graz", 3, "--peer", pair.lyon.url, "--config", tmp_path / "small.toml") as graz:
        wait_until(lambda: len(graz.status()["members"]) == 3, PATIENCE, "mesh of three")
        with Paho(graz.port) as neighbour, socket.create_connection(("127.0.0.1", graz.port), PATIENCE) as sock:
            sock.sendall(CONNECT_5)
            assert bytes.fromhex("2700000400") in sock.recv(4096)  # Maximum Packet Size
            sock.sendall(bytes.fromhex("30ffff7f"))  # the length alone
            assert _to_the_end(sock)[:3:2] == b"\xe0\x95"
            neighbour.subscribe("large/#", 1)
            # what comes from elsewhere may be larger: the limit is for what clients of this broker send
            wait_until(lambda: _filters(pair.porto, "graz") > 0, PATIENCE, "interest at porto")
            pair.publisher.publish("large/1", bytes(5000), 1)
            assert len(neighbour.next().payload) == 5000
            assert neighbour.disconnects.empty()


def _filters(site: Site, member: str) -> int:
    return next((int(one["filters"]) for one in site.status()["members"] if one["name"] == member), 0)


def _to_the_end(sock: socket.socket) -> bytes:
    """What comes until the peer closes, which it must within the socket's timeout."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(4096):
            data += piece
    return data


# What comes over a link


class Impostor:
    """A program that knows the mesh's key and completes the handshake, then sends what it likes."""

    def __init__(self, site: Site, name: str, number: int) -> None:
        signer = Signer(os.urandom(32))
        identity = self.identity = Identity(MESH, name, number, uuid.uuid4(), int(time.time() * 1000), signer.public)
        self.keys = Keys(MESH, number, name, signer)
        self.sock = socket.create_connection(("127.0.0.1", site.port), PATIENCE)
        self.link = Link.dial(identity, KEY.encode(), LinkConfig(silence=30.0), time.monotonic(), signer=signer)
        self.send(b"")
        while not any(isinstance(event, LinkUp) for event in self.link.receive(self.sock.recv(4096), time.monotonic())):
            self.send(b"")

    def send(self, data: bytes) -> None:
        self.sock.sendall(self.link.take() + data)

    def ended_with(self) -> Disconnect:
        """The DISCONNECT with which the broker ends the link."""
        data = _to_the_end(self.sock)
        self.sock.close()
        last = data.rindex(b"\xe0")
        packet = codec.decode(0xE0, data[last + 2 :], 5) if data[last + 1] < 128 else codec.decode(0xE0, data[last + 3 :], 5)
        assert isinstance(packet, Disconnect)
        return packet


def control(kind: bytes, body: bytes) -> bytes:
    """A control packet of the mesh."""
    return packet(0x30, (6 + len(kind)).to_bytes(2, "big") + b"$mesh/" + kind + b"\0" + body)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: os.urandom(1) + b"\x7f" + os.urandom(127), None),  # a whole packet: the broker would wait for the rest of a longer one
        (lambda: b"\x30\x05\0\1a\0x", 0x81),  # a PUBLISH without an envelope
        (lambda: b"\x32\x07\0\1a\0\1\0x", 0x81),  # QoS 1 on the link
        (lambda: packet(0x30, b"\0\1a\x0b\x09\0\x08abcdefgh"), 0x81),  # an envelope of 8 bytes
        (lambda: b"\x30\xff\xff\xff\xff\x7f", 0x81),  # a length of five bytes
        (lambda: control(b"linkstate", b"\xc1"), None),  # msgpack that is none
        (lambda: control(b"linkstate", b"\xdd\xff\xff\xff\xff"), None),  # a list of four milliards
        (lambda: control(b"linkstate", b"\x91" * 60), None),  # lists in lists
        (lambda: control(b"interest", b"\x94\x01\x02\x03\x04"), None),
        (lambda: control(b"open", b"\x80"), None),
        (lambda: control(b"receipts", b"\x91\x91\x00"), None),
        (lambda: codec.encode(Subscribe(1, [Subscription("a")]), 5), 0x82),  # SUBSCRIBE
        (lambda: CONNECT_5, 0x82),  # CONNECT
    ],
    ids=[
        "random",
        "no envelope",
        "QoS 1",
        "short",
        "long",
        "no msgpack",
        "huge",
        "deep",
        "interest",
        "open",
        "receipts",
        "SUBSCRIBE",
        "CONNECT",
    ],
)
def test_garbage_on_a_link(pair: Pair, data: Callable[[], bytes], reason: int | None) -> None:
    """The link is closed with a reason and a line in the log; the other link and all clients stay."""
    name = f"bad{next(_topics)}"
    impostor = Impostor(pair.lyon, name, 9)
    impostor.send(data())
    end = impostor.ended_with()
    assert end.reason >= 0x80
    if reason is not None:
        assert end.reason == reason, end
    assert end.properties[Property.REASON_STRING]
    wait_until(lambda: f"event=link-closed peer={name}" in pair.lyon.log_file.read_text(), PATIENCE, "line in the log")
    assert "Traceback" not in pair.lyon.log_file.read_text()


def test_a_broker_that_speaks_for_another(pair: Pair) -> None:
    """Signed by itself, a lie counts for nothing and is logged once; not signed, it ends the link. Messages go on."""
    mesh = pair.lyon.status()
    porto = next(member for member in mesh["members"] if member["name"] == "porto")
    impostor = Impostor(pair.lyon, "liar", 9)
    lie = LinkRecord(1, bytes.fromhex(porto["uuid"]), "porto", porto["epoch"] + 1, 1, ())
    signed = lie._replace(seal=impostor.keys.seal("linkstate", *lie.said()))
    impostor.send(encode("linkstate", [signed]) + encode("linkstate", [signed]))
    line = pair.lyon.warning("event=key-refused", "broker=porto", "number 1 is known under the key")
    assert impostor.identity.key.hex() in line
    pair.works()
    impostor.send(encode("linkstate", [lie]))
    assert "speaks for broker 1, which has not signed it" in impostor.ended_with().properties[Property.REASON_STRING]
    pair.works()
    wait_until(lambda: pair.lyon.status()["counters"]["forged"] == 1, PATIENCE, "the count of the lie")
    assert pair.lyon.status()["counters"]["refused_keys"] == 2


def test_a_broker_with_another_key_is_refused_until_its_key_is_back(tmp_path: Path) -> None:
    with Site(tmp_path, "porto", 1, "--data", tmp_path / "porto") as porto:
        options = ("--peer", porto.url, "--data", tmp_path / "lyon")
        folder, linked = tmp_path / "lyon", "event=link-up peer=lyon"
        with Site(tmp_path, "lyon", 2, *options):
            wait_until(lambda: any(m["name"] == "lyon" and m["live"] for m in porto.status()["members"]), PATIENCE, "lyon at porto")
        assert (folder / "identity.key").stat().st_mode & 0o077 == 0
        known = json.loads((folder / "identity.json").read_text())["key"]
        shutil.move(folder, tmp_path / "copy")
        with Site(tmp_path, "lyon", 2, *options):
            line = porto.warning("event=link-refused", f"number 2 is known under the key {known}", "restore identity.key", "mesh.keys")
            assert json.loads((folder / "identity.json").read_text())["key"] in line
        assert porto.log_file.read_text().count(linked) == 1
        shutil.rmtree(folder)
        folder.mkdir()
        shutil.copy(tmp_path / "copy" / "identity.key", folder)
        with Site(tmp_path, "lyon", 2, *options):
            wait_until(lambda: porto.log_file.read_text().count(linked) == 2, PATIENCE, "another link")


def test_a_link_that_ends_in_mid_packet(pair: Pair) -> None:
    impostor = Impostor(pair.lyon, "half", 9)
    impostor.send(control(b"linkstate", b"\x90")[:-2])
    impostor.sock.close()
    wait_until(lambda: "event=link-closed peer=half" in pair.lyon.log_file.read_text(), PATIENCE, "line in the log")


def test_a_stop_by_the_keyboard(tmp_path: Path) -> None:
    """Status 0 and no traceback, also for a whole mesh."""
    file = tmp_path / "pair.toml"
    file.write_text(TOPOLOGY.format(one=free_port(), two=free_port()))
    process = start("up", file, "--data", tmp_path / "data", stderr=tmp_path / "log")
    assert process.stdout.readline().startswith("ready mesh=sites")  # type: ignore[union-attr]
    process.send_signal(2)
    assert process.wait(PATIENCE) == 0
    process.communicate()
    assert "Traceback" not in (tmp_path / "log").read_text()
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(["pgrep", "-f", str(tmp_path / "data")], check=True, capture_output=True)
