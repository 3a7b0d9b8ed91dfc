"""examples/browser.html, MQTT.js in a real Chromium: connect, publish, subscribe, reconnect, over ws and wss; and a page that may not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from chromium import CLIENT, Page, running_chromium, web_server
from support.certificates import Certificates
from support.command import start
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "browser.html"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    certificates.broker("porto")
    return certificates


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with web_server({"browser.html": EXAMPLE, "mqtt.min.js": CLIENT}) as served:
        yield served


@pytest.fixture(scope="module")
def page(made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with running_chromium(tmp_path_factory.mktemp("chromium"), made.certificate("porto")) as tab:
        yield tab


class Broker:
    """At ports of its own, so that it can come back at the same ones after a kill; pages of one origin may connect."""

    def __init__(self, certificates: Certificates, folder: Path, origin: str) -> None:
        self.log = folder / "broker.log"
        self.ws, self.wss, self.mqtt = free_port(), free_port(), free_port()
        file = folder / "broker.toml"
        listen = [f"ws://127.0.0.1:{self.ws}/mqtt", f"wss://127.0.0.1:{self.wss}/mqtt", f"mqtt://127.0.0.1:{self.mqtt}"]
        tls = f'[tls]\ncertificate = "{certificates.certificate("porto")}"\nkey = "{certificates.key("porto")}"\n'
        file.write_text(f'listen = {json.dumps(listen)}\n[websocket]\norigins = ["{origin}"]\n{tls}')
        self.file = file
        self.start()

    def start(self) -> None:
        self.process = start("broker", "--config", self.file, stderr=self.log)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready "), self.log.read_text()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self.process.communicate()
        assert "Traceback" not in self.log.read_text()


@pytest.fixture(scope="module")
def broker(made: Certificates, origin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(made, tmp_path_factory.mktemp("broker"), origin)
    yield running
    running.stop()


def open_example(page: Page, origin: str, address: str) -> None:
    page.open(f"{origin}/browser.html?broker={quote(address, safe='')}")


def publish(page: Page, topic: str, payload: str) -> None:
    """As a user does: fill the form in and press the button."""
    page.run(f"document.getElementById('topic').value = {json.dumps(topic)}")
    page.run(f"document.getElementById('payload').value = {json.dumps(payload)}")
    page.run("document.querySelector('button').click()")


def there_and_back(page: Page, broker: Broker, name: str) -> None:
    page.wait_for("document.getElementById('state').textContent == 'there'")
    with Paho(broker.mqtt) as other:
        other.subscribe(f"plant/{name}/#", 1)
        publish(page, f"plant/{name}/up", "from the page é")
        message = other.next()
        assert (message.payload, message.qos) == ("from the page é".encode(), 1)
        page.wait_for(f"document.getElementById('messages').innerText.includes('plant/{name}/up = from the page é')")
        for number in range(20):
            other.publish(f"plant/{name}/down", f"to the page {number}", number % 3)
        page.wait_for("[...document.querySelectorAll('li')].at(-1)?.textContent.endsWith('to the page 19')")
        shown = page.run(f"[...document.querySelectorAll('li')].map(li => li.textContent).filter(t => t.includes('{name}/down'))")
        assert shown == [f"plant/{name}/down = to the page {number}" for number in range(20)]


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_connect_publish_subscribe(page: Page, broker: Broker, origin: str, scheme: str) -> None:
    port = broker.ws if scheme == "ws" else broker.wss
    open_example(page, origin, f"{scheme}://{'127.0.0.1' if scheme == 'ws' else 'localhost'}:{port}/mqtt")
    there_and_back(page, broker, scheme)


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_a_killed_broker_that_comes_back(page: Page, broker: Broker, origin: str, scheme: str) -> None:
    port = broker.ws if scheme == "ws" else broker.wss
    open_example(page, origin, f"{scheme}://{'127.0.0.1' if scheme == 'ws' else 'localhost'}:{port}/mqtt")
    page.wait_for("document.getElementById('state').textContent == 'there'")
    broker.process.kill()
    broker.process.wait()
    broker.process.communicate()
    page.wait_for("document.getElementById('state').textContent == 'away'")
    broker.start()
    there_and_back(page, broker, f"again-{scheme}")


def test_a_page_from_elsewhere_may_not(page: Page, broker: Broker) -> None:
    with web_server({"browser.html": EXAMPLE, "mqtt.min.js": CLIENT}) as elsewhere:
        open_example(page, elsewhere, f"ws://127.0.0.1:{broker.ws}/mqtt")
        line = f"its page is of {elsewhere}, which is not among the origins that are let in (websocket.origins) (status 403)"
        wait_until(lambda: line in broker.log.read_text(), PATIENCE, "line in the log")
        page.wait_for("document.getElementById('state').textContent == 'away'")
        page.open("about:blank")
