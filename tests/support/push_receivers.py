"""Receivers of pushes, in the test's own loop: each does with a request what the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass
class Pushed:
    """One request. headers: names in small letters."""

    path: str
    headers: dict[str, str]
    body: bytes

    def event(self) -> Any:
        return json.loads(self.body)


Answer = bytes | None  # None: never
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


def status(code: int, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {code} because\r\n{lines}Content-Length: 0\r\n\r\n".encode()


class Receiver:
    """Listens at a free port. answers: what the next requests get; the last one is for all that follow. Requests are in `came`."""

    def __init__(self, *answers: Answer | Callable[[Pushed], Awaitable[Answer]]) -> None:
        self.answers: list[Any] = list(answers) or [OK]
        self.came: asyncio.Queue[Pushed] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/in?from=mesh"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        pushed = Pushed(first.split(" ")[1], headers, await reader.readexactly(int(headers.get("content-length", 0))))
        self.came.put_nowait(pushed)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        found = await answer(pushed) if callable(answer) else answer
        if found is not None:
            writer.write(found)
            writer.close()
