"""paho-mqtt and the package `websockets` over ws and wss, on both loops of the broker."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.address import parse_address
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connect, Pingreq, Pingresp
from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from support.certificates import Certificates
from support.command import start
from support.paho_client import PATIENCE, Paho
from support.services import free_port, wait_until

RETURN = 90.0  # seconds that a client may take to come back


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    certificates.broker("porto")
    return certificates


class Broker:
    """`mqmesh broker` with WebSocket listeners, without and with TLS, and one for TCP."""

    def __init__(self, certificates: Certificates, folder: Path, loop: str) -> None:
        self.log = folder / "broker.log"
        listen = [word for scheme in ("ws", "wss", "mqtt") for word in ("--listen", f"{scheme}://127.0.0.1:0")]
        environment = {**os.environ, "MQMESH_LOOP": loop}
        self.process = start("broker", *listen, *certificates.options("porto"), stderr=self.log, env=environment)
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        assert line.startswith("ready ws://127.0.0.1:"), self.log.read_text()
        self.addresses = line.split()[1:4]
        self.ws, self.wss, self.mqtt = (parse_address(one).port for one in self.addresses)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self.process.communicate()
        assert "Traceback" not in self.log.read_text()


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def broker(request: pytest.FixtureRequest, made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(made, tmp_path_factory.mktemp("broker"), request.param)
    yield running
    running.stop()


def client(broker: Broker, made: Certificates, scheme: str, version: int = 5, **options: object) -> Paho:
    if scheme == "mqtt":
        return Paho(broker.mqtt, version)
    context = made.context() if scheme == "wss" else None
    return Paho(broker.ws if scheme == "ws" else broker.wss, version, context=context, path="/mqtt", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_paho_sends_and_receives_at_each_qos(broker: Broker, made: Certificates, scheme: str, version: int, name: str) -> None:
    with client(broker, made, scheme, version) as one, client(broker, made, "mqtt", version) as other:
        for receiver, sender, topic in ((one, other, f"{name}/in"), (other, one, f"{name}/out")):
            receiver.subscribe(topic, 2)
            for qos in (0, 1, 2):
                for payload in (b"", b"x" * 120, b"y" * 200_000):
                    sender.publish(topic, payload, qos)
                    message = receiver.next()
                    assert (message.qos, message.payload) == (qos, payload)


def test_a_session_waits_for_its_client(broker: Broker, made: Certificates, name: str) -> None:
    with client(broker, made, "ws", client_id=name, persistent=True) as one:
        one.subscribe(name, 1)
        one.vanish()
    with client(broker, made, "mqtt") as other:
        other.publish(name, b"meanwhile", 1)
    with client(broker, made, "wss", client_id=name, persistent=True) as one:
        assert one.session_present
        assert one.next().payload == b"meanwhile"


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_paho_comes_back_behind_a_killed_broker(made: Certificates, tmp_path: Path, scheme: str) -> None:
    """By itself, to its session, whose subscription and queue the broker has kept."""
    listen = ["--listen", f"{scheme}://127.0.0.1:{free_port()}", "--listen", f"mqtt://127.0.0.1:{free_port()}"]
    command = ("broker", *listen, *made.options("porto"), "--data", tmp_path / "data")

    def begin() -> None:
        nonlocal process
        process = start(*command, stderr=tmp_path / "log")
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")

    process: Any = None
    begin()
    connects: queue.Queue[bool] = queue.Queue()
    messages: queue.Queue[bytes] = queue.Queue()
    client = Client(CallbackAPIVersion.VERSION2, "rover", clean_session=False, protocol=MQTTv311, transport="websockets")
    if scheme == "wss":
        client.tls_set_context(made.context())
    client.reconnect_delay_set(0.2, 1)
    client.on_connect = lambda _c, _u, flags, reason, _p: connects.put(flags.session_present)
    client.on_message = lambda _c, _u, message: messages.put(message.payload)
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", parse_address(listen[1]).port)
    client.loop_start()
    try:
        assert connects.get(timeout=RETURN) is False
        client.subscribe("t", 1)
        assert subscribed.wait(RETURN)
        with Paho(parse_address(listen[3]).port) as other:
            other.publish("t", b"first", 1)
        assert messages.get(timeout=RETURN) == b"first"
        process.kill()
        process.communicate()
        begin()
        assert connects.get(timeout=RETURN) is True
        with Paho(parse_address(listen[3]).port) as other:
            other.publish("t", b"second", 1)
        found = [messages.get(timeout=RETURN)]
        while found[-1] != b"second":  # what was not acknowledged before the kill comes again
            found.append(messages.get(timeout=RETURN))
        assert client.publish("u", b"x", 1).wait_for_publish(RETURN) is None
    finally:
        client.disconnect()
        client.loop_stop()
        process.terminate()
        assert process.wait(PATIENCE) == 0
        process.communicate()


def test_paho_at_another_path_is_refused(broker: Broker) -> None:
    with pytest.raises(ConnectionError):
        Paho(broker.ws, path="/other").open()
    wait_until(lambda: "asks for /other; here is /mqtt (status 404)" in broker.log.read_text(), PATIENCE, "line in the log")


def test_websockets_of_others_and_the_end_in_order(broker: Broker, made: Certificates) -> None:
    """A strict implementation, with fragments, pings and the closing handshake."""
    from websockets.asyncio.client import connect

    async def talk() -> None:
        async with asyncio.timeout(PATIENCE), connect(broker.addresses[0], subprotocols=["mqtt"], compression="deflate") as ws:  # type: ignore[list-item]
            assert ws.subprotocol == "mqtt"
            assert ws.response is not None
            assert "Sec-WebSocket-Extensions" not in ws.response.headers
            packet = encode(Connect("strict", 5, True, 0), 5)
            await ws.send([packet[:5], packet[5:9], packet[9:]])
            assert (await ws.recv())[0] == 0x20
            await (await ws.ping())
            await ws.send(encode(Pingreq(), 5))
            assert await ws.recv() == encode(Pingresp(), 5)
            await ws.send("text")
            await ws.wait_closed()
            assert ws.close_code == 1003

    asyncio.run(talk())


def test_hangup_with_nothing_to_reload_is_survived(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    process = start("broker", "--listen", "ws://127.0.0.1:0", stderr=log)
    assert process.stdout is not None
    port = parse_address(process.stdout.readline().split()[1]).port
    os.kill(process.pid, signal.SIGHUP)
    wait_until(lambda: "event=nothing-to-reload" in log.read_text(), PATIENCE, "line in the log")
    with Paho(port, path="/mqtt") as one:
        one.nothing_until("marker")
    process.terminate()
    assert process.wait(PATIENCE) == 0
    process.communicate()


def test_a_new_certificate_is_taken_over_without_dropping_clients(tmp_path: Path) -> None:
    """SIGHUP: who is connected stays, who comes sees the new certificate; a wrong file changes nothing. The list of origins goes along."""
    certificates = Certificates(tmp_path)
    certificates.broker("porto")
    file, log = tmp_path / "broker.toml", tmp_path / "broker.log"

    def write(origin: str) -> None:
        tls = f'[tls]\ncertificate = "{certificates.certificate("porto")}"\nkey = "{certificates.key("porto")}"\n'
        file.write_text(f'listen = ["wss://127.0.0.1:0"]\n[websocket]\norigins = ["{origin}"]\n{tls}')

    def hang_up(event: str) -> None:
        before = log.read_text().count(event)
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: log.read_text().count(event) > before, PATIENCE, f"another {event}")

    write("https://old.example")
    process = start("broker", "--config", file, stderr=log)
    assert process.stdout is not None
    port = parse_address(process.stdout.readline().split()[1]).port

    def shown() -> bytes:
        return ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(certificates.ca)).encode()

    old = certificates.certificate("porto").read_bytes()
    with Paho(port, context=certificates.context(), path="/mqtt") as one:
        assert shown().strip() == old.strip()
        certificates.broker("porto", renew=True)
        write("https://new.example")
        hang_up("event=reloaded")
        assert "event=tls-reloaded" in log.read_text()
        assert shown().strip() == certificates.certificate("porto").read_bytes().strip() != old.strip()
        certificates.certificate("porto").write_text("nothing")
        hang_up("event=tls-not-reloaded")
        one.nothing_until("still-there")
        with Paho(port, context=certificates.context(), path="/mqtt") as other:
            other.nothing_until("newcomer")
        for origin, comes in (("https://old.example", False), ("https://new.example", True)):
            page = Paho(port, context=certificates.context(), path="/mqtt", headers={"Origin": origin})
            if comes:
                page.open().close()
            else:
                with pytest.raises(ConnectionError):
                    page.open()
    process.terminate()
    assert process.wait(PATIENCE) == 0
    process.communicate()
