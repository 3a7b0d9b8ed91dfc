"""The load generator over WebSocket: its frames are right, and real brokers are measured and found faultless."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from mqmesh.mqtt.websocket.frames import Deframer
from mqmesh.mqtt.websocket.opening import ServerOpening

from benchmarks.load_generator import wire
from benchmarks.load_generator.websocket import WebSocket
from benchmarks.peers import PEERS
from benchmarks.runner import Settings, measure
from benchmarks.scenarios import Scenario


def test_each_packet_has_a_frame_with_a_key_of_its_own() -> None:
    ours, theirs = socket.socketpair()
    server = ServerOpening("/mqtt")

    def answer() -> None:
        while (found := server.feed(theirs.recv(65536))) is None:
            pass
        theirs.sendall(found.reply)

    thread = threading.Thread(target=answer)
    thread.start()
    web = WebSocket(ours, "h")
    thread.join()
    same = b"".join(b"\x30\x0a\0\1t" + os.urandom(7) for _ in range(1000))
    other = same + b"\xc0\0" + b"\x30\xac\2\0\1t" + bytes(297)
    for packets, count in ((same, 1000), (other, 1002)):
        framed, deframer = web.framed(packets), Deframer(True, 2**20)
        assert deframer.feed(framed) == packets
        assert deframer.error is None
        sizes = 6 * count + (2 if packets is other else 0)
        assert len(framed) == len(packets) + sizes
    keys = {framed[start + 2 : start + 6] for start in range(0, 18 * 1000, 18)}
    assert len(keys) > 990
    assert wire.next_packet(packets, 0) is not None
    ours.close()
    theirs.close()


@pytest.mark.slow
@pytest.mark.parametrize("spec", [{}, {"qos": 1, "window": 100}, {"publishers": 3}, {"sizes": (16, 20_000), "window": 500}], ids=str)
def test_a_broker_with_websocket_is_measured(tmp_path: Path, spec: dict[str, Any]) -> None:
    result = measure(Scenario("ws", "WebSocket", {"web": True, **spec}), PEERS["mqmesh"], Settings(0.1, 0.05, 1), tmp_path / "broker")
    assert result["error"] == ""
    assert result["deliveries"] > 0
    assert [result[fault] for fault in ("lost", "duplicates", "disorder", "corrupt")] == [0, 0, 0, 0]
    assert "ready ws://" in (tmp_path / "broker/mqmesh0.log").read_text()


@pytest.mark.service
@pytest.mark.slow
def test_mosquitto_is_measured(tmp_path: Path) -> None:
    from support.services import require

    require("mosquitto")
    result = measure(Scenario("ws", "WebSocket", {"web": True}), PEERS["mosquitto"], Settings(0.1, 0.05, 1), tmp_path / "broker")
    assert (result["error"], result["lost"]) == ("", 0)
    assert result["deliveries"] > 0
