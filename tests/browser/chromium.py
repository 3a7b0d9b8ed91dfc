"""A real browser without a window, told what to do through its DevTools protocol; and the web server that its pages come from."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.services import missing, require
from websockets.sync.client import ClientConnection, connect

PATIENCE = 90.0  # seconds until a wait counts as failed; a browser on a busy machine takes its time
CLIENT = Path(__file__).parent / "node_modules" / "mqtt" / "dist" / "mqtt.min.js"


class Page:
    """One tab. Scripts run in it; what they return comes back, promises when they are kept."""

    def __init__(self, address: str) -> None:
        self._connection: ClientConnection = connect(address, open_timeout=PATIENCE, max_size=None)
        self._last = 0
        self.tell("Page.enable")

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        self._last += 1
        self._connection.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._connection.recv(PATIENCE))
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, url: str) -> None:
        """Go there, and wait until the page is loaded."""
        assert "errorText" not in self.tell("Page.navigate", url=url), url
        self.run(f"new Promise(done => document.readyState == 'complete' && location.href == {json.dumps(url)} ? done() : onload = done)")

    def run(self, script: str) -> Any:
        """The value of an expression."""
        answer = self.tell("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Return once an expression about the document is true; it is looked at when the document changes."""
        self.run(
            "new Promise((done, fail) => {"
            f" const look = () => {{ if ({condition}) {{ watch.disconnect(); done(true); }} }};"
            " const watch = new MutationObserver(look);"
            " watch.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});"
            f" const why = {json.dumps(f'not {condition}: ')};"
            f" setTimeout(() => fail(new Error(why + document.body.innerText)), {int(PATIENCE * 1000) - 5000});"
            " look(); })"
        )

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def running_chromium(folder: Path, trusted: Path) -> Iterator[Page]:
    """Chromium with one tab. trusted: a certificate that it takes without knowing its authority."""
    program = require("chromium")
    if not CLIENT.is_file():
        missing("MQTT.js is not installed: make services (npm, tests/browser/package.json)")
    key = x509.load_pem_x509_certificate(trusted.read_bytes()).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    pin = base64.b64encode(hashlib.sha256(key).digest()).decode()
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
    )
    command = [program, *options, f"--user-data-dir={folder}", f"--ignore-certificate-errors-spki-list={pin}", "--remote-debugging-port=0"]
    process = subprocess.Popen(
        [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("DevTools listening on ws://"):
                break
        else:
            raise AssertionError(f"chromium ended: {''.join(lines)[-2000:]}")
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        host = lines[-1].split("/")[2]
        with urllib.request.urlopen(f"http://{host}/json/list", timeout=PATIENCE) as answer:
            (tab,) = (one for one in json.load(answer) if one["type"] == "page")
        page = Page(tab["webSocketDebuggerUrl"])
        yield page
        page.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # its own group: the browser and all its processes
        process.wait()


@contextlib.contextmanager
def web_server(files: dict[str, Path]) -> Iterator[str]:
    """Serves files by name; the origin of its pages."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file = files.get(self.path.partition("?")[0].removeprefix("/"))
            self.send_response(200 if file else 404)
            self.send_header("Content-Type", "text/html" if file and file.suffix == ".html" else "text/javascript")
            self.end_headers()
            if file is not None:
                self.wfile.write(file.read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
