"""Sends spans to a collector: OTLP over HTTP, in JSON.

It blocks; the command that exports runs it. A collector that is busy (429, 502, 503, 504) or away is tried again with back-off, as the
specification wants it; anything else ends the export with one line. Source: OTLP 1.x, "OTLP/HTTP".
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from ...base.http.url import web_address

PATH = "/v1/traces"
MOST = 2000  # spans of one request
ATTEMPTS = 6
TIMEOUT = 10.0  # seconds
_BUSY = (429, 502, 503, 504)


class ExportError(Exception):
    """A collector does not take spans: one line with its URL and the reason."""


class Collector:
    """One collector. url: its base, or the whole address of its traces. headers: sent with each request, such as a key.

    sent, rejected: spans so far; a collector may take a request and reject some of its spans.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, wait: Callable[[float], None] = time.sleep) -> None:
        """Raises ExportError for a URL that is none."""
        parts = web_address(url)
        if parts is None:
            raise ExportError(f'"{url}" is no address of a collector: give http://host:4318 or https://...')
        self.url = url
        self._parts = parts
        self._path = parts.path if parts.path.strip("/") else PATH
        self._headers = {"Content-Type": "application/json", "Content-Encoding": "gzip", **(headers or {})}
        self._wait = wait
        self._connection: HTTPConnection | None = None
        self.sent = self.rejected = 0

    def send(self, body: dict[str, Any], spans: int) -> None:
        """Send one request. spans: how many are in it. Raises ExportError when it is not taken in the end."""
        data = gzip.compress(json.dumps(body, separators=(",", ":")).encode(), 1)
        trouble = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._wait(min(30.0, 0.5 * 2**attempt))
            try:
                status, answer, after = self._post(data)
            except (OSError, HTTPException) as error:
                self.close()
                trouble = str(error) or type(error).__name__
                continue
            if 200 <= status < 300:
                self._count(answer, spans)
                return
            trouble = f"it answered {status}"
            if status not in _BUSY:
                break
            if after:
                self._wait(after)
        raise ExportError(f"{self.url}: takes no spans: {trouble}")

    def _post(self, data: bytes) -> tuple[int, bytes, float]:
        if self._connection is None:
            kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
            self._connection = kind(str(self._parts.hostname), self._parts.port, timeout=TIMEOUT)
        self._connection.request("POST", self._path, data, self._headers)
        answer = self._connection.getresponse()
        after = answer.getheader("Retry-After", "")
        return answer.status, answer.read(), float(after) if after.isdigit() else 0.0

    def _count(self, answer: bytes, spans: int) -> None:
        try:
            said = json.loads(answer or b"{}").get("partialSuccess") or {}
            rejected = int(said.get("rejectedSpans") or 0)
        except (ValueError, AttributeError, TypeError):
            rejected = 0
        self.sent += spans - rejected
        self.rejected += rejected

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def headers_of(given: list[str]) -> dict[str, str]:
    """Headers from options `--header NAME=VALUE`. Raises ValueError, one line."""
    made = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise ValueError(f'--header "{one}": write NAME=VALUE')
        made[name] = value
    return made
