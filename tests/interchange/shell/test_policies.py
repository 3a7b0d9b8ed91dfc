"""What a service's record asks of connections, and how much it may post (docs/interchange.md#services)."""

from __future__ import annotations

from pathlib import Path

from mqmesh.base.interchange import INBOX
from mqmesh.broker.auth.passwords import change
from mqmesh.mqtt.reasons import Reason
from support.interchange_site import InterchangeSite

SERVICES = """
[services."shop/orders"]
users = ["*"]
[services."shop/few"]
users = ["*"]
limit = 2
[services."bank/credit"]
users = ["*"]
[services."bank/proven"]
users = ["*"]
needs = ["password"]
[services."bank/sealed"]
users = ["*"]
needs = ["tls"]
"""
ACCESS = '[access]\nusers = "users"\nanonymous = true\n'


def site_of(folder: Path) -> InterchangeSite:
    (folder / "users").touch()
    change(folder / "users", "shop", "secret")
    return InterchangeSite(folder, SERVICES, ACCESS)


async def test_a_service_says_what_connections_need(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        plain = await site.service("shop/orders", "plain")
        proven = await site.service("shop/orders", "shop", password=b"secret")
        assert (await plain.post("request", recipient="bank/proven"))["code"] == "not-secure-enough"
        assert "call" in await proven.post("request", recipient="bank/proven")
        for sender in (plain, proven):
            assert (await sender.post("request", recipient="bank/sealed"))["code"] == "not-secure-enough"
            suback = await sender.client.subscribe("$queue/" + INBOX + "bank/sealed", qos=1)
            assert suback.reasons == [Reason.NOT_AUTHORIZED]
        plain.name = "bank/proven"
        assert (await plain.post("request", recipient="bank/credit"))["code"] == "not-secure-enough"


async def test_a_limit_is_kept_over_a_restart_and_ends_with_the_month(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        few = await site.service("shop/few")
        assert (await few.post("request", recipient="bank/none"))["code"] == "unknown-service", "what is refused does not count"
        assert "call" in await few.post("request", recipient="bank/credit")
    async with site_of(tmp_path) as site:
        few = await site.service("shop/few")
        assert "call" in await few.post("request", recipient="bank/credit")
        assert (await few.post("request", recipient="bank/credit"))["code"] == "over-limit"
        await site.later(32 * 86_400)
        again = await site.service("shop/few", "again")
        assert "call" in await again.post("request", recipient="bank/credit")
