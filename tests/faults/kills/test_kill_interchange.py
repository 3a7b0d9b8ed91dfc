"""What an interchange needs is killed with SIGKILL while services exchange requests: each that was acknowledged ends once, in its response,
and a handle that is posted again after a kill counts once (docs/interchange.md, "What is kept").

`MQMESH_INTERCHANGE_KILLS` says how often; `make soak` takes 100.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.interchange import INBOX
from mqmesh.mqtt.packets import Connack, Connect, Suback, Subscribe, Subscription
from support.directories import Directory
from support.interchange_kills import Answerer, Killed, Shop
from support.raw_client import RawClient
from support.services import PATIENCE, free_port, wait_until

KILLS = int(os.environ.get("MQMESH_INTERCHANGE_KILLS", "1"))
SEED = int(os.environ.get("MQMESH_SEED", "1"))
EACH = 40  # exchanges between two kills
SERVICES = """
[services."shop/orders"]
users = ["*"]
site = "porto"
[services."bank/credit"]
users = ["*"]
site = "porto"
[services."map/ids"]
users = ["*"]
site = "lyon"
"""
MESH = """name = "{name}"
number = {number}
[mesh]
name = "kills"
key = "a secret of 16 bytes or more"
start_wait = 0
[[mesh.peer]]
address = "mqtt://127.0.0.1:{peer}"
"""
REFUSED = {"", "duplicate"}


def test_a_home_is_killed(tmp_path: Path) -> None:
    (tmp_path / "services.toml").write_text(SERVICES)
    porto = Killed(tmp_path / "porto", 'name = "porto"')
    porto.start()
    shop, bank = Shop(porto), Answerer(porto)
    for partner in (shop, bank):
        partner.start()
    exchange(shop, porto.kill, porto.start)
    ended_once(shop, bank)
    porto.end()


def test_an_interchange_in_transit_is_killed(tmp_path: Path) -> None:
    """lyon has the inbox of a service on the way, whose answers come in there; their home is porto."""
    (tmp_path / "services.toml").write_text(SERVICES)
    porto = Killed(tmp_path / "porto", MESH.format(name="porto", number=1, peer=free_port()))
    lyon = Killed(tmp_path / "lyon", MESH.format(name="lyon", number=2, peer=porto.port))
    for broker in (porto, lyon):
        broker.start()
    shop, bank, between = Shop(porto, service="map/ids"), Answerer(porto), Answerer(lyon, "map/ids")
    for partner in (shop, bank, between):
        partner.start()
    exchange(shop, lyon.kill, lyon.start)
    ended_once(shop, bank, between)
    for broker in (porto, lyon):
        broker.end()


@pytest.mark.slow
def test_the_directory_is_killed(tmp_path: Path) -> None:
    """A service that it has registered before each kill is one for the interchange, and no exchange notices."""
    directory = Directory(f"sqlite:///{tmp_path / 'directory.db'}", tmp_path / "directory.log", ("--rate", "0"))
    listen = directory.url.partition("://")[2]
    directory.accounts({"shop": "shop", "bank": "bank"})
    directory.accounts({"porto": "net"}, interchange=True)
    (tmp_path / "secret").write_text(directory.secrets["porto"])
    registered: list[str] = []

    def register(name: str) -> None:
        client = directory.client(name.partition("/")[0])
        client.put_service(name, {"users": ["*"], "site": "porto"})
        registered.append(name)

    def kill() -> None:
        register(f"bank/of-{len(registered)}")
        directory.kill()

    for name in ("shop/orders", "bank/credit"):
        register(name)
    where = f'[directory]\nurl = "{directory.url}"\nmesh = "m"\naccount = "porto"\nsecret_file = "../secret"\nregister = false\n'
    porto = Killed(tmp_path / "porto", f'name = "porto"\n{where}', "")
    porto.start()
    know(porto, registered)
    shop, bank = Shop(porto), Answerer(porto)
    for partner in (shop, bank):
        partner.start()
    exchange(shop, kill, lambda: directory.start(listen))
    ended_once(shop, bank)
    know(porto, registered)
    porto.end()
    directory.kill()


def exchange(shop: Shop, kill: Callable[[], None], start: Callable[[], Any]) -> None:
    """Ask while something is killed and started again, each time at two moments that chance gives."""
    chance = random.Random(SEED)
    for round in range(KILLS):
        at = chance.randrange(EACH)
        until = chance.randrange(at, EACH)
        for number in range(EACH):
            shop.ask(b"%d-%d" % (round, number))
            if number == at:
                kill()
            if number == until:
                start()


def ended_once(shop: Shop, bank: Answerer, *more: Answerer) -> None:
    """Each request has come to all, and has one response."""
    partners = (shop, bank, *more)
    assert shop.all_answered(), (len(shop.asked), len(shop.responses), len(shop.unacknowledged), [one.error for one in partners])
    for one in (bank, *more):
        assert one.calls.keys() == shop.asked
        assert [body for body, calls in one.calls.items() if len(calls) > 1] == [], "a handle was posted twice"
    assert [body for body, hops in shop.responses.items() if len(hops) > 1] == [], "a request ended twice"
    assert set(shop.refused) <= REFUSED, shop.refused
    for one in partners:
        one.ending = True


def know(broker: Killed, services: list[str]) -> None:
    """Wait until a broker's interchange knows services: it lets clients take from their inboxes."""
    filters = [Subscription(f"$queue/{INBOX}{name}", 1) for name in services]

    def all_known() -> bool:
        client = RawClient(broker.port)
        client.send(Connect("looks", 5), Subscribe(1, filters))
        client.expect(Connack)
        reasons = client.expect(Suback).reasons
        client.close()
        return max(reasons) < 0x80

    wait_until(all_known, PATIENCE, "the interchange to know the services")
