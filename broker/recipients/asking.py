"""Messages for names that nobody knows yet wait for an answer of the directory (rows F7, F15).

They are in a session of the broker's own, so that they are kept as any stored session's messages are. A name that cannot be looked up,
because the directory is away, is not unknown. When the answer comes, its messages go on, or back to their originators.

What it does not know: how a directory is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.packets import Subscription
from ...mqtt.session import Delivery
from ..routing.route import Entry, Route, Target
from .directory import Answer
from .handover import records
from .handover.failover import uniform_runs
from .handover.parcels import Parcel
from .settings import Application
from .taking.seizure import Seizure

if TYPE_CHECKING:
    from ..session.session import Session
    from .shell import Recipients

ADOPT = "recipients/adopt"
ASKING = "\0recipient.asking"
MOST_ASKING = 1000  # messages that wait for an answer of the directory


class Asking:
    """The questions of one broker, and the messages that wait for their answers."""

    def __init__(self, recipients: Recipients) -> None:
        self._recipients = recipients
        self._asked: set[str] = set()

    def wait(self, name: str, topic: str, count: int) -> Route | None:
        """The route of messages that wait for an answer about a name; None: too many wait."""
        session = self._recipients.own_session(ASKING)
        if session.queued + count > MOST_ASKING:
            return None
        self._asked.add(name)
        return Route(topic, [Target([Entry(session, Subscription(topic, 2), 0)])], [], None, True)

    def ask(self, name: str) -> bool:
        """Look a name up in the directory: whether its answer is still to come, or cannot come now."""
        directory = self._recipients.directory
        assert directory is not None
        answers: list[Application | Answer] = []
        asked = True

        def answer(found: Application | Answer) -> None:
            if asked:
                answers.append(found)
            else:
                self._recipients.context.refresh()
                self._answered(name, found)
                self._recipients.context.flush()

        directory.ask(name, answer)
        asked = False
        if not answers:
            return True
        if isinstance(answers[0], Application):
            self._home_of(answers[0])
            return True
        return answers[0] is Answer.AWAY

    def _home_of(self, application: Application) -> None:
        """The directory knows an application: its home is to be told."""
        if self._recipients.is_home(application):
            self._recipients.adopt(application)
        elif self._recipients.node is not None and self._recipients.failover.posts is not None:
            for member in self._recipients.node.members():
                if member.name == application.broker and member.number != self._recipients.number:
                    self._recipients.failover.posts.send(1 << member.number, ADOPT, records.encode_application(application), must=True)

    def _answered(self, name: str, found: Application | Answer) -> None:
        if isinstance(found, Application):
            self._home_of(found)
        if found is not Answer.AWAY:
            self.release(name, found is Answer.UNKNOWN)

    def release(self, name: str, unknown: bool) -> None:
        """Messages that waited for an answer about a name go on, or back."""
        asking = self._recipients.sessions.get(ASKING)
        if asking is None or not (asking.queued or asking.outbound.in_flight) or (self._recipients.record(name) is None and not unknown):
            return
        Seizure(asking, _Asked(self._recipients, name, unknown), self._recipients.keeping.persistence, None, 0, lambda _: None).go()

    def read(self) -> None:
        """After a restart: which names the messages are for that wait for an answer."""
        asking = self._recipients.sessions.get(ASKING)
        if asking is not None and asking.queued:
            Seizure(asking, _Names(self._recipients, self._asked), self._recipients.keeping.persistence, None, 0, lambda _: None).go()

    def again(self) -> None:
        """From time to time: ask again about names whose messages wait."""
        asking = self._recipients.sessions.get(ASKING)
        if asking is None or not asking.queued or self._recipients.directory is None:
            return
        for name in list(self._asked):
            if self._recipients.record(name) is not None:
                self._asked.discard(name)
                self.release(name, False)
            elif not self.ask(name):
                self._asked.discard(name)
                self.release(name, True)


class _Names:
    """Takes nothing, and notes the names that messages are for."""

    def __init__(self, recipients: Recipients, names: set[str]) -> None:
        self._recipients = recipients
        self._names = names

    def owns(self, delivery: Delivery) -> bool:
        name = self._recipients.name_in(delivery.run.topic.decode())
        if name is not None:
            self._names.add(name)
        return False

    def give(self, session: Session, delivery: Delivery, sent: bool) -> bool:
        return False


class _Asked:
    """Takes the messages about one name out of those that wait for the directory."""

    def __init__(self, recipients: Recipients, name: str, unknown: bool) -> None:
        self._recipients = recipients
        self._name = name
        self._unknown = unknown

    def owns(self, delivery: Delivery) -> bool:
        return self._recipients.name_in(delivery.run.topic.decode()) == self._name

    def give(self, session: Session, delivery: Delivery, sent: bool) -> bool:
        recipients = self._recipients
        for run in uniform_runs(delivery):
            if self._unknown:
                recipients.failover.give_back(
                    Parcel.of(run, delivery.qos, recipients.number, recipients.context.now).failed(self._name, "unknown", False)
                )
            elif not recipients.publish(run):
                return False
        return True
