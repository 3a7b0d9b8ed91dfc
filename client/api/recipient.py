"""A recipient: an application under a name, which its broker watches, and whose messages go to others when it is dead (docs/recipients.md).

It is a consumer of `app/NAME/#` with a session that the broker keeps, and says in CONNECT who it is. If the connection has a directory,
a thread registers the application there and renews its lease until the recipient is closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.directory import Directory
from ..core.errors import IllegalStateError, JMSError
from ..message.destinations import Topic
from .consumer import MessageConsumer
from .subscriptions import Subscription

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger("mqmesh.client")

PREFIX = "app"
MOST = 64  # alternatives, and applications that are consented to
LONGEST_NAME = 256  # characters
LEASE = 60.0  # seconds
AGAIN = 5.0  # seconds until a directory that did not answer is asked again
LEAVING = 5.0  # seconds that closing waits for the directory


@dataclass(frozen=True, slots=True)
class Declaration:
    """What an application says of itself.

    name: as in `app/NAME/...`.
    alternatives: applications that take its messages when it is in fault, the preferred first.
    message_interval, fault_interval, defunct_interval: seconds; None: those of the broker.
    consents: applications whose messages it takes as an alternative; "*" for all.
    probe: it takes an empty message, which shows the broker that it lives. The client takes it out when its turn comes.
    """

    name: str
    alternatives: tuple[str, ...] = ()
    message_interval: float | None = None
    fault_interval: float | None = None
    defunct_interval: float | None = None
    consents: tuple[str, ...] = ()
    probe: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        alternatives: Iterable[str],
        intervals: tuple[float | None, float | None, float | None],
        consents: Iterable[str],
        probe: bool,
    ) -> Declaration:
        """Check what an application says. intervals: message, fault, defunct. Raises `JMSError` that names the argument."""
        made = cls(_name("name", name), _names("alternatives", alternatives), *intervals, _names("consents", consents, "*"), bool(probe))
        for key, seconds in zip(("message_interval", "fault_interval", "defunct_interval"), intervals, strict=True):
            if seconds is not None and (
                not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= 86400 * 366
            ):
                raise JMSError(f"{key} = {seconds!r}: expected seconds, more than 0", key)
        message, fault = made.message_interval, made.fault_interval
        if message is not None and fault is not None and fault < message:
            raise JMSError(f"fault_interval = {fault!r}: expected at least message_interval = {message!r}", "fault_interval")
        if name in made.alternatives:
            raise JMSError(f"alternatives: {name!r} is no alternative of its own", "alternatives")
        return made

    def user_properties(self) -> tuple[tuple[str, str], ...]:
        """As CONNECT carries it."""
        given = (
            ("mqmesh-recipient", self.name),
            ("mqmesh-alternatives", ",".join(self.alternatives)),
            ("mqmesh-message-interval", _number(self.message_interval)),
            ("mqmesh-fault-interval", _number(self.fault_interval)),
            ("mqmesh-defunct-interval", _number(self.defunct_interval)),
            ("mqmesh-consents", ",".join(self.consents)),
            ("mqmesh-probe", "1" if self.probe else ""),
        )
        return tuple((name, value) for name, value in given if value)

    def record(self, client_id: str) -> dict[str, object]:
        """As the directory keeps it."""
        given: dict[str, object] = {
            "alternatives": list(self.alternatives),
            "message_interval": self.message_interval,
            "fault_interval": self.fault_interval,
            "defunct_interval": self.defunct_interval,
            "consents": list(self.consents),
            "probe": self.probe,
            "clients": [client_id],
        }
        return {key: value for key, value in given.items() if value not in (None, [], False)}


class Recipient(MessageConsumer):
    """The messages of one application. Made by `Context.recipient` or `Session.create_recipient`."""

    def __init__(
        self,
        session: Session,
        subscription: Subscription,
        release: Callable[[], None],
        declaration: Declaration,
        directory: Directory | None,
        lease: float,
    ) -> None:
        super().__init__(session, subscription, release)
        self.declaration = declaration
        self.inbox.probe_topic = subscription.topic.name.removesuffix("#") + "probe" if declaration.probe else ""
        report = session.connection.report
        self._registered = Registered(directory, declaration, subscription.client_id, lease, report) if directory is not None else None

    @property
    def name(self) -> str:
        """Of the application."""
        return self.declaration.name

    def open(self) -> None:
        """See `MessageConsumer`; and register in the directory. Raises `JMSError` if the directory refuses."""
        if self._registered is not None:
            try:
                self._registered.begin()
            except JMSError:
                self.closed = True
                self._release()
                raise
        try:
            super().open()
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        """Stop consuming, and leave the directory. The broker keeps the messages of the name until somebody serves it again."""
        super().close()
        self._leave()

    def end_lease(self) -> None:
        """Leave the directory, because the session closes."""
        self._leave()

    def _leave(self) -> None:
        if self._registered is not None:
            self._registered.end()


class Registered:
    """Keeps an application registered in a directory, in a thread."""

    def __init__(
        self, directory: Directory, declaration: Declaration, client_id: str, lease: float, report: Callable[[JMSError], None]
    ) -> None:
        self._directory, self._declaration, self._lease, self._report = directory, declaration, lease, report
        self._fields = declaration.record(client_id)
        self._ended = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._run, name=f"mqmesh-lease {declaration.name}", daemon=True)

    def begin(self) -> None:
        """Register, then renew. A directory that is away is asked again later. Raises `JMSError` for a refusal."""
        try:
            self._pause = self._renew()
        except ValueError as error:
            raise JMSError(f"the directory refuses the application {self._declaration.name!r}: {error}", "directory") from error
        self._thread.start()

    def end(self) -> None:
        """Leave. If the directory does not answer, the lease ends by itself."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(LEAVING)

    def _run(self) -> None:
        while not self._ended.wait(self._pause):
            try:
                self._pause = self._renew()
            except ValueError as error:
                self._pause = AGAIN
                self._say(f"the directory refuses the application {self._declaration.name!r}: {error}")
        try:
            self._directory.leave(self._declaration.name)
        except (OSError, ValueError) as error:
            log.info("event=directory_not_left name=%s text=%s", self._declaration.name, error)

    def _renew(self) -> float:
        """Seconds until it is to be renewed."""
        try:
            self._directory.register(self._declaration.name, self._lease, self._fields)
        except OSError as error:
            self._say(f"the directory does not answer: {error}")
            return min(AGAIN, self._lease / 3)
        self._said = ""
        return self._lease / 3

    def _say(self, text: str) -> None:
        """Report each state once."""
        if text != self._said:
            self._said = text
            self._report(JMSError(text, "directory"))


