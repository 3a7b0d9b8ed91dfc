"""Services at two sites of a mesh: each call is decided at its home, whichever site its messages come in at (docs/interchange.md)."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from mqmesh.base.interchange import INBOX, POST
from mqmesh.interchange.exchange import Elsewhere
from mqmesh.interchange.identifiers import home_of
from mqmesh.interchange.message import Message, read_header
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from support.broker_site import until
from support.interchange_http import Web
from support.interchange_site import InterchangeSite, Service
from support.services import free_port

SERVICES = """
[services."shop/orders"]
users = ["*"]
site = "porto"
[services."bank/credit"]
users = ["*"]
site = "lyon"
[services."map/ids"]
users = ["*"]
site = "lyon"
"""
MESH = 'name = "{name}"\nnumber = {number}\n[mesh]\nname = "sites"\nkey = "a secret of 16 bytes or more"\nstart_wait = 0\n'


class TwoSites:
    """porto (1), and lyon (2), which dials porto. Either is stopped and started with what it has kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stacks: dict[str, AsyncExitStack] = {}
        self.sites: dict[str, InterchangeSite] = {}
        self._address = f"mqtt://127.0.0.1:{free_port()}"  # nobody else takes it while porto is away

    async def __aenter__(self) -> Self:
        await self.start("porto")
        await self.start("lyon")
        await self.met()
        return self

    async def __aexit__(self, *error: object) -> None:
        for name in list(self.sites):
            await self.stop(name)

    async def start(self, name: str) -> InterchangeSite:
        more = MESH.format(name=name, number=1 if name == "porto" else 2)
        if name == "lyon":
            more += f'[[mesh.peer]]\naddress = "{self._address}"\n'
        self._stacks[name] = AsyncExitStack()
        listen = self._address if name == "porto" else "mqtt://127.0.0.1:0"
        site = InterchangeSite(self._folder / name, SERVICES, more, listen, 'http = "http://127.0.0.1:0"')
        self.sites[name] = await self._stacks[name].enter_async_context(site)
        return site

    async def stop(self, name: str) -> None:
        del self.sites[name]
        await self._stacks.pop(name).aclose()

    async def met(self) -> None:
        """Each site knows the inboxes of the other, and reaches it."""

        def know() -> bool:
            far = {"porto": "bank/credit", "lyon": "shop/orders"}
            for name, site in self.sites.items():
                queues, mesh = site.broker.site.queues, site.broker.site.mesh
                assert queues is not None
                assert mesh is not None
                if queues.home_of(INBOX + far[name]) is None or not mesh.node.live() >> (3 - mesh.identity.number) & 1:
                    return False
            return True

        await until(know)

    async def at(self, name: str, service: str, client: str = "") -> Service:
        return await self.sites[name].service(service, client)


async def test_request_and_response(tmp_path: Path) -> None:
    async with TwoSites(tmp_path) as mesh:
        shop, bank = await mesh.at("porto", "shop/orders"), await mesh.at("lyon", "bank/credit")
        told = await shop.post("request", b"?", recipient="bank/credit", service="map/ids")
        ids = await mesh.at("lyon", "map/ids")
        assert home_of(told["call"]) == 1
        await ids.post("response", b"?!", hop=(await ids.take())[1]["hop"])
        body, header = await bank.take()
        assert (body, header["call"]) == (b"?!", told["call"])
        assert await bank.post("response", b"yes", call=told["call"]) == told
        assert (await shop.take())[0] == b"yes"
        assert (await bank.post("response", b"yes", call=told["call"]))["code"] == "already-answered"
        assert (await bank.post("response", b"yes", call="0001ffffffffffff"))["code"] == "no-request"
        assert (await bank.post("response", b"yes", call="0009ffffffffffff"))["code"] == "unavailable"


async def test_a_service_takes_at_any_site_and_cancels_from_there(tmp_path: Path) -> None:
    async with TwoSites(tmp_path) as mesh:
        shop, roaming = await mesh.at("porto", "shop/orders"), await mesh.at("lyon", "shop/orders", "roaming")
        bank = await mesh.at("porto", "bank/credit")
        told = await shop.post("request", b"?", recipient="bank/credit")
        assert (await bank.take())[1]["kind"] == "request"
        assert (await roaming.post("cancel", call=told["call"]))["came"][0]["state"] == "out"
        assert (await bank.take())[1]["kind"] == "cancel"


