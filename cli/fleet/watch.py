"""Follows what a broker reports of its mesh, over the pipe that is its standard output.

The environment variable `MQMESH_STATUS_PIPE` tells a broker that the process that started it reads there. After its `ready` line each
status is a line of JSON, the same as at `$SYS/broker/mesh/status`. So no client has to be let in, whatever [access] and [tls] say,
and only that process reads it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...broker.server import Broker

STATUS_PIPE = "MQMESH_STATUS_PIPE"

Status = dict[str, Any]


def follow(stream: IO[str], heard: Callable[[Status], None]) -> threading.Thread:
    """Call `heard` with each status, in a thread that ends, and closes the stream, when the broker ends."""

    def read() -> None:
        with stream:
            for line in stream:
                if line.endswith("\n"):  # not cut off by the broker's end
                    heard(json.loads(line))

    thread = threading.Thread(target=read, name="status", daemon=True)
    thread.start()
    return thread


def report(broker: Broker) -> None:
    """Say each status of a broker's mesh on stdout, after its `ready` line, if whoever started it reads there."""
    mesh = broker.site.mesh
    if mesh is not None and os.environ.get(STATUS_PIPE):
        mesh.reporter = _Reporter(sys.stdout.fileno()).say
        mesh.status_soon(0.0)


class _Reporter:
    """Writes in a thread of its own: a reader that stops must not stop the broker. What it has not read is replaced by what is newer."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._news = threading.Condition()
        self._text: str | None = None
        self._last = ""
        threading.Thread(target=self._write, name="status", daemon=True).start()

    def say(self, text: str) -> None:
        with self._news:
            if text != self._last:
                self._text = self._last = text
                self._news.notify()

    def _write(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._text is not None)
                data, self._text = f"{self._text}\n".encode(), None
            try:
                while data:
                    data = data[os.write(self._file, data) :]
            except OSError:  # nobody reads any more
                return
