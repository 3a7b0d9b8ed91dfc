"""The interchange over HTTP: posts, polls, leases, who is who (docs/interchange-http.md)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.auth.passwords import change
from mqmesh.mqtt.properties import Property
from support.certificates import Certificates
from support.interchange_http import Web
from support.interchange_site import SERVICES, InterchangeSite
from support.services import PATIENCE

HTTP = 'http = "http://127.0.0.1:0"'
REQUEST = {"kind": "request", "sender": "shop/orders", "recipients": ["bank/credit"]}


def web(site: InterchangeSite, user: str | None = None, password: str = "") -> Web:
    assert site.inside.faces is not None
    return Web(site.inside.faces.url, user, password)


async def test_the_schema_of_rules_is_there(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, interchange='http = "http://127.0.0.1:0"') as site:
        assert site.inside.faces is not None
        answer = await Web(site.inside.faces.url).ask("GET", "/rules.schema.json")
        assert (answer.status, answer.body["type"]) == (200, "array")


async def test_request_and_response(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        one = web(site)
        told = await one.post(REQUEST | {"body": "order 17", "content_type": "text/plain"}, Idempotency_Key="h-1")
        assert told.status == 200, told
        (request,) = await one.poll("bank/credit")
        assert (request["body"], request["content_type"], request["sender"]) == ("order 17", "text/plain", "shop/orders")
        assert {"session": request["session"], "call": request["call"]} == told.body
        assert request["traceparent"] == f"00-{request['session']}-{request['hop']}-01"
        assert await one.poll("bank/credit", wait=0) == [], "it is leased"

        path = f"/v1/messages?kind=response&sender=bank/credit&hop={request['hop']}"
        answer = await one.ask("POST", path, b"\xff", Content_Type="image/png")
        assert answer.body == told.body
        assert await one.settle(acknowledge=[request["lease"], "none"]) == ["none"]
        (response,) = await one.poll("shop/orders", selector="kind = 'response'")
        assert (response["base64"], response["content_type"], response["handle"]) == ("/w==", "image/png", "h-1")


async def test_a_long_poll_gets_what_comes(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        one, shop = web(site), await site.service("shop/orders")
        polls = [asyncio.create_task(one.poll("bank/credit", most=1)) for _ in range(2)]
        for number in range(2):
            await shop.post("notification", b"%d" % number, recipient="bank/credit")
        found = [message["body"] for poll in polls for message in await poll]
        assert sorted(found) == ["0", "1"]
        assert await one.poll("bank/credit", wait=0) == []


async def test_a_lease_ends(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        one, shop = web(site), await site.service("shop/orders")
        await shop.post("notification", b"1", recipient="bank/credit")
        (first,) = await one.poll("bank/credit", lease=10)
        await site.later(9)
        assert await one.settle(extend=[first["lease"]], lease=10) == []
        await site.later(9)
        assert await one.poll("bank/credit", wait=0) == []
        await site.later(2)
        (again,) = await one.poll("bank/credit")
        assert again["hop"] == first["hop"]
        assert await one.settle(acknowledge=[first["lease"]]) == [first["lease"]]
        assert await one.settle(return_=[again["lease"]]) == []
        (once_more,) = await one.poll("bank/credit")
        assert await one.settle(acknowledge=[once_more["lease"]]) == []


async def test_who_goes_away_gives_everything_back(tmp_path: Path) -> None:
    """A poll that nobody waits for takes nothing; an idle connection to the broker is closed."""
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        one, shop = web(site), await site.service("shop/orders")
        assert site.inside.faces is not None
        port = int(site.inside.faces.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /v1/services/bank/credit/poll?wait=60&lease=40000 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        writer.write(head)
        members = site.inside._queues.queue_here("interchange/inbox/bank/credit")
        assert members is not None
        await site.until(lambda: bool(members.members))
        writer.close()
        await site.until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "interchange-poll-gone"])
        await shop.post("notification", b"1", recipient="bank/credit")
        (found,) = await one.poll("bank/credit")
        assert found["body"] == "1"


async def test_only_who_logs_in_acts_as_a_service(tmp_path: Path) -> None:
    services = """
        [services."shop/orders"]
        users = ["shop-*"]
        [services."bank/credit"]
        users = ["bank"]
    """
    for user in ("shop-1", "bank"):
        change(tmp_path / "users", user, user.encode())
    async with InterchangeSite(tmp_path, services, '[access]\nusers = "users"', interchange=HTTP) as site:
        nobody, shop, bank, thief = web(site), web(site, "shop-1", "shop-1"), web(site, "bank", "bank"), web(site, "bank", "guess")
        for asker in (nobody, thief):
            refused = await asker.post(REQUEST)
            assert (refused.status, refused.headers["www-authenticate"][:5]) == (401, "Basic")
        refused = await bank.post(REQUEST)
        assert (refused.status, refused.body["code"]) == (403, "not-the-sender")
        told = await shop.post({"kind": "request", "recipients": ["bank/credit"]})
        assert told.status == 200, "who acts as one service only need not say which"
        refused = await shop.ask("POST", "/v1/services/bank/credit/poll")
        assert (refused.status, refused.body["code"]) == (403, "not-the-sender")
        refused = await shop.ask("POST", "/v1/services/none/such/poll")
        assert (refused.status, refused.body["code"]) == (403, "not-the-sender"), "as one of others"
        (request,) = await bank.poll("bank/credit")
        assert await shop.settle(acknowledge=[request["lease"]]) == [request["lease"]], "it is not its lease"


async def test_refusals(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        one = web(site)
        assert (await one.post(REQUEST, Idempotency_Key="h")).status == 200
        for message, status, code in (
            (REQUEST | {"handle": "h"}, 409, "duplicate"),
            (REQUEST | {"recipients": ["bank/none"]}, 404, "unknown-service"),
            (REQUEST | {"expires": 1}, 409, "expired"),
            (REQUEST | {"colour": "red"}, 400, "not-well-formed"),
            (REQUEST | {"recipients": "bank/credit"}, 400, "not-well-formed"),
            (REQUEST | {"handle": "h" * 1000}, 400, "not-well-formed"),
            (REQUEST | {"sender": "bank/none"}, 403, "not-the-sender"),
            (REQUEST | {"sender": 5}, 400, "not-well-formed"),
        ):
            answer = await one.post(message)
            assert (answer.status, answer.body["code"]) == (status, code), answer
        for path in (
            "poll?most=0",
            "poll?most=x",
            "poll?wait=1e9",
            "poll?lease=nan",
            "poll?selector=colour%20=",
            "poll?selector=" + "x" * 5000,
        ):
            answer = await one.ask("POST", "/v1/services/bank/credit/" + path)
            assert (answer.status, answer.body["code"]) == (400, "not-well-formed"), (path, answer)
        for asked in (b"", b"[]", b'{"acknowledge": 1}', b'{"done": []}', b'{"extend": [], "lease": 1e9}'):
            assert (await one.ask("POST", "/v1/leases", asked)).status == 400
        assert (await one.ask("POST", "/v1/messages?colour=red")).status == 400
        assert (await one.ask("POST", "/v1/messages", bytes(17_000_000))).status == 413


async def test_many_in_one_poll(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        one, shop = web(site), await site.service("shop/orders")
        for number in range(30):
            await shop.post("notification", b"%d" % number, recipient="bank/credit")
        found: list[dict[str, Any]] = []
        while len(found) < 30:
            some = await one.poll("bank/credit", most=20)
            assert len(some) <= 20
            found += some
        assert [int(message["body"]) for message in found] == list(range(30))
        assert await one.settle(acknowledge=[message["lease"] for message in found]) == []


async def test_attachments_in_parts(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        one = web(site)
        parts = (
            b"--b\r\nContent-Disposition: form-data; name=message\r\n\r\n" + json.dumps(REQUEST).encode(),
            b'--b\r\nContent-Disposition: form-data; name="body"; filename="x"\r\nContent-Type: text/plain\r\n\r\nline 1\r\nline 2',
            b"--b\r\nContent-Disposition: form-data; name=invoice\r\nContent-Type: application/pdf\r\n\r\n\xff--b",
            b"--b--\r\n",
        )
        answer = await one.ask("POST", "/v1/messages", b"\r\n".join(parts), Content_Type="multipart/form-data; boundary=b")
        assert answer.status == 200, answer
        (found,) = await one.poll("bank/credit")
        assert (found["body"], found["content_type"]) == ("line 1\r\nline 2", "text/plain")
        assert found["attachments"] == [{"name": "invoice", "content_type": "application/pdf", "base64": "/y0tYg=="}]
        answer = await one.ask("POST", "/v1/messages", b"\r\n".join(parts[:-1]), Content_Type="multipart/form-data; boundary=b")
        assert (answer.status, answer.body["code"]) == (400, "not-well-formed")


@pytest.mark.parametrize("form", ["structured", "binary"])
async def test_cloudevents(tmp_path: Path, form: str) -> None:
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        one = web(site)
        trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
        event = {"specversion": "1.0", "id": "e-1", "source": "shop/orders", "type": "order.made", "recipient": "bank/credit"}
        event |= {"kind": "request", "traceparent": trace, "expirytime": "2099-01-01T00:00:00Z"}
        if form == "binary":
            headers = {f"ce-{name}": value for name, value in event.items()}
            told = await one.ask("POST", "/v1/messages", b'{"amount": 100}', content_type="application/json", **headers)
        else:
            body = json.dumps(event | {"data": {"amount": 100}}).encode()
            told = await one.ask("POST", "/v1/messages", body, Content_Type="application/cloudevents+json")
        assert told.status == 200, told
        answer = await one.ask("POST", "/v1/services/bank/credit/poll?wait=60", Accept="application/cloudevents-batch+json")
        (found,) = answer.body
        assert found["data"] == {"amount": 100}
        assert (found["specversion"], found["source"], found["type"]) == ("1.0", "shop/orders", "order.made")
        assert found["traceparent"] == f"00-{'a' * 32}-{found['hop']}-01", "the trace that came goes on"
        assert found["id"] == found["hop"]
        again = await one.post(REQUEST, Idempotency_Key="e-1")
        assert again.body["code"] == "duplicate", "the event's id is the handle"


async def test_with_services_over_mqtt(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, SERVICES, interchange=HTTP) as site:
        one, bank = web(site), await site.service("bank/credit")
        told = await one.post(REQUEST | {"body": "?"})
        body, header = await bank.take()
        assert (body, header["call"]) == (b"?", told.body["call"])
        await bank.post("response", b"!", {Property.CONTENT_TYPE: "text/plain"}, call=header["call"])
        (response,) = await one.poll("shop/orders")
        assert (response["kind"], response["body"]) == ("response", "!")


@pytest.mark.process
async def test_the_program_of_the_page(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path, interchange=HTTP) as site:
        assert site.inside.faces is not None
        program = Path(__file__).parents[3] / "examples" / "soap.py"
        words = sys.executable, str(program), f"{site.inside.faces.url}/soap?wsdl"
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["credit granted"]), done.stderr


async def test_https_with_the_certificate_of_the_broker(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    certificates.broker("test", "127.0.0.1")
    tls = f'[tls]\ncertificate = "{certificates.certificate("test")}"\nkey = "{certificates.key("test")}"'
    async with InterchangeSite(tmp_path, SERVICES, tls, interchange='http = "https://127.0.0.1:0"') as site:
        assert site.inside.faces is not None
        assert site.inside.faces.url.startswith("https://")
        one = Web(site.inside.faces.url, context=certificates.context())
        assert (await one.post(REQUEST)).status == 200
        assert len(await one.poll("bank/credit")) == 1


@pytest.mark.parametrize("address", ["http://0.0.0.0:0", "http://192.0.2.1:80", "ftp://127.0.0.1:0", "127.0.0.1"])
def test_passwords_do_not_travel_in_the_clear(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError):
        InterchangeSite(tmp_path, interchange=f'http = "{address}"')
