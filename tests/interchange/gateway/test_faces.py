"""What the interchange promises, over each face: the same tests for MQTT 5, MQTT 3.1.1, HTTP and SOAP."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.interchange_faces import FACES, Face, Refused, face_of
from support.interchange_site import InterchangeSite

pytestmark = pytest.mark.parametrize("name", FACES)
HTTP = 'http = "http://127.0.0.1:0"'
SERVICES = ("shop/orders", "bank/credit", "map/ids", "bank/prices")
SEVERAL = {"bank/prices": "responses = 2"}


def site_of(folder: Path, name: str) -> InterchangeSite:
    form = 'form = "json"' if name == "mqtt 3.1.1" else ""
    services = "\n".join(f'[services."{one}"]\nusers = ["*"]\n{form}\n{SEVERAL.get(one, "")}' for one in SERVICES)
    return InterchangeSite(folder, services, interchange=HTTP)


async def two(name: str, site: InterchangeSite) -> tuple[Face, Face]:
    return await face_of(name, site, "shop/orders"), await face_of(name, site, "bank/credit")


async def test_request_and_response(tmp_path: Path, name: str) -> None:
    async with site_of(tmp_path, name) as site:
        shop, bank = await two(name, site)
        arguments = {"service": "bank/credit", "arguments": {"operation": "check"}}
        told = await shop.post("request", b"<a>\r\n1 & 2</a>", "text/xml", recipients=[arguments], topic="credit", handle="h-1")
        got = await bank.take()
        assert (got.kind, got.body, got.content_type, got.fields["sender"]) == ("request", b"<a>\r\n1 & 2</a>", "text/xml", "shop/orders")
        assert {"session": got.fields["session"], "call": got.fields["call"]} == told
        assert (got.fields["recipients"], got.fields["topic"], "handle" in got.fields) == ([arguments], "credit", False)
        assert await bank.post("response", b"\x00\xff", "image/png", hop=got.fields["hop"]) == told
        got = await shop.take()
        assert (got.kind, got.body, got.content_type, got.fields["sender"]) == ("response", b"\x00\xff", "image/png", "bank/credit")
        assert (got.fields["call"], got.fields["handle"]) == (told["call"], "h-1")


async def test_attachments(tmp_path: Path, name: str) -> None:
    async with site_of(tmp_path, name) as site:
        shop, bank = await two(name, site)
        parts = [("invoice", "application/pdf", b"%PDF\x00\xff"), ("note", "text/plain", b"paid")]
        await shop.post("notification", b"see there", "text/plain", parts, recipients=["bank/credit"])
        got = await bank.take()
        assert (got.body, got.attachments) == (b"see there", parts)


async def test_an_error_ends_a_request(tmp_path: Path, name: str) -> None:
    async with site_of(tmp_path, name) as site:
        shop, bank = await two(name, site)
        told = await shop.post("request", b"?", recipients=["bank/credit"])
        got = await bank.take()
        await bank.post("error", call=got.fields["call"], code="no-account", reason="there is none")
        got = await shop.take()
        assert (got.kind, got.fields["code"], got.fields["reason"], got.fields["call"]) == (
            "error",
            "no-account",
            "there is none",
            told["call"],
        )


async def test_a_service_gives_several_responses(tmp_path: Path, name: str) -> None:
    async with site_of(tmp_path, name) as site:
        shop, prices = await face_of(name, site, "shop/orders"), await face_of(name, site, "bank/prices")
        await shop.post("request", b"?", recipients=["bank/prices"])
        hop = (await prices.take()).fields["hop"]
        for number in ("2", "1"):
            await prices.post("response", number.encode(), hop=hop, number=number)
            got = await shop.take()
            assert (got.kind, got.body, got.fields["number"]) == ("response", number.encode(), f"{number}/2")
            with pytest.raises(Refused, match=r"^already-answered"):
                await prices.post("response", number.encode(), hop=hop, number=number)


async def test_a_cancel_says_how_far_it_came(tmp_path: Path, name: str) -> None:
    async with site_of(tmp_path, name) as site:
        shop, bank = await two(name, site)
        told = await shop.post("request", b"?", recipients=["bank/credit"])
        answer = await shop.post("cancel", call=told["call"], reason="sold out")
        assert answer["came"] == [{"recipient": "bank/credit", "state": "out", "at": "bank/credit"}]
        assert [(await bank.take()).kind for _ in range(2)] == ["request", "cancel"]
        with pytest.raises(Refused, match=r"^cancelled"):
            await bank.post("response", b"!", call=told["call"])


async def test_a_service_on_the_way(tmp_path: Path, name: str) -> None:
    async with site_of(tmp_path, name) as site:
        shop, bank = await two(name, site)
        ids = await face_of(name, site, "map/ids")
        rights = {"body": {"see": ["map/ids", "bank/credit"], "change": ["map/ids"]}}
        await shop.post("request", b"17", recipients=["bank/credit"], services=["map/ids"], access=rights)
        got = await ids.take()
        assert got.body == b"17"
        await ids.post("acknowledge", hop=got.fields["hop"])
        await ids.post("response", b"B-17", hop=got.fields["hop"])
        got = await bank.take()
        assert (got.body, got.fields["sender"]) == (b"B-17", "shop/orders")


async def test_a_session_goes_on(tmp_path: Path, name: str) -> None:
    async with site_of(tmp_path, name) as site:
        shop, bank = await two(name, site)
        told = await shop.post("notification", b"1", recipients=["bank/credit"])
        got = await bank.take()
        second = await bank.post("notification", b"2", recipients=["map/ids"], session=got.fields["session"])
        assert (second["session"], second["call"] == told["call"]) == (told["session"], False)
        third = await bank.post("notification", b"3", recipients=["map/ids"], call=got.fields["call"])
        assert third["session"] == told["session"], "a call says its session"
        stranger = await face_of(name, site, "map/ids")
        with pytest.raises(Refused, match=r"^unknown-session"):
            await shop.post("notification", b"4", recipients=["bank/credit"], session="0" * 32)
        await stranger.post("notification", b"5", recipients=["bank/credit"], session=told["session"])


async def test_the_trace_goes_on(tmp_path: Path, name: str) -> None:
    """Its own session where none came in, else the trace that came; our hop is the parent."""
    async with site_of(tmp_path, name) as site:
        shop, bank = await two(name, site)
        await shop.post("notification", b"1", recipients=["bank/credit"])
        got = await bank.take()
        assert got.fields["traceparent"] == f"00-{got.fields['session']}-{got.fields['hop']}-01"
        came = f"00-{'a' * 32}-{'b' * 16}-01"
        await shop.post("notification", b"1", recipients=["bank/credit"], traceparent=came)
        got = await bank.take()
        assert got.fields["traceparent"] == f"00-{'a' * 32}-{got.fields['hop']}-01"


async def test_refusals(tmp_path: Path, name: str) -> None:
    """Each names its code, and says what is wrong."""
    async with site_of(tmp_path, name) as site:
        shop, bank = await two(name, site)
        to = {"recipients": ["bank/credit"]}
        told = await shop.post("request", b"?", **to, handle="h-1")
        request = (await bank.take()).fields
        with pytest.raises(Refused, match=r"^not-a-recipient"):
            await shop.post("response", b"!", call=told["call"])
        await bank.post("response", b"!", hop=request["hop"])
        note = await shop.post("notification", b"?", **to)
        await bank.take()
        refused = {
            "duplicate": lambda: shop.post("request", b"?", **to, handle="h-1", possible_duplicate=True),
            "already-answered": lambda: bank.post("response", b"!", call=told["call"]),
            "no-response-wanted": lambda: bank.post("response", b"!", call=note["call"]),
            "no-request": lambda: shop.post("response", b"!", call="0000ffffffffffff"),
            "unknown-service": lambda: shop.post("request", recipients=["bank/none"]),
            "unknown-session": lambda: shop.post("request", **to, session="0" * 32),
            "unknown-call": lambda: bank.post("cancel", call=told["call"]),
            "not-the-sender": lambda: shop.post("request", **to, sender="bank/none"),
            "not-well-formed": lambda: shop.post("wish", **to),
        }
        for code, post in refused.items():
            with pytest.raises(Refused) as error:
                await post()
            assert (error.value.code, bool(error.value.what)) == (code, True)
        with pytest.raises(Refused, match=r"no recipients|recipients: "):
            await shop.post("request", b"?")
        with pytest.raises(Refused, match=r"service-cycle|not-well-formed|unknown-service"):
            await shop.post("request", recipients=["bank/credit", "bank/credit"])
