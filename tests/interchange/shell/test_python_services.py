"""Services in Python (`mqmesh.client.Service`): requests, errors, transit, several instances, cancels, asyncio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from queue import Queue
from threading import current_thread

import pytest
from mqmesh.client import AsyncService, CancelledError, ConnectionFactory, Delivered, ExpiredError, JMSError, Service, ServiceError
from mqmesh.client.message.messages import Message
from support.interchange_site import InterchangeSite


def factory(site: InterchangeSite) -> ConnectionFactory:
    return ConnectionFactory(site.broker.addresses[0])


async def test_requests_and_errors(tmp_path: Path) -> None:
    def credit(request: Delivered) -> object:
        if request.text == "broken":
            raise RuntimeError("of the test")
        if request.json()["amount"] > 1000:
            raise ServiceError("too much", "over-limit")
        return {"granted": request.json()["amount"], "to": request.sender}

    def scene() -> None:
        with Service("bank/credit", made) as bank, Service("shop/orders", made) as shop, Service("shop/orders", made) as other:
            bank.serve(credit)  # type: ignore[arg-type]
            for one in (shop, other):
                assert one.request("bank/credit", {"amount": 7}).json() == {"granted": 7, "to": "shop/orders"}
            for body, code in (({"amount": 9000}, "over-limit"), ("broken", "failed")):
                with pytest.raises(ServiceError) as caught:
                    shop.request("bank/credit", body)
                assert caught.value.error_code == code
            with pytest.raises(ServiceError) as caught:
                shop.request("bank/none")
            assert caught.value.error_code == "unknown-service"
            shop.notify("bank/credit", {"amount": 1})
            asked = shop.ask(["bank/credit", "map/ids"], {"amount": 5}, expiry=3600)
            with pytest.raises(ExpiredError):
                asked.responses(0)
            asked.cancel("sold out")
            assert isinstance(asked.responses(10)[-1], CancelledError)

    async with InterchangeSite(tmp_path) as site:
        made = factory(site)
        await asyncio.to_thread(scene)


async def test_a_service_on_the_way(tmp_path: Path) -> None:
    def scene() -> None:
        with Service("bank/credit", made) as bank, Service("map/ids", made) as ids, Service("shop/orders", made) as shop:
            ids.serve(lambda message: message.body + b" mapped")
            bank.serve(lambda request: request.text.upper())
            found = shop.request("bank/credit", "order", services=["map/ids"])
            assert (found.text, found.sender) == ("ORDER MAPPED", "bank/credit")

    async with InterchangeSite(tmp_path) as site:
        made = factory(site)
        await asyncio.to_thread(scene)


@pytest.mark.process
async def test_the_example(tmp_path: Path) -> None:
    async with InterchangeSite(tmp_path) as site:
        words = sys.executable, str(Path(__file__).parents[3] / "examples" / "services.py"), site.broker.addresses[0]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        assert said.decode() == "bank/credit has granted 100\nbank/credit: too-much: 5000 is too much\n"
        assert process.returncode == 0


async def test_asyncio(tmp_path: Path) -> None:
    async def credit(request: Delivered) -> str:
        await asyncio.sleep(0)
        return request.text + "!"

    async with InterchangeSite(tmp_path) as site:
        made = factory(site)
        async with AsyncService("bank/credit", made) as bank, AsyncService("shop/orders", made) as shop:
            await bank.serve(credit)
            assert (await shop.request("bank/credit", "yes")).text == "yes!"
            await shop.notify("bank/credit", "note")
            with pytest.raises(ServiceError):
                await shop.request("bank/none")


async def test_several_responses(tmp_path: Path) -> None:
    """Each comes as soon as it is there, from a generator of either kind."""

    noted = Queue[str]()

    def prices(request: Delivered) -> Iterator[str]:
        for number in range(3):
            noted.put(f"{request.text} {number}")
            if request.text == "broken" and number == 1:
                raise ServiceError("sold out", "none")
            yield f"{request.text} {number}"

    async def later_prices(request: Delivered) -> AsyncIterator[str]:
        for content in prices(request):
            await asyncio.sleep(0)
            yield content

    def scene() -> None:
        with Service("bank/prices", made) as bank, Service("shop/orders", made) as shop:
            bank.serve(prices)
            found = shop.ask("bank/prices", "tea").responses(30)
            assert [(one.text, one.header["number"]) for one in found] == [(f"tea {at}", f"{at + 1}/3") for at in range(3)]
            first, error = shop.ask("bank/prices", "broken").responses(30)
            assert (first.text, error.error_code) == ("broken 0", "none")
            while not noted.empty():
                noted.get()
            shop.notify("bank/prices", "note")  # its handler goes to its end, too
            assert [noted.get(timeout=30) for _ in range(3)] == ["note 0", "note 1", "note 2"]

    async with InterchangeSite(tmp_path) as site:
        made = factory(site)
        await asyncio.to_thread(scene)
        async with AsyncService("bank/prices", made) as bank, AsyncService("shop/orders", made) as shop:
            await bank.serve(later_prices)
            asked = await asyncio.to_thread(shop.service.ask, "bank/prices", "rye")
            assert [one.text for one in await asyncio.to_thread(asked.responses, 30)] == ["rye 0", "rye 1", "rye 2"]


async def test_a_service_serves_on_when_a_request_cannot_be_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection broke while it worked: the request was given to others, and the next ones are its own."""
    acknowledge, errors = Message.acknowledge, [JMSError("the connection is lost", "connection_lost")]

    def lost_once(message: Message) -> None:
        if errors and current_thread().name == "service bank/credit":
            raise errors.pop()
        acknowledge(message)

    def scene() -> None:
        with Service("bank/credit", made) as bank, Service("shop/orders", made) as shop:
            bank.serve(lambda request: request.text.upper())
            for text in ("first", "second"):
                assert shop.request("bank/credit", text).text == text.upper()

    monkeypatch.setattr(Message, "acknowledge", lost_once)
    async with InterchangeSite(tmp_path) as site:
        made = factory(site)
        await asyncio.to_thread(scene)
    assert not errors
