"""Clients that serve the recipients of one broker: what they declare, the sessions that serve, and what a session leaves behind.

What it does not know: states, where messages go.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from ...mqtt.reasons import Reason
from ...mqtt.session import Delivery
from ...mqtt.topics import split_share
from .declared import ALTERNATIVES, Contradiction, declared, of_subscription
from .handover.failover import uniform_runs
from .handover.parcels import failed_over, fields_of, repeated
from .recipient import PAST, Recipient, face_of, forget_gone, forget_identifiers, watch

if TYPE_CHECKING:
    from ...mqtt.packets import Subscription
    from ..ledger import Account
    from ..session.session import Session
    from .settings import Application
    from .shell import Recipients

NO_ROOM = "this broker has no room for more recipients (limits.broker_bytes)"


class Clients:
    """The clients of one broker's recipients. serving: client identifier -> whom it serves."""

    def __init__(self, recipients: Recipients) -> None:
        self._all = recipients
        self.serving: dict[str, list[Recipient]] = {}

    def refusal(self, client_id: str, properties: dict[int, Any], account: Account) -> tuple[Reason, str] | None:
        """Why a CONNECT declares what it may not; None: it does not. account: of its connection."""
        try:
            found = self._declared(client_id, properties)
        except Contradiction as error:
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(error)
        if any(one.name not in self._all.local for one in found) and (text := self._no_room(account)) is not None:
            return Reason.QUOTA_EXCEEDED, text
        return None

    def _no_room(self, account: Account) -> str | None:
        """Why an account's holders may declare no more recipients; None: they may."""
        if self._all.context.ledger.scarce:
            return NO_ROOM
        return account.why if account.full else None

    def _declared(self, client_id: str, properties: dict[int, Any]) -> list[Application]:
        def may(name: str) -> bool:
            if any(one.name == name for one in self.serving.get(client_id, ())):
                return True
            found = self._all.directory.cached(name) if self._all.directory is not None else None
            return found is not None and client_id in found.clients

        found = declared(client_id, fields_of(properties), self._all.settings.intervals, may)
        for application in found:
            self._check_name(application.name, client_id)
        return found

    def _check_name(self, name: str, client_id: str) -> None:
        """A recipient that others serve is not a client's own because its identifier is the same. Raises Contradiction."""
        known, directory = self._all.local.get(name), self._all.directory
        listed = directory.cached(name) if directory is not None else None
        clients = [*(known.application.clients if known is not None else ()), *(listed.clients if listed is not None else ())]
        if clients and client_id not in clients:
            raise Contradiction(f"the recipient {name!r} is served by other clients: have this client identifier listed among its clients")

    def opening(self, session: Session, properties: dict[int, Any]) -> None:
        """A client has come; its session is about to be resumed."""
        with contextlib.suppress(Contradiction):  # with others that came since it was asked for
            self._take_up(session, properties)
        if self._all.directory is not None:
            self._all.directory.opened(session.client_id)
        served = self.serving.get(session.client_id)
        if not served:
            return
        self.serve(session)
        forget_gone(session)
        now = self._all.context.now
        for recipient in served:
            recipient.connected_now(now)
        self._all.stirred = True

    def _take_up(self, session: Session, properties: dict[int, Any]) -> None:
        """What the client of a session declares of itself. Raises Contradiction."""
        for application in self._declared(session.client_id, properties):
            if application.name in self._all.local:
                base = self._all.local[application.name].application
                application.clients = list(dict.fromkeys([*base.clients, session.client_id]))
                application.topics = base.topics
            self._all.adopt(application, session)
            if self._all.directory is not None:
                self._all.directory.declare(application)

    def subscribing(self, session: Session, properties: dict[int, Any], subscriptions: list[Subscription]) -> str | None:
        """A client subscribes, and may name its alternatives for that. Why it may not, in words; None: it may."""
        name = session.client_id
        recipient = self._all.local.get(name)
        filters = [share[1] if (share := split_share(one.filter)) is not None else one.filter for one in subscriptions]
        try:
            if recipient is not None and ALTERNATIVES in fields_of(properties):
                self._check_name(name, name)
            elif recipient is None and ALTERNATIVES in fields_of(properties) and (text := self._no_room(session.account)) is not None:
                raise Contradiction(text)
            made = of_subscription(name, fields_of(properties), filters, recipient.application if recipient is not None else None)
        except Contradiction as error:
            return str(error)
        if made is not None:
            if recipient is None:
                made.intervals = self._all.settings.intervals
            self._all.adopt(made, session)
            if self._all.directory is not None:
                self._all.directory.declare(made)
        return None

    def serve(self, session: Session) -> None:
        """A session is one of those that serve recipients."""
        served = self.serving[session.client_id]
        for number, recipient in enumerate(served):
            recipient.primary = number == 0
            recipient.join(session)
        watch(session, self._all)
        if session.face is session:
            self._all.router.reface(session, face_of(served[0], session))

    def keeps(self, client_id: str) -> bool:
        """Whether the session of a client is kept though it ends with its connection."""
        return bool(self.serving.get(client_id))

    def outlives(self, session: Session) -> str | None:
        """The name under which a session that ends goes on, because recipients have messages in it; None: it ends."""
        served = [one for one in self.serving.get(session.client_id, ()) if session in one.sessions]
        if not served:
            return None
        for recipient in served:
            recipient.part(session)
        if not (session.queued or session.outbound.in_flight):
            return None
        name = f"{PAST}{time.time_ns()}.{served[0].name}"
        self._all.context.loop.call_soon(self._past, session, served)
        for recipient in served:
            recipient.pasts.append(session)
        session.user = None
        persistence = self._all.keeping.persistence
        if persistence is not None and session.stored:
            for topic_filter in list(session.filters):  # type: ignore[attr-defined]
                persistence.delete_subscription(session, topic_filter)  # type: ignore[arg-type]
        return name

    def _past(self, session: Session, served: list[Recipient]) -> None:
        self._all.context.refresh()
        self.move_past(session, served[0].name)
        self._all.context.flush()

    def move_past(self, session: Session, primary: str) -> None:
        """Move what a session that has ended still has for recipients."""
        forget_identifiers(session)
        for recipient in self._all.local.values():
            if session not in recipient.pasts and recipient.name == primary:
                recipient.pasts.append(session)

        def give(delivery: Delivery, sent: bool) -> None:
            for run in uniform_runs(delivery):
                run = repeated(run) if sent else run
                owner = self._all.local.get(primary) if failed_over(run.properties) else self._all.owner(bytes(run.topic))
                if owner is not None:
                    owner.take_back(Delivery(run, delivery.qos, delivery.retain))

        def end() -> None:
            for recipient in self._all.local.values():
                if session in recipient.pasts:
                    recipient.past_over(session)
            self._all.sessions.end(session)
            self._all.stirred = True

        self._all.move_session(session, lambda: True, give, end)
