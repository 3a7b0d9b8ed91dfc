"""Messages are pushed to the URLs of services: signed, tried again, in windows, never where policy does not let them go."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from mqmesh.base.interchange import clients_of
from mqmesh.base.settings import ConfigError
from mqmesh.broker.auth.passwords import change
from mqmesh.interchange.gateway import push
from mqmesh.interchange.gateway.line import Lost
from mqmesh.interchange.gateway.webhook import signature
from mqmesh.interchange.registry.file import load
from mqmesh.mqtt.packets import Connack, Connect, Publish
from support.interchange_site import InterchangeSite
from support.push_receivers import OK, Pushed, Receiver, status

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
INTERVAL = 1234  # seconds, as nothing else waits
LOCAL = 'push_networks = ["127.0.0.1/32"]'


def services(more: str = "", **pushes: str) -> str:
    """bank/NAME for each URL, with `more` for each push."""
    tables = ['[services."shop/orders"]\nusers = ["*"]']
    for name, url in pushes.items():
        tables.append(f'[services."bank/{name}"]\nusers = ["*"]\ndelivery = "push"\npush = {{url = "{url}", interval = {INTERVAL}{more}}}')
    return "\n".join(tables)


async def test_a_request_is_pushed_and_answered(tmp_path: Path) -> None:
    async with Receiver() as bank:
        table = services(f', secret = "{SECRET}", user = "mesh", password = "secret"', credit=bank.url)
        async with InterchangeSite(tmp_path, table, interchange=LOCAL) as site:
            shop = await site.service("shop/orders")
            told = await shop.post("request", b'{"amount": 100}', {3: "application/json"}, recipient="bank/credit", topic="credit")
            pushed = await bank.came.get()
            event, headers = pushed.event(), pushed.headers
            assert (event["specversion"], event["source"], event["kind"], event["type"]) == ("1.0", "shop/orders", "request", "credit")
            assert (event["data"], event["call"], pushed.path) == ({"amount": 100}, told["call"], "/in?from=mesh")
            assert headers["traceparent"] == f"00-{told['session']}-{event['hop']}-01"
            assert headers["authorization"] == "Basic " + base64.b64encode(b"mesh:secret").decode()
            assert headers["webhook-id"] == event["hop"]
            expected = signature(SECRET, headers["webhook-id"], int(headers["webhook-timestamp"]), pushed.body)
            assert headers["webhook-signature"] == expected
            answer = {"kind": "response", "sender": "bank/credit", "hop": event["hop"], "body": "granted"}
            await shop.send(json.dumps(answer).encode(), {3: "application/vnd.mqmesh.message+json"})
            assert (await shop.take())[0] == b"granted"


async def test_a_push_is_tried_again(tmp_path: Path) -> None:
    """After the interval, then twice that; or as long as Retry-After says."""
    async with (
        Receiver(status(500), status(503, Retry_After="5000"), OK) as bank,
        InterchangeSite(tmp_path, services(credit=bank.url), interchange=LOCAL) as site,
    ):
        shop = await site.service("shop/orders")
        await shop.post("notification", b"1", recipient="bank/credit")
        first = await bank.came.get()
        await slept(site, INTERVAL)
        second = await bank.came.get()
        await slept(site, 5000)
        third = await bank.came.get()
        assert first.headers["webhook-id"] == second.headers["webhook-id"] == third.headers["webhook-id"]


async def slept(site: InterchangeSite, seconds: float) -> None:
    """Let a push that has failed wait for so many seconds, which nothing else waits for."""
    bound = asyncio.get_running_loop().time() + seconds

    def waits() -> bool:
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        return any(bound - 2 < one.when() < bound + 2 and not one.cancelled() for one in timers)

    await site.until(waits)
    await site.later(seconds + 2)


async def test_after_its_tries_a_message_is_there_to_be_polled(tmp_path: Path) -> None:
    """And the next one is pushed."""
    async with (
        Receiver(status(500), status(500), OK) as bank,
        InterchangeSite(tmp_path, services(", tries = 2", credit=bank.url), interchange=LOCAL) as site,
    ):
        shop = await site.service("shop/orders")
        await shop.post("notification", b"1", recipient="bank/credit")
        await bank.came.get()
        await slept(site, INTERVAL)
        await bank.came.get()
        credit = await site.service("bank/credit")
        body, header = await credit.take()
        assert (body, header["kind"], header["pushed"]) == (b"1", "notification", "failed")
        await credit.client.leave()
        await shop.post("notification", b"2", recipient="bank/credit")
        assert (await bank.came.get()).event()["data"] == "2"


async def test_a_message_that_is_held_by_a_push_survives_a_restart(tmp_path: Path) -> None:
    async with Receiver(None) as hangs, Receiver() as bank:
        async with InterchangeSite(tmp_path, services(credit=hangs.url), interchange=LOCAL) as site:
            shop = await site.service("shop/orders")
            await shop.post("notification", b"1", recipient="bank/credit")
            await hangs.came.get()
        async with InterchangeSite(tmp_path, services(credit=bank.url), interchange=LOCAL) as site:
            assert (await bank.came.get()).event()["data"] == "1"


async def test_windows(tmp_path: Path) -> None:
    """Outside them messages wait in the inbox, and may be polled."""
    later = datetime.now(UTC) + timedelta(hours=2)
    window = f', windows = ["{later:%H}:00-{later + timedelta(hours=1):%H}:00"]'
    async with Receiver() as bank, InterchangeSite(tmp_path, services(window, credit=bank.url), interchange=LOCAL) as site:
        shop, credit = await site.service("shop/orders"), await site.service("bank/credit")
        await shop.post("notification", b"1", recipient="bank/credit")
        assert (await credit.take())[0] == b"1"
        await credit.client.leave()
        await shop.post("notification", b"2", recipient="bank/credit")
        await shop.post("notification", b"3", recipient="shop/orders")
        assert (await shop.take())[0] == b"3", "what was posted before is in its inbox"
        assert bank.came.empty()
        await site.later(7200)
        assert (await bank.came.get()).event()["data"] == "2"


async def test_where_a_push_never_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Loopback that is not named, by its address or by a name; also as the target of a redirect."""
    async with Receiver() as inner:
        mapped = f"http://[::ffff:127.0.0.1]:{inner.port}/"
        urls = {"address": inner.url, "name": inner.url.replace("127.0.0.1", "localhost"), "mapped": mapped}
        urls["tls"] = inner.url.replace("http:", "https:")
        async with InterchangeSite(tmp_path / "first", services(", tries = 1", **urls)) as site:
            await refused(site, list(urls), caplog)
            assert "policy does not let pushes go to this address" in caplog.text
        async with Receiver(status(307, Location=inner.url)) as outer:
            network = f'push_networks = ["{outer.url[7:16]}/32"]'
            async with InterchangeSite(tmp_path / "second", services(", tries = 1", credit=outer.url), interchange=network) as site:
                await refused(site, ["credit"], caplog)
            assert outer.came.qsize() == 1
        assert inner.came.empty()


