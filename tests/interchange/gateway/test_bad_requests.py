"""What strangers send to the HTTP and SOAP faces: each gets its refusal, and nobody else notices."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import pytest
from mqmesh.base.http.guard import GuardedProtocol
from mqmesh.interchange.gateway import line
from mqmesh.interchange.gateway.desk import Desk, open_line
from mqmesh.interchange.gateway.line import Denied, Line, Login, Lost
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack
from mqmesh.mqtt.reasons import Reason
from support.broker_site import until
from support.interchange_http import Web
from support.interchange_site import InterchangeSite

HTTP = 'http = "http://127.0.0.1:0"'
SOAP = '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" xmlns="urn:mqmesh:interchange">{}</s:Envelope>'
POST = "<s:Body><post><message>{}</message></post></s:Body>"
GOOD = "<kind>notification</kind><sender>shop/orders</sender><recipient><service>bank/credit</service></recipient>"


@asynccontextmanager
async def sited(folder: Path) -> AsyncIterator[tuple[InterchangeSite, Web]]:
    """A site that serves as before when the test has done its worst."""
    async with InterchangeSite(folder, interchange=HTTP) as site:
        assert site.inside.faces is not None
        web = Web(site.inside.faces.url)
        yield site, web
        good = SOAP.format(POST.format(GOOD)).encode()
        assert (await web.ask("POST", "/soap", good, Content_Type="text/xml")).status == 200
        assert len(await web.poll("bank/credit")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<a",
        "<a/>",
        SOAP.format(""),
        SOAP.format("<s:Body/>"),
        SOAP.format("<s:Body><wish/></s:Body>"),
        SOAP.format('<s:Body><post xmlns="urn:other"/></s:Body>'),
        SOAP.format("<s:Body><post/></s:Body>"),
        SOAP.format(POST.format("<colour>red</colour>")),
        SOAP.format(POST.format(GOOD + "<expires>soon</expires>")),
        SOAP.format(POST.format(GOOD + "<possible_duplicate>perhaps</possible_duplicate>")),
        SOAP.format(POST.format(GOOD + "<body><data>no base64!</data></body>")),
        SOAP.format(POST.format(GOOD + '<body><data href="cid:none"/></body>')),
        SOAP.format(POST.format(GOOD + "<attachment><text>without a name</text></attachment>")),
        SOAP.format('<s:Header><a s:mustUnderstand="1"/></s:Header>' + POST.format(GOOD)),
        SOAP.format("<s:Body><poll><service>bank</service></poll></s:Body>"),
        SOAP.format("<s:Body><poll><service>bank/credit</service><most>many</most></poll></s:Body>"),
        SOAP.format("<s:Body><settle><lease>0</lease></settle></s:Body>"),
        '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>' + SOAP.format(POST.format(GOOD.replace("shop", "&b;"))),
        '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/a.dtd">' + SOAP.format(POST.format(GOOD)),
        '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + SOAP.format(POST.format(GOOD + "<topic>&a;</topic>")),
        SOAP.format(POST.format(GOOD + "<body><text>&undeclared;</text></body>")),
        SOAP.format("<s:Body>" + "<a>" * 100_000 + "</a>" * 100_000 + "</s:Body>"),
        SOAP.format(POST.format(GOOD + f"<body><text>{'x' * 11_000_000}</text></body>")),
    ],
    ids=lambda text: text.replace(SOAP[:90], "")[:40],
)
async def test_soap(tmp_path: Path, text: str) -> None:
    async with sited(tmp_path) as (_, web):
        answer = await web.ask("POST", "/soap", text.encode(), Content_Type="text/xml")
        assert (answer.status, b"Fault>" in answer.body, b"passwd" in answer.body) == (500, True, False)
        assert b"<code>not-well-formed</code>" in answer.body or b"<code>too-large</code>" in answer.body, answer


async def test_soap_in_utf_16_has_no_entities_either(tmp_path: Path) -> None:
    """A document type that a search for its bytes does not find."""
    text = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY a "hidden">]>' + SOAP.format(
        POST.format(GOOD + "<topic>&a;</topic>")
    )
    async with sited(tmp_path) as (_, web):
        answer = await web.ask("POST", "/soap", text.encode("utf-16"), Content_Type="text/xml")
        assert answer.status == 500
        assert b"not-well-formed" in answer.body


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"--b\r\n\r\nx\r\n--b--"),
        ("multipart/form-data; boundary=", b"--b\r\n\r\nx\r\n--b--"),
        ("multipart/form-data; boundary=" + "b" * 71, b""),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b"--b"),
        ("multipart/form-data; boundary=b", b"--b\r\n"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nwithout end"),
        ("multipart/form-data; boundary=b", b"--b\r\nhead without end\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\nno header\r\n\r\nx\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\nA: " + b"x" * 10_000 + b"\r\n\r\nx\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Transfer-Encoding: base64\r\n\r\n%%\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Transfer-Encoding: x-own\r\n\r\nx\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nnobody named it\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data; name=message\r\n\r\n[]\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\n\r\n" * 100_000 + b"--b--"),
        ("multipart/form-data; boundary=b", 2 * b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n" + b"--b--"),
        ("application/vnd.mqmesh.message+json", b"{"),
        ("application/vnd.mqmesh.message+json", b"[" * 1_000_000),
        ("application/vnd.mqmesh.message+json", b'"text"'),
        ("application/vnd.mqmesh.message+json", b"\xff"),
        ("application/vnd.mqmesh.message+json", b'{"kind": "request", "attachments": [{"name": "body"}]}'),
        ("application/cloudevents+json", b"{}"),
        ("application/cloudevents+json", b'{"specversion": "0.3", "id": "1", "source": "shop/orders", "type": "a"}'),
        ("application/cloudevents+json", b'{"specversion": "1.0", "id": "1", "source": "shop/orders"}'),
        ("application/cloudevents+json", b'{"specversion": "1.0", "id": "1", "source": "a/b", "type": "a", "data_base64": 5}'),
        ("application/cloudevents+json", b'{"specversion": "1.0", "id": "1", "source": "a/b", "type": "a", "expirytime": "soon"}'),
        ("application/cloudevents+json", b'{"specversion": "1.0", "id": "1", "source": "a/b", "type": "a", "colour": "red"}'),
        ("application/cloudevents+json", b'{"specversion": "1.0", "id": "1", "source": "a/b", "type": "a", "attachments": "{"}'),
    ],
    ids=lambda one: one[:40] if isinstance(one, str) else None,
)
async def test_posts(tmp_path: Path, content_type: str, body: bytes) -> None:
    async with sited(tmp_path) as (_, web):
        answer = await web.ask("POST", "/v1/messages?sender=shop/orders", body, Content_Type=content_type)
        assert (answer.status, answer.body["code"]) == (400, "not-well-formed"), answer


LOGINS = ["Basic", "Basic !", "Basic YQ==", "Basic YQBiOnB3", "Digest a", "Bearer", "Bearer a.b.c", "Bearer " + "x" * 40_000]


@pytest.mark.parametrize("header", LOGINS)
async def test_logins(tmp_path: Path, header: str) -> None:
    """A broker that asks nobody who he is takes any name, as over MQTT; what is no login is refused."""
    async with sited(tmp_path) as (_, web):
        answer = await web.ask("POST", "/v1/messages?kind=notification&sender=shop/orders", Authorization=header)
        assert answer.status in (400, 401, 503), answer


async def test_bodies_without_end(tmp_path: Path) -> None:
    """A hundred bodies that stop in the middle hold nobody up."""
    async with sited(tmp_path) as (site, web):
        assert site.inside.faces is not None
        port = urlsplit(site.inside.faces.url).port
        writers = []
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/messages?kind=request HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbegun")
            writers.append(writer)
        answer = await web.ask("POST", "/v1/messages?kind=request&sender=shop/orders&recipient=map/ids", b"?")
        assert answer.status == 200
        for writer in writers:
            writer.close()


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/vnd.mqmesh.message+json", b'{"a": [' + b"1," * 1_000_000 + b"1]}"),
        ("application/cloudevents+json", b'{"a": [' + b"1," * 1_000_000 + b"1]}"),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\nContent-Disposition: form-data; name=message\r\n\r\n" + b"[" * 2_000_000 + b"\r\n--b--",
        ),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Transfer-Encoding: base64\r\n\r\n" + b"A" * 2_000_000 + b"\r\n--b--"),
        ("text/xml", SOAP.format(POST.format("<recipient/>" * 1_000_000)).encode()),
    ],
    ids=["json", "event", "message", "base64", "xml"],
)
async def test_what_is_parsed_in_one_piece_is_bounded(tmp_path: Path, content_type: str, body: bytes) -> None:
    async with sited(tmp_path) as (_, web):
        if content_type == "text/xml":
            answer = await web.ask("POST", "/soap", body, Content_Type=content_type)
            assert (answer.status, b"<code>too-large</code>" in answer.body) == (500, True)
            answer = await web.ask("POST", "/soap", SOAP.format(POST.format("<recipient/>" * 100_000)).encode(), Content_Type=content_type)
            assert b"more than 10000 elements" in answer.body
        else:
            answer = await web.ask("POST", "/v1/messages?sender=shop/orders", body, Content_Type=content_type)
            assert (answer.status, answer.body["code"]) == (413, "too-large"), answer


@pytest.mark.parametrize("selector", ["%00", "'%00'", "kind%20%3D%20'%00'"])
async def test_a_selector_that_mqtt_cannot_carry(tmp_path: Path, selector: str) -> None:
    async with sited(tmp_path) as (_, web):
        found = await web.ask("POST", f"/v1/services/bank/credit/poll?selector={selector}")
        assert (found.status, found.body["code"]) == (400, "not-well-formed")


@pytest.mark.parametrize("lease", ["\\ud800", "\\u00e9"])
async def test_a_lease_that_no_answer_can_name(tmp_path: Path, lease: str) -> None:
    async with sited(tmp_path) as (_, web):
        found = await web.ask("POST", "/v1/leases", f'{{"acknowledge": ["{lease}"]}}'.encode())
        assert (found.status, found.body["code"]) == (400, "not-well-formed")


async def test_a_login_that_is_refused_while_the_next_one_comes_is_forgotten_alone() -> None:
    """Else the next one is forgotten before it is there, and each request opens another connection to the broker."""
    loop, made, refused = asyncio.get_running_loop(), [], []
    second, going, errors = asyncio.Event(), asyncio.Event(), []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    login = Login("alice", b"secret")

    async def connect(_login: Login, address: str) -> Line:
        made.append(address)
        if address == "first":
            refused.append(loop.create_task(desk.enter(login, "second")))  # its turn is before what follows the refusal
            raise Denied("no")
        second.set()
        await going.wait()
        raise Denied("no")

    desk = Desk(connect, lambda: 0)
    with pytest.raises(Denied):
        await desk.enter(login, "first")
    refused.append(loop.create_task(desk.enter(login, "third")))
    await second.wait()
    await asyncio.sleep(0)  # the third one comes
    going.set()
    answers = await asyncio.gather(*refused, return_exceptions=True)
    assert [type(one) for one in answers] == [Denied, Denied]
    await asyncio.sleep(0)
    desk.close()
    assert (made, errors) == (["first", "second"], [])


async def test_a_login_that_the_broker_does_not_answer_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after several wrong passwords, whose answers are held back."""
    monkeypatch.setattr(line, "PATIENCE", 0.0)
    transport = mock.Mock()

    async def connect(login: Login, address: str) -> Line:
        made = Line(login, pings=False)
        made.connection_made(transport)
        return await open_line(made)

    desk = Desk(connect, lambda: 0)
    with pytest.raises(Lost, match="has not answered"):
        await desk.enter(Login("shop", b"secret"), "")
    transport.close.assert_called_once_with()
    desk.close()


async def test_connections_that_have_ended_hold_no_cycles(tmp_path: Path) -> None:
    """Cycles stay where the broker sets old objects apart: of logins, good and bad, of requests that were refused, and of a scrape."""

    def alive() -> int:
        return sum(isinstance(one, Line | GuardedProtocol) for one in gc.get_objects())

    async with sited(tmp_path) as (site, web):
        assert site.inside.faces is not None
        desk = site.inside.faces._desk
        gc.collect()
        before = alive()
        gc.disable()
        try:
            assert (await web.ask("POST", "/v1/messages", b"{}")).status == 403
            assert (await web.ask("POST", "/v1/query", b"x")).status == 400
            for login in list(desk._accounts):
                desk._drop(login)

            async def refuse(login: Login, address: str) -> Line:
                made = Line(login, pings=False)
                made.connection_made(mock.Mock())
                made.data_received(encode(Connack(False, Reason.BAD_USER_NAME_OR_PASSWORD), 5))
                return await open_line(made)

            desk._connect, connect = refuse, desk._connect
            assert (await web.ask("POST", "/v1/messages", b"{}")).status == 401
            desk._connect = connect
            await until(lambda: alive() == before)
        finally:
            gc.enable()