async def test_a_session_has_calls_of_several_homes(tmp_path: Path) -> None:
    async with TwoSites(tmp_path) as mesh:
        shop, bank, ids = await mesh.at("porto", "shop/orders"), await mesh.at("lyon", "bank/credit"), await mesh.at("lyon", "map/ids")
        told = await shop.post("request", b"?", recipient="bank/credit")
        header = (await bank.take())[1]
        for named in ({"session": header["session"]}, {"call": header["call"]}):
            inner = await bank.post("request", b"map", recipient="map/ids", **named)
            assert (inner["session"], home_of(inner["call"])) == (told["session"], 2)
            assert (await ids.take())[1]["session"] == told["session"]
        assert (await ids.post("notification", recipient="bank/credit", session=told["session"]))["session"] == told["session"]
        waiting = mesh.sites["lyon"].inside._homes
        assert waiting is not None
        assert not waiting.waiting
        thief = await mesh.at("lyon", "bank/credit", "thief")
        assert (await thief.post("request", recipient="map/ids", session="0001" + told["session"][4:30] + "00"))[
            "code"
        ] == "unknown-session"


async def test_a_call_waits_for_the_home_of_its_session_and_not_for_ever(tmp_path: Path) -> None:
    """That home goes while it is asked. The call that waits has ended after 48 hours, also where no identifier can be given out."""
    async with TwoSites(tmp_path) as mesh:
        shop, bank = await mesh.at("porto", "shop/orders"), await mesh.at("lyon", "bank/credit")
        told = await shop.post("request", b"?", recipient="bank/credit")
        await bank.take()
        lyon = mesh.sites["lyon"].inside
        homes = lyon._homes
        assert homes is not None
        asking = Message(read_header({"kind": "request", "sender": "bank/credit", "recipients": ["map/ids"], "session": told["session"]}))
        assert homes.hand(asking, Elsewhere(1, asks=True), lambda answer: None) is None
        assert homes.deadlines.next() is not None
        homes._pending.clear()  # as after a restart
        lyon.exchange.ids.last += 1 << 40
        await mesh.sites["lyon"].later(48 * 3600 + 1)
        await until(lambda: not homes.waiting)
        error = (await bank.take())[1]
        assert (error["kind"], error["code"] in ("expired", "unavailable")) == ("error", True)


async def test_a_site_that_is_away(tmp_path: Path) -> None:
    """The response waits at the responder's site, the request in custody; nothing is lost by a restart of either."""
    async with TwoSites(tmp_path) as mesh:
        shop, bank = await mesh.at("porto", "shop/orders"), await mesh.at("lyon", "bank/credit")
        told = await shop.post("request", b"1", recipient="bank/credit")
        await bank.take()
        await mesh.stop("porto")
        lyon = mesh.sites["lyon"].broker.site.mesh
        assert lyon is not None
        await until(lambda: not lyon.node.live() >> 1 & 1)
        assert await bank.post("response", b"one", call=told["call"]) == {"call": told["call"], "waits_for": "porto"}
        assert (await bank.post("request", recipient="map/ids", session=told["session"]))["code"] == "unavailable"
        local = await bank.post("notification", b"goes on", recipient="map/ids")
        assert home_of(local["call"]) == 2
        await mesh.stop("lyon")
        await mesh.start("porto")
        shop = await mesh.at("porto", "shop/orders")
        again = await shop.post("request", b"2", recipient="bank/credit")
        await mesh.start("lyon")
        await mesh.met()
        assert (await shop.take())[0] == b"one"
        bank = await mesh.at("lyon", "bank/credit")
        body, header = await bank.take()
        assert (body, header["call"]) == (b"2", again["call"])


async def test_who_was_told_to_wait_hears_of_a_refusal(tmp_path: Path) -> None:
    """Of two responses that wait for a home out of reach the second one is refused there; the poster has a new connection by then."""
    async with TwoSites(tmp_path) as mesh:
        shop, bank = await mesh.at("porto", "shop/orders"), await mesh.at("lyon", "bank/credit")
        told = await shop.post("request", b"1", recipient="bank/credit")
        await bank.take()
        await mesh.stop("porto")
        lyon = mesh.sites["lyon"].broker.site.mesh
        assert lyon is not None
        await until(lambda: not lyon.node.live() >> 1 & 1)
        poster = await mesh.sites["lyon"].client("poster", clean=False, expiry=1000)
        await poster.subscribe("told/poster", qos=1)
        for number, body in enumerate((b"one", b"two")):
            pairs = [("sender", "bank/credit"), ("kind", "response"), ("call", told["call"])]
            said = {Property.USER_PROPERTY: pairs, Property.RESPONSE_TOPIC: "told/poster", Property.CORRELATION_DATA: b"%d" % number}
            poster.send(Publish(POST, body, 1, packet_id=poster.next_id(), properties=said))
            packets = [await poster.receive(), await poster.receive()]
            (waits,) = [one for one in packets if isinstance(one, Publish)]
            assert json.loads(waits.payload) == {"call": told["call"], "waits_for": "porto"}
            poster.send(Puback(waits.packet_id))
        await poster.nothing()
        await poster.cut()
        await mesh.start("porto")
        await mesh.met()
        again = await mesh.sites["lyon"].client("poster", clean=False, expiry=1000)
        refused = await again.expect(Publish)
        assert json.loads(refused.payload)["code"] == "already-answered"
        assert refused.properties[Property.CORRELATION_DATA] == b"1"
        again.send(Puback(refused.packet_id))
        await again.nothing()


