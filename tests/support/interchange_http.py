"""Requests to the HTTP face of an interchange, with the standard library's client."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from support.services import PATIENCE

JSON = "application/vnd.mqmesh.message+json"


class Answer(NamedTuple):
    """headers: names in small letters."""

    status: int
    body: Any
    headers: dict[str, str]


class Web:
    """Who asks at a URL. user: with this password; None: nobody. context: for https."""

    def __init__(self, url: str, user: str | None = None, password: str = "", context: ssl.SSLContext | None = None) -> None:
        self._to = urlsplit(url)
        self._context = context
        self._headers = {}
        if user is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        return await asyncio.to_thread(self._ask, method, path, body, {name.replace("_", "-"): one for name, one in headers.items()})

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        assert self._to.hostname is not None
        host, port, context = self._to.hostname, self._to.port, self._context
        if context is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, self._headers | headers)
            answer = connection.getresponse()
            content = answer.read()
            kind = answer.headers.get("content-type", "")
            found = json.loads(content) if "json" in kind else content
            return Answer(answer.status, found, {name.lower(): value for name, value in answer.headers.items()})
        finally:
            connection.close()

    async def post(self, message: dict[str, Any], **headers: str) -> Answer:
        """Post a message that is one JSON object."""
        return await self.ask("POST", "/v1/messages", json.dumps(message).encode(), Content_Type=JSON, **headers)

    async def poll(self, service: str, **asked: Any) -> list[dict[str, Any]]:
        """Messages of an inbox. It waits for the first one, unless `wait` says otherwise."""
        query = "&".join(f"{name}={quote(str(value))}" for name, value in ({"wait": PATIENCE} | asked).items())
        answer = await self.ask("POST", f"/v1/services/{quote(service)}/poll?{query}")
        assert answer.status == 200, answer
        found: list[dict[str, Any]] = answer.body["messages"]
        return found

    async def settle(self, **asked: Any) -> list[str]:
        """Say what becomes of leases: those that are none."""
        return_ = {"return": asked.pop("return_")} if "return_" in asked else {}
        answer = await self.ask("POST", "/v1/leases", json.dumps(asked | return_).encode())
        assert answer.status == 200, answer
        found: list[str] = answer.body["unknown"]
        return found