async def refused(site: InterchangeSite, names: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """What is posted to these is pushed in vain, and can be polled."""
    shop = await site.service("shop/orders")
    for name in names:
        await shop.post("notification", b"1", recipient=f"bank/{name}")
        await site.until(lambda name=name: f"push-given-up service=bank/{name}" in caplog.text)  # type: ignore[misc]
        poller = await site.service(f"bank/{name}")
        assert (await poller.take())[1]["pushed"] == "failed"


async def test_rules_of_access_are_for_clients(tmp_path: Path) -> None:
    """A broker that asks for names, and allows nobody else to take from inboxes, pushes; nobody has the interchange's own name."""
    change(tmp_path / "users", "shop", b"shop")
    rule = 'users = ["shop"]\nallow = ["publish", "subscribe"]\ntopics = ["interchange/#", "$queue/#"]'
    access = f'[access]\nusers = "users"\n[[access.rule]]\n{rule}'
    async with Receiver() as bank:
        table = services(credit=bank.url)
        async with InterchangeSite(tmp_path, table, access, interchange=LOCAL) as site:
            shop = await site.service("shop/orders", "shop", password=b"shop")
            await shop.post("notification", b"1", recipient="bank/credit")
            assert (await bank.came.get()).event()["data"] == "1"
            thief = await site.dial()
            thief.send(Connect(clients_of(site.config.name)[0], 5, True, 0, "shop", b"shop"))
            assert (await thief.expect(Connack)).reason >= 0x80


async def test_bad_receivers_leave_others_alone(tmp_path: Path) -> None:
    """Four of them hang, refuse, answer slowly and redirect, with more waiting than is pushed at a time; the fifth gets all of its own."""

    async def slow(pushed: Pushed) -> bytes:
        await asyncio.sleep(10)
        return OK

    async with (
        Receiver(None) as hangs,
        Receiver(status(403)) as refuses,
        Receiver(slow) as slowly,
        Receiver() as good,
        Receiver(status(302, Location=good.url)) as redirects,
    ):
        urls = {"hangs": hangs.url, "refuses": refuses.url, "slowly": slowly.url, "redirects": redirects.url, "good": good.url}
        async with InterchangeSite(tmp_path, services(**urls), interchange=LOCAL) as site:
            shop = await site.service("shop/orders")
            for name in urls:
                for number in range(20):
                    await shop.post("notification", b"%d" % number, recipient=f"bank/{name}")
            found = {(await good.came.get()).event()["data"] for _ in range(20)}
            assert found == {str(number) for number in range(20)}
            assert hangs.came.qsize() <= 8
            assert good.came.empty(), "no redirect was followed"


@pytest.mark.parametrize(
    "push",
    [
        'url = "https://user:password@example.com/"',
        'url = "ftp://example.com/"',
        'url = "https:///path"',
        'url = "https://a b/"',
        'url = "https://example.com:99999/"',
        'url = "https://example.com/", tries = 0',
        'url = "https://example.com/", windows = ["1-2"]',
        'url = "https://example.com/", zone = "Mars/North"',
    ],
)
def test_what_a_record_may_not_say(tmp_path: Path, push: str) -> None:
    (tmp_path / "services.toml").write_text(f'[services."bank/credit"]\ndelivery = "push"\npush = {{{push}}}')
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "services.toml", "here")
    assert "password@" not in str(error.value)


async def test_pushes_that_wait_and_go_on_are_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(push, "PAUSE", 0.0)
    lost, alert, taken = Lost("the broker is gone"), asyncio.Event(), asyncio.Event()

    async def take(service: str, many: int) -> list[Publish]:
        taken.set()
        return []

    line = Mock(closed=False, take=take, open=AsyncMock(side_effect=[lost, lost, alert]))
    pushes = push.Pushes(Mock(), AsyncMock(return_value=line), AsyncMock(), lambda: 0)
    pushes.renew({"bank/credit": push.Target(Mock(windows=()))})
    await taken.wait()
    await pushes.stop()
    assert [one.split(" text=")[0] for one in caplog.messages] == [
        f"event={word} service=bank/credit" for word in ("push-waits", "push-goes-on")
    ]
