"""Answers management requests: of clients here, for any site, and of other brokers for this one (docs/management.md).

A client publishes a JSON object to `$mqmesh/manage`, with Response Topic and Correlation Data as MQTT 5 has it, or is subscribed to
`$mqmesh/manage/answer`; only this client gets the answer. What concerns other sites goes there as a message between brokers
(`wire.py`), and the answer follows when all have answered, or their time is over (`gathering.py`).

Who may is decided at each site by its own rules: the roles that it gives the user, if it believes the site that the request comes from
(`[management] accept`), and the roles that this site says the user has there.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.quoting import quoted
from ...base.refusals import source_of
from ...mqtt.errors import UsageError
from ..auth.guard import MANAGE_ANSWER
from ..auth.operators import DENIED, UNBELIEVED, rights_of, rights_of_name
from ..requests.reply import Reply
from .asked import EVERYWHERE, Asked, read
from .errors import Refused
from .gathering import Gathering
from .site_work import SiteWork
from .slices import BUSY, Slices
from .wire import ASK, PART, Asker, Doorkeeper, Question, decode_part, encode_part, encode_question

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ...mqtt.publish import PublishProperties
    from ..auth.roles import Rights
    from ..mesh.shell import MeshShell
    from ..ports import Connection
    from ..site import Site

log = logging.getLogger("mqmesh.broker")

TOPIC = "$mqmesh/manage"
OPEN = 256  # requests that wait for other sites
EACH = 16  # requests of one user, or of one address without a user, at one time
YOURS = f"{EACH} requests of yours have no answer yet: wait for one"
ALIKE = ("retained", "routes", "brokers", "configuration", "delete-retained")  # at each worker of a broker the same
UNREACHABLE, POLICY, STRANGER = "out of reach", "behind a link with a policy: ask a broker there", "not a site that is known here"

Respond = Callable[[dict[str, Any]], None]


class Management:
    """Management at one broker. work: its lists and actions, which other rooms add to."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._context = site.context
        self._mesh: MeshShell | None = None
        self._doorkeeper: Doorkeeper | None = None
        self._open: dict[bytes, tuple[Gathering, Respond]] = {}
        self._asking: Counter[tuple[str, str, str]] = Counter()
        self._slices = Slices(site.context.refresh, self._flush)
        self.work = SiteWork(site.config.name)
        site.router.services[TOPIC] = self.serve

    def join_mesh(self, mesh: MeshShell) -> None:
        """Answer other brokers of a mesh, and ask them."""
        self._mesh = mesh
        self._doorkeeper = Doorkeeper(mesh.identity.number, mesh.node.key_of)
        mesh.peer_messages.register(ASK, _Questions(self))
        mesh.peer_messages.register(PART, _Parts(self))

    def stop(self) -> None:
        """Nothing is answered any more."""
        self._slices.stop()
        self._open.clear()
        self._asking.clear()

    def _flush(self) -> None:
        self._context.flush()  # which the broker sets at its start

    # Clients here

    def serve(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> bool:
        """Answer requests over MQTT: whether the client takes the answers."""
        reply = Reply(self._site.router, connection, properties, MANAGE_ANSWER)
        if not reply.wanted():
            return False
        asker = Asker(connection.client_id, connection.user, connection.address, rights_of(self._site.guard, connection))
        for payload in run.payloads:
            self.ask(payload, asker, reply.answer)
        return True

    def ask(self, payload: bytes, asker: Asker, respond: Respond) -> None:
        """Carry out a request. respond: gets the answer, now or later, once."""
        try:
            if not asker.rights:
                raise Refused(DENIED)
            asked = read(payload)
            if asked.verb == "show":
                respond(self._shown(asked.name, asker))
            else:
                respond = self._counted(asker, "", respond)
                self._ask_sites(asked, asker, respond)
        except Refused as refused:
            respond({"error": str(refused)})

    def _counted(self, asker: Asker, site: str, respond: Respond) -> Respond:
        """What answers a request, and counts until then that somebody has asked one more. site: where, if not here. Raises Refused."""
        who = site, asker.user or "", "" if asker.user else source_of(asker.address)
        if self._asking[who] >= EACH:
            raise Refused(YOURS)
        self._asking[who] += 1

        def answered(answer: dict[str, Any]) -> None:
            self._asking[who] -= 1
            if self._asking[who] <= 0:
                del self._asking[who]
            respond(answer)

        return answered

    def _shown(self, what: str, asker: Asker) -> dict[str, Any]:
        if what == "lists":
            return {"lists": [one.described() for one in self.work.lists.all()]}
        if what == "actions":
            return {"actions": [one.described() for one in self.work.actions.all()]}
        if what == "roles":
            return {"user": asker.user, "site": self.work.name, "roles": asker.rights.told()}
        raise Refused(f"there is no {what[:80]!r} to show: one of lists, actions, roles")

    # Sites

    def _ask_sites(self, asked: Asked, asker: Asker, respond: Respond) -> None:
        worker, at = self._site.config.worker, asked.at
        if worker is not None and (at is None or set(at) == {worker.name}):  # the whole broker
            at = None if asked.name in ALIKE else (EVERYWHERE,)
        sites, missing = self._sites(at)
        own = self._number
        others = {number: name for number, name in sites.items() if number != own}
        if others and len(self._open) >= OPEN:
            raise Refused(BUSY)
        gathering = Gathering(asked, sites, missing, self._context.now, worker.name if worker is not None and at != asked.at else "")
        token = secrets.token_bytes(16)
        self._open[token] = gathering, respond
        if others:
            try:
                self._send(asked, asker, token, others)
            except (UsageError, Refused) as error:
                del self._open[token]
                raise Refused(str(error)) from None
            self._context.loop.call_later(asked.within, self._late, token)
        if own in sites:
            self._carry_out(asked, asker.rights.at(self.work.name), asker, partial(self._part, token, own))
        else:
            self._look(token)

    @property
    def _number(self) -> int:
        return self._mesh.identity.number if self._mesh is not None else self._site.config.number

    def _sites(self, at: tuple[str, ...] | None) -> tuple[dict[int, str], dict[str, str]]:
        """(name by number of the sites that are asked, reason by name of those that cannot be). Raises Refused."""
        own = {self._number: self.work.name}
        if at is None or set(at) <= {self.work.name, str(self._number)}:
            return own, {}
        if self._mesh is None:
            if EVERYWHERE in at:
                return own, {}
            raise Refused(f"{at[0][:80]!r}: this broker is in no mesh, and is called {self.work.name!r}")
        node = self._mesh.node
        live, known = node.live() | 1 << self._number, node.known() | 1 << self._number
        sites, missing = {}, {}
        members = {member.number: member.name for member in node.members()}
        for name in at:
            found = {number: one for number, one in members.items() if name in (EVERYWHERE, one, str(number))}
            if not found:
                missing[name[:80]] = STRANGER
            for number, one in found.items():
                if live >> number & 1:
                    sites[number] = one
                else:
                    missing[one] = UNREACHABLE if known >> number & 1 else POLICY
        return sites, missing

    def _send(self, asked: Asked, asker: Asker, token: bytes, others: dict[int, str]) -> None:
        """Ask other sites."""
        mesh = self._mesh
        assert mesh is not None
        question = Question(self._number, token, frozenset(others), self._context.wall(), asker, asked)
        body = encode_question(question, mesh.signer)
        mesh.peer_messages.send(sum(1 << number for number in others), ASK, body, must=True)

    def _part(self, token: bytes, number: int, part: dict[str, Any]) -> None:
        """A site has answered."""
        found = self._open.get(token)
        if found is not None:
            found[0].part(number, part)
            self._look(token)

    def _late(self, token: bytes) -> None:
        found = self._open.get(token)
        if found is not None and found[0].late(self._context.refresh()):
            self._look(token)
            self._context.flush()
        elif found is not None:
            self._context.loop.call_later(0.01, self._late, token)

    def _look(self, token: bytes) -> None:
        """Answer, if nothing is awaited any more."""
        gathering, respond = self._open[token]
        if gathering.done:
            del self._open[token]
            respond(gathering.answer())

    # What is done here

    def _carry_out(self, asked: Asked, rights: Rights, asker: Asker, respond: Respond) -> None:
        """Do what is asked of this site. respond: gets its part, now or later, once."""
        try:
            if asked.verb == "list":
                walk = self.work.walk(asked, rights)
                self._slices.run(self._context.loop, walk, lambda part, refused: respond({"error": str(refused)} if refused else part))
            else:
                self._act(asked, rights, asker, respond)
        except (Refused, UsageError) as error:
            respond({"error": str(error)})
        except Exception:  # of an action: whoever asked is answered, and asks for something else
            log.exception("event=internal-error work=management do=%s", quoted(asked.name))
            respond({"error": "internal error: the log of the broker says more"})

    def _act(self, asked: Asked, rights: Rights, asker: Asker, respond: Respond) -> None:
        """Do something, and answer once it is kept."""
        done = self.work.act(asked, rights)
        if isinstance(done, str):
            self._acted(asked, asker, respond, done, True)
        else:
            done(partial(self._acted, asked, asker, respond))

    def _acted(self, asked: Asked, asker: Asker, respond: Respond, said: str, done: bool) -> None:
        """Something is done, or cannot be: note who has done it."""
        persistence, part = self._site.persistence, {"said": said}
        if not done or asked.dry_run:
            respond(part if done else {"error": said})
            return
        if self._context.journal is not None:
            values = self.work.actions.get(asked.name).noted(asked.values)
            self._context.journal.managed(asker, "manage", do=asked.name, said=said, values=values)
        log.warning(
            "event=managed do=%s client=%s user=%s address=%s text=%s",
            *(asked.name, quoted(asker.client_id), quoted(asker.user), asker.address, said),
        )
        who = {"client": asker.client_id, "user": asker.user, "address": asker.address}
        self._context.event("actions", {"event": asked.name, **who, "text": said})
        if persistence is None:
            respond(part)
        else:
            persistence.when(persistence.mark(), partial(respond, part))

    # Other brokers

    def questioned(self, origin: int, body: bytes) -> None:
        """Another broker asks for a client of its own."""
        mesh = self._mesh
        assert mesh is not None
        assert self._doorkeeper is not None
        try:
            question = self._doorkeeper.read(origin, body, self._context.wall())
        except Refused as refused:
            log.warning("event=management-refused origin=%s text=%s", mesh.node.name(origin), refused)
            return
        name, asker, settings = mesh.node.name(origin), question.asker, self._site.guard.management
        respond: Respond = partial(self._reply, origin, question.number)
        if not settings.believes(name):
            respond({"error": UNBELIEVED.format(name)})
            return
        rights = asker.rights.joined(rights_of_name(self._site.guard, asker.user)).at(self.work.name)
        there = Asker(asker.client_id, asker.user, f"{asker.address} at {name}", rights)
        try:
            respond = self._counted(asker, name, respond)
        except Refused as refused:
            respond({"error": str(refused)})
            return
        self._carry_out(question.asked, rights, there, respond)

    def _reply(self, origin: int, number: bytes, part: dict[str, Any]) -> None:
        mesh = self._mesh
        assert mesh is not None
        try:
            mesh.peer_messages.send(1 << origin, PART, encode_part(number, part), must=True)
        except UsageError as error:  # it was forgotten meanwhile
            log.info("event=management-unanswered origin=%d text=%s", origin, error)

    def answered(self, origin: int, body: bytes) -> None:
        """Another broker has answered."""
        try:
            number, part = decode_part(body)
        except Refused as refused:
            log.warning("event=management-refused origin=%d text=%s", origin, refused)
            return
        self._part(number, origin, part)

    def unasked(self, destination: int, body: bytes, reason: str) -> None:
        """A site will not get its question."""
        for token, (gathering, _) in list(self._open.items()):
            if token in body:
                gathering.gone(destination, f"it did not get the request: {reason}")
                self._look(token)


class _Questions:
    """Takes what other brokers ask."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        self._management.questioned(origin, body)

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        self._management.unasked(destination, body, reason)


class _Parts:
    """Takes what they answer."""

    def __init__(self, management: Management) -> None:
        self._management = management

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        self._management.answered(origin, body)

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        pass