async def test_a_home_that_lost_its_disk_says_so(tmp_path: Path) -> None:
    async with TwoSites(tmp_path) as mesh:
        shop, bank = await mesh.at("porto", "shop/orders"), await mesh.at("lyon", "bank/credit")
        told = await shop.post("request", b"?", recipient="bank/credit")
        await bank.take()
        await mesh.stop("porto")
        data = (tmp_path / "porto" / "data").rename(tmp_path / "porto" / "lost")
        (tmp_path / "porto" / "data").mkdir()
        (data / "identity.key").rename(tmp_path / "porto" / "data" / "identity.key")  # of which there is a copy
        porto = await mesh.start("porto")
        await mesh.met()
        assert (await bank.post("response", b"late", call=told["call"]))["code"] == "home-lost"
        assert porto.inside.exchange.calls == {}


async def test_expiry_across_sites(tmp_path: Path) -> None:
    async with TwoSites(tmp_path) as mesh:
        shop = await mesh.at("porto", "shop/orders")
        await mesh.stop("lyon")
        told = await shop.post("request", b"?", {Property.MESSAGE_EXPIRY_INTERVAL: 20}, recipient="bank/credit")
        await mesh.sites["porto"].later(21)
        error = (await shop.take())[1]
        assert (error["code"], error["call"]) == ("expired", told["call"])


async def test_http_at_either_site(tmp_path: Path) -> None:
    """Services post and poll at a site that is not theirs; a lease that is over gives the message back there too."""
    async with TwoSites(tmp_path) as two:
        faces = {name: site.inside.faces for name, site in two.sites.items()}
        assert faces["porto"] is not None
        assert faces["lyon"] is not None
        porto, lyon = Web(faces["porto"].url), Web(faces["lyon"].url)
        told = await lyon.post({"kind": "request", "sender": "shop/orders", "recipients": ["bank/credit"], "body": "?"})
        (request,) = await porto.poll("bank/credit", lease=1000)
        await two.sites["porto"].later(1001)
        (again,) = await porto.poll("bank/credit")
        assert again["hop"] == request["hop"]
        answered = await porto.post({"kind": "response", "sender": "bank/credit", "hop": again["hop"], "body": "!"})
        assert answered.body["call"] == told.body["call"]
        assert await porto.settle(acknowledge=[again["lease"]]) == []
        (response,) = await lyon.poll("shop/orders")
        assert (response["body"], response["call"]) == ("!", told.body["call"])


async def test_requests_that_went_together_outlast_a_restart_and_come_in_order(tmp_path: Path) -> None:
    async with TwoSites(tmp_path) as sites:
        shop = Service(await sites.sites["porto"].client("shop"), "shop/orders")
        await sites.stop("lyon")
        bodies = [b"%02d" % number for number in range(20)]
        said = {Property.USER_PROPERTY: [("kind", "request"), ("sender", "shop/orders"), ("recipient", "bank/credit")]}
        shop.client.send(*[Publish(POST, body, 1, packet_id=shop.client.next_id(), properties=said) for body in bodies])
        for _ in bodies:
            assert (await shop.client.expect(Puback)).reason < 0x80
        await sites.stop("porto")
        await sites.start("porto")
        await sites.start("lyon")
        await sites.met()
        bank = await sites.at("lyon", "bank/credit")
        assert [(await bank.take())[0] for _ in bodies] == bodies
        await bank.client.nothing()


async def test_a_home_tells_only_who_would_hear_it(tmp_path: Path) -> None:
    """A responder as MQTT 5 describes it has no Response Topic, and listens to no answers."""
    async with TwoSites(tmp_path) as sites:
        porto, lyon = sites.sites["porto"], sites.sites["lyon"]
        shop, bank = await porto.service("shop/orders"), Service(await lyon.client("bank"), "bank/credit")
        await bank.client.subscribe("$queue/" + INBOX + "bank/credit", qos=1)
        told = await shop.post("request", b"?", recipient="bank/credit")
        await bank.take()
        mesh = porto.broker.site.mesh
        assert mesh is not None
        sent = mesh.peer_messages.counts["sent"]
        pairs = [("sender", "bank/credit"), ("kind", "response"), ("call", told["call"])]
        for _ in range(2):  # the second one is refused
            bank.client.send(Publish(POST, b"!", 1, packet_id=bank.client.next_id(), properties={Property.USER_PROPERTY: pairs}))
            await bank.client.expect(Puback)
        assert (await shop.take())[0] == b"!"
        await shop.client.nothing()
        assert mesh.peer_messages.counts["sent"] == sent
