"""`mqmesh interchange serve`: HTTP in a process beside a broker, for its users."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from support.command import run, start, start_with_users
from support.interchange_http import Web
from support.services import free_port

pytestmark = pytest.mark.process

SERVICES = '[services."shop/orders"]\nusers = ["ops"]\n[services."bank/credit"]\nusers = ["alice"]\n'


def test_users_of_the_broker_are_served(tmp_path: Path) -> None:
    """While it is away they are told to come again; another broker stands in for one that is not there."""
    port = free_port()
    lines = (
        f'listen = ["mqtt://127.0.0.1:{port}"]',
        'data = "data"',
        "[access]",
        'users = "users"',
        "[interchange]",
        'services = "services.toml"',
    )
    (tmp_path / "services.toml").write_text(SERVICES)
    nowhere, here = f"mqtt://127.0.0.1:{free_port()}", f"mqtt://127.0.0.1:{port}"
    broker = start_with_users(tmp_path, *lines)
    with start("interchange", "serve", "--broker", nowhere, "--broker", here, "--listen", "127.0.0.1:0") as process:
        assert process.stdout is not None
        word, url = process.stdout.readline().split()
        assert word == "ready"
        shop, bank, thief = Web(url, "ops", "pw"), Web(url, "alice", "pw"), Web(url, "alice", "guess")
        asyncio.run(exchanged(shop, bank))
        assert asyncio.run(thief.post({"kind": "notification"})).status == 401
        broker.terminate()
        broker.wait()
        refused = asyncio.run(shop.post({"kind": "notification", "recipients": ["bank/credit"]}))
        assert (refused.status, refused.body["code"]) == (503, "unavailable")
        broker = start_with_users(tmp_path, *lines)
        asyncio.run(exchanged(shop, bank))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    broker.terminate()
    broker.wait()


async def exchanged(shop: Web, bank: Web) -> None:
    told = await shop.post({"kind": "request", "recipients": ["bank/credit"], "body": "?"})
    assert told.status == 200, told
    (request,) = await bank.poll("bank/credit")
    await bank.post({"kind": "response", "hop": request["hop"], "body": "!"})
    assert await bank.settle(acknowledge=[request["lease"]]) == []
    (response,) = await shop.poll("shop/orders")
    assert (response["body"], response["call"]) == ("!", told.body["call"])
    assert await shop.settle(acknowledge=[response["lease"]]) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--listen", "nowhere"), "give HOST:PORT"),
        (("--listen", "0.0.0.0:0"), "passwords would travel in the clear"),
        (("--cert", "a.pem"), "belong together"),
        (("--broker", "mqtt://user:secret@host"), "users log in by themselves"),
        (("--broker", "host/a b"), "--broker"),
    ],
)
def test_wrong_words(words: tuple[str, ...], said: str) -> None:
    done = run("interchange", "serve", "--broker", "mqtt://127.0.0.1:1", *words)
    assert (done.returncode, said in done.stderr.decode()) == (2, True), done.stderr
