"""Every post, poll, cancel and query, as every role of three organisations: what one may not do is as if it were not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.interchange import ANSWER, INBOX
from mqmesh.broker.auth.passwords import change
from support.interchange_site import InterchangeSite, Service

from .test_correlation import ask

SERVICES = """
[services."shop/orders"]
users = ["shop"]
[services."shop/returns"]
users = ["sue"]
[services."bank/credit"]
users = ["bank"]
callers = ["shop/*"]
[services."bank/loans"]
users = ["betty"]
[services."map/ids"]
users = ["map"]
"""
ROLES = {  # user -> service, and what it is to the call
    "shop": "shop/orders",  # its sender
    "sue": "shop/returns",  # another service of the sender's organisation
    "bank": "bank/credit",  # its recipient
    "betty": "bank/loans",  # another service of the recipient's organisation
    "map": "map/ids",  # of an organisation that has no part in it
    "nobody": "",  # a user of no service
}
MAY: dict[str, dict[str, set[str]]] = {  # what -> user -> codes; "": it is taken
    "respond": {"bank": {""}, "shop": {"not-a-recipient"}},
    "acknowledge": {"bank": {""}, "shop": {"not-a-recipient"}},
    "cancel": {"shop": {""}},
    "join the session": {"shop": {""}, "bank": {""}},
    "join the call": {"shop": {""}, "bank": {""}},
}
OTHERS = {"respond": "no-request", "acknowledge": "unknown-call", "cancel": "unknown-call", "join the session": "unknown-session"}
OTHERS["join the call"] = "unknown-call"
NONE = {"call": "0000ffffffffffff", "session": "0" * 32}  # of this home, and not issued


def site_of(folder: Path) -> InterchangeSite:
    (folder / "users").touch()
    for user in ROLES:
        change(folder / "users", user, "secret")
    return InterchangeSite(folder, SERVICES, '[access]\nusers = "users"\n')


async def client_of(site: InterchangeSite, user: str) -> Service:
    if ROLES[user]:
        return await site.service(ROLES[user], user, password=b"secret")
    client = await site.client(user, password=b"secret")
    await client.subscribe(ANSWER, qos=1)
    return Service(client, "shop/orders")


async def do(who: Service, what: str, told: dict[str, str]) -> dict[str, Any]:
    match what:
        case "respond":
            return await who.post("response", b"", call=told["call"])
        case "join the session":
            return await who.post("notification", b"", recipient="map/ids", session=told["session"])
        case "join the call":
            return await who.post("notification", b"", recipient="map/ids", call=told["call"])
    return await who.post(what, b"", call=told["call"])


@pytest.mark.parametrize("user", ROLES)
@pytest.mark.parametrize("what", MAY)
async def test_what_one_may_do_with_a_call(tmp_path: Path, what: str, user: str) -> None:
    async with site_of(tmp_path) as site:
        shop, bank = await client_of(site, "shop"), await client_of(site, "bank")
        told = await shop.post("request", b"?", recipient="bank/credit")
        await bank.take()
        who = {"shop": shop, "bank": bank}.get(user) or await client_of(site, user)
        answer = await do(who, what, told)
        expected = {"not-the-sender"} if user == "nobody" else MAY[what].get(user, {OTHERS[what]})
        assert answer.get("code", "") in expected
        if "code" in answer and user not in ("shop", "bank"):
            nothing = await do(who, what, NONE)
            said = {key: text.replace(told["call"], "#").replace(told["session"], "#") for key, text in answer.items()}
            there = {key: text.replace(NONE["call"], "#").replace(NONE["session"], "#") for key, text in nothing.items()}
            assert said == there, "a call of others is told from none"


@pytest.mark.parametrize("user", ROLES)
async def test_who_takes_from_an_inbox_and_who_reaches_a_service(tmp_path: Path, user: str) -> None:
    async with site_of(tmp_path) as site:
        who = await client_of(site, user)
        for service in filter(None, ROLES.values()):
            suback = await who.client.subscribe("$queue/" + INBOX + service, qos=1)
            assert (suback.reasons[0] < 0x80) == (service == ROLES[user]), service
        answer = await who.post("notification", b"", recipient="bank/credit")
        if user == "nobody":
            assert answer["code"] == "not-the-sender"
        elif ROLES[user].startswith("shop/"):
            assert "call" in answer
        else:
            gone = await who.post("notification", b"", recipient="bank/nothere")
            assert (answer["code"], answer["what"].replace("credit", "#")) == ("unknown-service", gone["what"].replace("nothere", "#"))


@pytest.mark.parametrize("user", ROLES)
async def test_who_is_told_of_a_call(tmp_path: Path, user: str) -> None:
    async with site_of(tmp_path) as site:
        shop, bank = await client_of(site, "shop"), await client_of(site, "bank")
        told = await shop.post("request", b"?", recipient="bank/credit", handle="h-1")
        who = {"shop": shop, "bank": bank}.get(user) or await client_of(site, user)
        answer = await ask(who, call=told["call"])
        if user == "nobody":
            assert answer["code"] == "not-permitted"
        else:
            organisation = ROLES[user].partition("/")[0]
            assert [one["call"] for one in answer["calls"]] == ([told["call"]] if organisation in ("shop", "bank") else [])
            assert all(("handle" in one) == (organisation == "shop") for one in answer["calls"])
