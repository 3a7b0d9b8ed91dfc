"""What the rest of a broker asks: who is this client, and may it? One `Guard` a broker, also where everything is open.

A connection under rules has a set of topics that it was allowed to publish to (`Connection.allowed`); the fast paths only look whether
a topic is in it, everything else comes here once. The client that is the metabroker is above the rules.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...base.queues import ANSWER as QUEUES_ANSWER
from ...mqtt.reasons import Reason
from ..transport.tls.transport import TlsTransport
from .accounts import AccountStanding
from .identifiers import Identifiers, identifier_of, is_our_own
from .roles import ManagementSettings
from .rules import Rules
from .service import Authenticator, AuthError, Outcome
from .settings import AccessSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...mqtt.batch.batch import Batch
    from ...mqtt.packets import Connect
    from ..ports import Connection, Context, Subscriber
    from .permissions import Access

log = logging.getLogger("mqmesh.broker")

ANSWER = "$mqmesh/sessions/answer"  # where an operator hears of sessions, see `requests/sessions.py`
MESH_ANSWER = "$mqmesh/mesh/answer"  # the same for changes of the mesh, see `requests/mesh.py`
RECIPIENTS_ANSWER = "$mqmesh/recipients/answer"  # the same for recipients, see `requests/recipients.py`
TRACE_ANSWER = "$mqmesh/trace/answer"  # the same for what the journal has of messages, see `requests/trace.py`
MANAGE_ANSWER = "$mqmesh/manage/answer"  # the same for the whole mesh, see `management/service.py`
ANSWERS = (ANSWER, MESH_ANSWER, RECIPIENTS_ANSWER, QUEUES_ANSWER, TRACE_ANSWER, MANAGE_ANSWER)
ENDED = "the token or certificate has ended: come again with a new one"
FOREIGN = "this client identifier is not one of this user's (access.client_ids)"
GONE = "this user may not come in any more, or not with what it has shown"
METABROKER = "\0metabroker"  # who owns the sessions of the metabroker and of attached brokers: no user's name begins so
KNOWN = 1000  # topics that are remembered for a connection...
_NOBODY_OWES = AccountStanding()
LONGEST = 256  # ...if they have no more bytes than this


class Guard:
    """settings: None: everything is open. `start` before the first client; it raises AuthError."""

    def __init__(self, context: Context, access: Access, settings: AccessSettings | None) -> None:
        self._context = context
        self._access = access
        self.settings = settings
        self.rules: Rules = settings.rules if settings is not None else Rules()
        self.identifiers: Identifiers = settings.identifiers if settings is not None else Identifiers()
        self.owned: Callable[[str], int] = lambda user: 0  # sessions that a user has
        self.authenticator: Authenticator | None = None
        self.management = ManagementSettings()  # roles of users
        self.site = ""  # the broker's name

    def start(self) -> None:
        """Read the files of users and keys."""
        if self.settings is not None and self.settings.asks:
            self.authenticator = Authenticator(self._context, self.settings)

    def stop(self) -> None:
        if self.authenticator is not None:
            self.authenticator.stop()

    # Who

    def ask(self, connection: Connection, packet: Connect, go: Callable[[Outcome], None]) -> Outcome | None:
        """Who sent a CONNECT; None: `go` is called with it later."""
        if self.authenticator is None or self._exempt(packet.client_id):
            return Outcome()
        return self.authenticator.ask(connection, packet, go)

    def let_in(self, connection: Connection, packet: Connect, outcome: Outcome) -> tuple[Reason, str] | None:
        """Note who a client is. Returns why it is refused all the same; None: it is not."""
        if outcome.refusal is not None:
            self._context.counters.denied_connects += 1
            return outcome.refusal
        if packet.client_id and not self._exempt(packet.client_id) and not self.identifiers.allow(outcome.user, packet.client_id):
            self._context.counters.denied_connects += 1
            return Reason.CLIENT_IDENTIFIER_NOT_VALID, FOREIGN
        connection.user, connection.proof = outcome.user, outcome.proof
        connection.set_rules(self._judged(connection.user, packet.client_id))
        transport = connection.transport.get_extra_info("tls")
        shown = transport.valid_until if isinstance(transport, TlsTransport) else None
        ends = [one for one in (outcome.ends, shown) if one is not None]
        connection.ends = self._context.loop.time() + min(ends) - self._context.wall() if ends else None
        return None

    def over(self, connection: Connection) -> str | None:
        """Why a client that was let in may not be here any more; None: it may."""
        proof = connection.proof
        if connection.ends is not None and self._context.loop.time() >= connection.ends:
            return ENDED
        if (
            proof is not None
            and self.authenticator is not None
            and not self.authenticator.holds(connection.user, proof, connection.listener)
        ):
            return GONE
        if not (connection.inside or self._exempt(connection.client_id) or self.identifiers.allow(connection.user, connection.client_id)):
            return FOREIGN
        return None

    def _exempt(self, client_id: str) -> bool:
        """Whether it is the metabroker, or stands for an attached broker."""
        return client_id != "" and (client_id == self._access.client or client_id in self._access.attached)

    # Whose session it is

    def owner(self, client_id: str, user: str | None) -> str | None:
        """Who owns the session that a user opens here; None: nobody, because no name is proven."""
        if self._exempt(client_id):
            return METABROKER
        return user if self.authenticator is not None else None

    def owner_of(self, session: Subscriber) -> str | None:
        """Who owns a session; None: nobody."""
        return self.owner(session.client_id, session.user)

    @staticmethod
    def user_named(owner: str | None) -> str | None:
        """The user who is an owner; None for one who is not known by a name."""
        return None if owner == METABROKER else owner

    def may_open(self, connection: Connection, client_id: str, known: Subscriber | None) -> tuple[Reason, str] | None:
        """Why a client may not have the session of its identifier, known or new; None: it may. To be asked in the moment of opening."""
        text = self.over(connection)
        if text is not None:  # it ended while the client waited
            self._context.counters.denied_connects += 1
            return Reason.NOT_AUTHORIZED, text
        owner = self.owner_of(known) if known is not None else None
        if owner is not None and owner != self.owner(client_id, connection.user):
            self._context.counters.denied_connects += 1
            return Reason.NOT_AUTHORIZED, "the session of this client identifier belongs to another user"
        most = self.settings.sessions if self.settings is not None and self.authenticator is not None else 0
        if most and owner is None and connection.user is not None and self.owned(connection.user) >= most:
            self._context.counters.denied_connects += 1
            return Reason.QUOTA_EXCEEDED, "this user has as many sessions as it may (access.sessions_per_user)"
        return None

    def review(self, session: Subscriber, unsubscribe: Callable[[Subscriber, str], bool]) -> int:
        """End the subscriptions that the owner of a session may not have: how many. unsubscribe: ends a subscription."""
        if is_our_own(session.client_id):
            return 0
        user, client_id, ended = self.user_of(session), identifier_of(session.client_id), 0
        for full in list(session.subscriptions):
            text = self.subscription(user, client_id, session.listener, full)
            if text is not None:
                unsubscribe(session, full)
                session.unsubscribed(full)
                self._access.denied(client_id, user, full, text)
                ended += 1
        return ended

    # May it

    def user_of(self, session: Subscriber) -> str | None:
        """The proven name behind a session."""
        return session.user if self.authenticator is not None else None

    @property
    def standing(self) -> AccountStanding:
        """Who has paid."""
        return self.settings.standing if self.settings is not None else _NOBODY_OWES

    def _judged(self, user: str | None, client_id: str) -> bool:
        """Whether a client has to be asked for each topic that it publishes to."""
        return not self._exempt(client_id) and (bool(self.rules) or self.standing.refusal(user) is not None)

    def tick(self, now: float, connections: Iterable[Connection]) -> None:
        """Look whether somebody has paid, or has not. now: seconds of the loop's clock."""
        if not self.standing.look(now):
            return
        for connection in list(connections):
            if connection.session is not None:
                connection.set_rules(self._judged(connection.user, connection.client_id))

    def will(self, user: str | None, client_id: str, listener: str, topic: str) -> str | None:
        """Why a client's will may not go to a topic; None: it may."""
        if not self.rules or self._exempt(client_id):
            return None
        verdict = self.rules.publish(user, client_id, topic, listener)
        return None if verdict.allowed else str(verdict)

    def owes(self, user: str | None, client_id: str) -> str | None:
        """Why no message of a client is published, a will either, whatever the rules say; None: its account has paid."""
        return None if self._exempt(client_id) else self.standing.refusal(user)

    def subscription(self, user: str | None, client_id: str, listener: str, full: str) -> str | None:
        """Why a client that came by a listener may not have a subscription; None: it may."""
        if not self.rules or self._exempt(client_id) or full in ANSWERS:
            return None  # the broker alone writes there, to who has asked
        verdict = self.rules.subscribe(user, client_id, full, listener)
        return None if verdict.allowed or self._partly(user, client_id, listener, full) else str(verdict)

    def _partly(self, user: str | None, client_id: str, listener: str, full: str) -> bool:
        filters = self.settings is not None and self.settings.on_overlap == "filter"
        return filters and not full.startswith("$share/") and self.rules.partly(user, client_id, full, listener)

    def filters(self, session: Subscriber, full: str) -> bool:
        """Whether `reads` decides for each topic of a subscription: the rules do not allow all of it.

        True also where they allow nothing of it: a session that moves keeps such a subscription until it is reviewed.
        """
        client_id = identifier_of(session.client_id)
        if not self.rules or self._exempt(client_id) or full in ANSWERS or is_our_own(session.client_id):
            return False
        return not self.rules.subscribe(self.user_of(session), client_id, full, session.listener).allowed

    def reads(self, session: Subscriber, topic: str) -> bool:
        """Whether a session with such a subscription may have messages of a topic."""
        return self.rules.reads(self.user_of(session), identifier_of(session.client_id), topic, session.listener)

    def may_read(self, session: Subscriber, topic: str) -> bool:
        """Whether the rules let a session have messages of a topic, however it comes by them."""
        return not self.rules or self._exempt(session.client_id) or self.reads(session, topic)

    def topic(self, connection: Connection, topic: str, run: Batch) -> str | None:
        """Why a client that is under rules may not publish a run; None: it may, and is not asked for this topic again."""
        allowed = connection.allowed
        assert allowed is not None
        if topic.startswith("$mqmesh/"):  # questions to the broker itself
            return None
        text = self.standing.refusal(connection.user)
        if text is not None:
            return text
        verdict = self.rules.publish(connection.user, connection.client_id, topic, connection.listener)
        if not verdict.allowed:
            return str(verdict)
        if len(run.topic) <= LONGEST:
            if len(allowed) >= KNOWN:
                allowed.clear()
            allowed.add(bytes(run.topic))
        return None

    # Anew

    def renew(
        self,
        settings: AccessSettings | None,
        connections: Iterable[Connection],
        sessions: Iterable[Subscriber],
        unsubscribe: Callable[[Subscriber, str], bool],
    ) -> int:
        """Take over users, keys and rules that were read anew: how many subscriptions they end. Raises AuthError, and changes nothing then.

        Clients whose user is gone are disconnected. Whether clients are asked at all (`asks`) needs a restart.
        unsubscribe: ends a subscription.
        """
        settings = settings or AccessSettings()
        if settings.asks != (self.authenticator is not None):
            raise AuthError("[access]: whether clients say who they are is decided at the start; restart the broker")
        if self.authenticator is not None:
            self.authenticator.apply(settings)
        self.settings, self.rules, self.identifiers = settings, settings.rules, settings.identifiers
        ended = 0
        for connection in list(connections):
            if connection.session is None or self._exempt(connection.client_id):
                continue
            connection.set_rules(self._judged(connection.user, connection.client_id))
            text = self.over(connection)
            if text is not None:
                connection.disconnect(Reason.ADMINISTRATIVE_ACTION, text)
        for session in list(sessions):
            if session.client_id.startswith("\0"):  # it moves to another site
                continue
            ended += self.review(session, unsubscribe)
        return ended
