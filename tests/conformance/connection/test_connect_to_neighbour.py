"""The broker as a client: a link to a neighbour begins with CONNECT, and what it sends there has to be lawful too (chapter 7 of 3.1.1)."""

from __future__ import annotations

import socket
from pathlib import Path

from conformance import wire
from conformance.conftest import start, stop
from conformance.lab import TIMEOUT
from conformance.statements import states
from conformance.wire import Reader


def packet_from(peer: socket.socket) -> tuple[int, bytes]:
    """The next packet of whoever has dialled."""
    data = b""
    while (whole := wire.split(data)) is None:
        piece = peer.recv(1 << 16)
        assert piece, f"the connection ended behind {data!r}"
        data += piece
    assert whole[2] == len(data), "something is sent before CONNACK"
    return whole[0], whole[1]


@states(mqtt311="7.0.0-1", mqtt5="3.1.0-1 4.12.0-5")
def test_a_broker_that_dials_another_is_a_client_there(tmp_path: Path, version: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT)
        address = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        text = f'name = "one"\nnumber = 1\n[mesh]\nname = "m"\nkey = "a secret of 16 bytes or more"\n[[mesh.peer]]\naddress = "{address}"\n'
        process, _ = start(tmp_path, text)
        try:
            peer, _ = server.accept()
            with peer:
                peer.settimeout(TIMEOUT)
                first, body = packet_from(peer)
                assert first == 0x10
                reader = Reader(body)
                assert (reader.string(), reader.number(1)) == ("MQTT", 5)
                flags = reader.number(1)
                assert flags & 1 == 0
                assert flags & 0x3C == 0  # no will
                reader.number(2)  # keep-alive
                found = Reader(reader.take(reader.varint()))
                method = None
                while found.data:
                    identifier = found.varint()
                    name = next(name for name, (number, _, _) in wire.PROPERTIES.items() if number == identifier)
                    value = found.value(wire.PROPERTIES[name][1])
                    if name == "authentication_method":
                        method = value
                assert method
                assert reader.string()  # it has a client identifier
                assert reader.data == b"" or flags & 0xC0
                peer.sendall(wire.packet(0x20, b"\0\x8c", wire.properties(None)))  # the neighbour does not know this method
                assert peer.recv(100) == b""
        finally:
            stop(process, tmp_path)
