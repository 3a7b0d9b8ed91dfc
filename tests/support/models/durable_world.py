"""A metabroker between a community and a remote, all of them models in one thread: nothing happens unless a step says so.

The community holds requests until the metabroker has acknowledged them, and gives a publication to the client if it is there, else to
nobody. The remote keeps the metabroker's session while it is connected or not, and sends again what is not acknowledged. The store
keeps what is committed. A crash loses everything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgpack
from mqmesh.base.metabroker import Code
from mqmesh.metabroker.core.actions import (
    AfterCommit,
    Close,
    Deliver,
    LogLine,
    Open,
    ReadPage,
    Resolve,
    Respond,
    Send,
    Subscribe,
    Unsubscribe,
)
from mqmesh.metabroker.core.core import Core
from mqmesh.metabroker.core.records import INCOMING
from mqmesh.metabroker.core.restore import restore
from mqmesh.metabroker.policy import parse
from mqmesh.metabroker.protocol.events import Abilities
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.topics import matches
from mqmesh.store.coalescer import Coalescer
from mqmesh.store.memory import MemoryStore

URL = "mqtt://far:1883"


class Far:
    """The remote broker: what it keeps for the metabroker's session, and what was published to it."""

    def __init__(self) -> None:
        self.alive = True
        self.client_id = ""
        self.present = False
        self.filters: set[str] = set()
        self.open: dict[int, tuple[str, bytes]] = {}  # packet identifier -> what the metabroker has not acknowledged
        self.got: list[bytes] = []
        self.ids = itertools.count(1)

    def collect(self, topic: str, payload: bytes) -> int:
        """Keep a message for the session; its packet identifier, 0 if it has no such subscription."""
        if not any(matches(filter_, topic) for filter_ in self.filters):
            return 0
        packet_id = next(self.ids)
        self.open[packet_id] = (topic, payload)
        return packet_id


class Client:
    """A client of the community that keeps to the protocol: it repeats what has no answer, and forgets repeats by their `id`."""

    def __init__(self, world: DurableWorld, name: str) -> None:
        self.world, self.name = world, name
        self.session = ""
        self.there = True
        self.last = 0
        self.got: list[bytes] = []
        self.answers: list[tuple[str, dict[str, Any]]] = []
        self.unanswered: dict[int, tuple[str, dict[str, Any]]] = {}
        self.messages = itertools.count(1)

    def connect(self, **keys: Any) -> None:
        self.world.request(f"{self.name}/connect", {"client": self.name, "remote": URL, "durable": True, **keys})

    def ask(self, verb: str, **keys: Any) -> int:
        message = next(self.messages)
        self.unanswered[message] = (verb, {"message": message, **keys})
        self.repeat(message)
        return message

    def repeat(self, message: int) -> None:
        verb, body = self.unanswered[message]
        self.world.request(f"{self.session}/{verb}", body)

    def acknowledge(self) -> None:
        self.world.request(f"{self.session}/ack", {"id": self.last})

    def back(self) -> None:
        """It is there again, says what it has, and asks again what has no answer."""
        self.there = True
        self.ask("resume", id=self.last)

    def hears(self, verb: str, body: dict[str, Any]) -> None:
        self.answers.append((verb, body))
        if verb == "connack" and body["code"] == 0:
            self.session = body["session"]
        elif verb == "publish":
            if body["id"] > self.last:
                if body.get("after", body["id"] - 1) == self.last:
                    self.last = body["id"]
                    self.got.append(body["payload"])
                else:  # a gap: the community has lost some
                    self.ask("resume", id=self.last)
        elif "message" in body:
            self.unanswered.pop(body["message"], None)