def subscription_of(declaration: Declaration, client_id: str, own_link: str | None, prefix: str) -> Subscription:
    """What a recipient consumes. own_link: client identifier of the link that the connection sends on. Raises `IllegalStateError`."""
    if client_id == own_link:
        raise IllegalStateError(
            f"the connection itself has the client identifier {client_id!r}: give the factory another client_id, or the recipient a client"
        )
    filter_ = f"{prefix}/{declaration.name}/#"
    return Subscription(Topic(filter_), filter_, client_id, durable=True, name=declaration.name, user=declaration.user_properties())


def check_lease(seconds: float) -> float:
    """The lease. Raises `JMSError`."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 1 <= seconds <= 86400:
        raise JMSError(f"lease = {seconds!r}: expected seconds from 1 to 86400", "lease")
    return float(seconds)


def _name(key: str, name: object) -> str:
    wrong = not isinstance(name, str) or not name.isprintable() or name.startswith("$") or any(one in name for one in "/+#,")
    if wrong or not 1 <= len(str(name)) <= LONGEST_NAME:
        raise JMSError(f"{key}: {name!r} is no name: expected 1 to {LONGEST_NAME} characters without / + # , and no $ first", key)
    return str(name)


def _names(key: str, names: Iterable[str], everybody: str = "") -> tuple[str, ...]:
    if isinstance(names, str):
        raise JMSError(f"{key} = {names!r}: expected a list of names", key)
    made = tuple(name if name == everybody else _name(key, name) for name in names)
    if len(made) > MOST:
        raise JMSError(f"{key}: expected at most {MOST} names, not {len(made)}", key)
    if len(set(made)) < len(made):
        raise JMSError(f"{key}: expected each name once", key)
    return made


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.6f}".rstrip("0").rstrip(".")
