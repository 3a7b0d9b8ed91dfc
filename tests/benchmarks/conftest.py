"""A server for the load generator that can spoil what it forwards."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:  # `benchmarks` stands outside the wheel
    sys.path.append(ROOT)

from benchmarks import forward  # noqa: E402
from benchmarks.load_generator.generator import generate  # noqa: E402
from benchmarks.spec import Result, Spec  # noqa: E402

Spoil = Callable[[list[bytes]], list[bytes]]


class SpoilingServer(forward.Server):
    """Passes on whole frames; `spoil` is given each group of them, once the first `after` have gone through unharmed."""

    def __init__(self) -> None:
        super().__init__(0)
        self.spoil: Spoil | None = None
        self.after = 500
        self.passed = 0
        self.rest: dict[forward.Client, bytearray] = {}

    def pass_on(self, publisher: forward.Client, data: bytes) -> bytes:
        if not self.spoil:
            return data
        rest, size = self.rest.setdefault(publisher, bytearray()), publisher.size
        rest += data
        count = len(rest) // size
        frames = [bytes(rest[i * size : (i + 1) * size]) for i in range(count)]
        del rest[: count * size]
        self.passed += count
        return b"".join(self.spoil(frames) if self.passed > self.after else frames)


class Bench:
    """Runs the generator against the server."""

    def __init__(self, server: SpoilingServer) -> None:
        self.server = server
        self.port = server.listener.getsockname()[1]

    def run(self, spoil: Spoil | None = None, **fields: object) -> Result:
        self.server.spoil = spoil
        address = ("127.0.0.1", self.port)
        values = {"window": 2000, "seconds": 0.03, "warm_up": 0.02, "least": 3000, "patience": 60.0, **fields}
        return generate(Spec(address, address, **values))  # type: ignore[arg-type]


@pytest.fixture
def bench() -> Iterator[Bench]:
    server = SpoilingServer()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield Bench(server)
    server.stopped = True
    thread.join()
    server.listener.close()
