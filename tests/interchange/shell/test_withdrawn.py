"""Who may not take from an inbox any more gets nothing of it, whenever it became a member (docs/interchange.md#services)."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.base.interchange import ANSWER, INBOX
from mqmesh.broker.auth.passwords import change
from mqmesh.mqtt.reasons import Reason
from support.interchange_http import Web
from support.interchange_site import InterchangeSite, Service

ORDERS = '[services."shop/orders"]\nusers = ["shop"]\n'
TOPIC = "$queue/" + INBOX + "bank/credit"


def services(*users: str, more: str = "") -> str:
    return f'{ORDERS}[services."bank/credit"]\nusers = [{", ".join(map(repr, users))}]\n{more}'


def site_of(folder: Path, text: str) -> InterchangeSite:
    (folder / "users").touch()
    for user in ("shop", "bank", "betty"):
        change(folder / "users", user, "secret")
    return InterchangeSite(folder, text, '[access]\nusers = "users"\n', interchange='http = "http://127.0.0.1:0"')


async def change_services(site: InterchangeSite, folder: Path, text: str) -> None:
    (folder / "services.toml").write_text(text)
    site.inside.renew(site.config)


async def test_a_member_whose_right_is_withdrawn(tmp_path: Path) -> None:
    async with site_of(tmp_path, services("bank", "betty")) as site:
        shop = await site.service("shop/orders", "shop", password=b"secret")
        bank = await site.service("bank/credit", "bank", password=b"secret")
        await shop.post("request", b"in its hands", recipient="bank/credit")
        taken = await bank.take()
        assert "call" in await bank.post("acknowledge", hop=taken[1]["hop"]), "its PUBACK was before this"
        await change_services(site, tmp_path, services("betty"))
        await shop.post("request", b"after", recipient="bank/credit")
        betty = await site.service("bank/credit", "betty", password=b"secret")
        assert (await betty.take())[0] == b"after"
        suback = await bank.client.subscribe(TOPIC, qos=1)
        assert suback.reasons == [Reason.NOT_AUTHORIZED]
        answer = await bank.post("response", b"late", hop=taken[1]["hop"])
        assert answer["code"] == "not-the-sender", "and nothing else has come to it"


@pytest.mark.parametrize("more", ["", 'needs = ["tls"]\n'])
async def test_a_session_that_was_kept(tmp_path: Path, more: str) -> None:
    """Its subscription is looked at when the client is there again: services may have changed, and its connection may be another one."""
    async with site_of(tmp_path, services("bank", "betty")) as site:
        shop = await site.service("shop/orders", "shop", password=b"secret")
        bank = await site.client("bank", clean=False, expiry=1000, password=b"secret")
        await bank.subscribe(TOPIC, ANSWER, qos=1)
        bank.transport.abort()
        await site.gone("bank")
        users = ("bank", "betty") if more else ("betty",)
        await change_services(site, tmp_path, services(*users, more=more))
        again = await site.client("bank", clean=False, expiry=1000, password=b"secret")
        assert again.connack.session_present
        assert set(site.broker.site.sessions.get("bank").subscriptions) == {ANSWER}
        answer = await Service(shop.client, "shop/orders").post("request", b"?", recipient="bank/credit")
        assert answer.get("code") == ("not-secure-enough" if more else None)


async def test_who_polls_over_http(tmp_path: Path) -> None:
    async with site_of(tmp_path, services("bank", "betty")) as site:
        assert site.inside.faces is not None
        bank, betty = Web(site.inside.faces.url, "bank", "secret"), Web(site.inside.faces.url, "betty", "secret")
        shop = await site.service("shop/orders", "shop", password=b"secret")
        await shop.post("request", b"?", recipient="bank/credit")
        (request,) = await bank.poll("bank/credit")
        await change_services(site, tmp_path, services("betty"))
        (again,) = await betty.poll("bank/credit")
        assert again["hop"] == request["hop"], "what it had leased is somebody else's"
        refused = [await bank.ask("POST", "/v1/services/bank/credit/poll") for _ in range(2)]
        assert refused[-1].status == 403, "the first one may find that it is no member"
        await change_services(site, tmp_path, services("bank"))
        await shop.post("request", b"again", recipient="bank/credit")
        found = await bank.poll("bank/credit", most=1) + await bank.poll("bank/credit", most=1)
        assert [one["body"] for one in found] == ["?", "again"]
