"""Management over HTTP: the same answers, for users of the broker, on loopback only."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from mqmesh.base.address import is_loopback
from mqmesh.broker.auth import passwords
from mqmesh.broker.auth.roles import ManagementSettings
from mqmesh.broker.config import TlsSettings, parse
from mqmesh.broker.management import http as face
from mqmesh.broker.server import StartError
from mqmesh.broker.settings.http import HttpAddress
from starlette.applications import Starlette
from support.broker_site import Site
from support.certificates import Certificates
from support.management import EVERYBODY, role
from support.services import PATIENCE

ANY = ("127.0.0.1", 0)
JSON = {"Content-Type": "application/json"}


async def fetch(
    site: Site, method: str, path: str, body: object = None, tls: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, Any]:
    """Status and body. tls: whom to believe, where the listener has a certificate."""
    address = urlsplit(site.broker.http.url)

    def ask() -> tuple[int, Any]:
        if tls is None:
            connection = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE)
        else:
            connection = http.client.HTTPSConnection(address.hostname, address.port, timeout=PATIENCE, context=tls)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, sent, {**(JSON if body is not None else {}), **named})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    return await asyncio.to_thread(ask)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_the_same_as_over_mqtt() -> None:
    async with Site(http=ANY, management=EVERYBODY) as site:
        client = await site.client("sensor-1")
        await client.publish("plant/1", b"on", 1, retain=True)
        status, answer = await fetch(site, "POST", "/manage", {"list": "clients", "where": {"client": "sensor-*"}})
        assert (status, [row["client"] for row in answer["rows"]]) == (200, ["sensor-1"])
        status, answer = await fetch(site, "GET", "/manage/retained?topic=plant/%2B&payload=true&limit=5&sort=-bytes&at=site0")
        assert (status, [row["payload"] for row in answer["rows"]]) == (200, ["on"])
        status, answer = await fetch(site, "POST", "/manage", {"do": "disconnect", "client": "sensor-1"})
        assert (status, list(answer["done"])) == (200, ["site0"])
        await client.closed(0x98)
        status, answer = await fetch(site, "GET", "/manage/moons")
        assert (status, "there is no list 'moons'" in answer["error"]) == (400, True)


async def test_users_log_in(tmp_path: Path) -> None:
    for name in ("ops", "alice"):
        passwords.change(tmp_path / "users", name, b"pw")
    config = parse({"access": {"users": "users", "anonymous": True, "operators": ["ops"]}}, "F", tmp_path)
    async with Site(http=ANY, access=config.access) as site:
        for headers, expected in (
            ({"Authorization": basic("ops", "pw")}, 200),
            ({"Authorization": basic("alice", "pw")}, 403),
            ({"Authorization": basic("ops", "wrong")}, 401),
            ({"Authorization": "Bearer abc"}, 401),
            ({"Authorization": "Digest x"}, 401),
            ({"Authorization": "Basic ???"}, 401),
            ({}, 401),
        ):
            status, answer = await fetch(site, "GET", "/manage/clients", **headers)
            assert (status, "error" in answer) == (expected, expected != 200), headers


async def test_pages_of_browsers_and_odd_requests_are_refused() -> None:
    async with Site(http=ANY, management=EVERYBODY) as site:
        request = {"list": "clients"}
        for headers, expected in (
            ({"Origin": "http://127.0.0.1"}, 403),
            ({"Host": "broker.example.com"}, 403),
            ({"Content_Type": "text/plain"}, 415),
            ({"Host": "localhost:1"}, 200),
        ):
            status, _ = await fetch(site, "POST", "/manage", request, **headers)
            assert status == expected, headers
        status, answer = await fetch(site, "POST", "/manage", b"x" * 20_000)
        assert (status, "at most 16,384 bytes" in answer["error"]) == (413, True)
        assert (await fetch(site, "POST", "/manage", b"{"))[0] == 400


async def test_loopback_only() -> None:
    async with Site(management=EVERYBODY) as site:
        routes = face.management_routes(site.broker.site, site.broker.management, HttpAddress("0.0.0.0", 1))
        request = SimpleNamespace(headers={}, url=SimpleNamespace(hostname="127.0.0.1"))
        endpoint: Any = Starlette(routes=routes).routes[0]
        with pytest.raises(face.HttpRefused, match="in the clear"):
            endpoint.endpoint.__self__._check(request)
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "example.com")] == [True] * 3 + [False] * 2


async def test_from_elsewhere_with_tls(tmp_path: Path) -> None:
    """The name in Host may be any then, and pages of browsers are refused as before."""
    certificates = Certificates(tmp_path)
    certificates.broker("broker")
    passwords.change(tmp_path / "users", "ops", b"pw")
    config = parse({"access": {"users": "users", "anonymous": True, "operators": ["ops"]}}, "F", tmp_path)
    tls = TlsSettings(certificates.certificate("broker"), certificates.key("broker"), ca=certificates.ca)
    async with Site(http=("0.0.0.0", 0, True), tls=tls, access=config.access) as site:
        assert site.broker.http.url.startswith("https://0.0.0.0:")
        context = ssl.create_default_context(cafile=str(certificates.ca))
        context.check_hostname = False
        ops = {"Authorization": basic("ops", "pw")}
        for headers, expected in (
            ({**ops, "Host": "broker.example.com"}, 200),
            ({**ops, "Origin": "https://broker.example.com"}, 403),
            ({"Authorization": basic("ops", "wrong")}, 401),
            ({}, 401),
        ):
            status, _ = await fetch(site, "GET", "/manage/clients", tls=context, **headers)
            assert status == expected, headers
    with pytest.raises(StartError, match="without a password"):
        await Site(http=("127.0.0.1", 0, True), tls=replace(tls, key_password_file=tmp_path / "users")).broker.start()
    with pytest.raises(StartError, match="needs the broker's certificate"):
        await Site(http=("127.0.0.1", 0, True)).broker.start()


async def test_the_description_names_what_there_is() -> None:
    async with Site(http=ANY, management=ManagementSettings()) as site:
        status, found = await fetch(site, "GET", "/manage/openapi.json")
        assert (status, found["openapi"]) == (200, "3.1.0")
        assert {"/manage", "/manage/clients", "/manage/routes"} <= found["paths"].keys()
        topic = [one for one in found["paths"]["/manage/routes"]["get"]["parameters"] if one["name"] == "topic"]
        assert [one["required"] for one in topic] == [True]
        forms = found["paths"]["/manage"]["post"]["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
        assert {"disconnect", "reload"} <= {one["properties"]["do"]["const"] for one in forms if "do" in one["properties"]}


async def test_a_role_for_some_topics() -> None:
    async with Site(http=ANY, management=role("viewer", topics=("plant/#",))) as site:
        status, answer = await fetch(site, "GET", "/manage/clients")
        assert (status, "not permitted" in answer["error"]) == (400, True)
        assert (await fetch(site, "GET", "/manage/retained"))[0] == 200
