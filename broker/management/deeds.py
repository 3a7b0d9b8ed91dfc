"""What can be done at a broker: its actions, each in a line, and how each is done."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ...base.plural import counted
from ...base.quoting import quoted
from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from ...mqtt.topics import check_topic
from ..auth.roles import Role
from .actions import Action, Values, text_of
from .errors import Refused

if TYPE_CHECKING:
    from ..mesh.management import Management as MeshManagement
    from ..site import Site
    from .site_work import SiteWork

LEVELS = ("debug", "info", "warning", "error")
PACKAGE = "mqmesh"  # the logger above all others of ours
OWN = "\0"  # how the names of sessions begin that belong to no client

Reload = Callable[[bool], str]  # dry_run -> one line; raises Refused


class Publish(Protocol):
    """Publishes a message of the broker's own. Raises ValueError or RuntimeError (one line)."""

    def __call__(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None: ...


class Deeds:
    """The actions of any broker. publish: see `Publish`. reload: has files read again; None: there are none."""

    def __init__(self, site: Site, publish: Publish) -> None:
        self._site = site
        self._publish = publish
        self.reload: Reload | None = None

    def register(self, work: SiteWork) -> None:
        """Have them asked for."""
        operator, administrator = Role.OPERATOR, Role.ADMINISTRATOR
        client, topic = {"client": '"sensor-17"'}, {"topic": '"plant/1"'}
        level = {"level": '"debug"', "logger": '"mqmesh.mesh"'}
        for action in (
            Action("disconnect", "end the connection of a client; its session stays", operator, client, self.disconnect),
            Action("end-session", "end a session; what waits for it is lost", operator, client, self.end_session),
            Action(
                "delete-retained", "delete the retained message of a topic, at all sites", administrator, topic, self.delete, topic="topic"
            ),
            Action("set-log-level", "have more or less written to the log", administrator, level, self.log_level, optional=("logger",)),
            Action("reload", "read the files of the broker again, as SIGHUP does", administrator, {}, self.read_again),
        ):
            work.actions.add(action)

    def _session(self, values: Values) -> Any:
        client = text_of(values, "client")
        session = None if client.startswith(OWN) else self._site.sessions.get(client)
        if session is None:
            raise Refused(f"there is no session of {client[:200]!r}")
        return session

    def disconnect(self, values: Values, dry: bool) -> str:
        """End a connection."""
        session = self._session(values)
        connection = session.connection
        if connection is None or connection.inside:
            raise Refused(f"{session.client_id[:200]!r} is not connected")
        if not dry:
            connection.disconnect(Reason.ADMINISTRATIVE_ACTION, "an operator ended the connection")
        return f"{quoted(session.client_id)} at {connection.address} is disconnected"

    def end_session(self, values: Values, dry: bool) -> str:
        """End a session, and its connection."""
        session = self._session(values)
        if session.connection is not None and session.connection.inside:
            raise Refused(f"{session.client_id[:200]!r} is the metabroker of this process")
        waiting, filters = session.queued + session.outbound.in_flight, len(session.subscriptions)
        if not dry:
            if session.connection is not None:
                session.connection.disconnect(Reason.ADMINISTRATIVE_ACTION, "an operator ended the session")
            self._site.sessions.end(session)
        return f"the session of {quoted(session.client_id)} ends, with {counted(waiting, 'message')} and {counted(filters, 'subscription')}"

    def delete(self, values: Values, dry: bool) -> str:
        """Delete a retained message, as a client would that publishes an empty one."""
        topic = text_of(values, "topic")
        try:
            check_topic(topic.encode())
        except PeerError as error:
            raise Refused(f"topic: {error.text}") from None
        if topic.startswith("$") or not self._site.retained.has(topic.encode()):
            raise Refused(f"nothing is retained for {topic[:200]!r}, or the broker itself says it")
        if not dry:
            try:
                self._publish(topic, b"", 1, True)
            except (ValueError, RuntimeError) as error:
                raise Refused(str(error)) from None
        return f"the retained message of {quoted(topic)} is deleted"

    def log_level(self, values: Values, dry: bool) -> str:
        """Set the level of a logger of ours, until the process ends."""
        level, name = values["level"], values.get("logger") or PACKAGE
        if level not in LEVELS:
            raise Refused(f"level: one of {', '.join(LEVELS)}")
        if not isinstance(name, str) or (name != PACKAGE and not name.startswith(PACKAGE + ".")) or len(name) > 100:
            raise Refused(f"logger: {PACKAGE}, or one whose name begins with {PACKAGE}.")
        logger = logging.getLogger(name)
        before = logging.getLevelName(logger.getEffectiveLevel()).lower()
        if not dry:
            logger.setLevel(str(level).upper())
        return f"the log level of {name} is {level}; it was {before}"

    def read_again(self, values: Values, dry: bool) -> str:
        """Read files again."""
        if self.reload is None:
            raise Refused("this broker was not started from a file")
        return self.reload(dry)


def add_mesh_deeds(work: SiteWork, mesh: MeshManagement) -> None:
    """Actions on the broker's mesh; see `broker/mesh/management.py`."""
    broker, peer = {"broker": '"turin"'}, {"peer": '"turin"'}
    address = {"address": '"mqtt://host:1883"', "cost": "1", "number": "3"}
    gentle: tuple[tuple[str, str, dict[str, str], tuple[str, ...], Any], ...] = (
        ("drain", "take no new clients", {"clients": "true"}, ("clients",), lambda v, dry: mesh.drain(v.get("clients") is True, dry)),
        ("resume", "take clients again", {}, (), lambda _, dry: mesh.resume(dry)),
    )
    other: tuple[tuple[str, str, dict[str, str], tuple[str, ...], Any], ...] = (
        ("forget", "a broker out of reach is gone for good, for the whole mesh", broker, (), lambda v, dry: mesh.forget(v["broker"], dry)),
        (
            *("rekey", "the number of a broker out of reach belongs to another key"),
            *({**broker, "key": '"9f86d0..."'}, (), lambda v, dry: mesh.rekey(v["broker"], v["key"], dry)),
        ),
        (
            *("leave", "the broker ends, and the mesh forgets it", {"force": "false"}, ("force",)),
            lambda v, dry: mesh.leave(v.get("force") is True, dry),
        ),
        (
            *("add-peer", "dial one neighbour more", address, ("cost", "number")),
            lambda v, dry: mesh.add_peer(v["address"], v.get("cost"), v.get("number"), dry),
        ),
        ("remove-peer", "dial a neighbour no more, and end the link", peer, (), lambda v, dry: mesh.remove_peer(v["peer"], dry)),
        ("set-cost", "a link has another cost", {**peer, "cost": "5"}, (), lambda v, dry: mesh.set_cost(v["peer"], v["cost"], dry)),
    )
    for role, rows in ((Role.OPERATOR, gentle), (Role.ADMINISTRATOR, other)):
        for name, text, values, optional, do in rows:
            work.actions.add(Action(name, text, role, values, do, optional))


def add_recipient_deeds(work: SiteWork, recipients: Any) -> None:
    """Actions on recipients whose home is the site. recipients: an `Administration` (`broker/requests/recipients.py`)."""
    name = {"name": '"orders"'}

    def acts(do: str) -> Callable[[Values, bool], str]:
        def act(values: Values, dry: bool) -> str:
            one = next((one for one in recipients.describe() if one["name"] == values["name"]), None)
            if one is None:
                raise Refused(f"there is no recipient {str(values['name'])[:200]!r}")
            if not dry:
                one = recipients.move(values["name"], values.get("to")) if do == "move" else getattr(recipients, do)(values["name"])
            return f"{do} {quoted(str(values['name']))}: it is {one['state']}{', held' if one.get('held') else ''}"

        return act

    for do, text in (("hold", "the messages of a recipient wait"), ("resume", "they are delivered again"), ("defunct", "it is dead")):
        work.actions.add(Action(f"{do}-recipient", text, Role.OPERATOR, name, acts(do)))
    move = {**name, "to": '"orders-lyon"'}
    work.actions.add(Action("move-recipient", "its messages go to another one now", Role.OPERATOR, move, acts("move"), ("to",)))