class DurableWorld:
    """All of them. limits: of the policy. keeps: the remote is one whose subscriptions stay, and that says when one is given up."""

    keeps = False

    def __init__(self, **limits: int) -> None:
        rule = {"clients": ["*"], "remotes": ["mqtt://far:*"], "publish": ["up/#"], "subscribe": ["down/#"]}
        self.policy = parse({"limits": limits, "allow": [rule]})
        self.store = MemoryStore()
        self.far = Far()
        self.clients: dict[str, Client] = {}
        self.inbox: dict[int, tuple[str, bytes]] = {}  # requests that the community holds
        self.numbers = itertools.count(1)
        self.now = 100.0
        self.names = itertools.count(1)
        self.notes: list[str] = []
        self.crashes = 0
        self.services: list[str] = []  # addresses of every service
        self.begin()

    # The metabroker

    def begin(self) -> None:
        self.coalescer = Coalescer(lambda run: None)
        self.coalescer.load(self.store.deliveries())
        self.core = Core(self.policy, lambda: f"s{next(self.names)}", self.coalescer, 1_000_000.0)
        self.later: list[Any] = []
        self.fetches: list[ReadPage] = []
        self.sent: dict[int, tuple[Publish, bool]] = {}  # token -> message to the remote, whether it is there
        self.number = 0  # of the remote's connection, 0: none
        self.wanted: Open | None = None
        self.resolving: list[int] = []
        self.drops: list[str] = []
        self.epoch = 0
        restore(self.core, self.store, self.now)
        self.carry_out()
        for number in list(self.inbox):
            self.take(number)

    def crash(self) -> None:
        self.crashes += 1
        self.begin()

    def commit(self) -> None:
        """Everything that was put is kept, and what waited for it is done."""
        batch = self.coalescer.seal()
        self.store.commit(batch)
        self.coalescer.committed()
        later, self.later = self.later, []
        for one in later:
            if callable(one):
                one()
            else:
                self.perform(one)
        self.carry_out()

    def carry_out(self) -> None:
        while actions := self.core.take():
            for action in actions:
                self.perform(action)

    def perform(self, action: Any) -> None:
        match action:
            case Respond(topic, body, _):
                self.respond(topic, body)
            case Deliver(_, packet_id, epoch, responses, kept):
                for response in responses:
                    self.respond(response.topic, response.body)
                if kept:
                    self.later.append(lambda: self.acknowledged(packet_id, epoch))
                else:
                    self.acknowledged(packet_id, epoch)
            case AfterCommit(actions):
                self.later += actions
            case ReadPage():
                self.fetches.append(action)
            case Send(_, token, publish):
                self.sent[token] = (publish, False)
                self.send()
            case Subscribe(number, token, filter_, qos, _):
                assert self.number
                self.far.filters.add(filter_)
                self.core.subscriptions.on_subscribed(number, token, qos)
            case Unsubscribe(_, filter_):
                self.drops.append(filter_)
                if not self.keeps:
                    self.drop()
            case Open():
                if action.remote in self.core.remotes:
                    self.wanted = action
                    self.meet()
            case Close():
                if self.number:
                    self.far = Far()
                self.wanted, self.number = None, 0
            case Resolve(number, _):
                self.resolving.append(number)
            case LogLine(_, text):
                self.notes.append(text)

    def drop(self) -> None:
        """The remote gives up what it is to give up."""
        drops, self.drops = self.drops, []
        for filter_ in drops:
            self.far.filters.discard(filter_)
            if self.keeps:
                self.core.subscriptions.on_dropped(self.number, filter_)

    def acknowledged(self, packet_id: int, epoch: int) -> None:
        if epoch == self.epoch and self.number:
            self.far.open.pop(packet_id, None)

    def resolve(self) -> None:
        """Services that were looked for are found, or not."""
        numbers, self.resolving = self.resolving, []
        for number in numbers:
            self.core.on_resolved(number, self.services, "", self.now)
            self.carry_out()

    def read(self) -> None:
        """Pages that were asked for are read."""
        fetches, self.fetches = self.fetches, []
        for fetch in fetches:
            deliveries = list(self.store.deliveries(INCOMING + fetch.session, after=fetch.after, limit=fetch.last - fetch.after))
            runs = self.store.runs({one.run for one in deliveries})
            self.core.on_fetched(
                fetch.session, fetch.token, fetch.last, [(one, runs[one.run]) for one in deliveries if one.order <= fetch.last]
            )
            self.carry_out()

    # The community

    def request(self, where: str, body: dict[str, Any]) -> None:
        number = next(self.numbers)
        self.inbox[number] = (f"metabroker/request/{where}", msgpack.packb(body))
        self.take(number)

    def take(self, number: int) -> None:
        topic, body = self.inbox[number]
        if self.core.on_request(topic, body, self.now):
            self.later.append(lambda: self.inbox.pop(number, None))
        else:
            del self.inbox[number]
        self.carry_out()

    def respond(self, topic: str, body: bytes) -> None:
        who, _, verb = topic.removeprefix("metabroker/response/").rpartition("/")
        for client in self.clients.values():
            if client.there and who in (client.name, client.session):
                client.hears(verb, msgpack.unpackb(body))

    def client(self, name: str, **keys: Any) -> Client:
        """A connected client with a durable session."""
        self.clients[name] = client = Client(self, name)
        client.connect(**keys)
        self.commit()
        self.commit()
        assert client.session
        return client

    # The remote

    def meet(self) -> None:
        """The metabroker's connection to the remote is made, if both want it."""
        if self.wanted is None or not self.far.alive or self.number:
            return
        far, self.number = self.far, self.wanted.remote
        present = far.present and far.client_id == self.wanted.client_id
        if not present:
            far.open.clear()
            far.filters.clear()
        far.present, far.client_id = True, self.wanted.client_id
        self.epoch += 1
        self.core.on_up(self.number, present and not self.keeps, Abilities(keeps=self.keeps))
        self.carry_out()
        self.sent = {token: (publish, False) for token, (publish, _) in self.sent.items()}
        self.send()
        for packet_id in list(far.open):
            self.arrive(packet_id)

    def part(self) -> None:
        """The connection is lost."""
        if self.number:
            number, self.number = self.number, 0
            self.core.on_failed(number, Code.REMOTE_UNREACHABLE, "lost")
            self.carry_out()

    def arrive(self, packet_id: int) -> None:
        topic, payload = self.far.open[packet_id]
        if self.number:
            self.core.on_message(self.number, Publish(topic, payload, 1, packet_id=packet_id), self.epoch)
            self.carry_out()

    def publish(self, topic: str, payload: bytes) -> None:
        """Somebody publishes at the remote."""
        packet_id = self.far.collect(topic, payload)
        if packet_id:
            self.arrive(packet_id)

    def send(self) -> None:
        for token, (publish, there) in self.sent.items():
            if self.number and not there:
                self.far.got.append(publish.payload)
                self.sent[token] = (publish, True)

    def answer(self) -> None:
        """The remote's acknowledgements arrive."""
        for token in [token for token, (_, there) in self.sent.items() if there and self.number]:
            del self.sent[token]
            self.core.publishing.on_published(token, 0)
        self.carry_out()

    # The end

    def settle(self, done: Callable[[], bool] = lambda: False) -> None:
        """All are there and do what they can, until nothing changes any more."""
        self.far.alive = True
        self.meet()
        for client in self.clients.values():
            client.back()
        for turn in range(40):
            self.commit()
            self.answer()
            self.read()
            for client in self.clients.values():
                client.acknowledge()
                if turn == 10:
                    for message in list(client.unanswered):
                        client.repeat(message)
            if done():
                return
        self.commit()
