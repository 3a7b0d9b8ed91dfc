"""A collector of spans for tests."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver(ThreadingHTTPServer):
    """A collector that reads what it gets as strictly as the specification has it. answers: status codes for the next requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[dict[str, Any]] = []
        self.answers: list[int] = []
        self.headers: list[dict[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def take(self, body: dict[str, Any]) -> None:
        for resource in body["resourceSpans"]:
            service = {one["key"]: one["value"] for one in resource["resource"]["attributes"]}
            assert service["service.name"] == {"stringValue": "mqmesh"}
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    assert len(bytes.fromhex(span["traceId"])) == 16
                    assert len(bytes.fromhex(span["spanId"])) == 8
                    assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
                    assert span["kind"] in (1, 2, 3, 4, 5)
                    values = {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}
                    self.spans.append({**span, "attributes": values, "broker": service.get("mqmesh.broker", {}).get("intValue")})


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Receiver = self.server  # type: ignore[assignment]
        data = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
        status = server.answers.pop(0) if server.answers else 200
        server.headers.append(dict(self.headers))
        if status == 200:
            assert self.path == "/v1/traces"
            server.take(json.loads(data))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A collector that runs in a thread."""
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
