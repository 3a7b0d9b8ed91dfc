"""Finds out who a client is before its CONNECT is answered.

Passwords are compared off the loop, two at a time: a comparison takes 20 ms and 19 MiB on purpose. What was right once is remembered by its
keyed hash until the file changes, so that a thousand clients that come back are let in at once, without a comparison. Who is looked at next
is decided in `base/logins.py`: addresses take turns, names have one comparison at a time and a pause after failures, and those who were
right before go first. The answer to a wrong password comes when the pause is over.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from ...base.cache import Cache
from ...base.extras import install
from ...base.logins import Logins
from ...base.refusals import source_of
from ...mqtt.reasons import Reason
from ..transport.tls.transport import TlsTransport

if TYPE_CHECKING:
    from ...mqtt.packets import Connect
    from ..ports import Connection, Context
    from .renewed_passwords import RenewedPasswords
    from .settings import AccessSettings
    from .tokens import Tokens

log = logging.getLogger("mqmesh.broker")

WAITING = 1000  # CONNECTs whose passwords wait to be compared
TOGETHER = 2  # comparisons at a time
REMEMBERED = 10_000  # right passwords
SLICE = 20  # clients that are let in at once
PATIENCE = 30.0  # seconds that a CONNECT waits at most


class AuthError(Exception):
    """Files of users or keys cannot be used; one line."""


class Proof(NamedTuple):
    """What a client has shown. kind: "password", "token", "certificate" or "nothing". by: what it was compared with: the hash of a
    password, the key and claims of tokens."""

    kind: str
    by: object = None


class Outcome(NamedTuple):
    """Who it is (None: nobody), until when (wall clock, None: without an end), or why it may not come in. proof: None: nobody is asked."""

    user: str | None = None
    ends: float | None = None
    refusal: tuple[Reason, str] | None = None
    proof: Proof | None = None


class _Waiting:
    """A CONNECT whose password waits. go: is called with the outcome. late: ends the wait."""

    __slots__ = ("connection", "digest", "go", "late", "password", "user")

    def __init__(self, connection: Connection, user: str, password: bytes, digest: bytes, go: Callable[[Outcome], None]) -> None:
        self.connection, self.user, self.password, self.digest, self.go = connection, user, password, digest, go
        self.late: asyncio.TimerHandle | None = None


BUSY = Outcome(refusal=(Reason.SERVER_BUSY, "too many passwords wait to be compared; come again later"))
BAD = Outcome(None, None, (Reason.BAD_USER_NAME_OR_PASSWORD, "user name or password is wrong"))


class Authenticator:
    """Of one broker. Raises AuthError for files that cannot be used."""

    def __init__(self, context: Context, settings: AccessSettings) -> None:
        self._context = context
        self._key = secrets.token_bytes(32)
        self._pool: ThreadPoolExecutor | None = None
        self._stopped = False
        self._logins: Logins[_Waiting] = Logins(WAITING, TOGETHER)
        self._timer: asyncio.TimerHandle | None = None
        self.apply(settings)

    def apply(self, settings: AccessSettings) -> None:
        """Read the files, and take their content over if all of it is good."""
        users: dict[str, str] = {}
        renewed: RenewedPasswords | None = None
        tokens: Tokens | None = None
        try:
            if settings.users is not None:
                from . import passwords
                from .renewed_passwords import RenewedPasswords

                users = passwords.load(settings.users)
                renewed = RenewedPasswords(users, settings.renewed)
            if settings.tokens is not None:
                from .tokens import Tokens

                tokens = Tokens.of(settings.tokens)
        except ImportError as error:
            raise AuthError(f"[access] needs more packages: {install('access')} ({error})") from error
        except (OSError, ValueError) as error:
            raise AuthError(f"[access]: {error}") from error
        self.settings, self.users, self._renewed, self._tokens = settings, users, renewed, tokens
        self._right: Cache[bytes, None] = Cache(REMEMBERED)

    def holds(self, user: str | None, proof: Proof, listener: str) -> bool:
        """Whether what a client has shown would still let it in by a listener: a removed user, another password, another key do not."""
        if proof.kind == "password":
            return user is not None and self.users.get(user) == proof.by
        if proof.kind == "token":
            return self._tokens is not None and self._tokens.judges == proof.by
        return self.settings.certificates if proof.kind == "certificate" else self.settings.admits_anonymous(listener)

    def stop(self) -> None:
        """Compare no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, connection: Connection, packet: Connect, go: Callable[[Outcome], None]) -> Outcome | None:
        """Who sent a CONNECT; None: `go` is called with it later."""
        if self.settings.certificates:
            transport = connection.transport.get_extra_info("tls")
            name = transport.common_name if isinstance(transport, TlsTransport) else None
            if name:
                if packet.user_name not in (None, "", name):
                    return Outcome(refusal=(Reason.NOT_AUTHORIZED, f"the certificate is of {name!r}, the user name is another one"))
                return checked(Outcome(name, proof=Proof("certificate")))
        password = packet.password
        if password is None and not packet.user_name:
            if self.settings.admits_anonymous(connection.listener):
                return Outcome(proof=Proof("nothing"))
            return Outcome(refusal=(Reason.NOT_AUTHORIZED, "say who you are"))
        if self._tokens is not None and password is not None and password.count(b".") == 2:
            holder = self._tokens.holder(password)
            if isinstance(holder, str):
                self._failed(connection, Outcome(refusal=(Reason.BAD_USER_NAME_OR_PASSWORD, holder)), go)
                return None
            if packet.user_name not in (None, "", holder.user):
                return Outcome(refusal=(Reason.NOT_AUTHORIZED, f"the token is of {holder.user!r}, the user name is another one"))
            return checked(Outcome(holder.user, holder.ends, proof=Proof("token", self._tokens.judges)))
        if not packet.user_name or password is None or self.settings.users is None:
            self._failed(connection, BAD, go)
            return None
        digest = self._digest(packet.user_name, password)
        if digest in self._right:
            return self._good(packet.user_name)
        waiting = _Waiting(connection, packet.user_name, password, digest, go)
        gone = self._logins.ask(waiting, source_of(connection.address), waiting.user)
        if gone is waiting:
            return BUSY
        loop = self._context.loop
        waiting.late = loop.call_later(PATIENCE, self._too_late, waiting)
        if gone is not None:
            self._answer(gone, BUSY)
        self._next()
        return None

    def _next(self) -> None:
        """Begin the comparisons whose turn it is."""
        loop = self._context.loop
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_once = 0
        while not self._stopped and at_once < SLICE and (waiting := self._logins.take(loop.time())) is not None:
            if waiting.connection.closing or waiting.digest in self._right:
                at_once += 1
                self._logins.drop(waiting)
                self._answer(waiting, BAD if waiting.connection.closing else self._good(waiting.user))
                continue
            if waiting.late is not None:
                waiting.late.cancel()
            task = loop.create_task(self._compare(waiting), name="password")
            task.add_done_callback(self._compared)
        at = None if self._stopped else self._logins.next_time(loop.time())
        if at is not None:
            self._timer = loop.call_at(at, self._next)

    def _compared(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("event=password-failed error=%r", task.exception())
        self._next()

    async def _compare(self, waiting: _Waiting) -> None:
        from . import passwords

        loop, users, renewed, user = self._context.loop, self.users, self._renewed, waiting.user
        assert renewed is not None  # without a file of users no password is compared
        if self._pool is None:
            self._pool = ThreadPoolExecutor(TOGETHER, "password")
        good = False
        hash_ = users.get(user, passwords.NOBODY)
        try:
            good = await loop.run_in_executor(self._pool, renewed.right, user, hash_, waiting.password)
            good = good and self.users.get(user) == hash_  # the file may have been read again meanwhile
        finally:  # also when the thread could not begin: a CONNECT is always answered
            delay = self._logins.done(waiting, good, loop.time())
            if not good:
                loop.call_later(delay, waiting.go, BAD)
        if not good:
            return
        self._right.keep(waiting.digest, None)
        waiting.go(self._good(user))
        self._let_in(user)

    def _good(self, user: str) -> Outcome:
        """Whose password is right."""
        return Outcome(user, proof=Proof("password", self.users.get(user)))

    def _let_in(self, user: str) -> None:
        """What was right just now: a thousand clients of one user may have come at once. They are answered a few at a time."""
        same = [other for other in self._logins.all_of(user) if other.digest in self._right]
        for other in same[:SLICE]:
            self._logins.withdraw(other)
            self._answer(other, self._good(user))
        if len(same) > SLICE and not self._stopped:
            self._context.loop.call_soon(self._let_in, user)

    @staticmethod
    def _answer(waiting: _Waiting, outcome: Outcome) -> None:
        if waiting.late is not None:
            waiting.late.cancel()
        waiting.go(outcome)

    def _too_late(self, waiting: _Waiting) -> None:
        self._logins.withdraw(waiting)
        waiting.go(BUSY)

    def _failed(self, connection: Connection, outcome: Outcome, go: Callable[[Outcome], None]) -> None:
        """Answer later that it is wrong."""
        loop = self._context.loop
        loop.call_later(self._logins.failed_unseen(source_of(connection.address), loop.time()), go, outcome)

    def _digest(self, user: str, password: bytes) -> bytes:
        name = user.encode()
        return hmac.digest(self._key, len(name).to_bytes(2, "big") + name + password, "sha256")


def checked(outcome: Outcome) -> Outcome:
    """The same, or a refusal of a name that a token or certificate has and that can be nobody's."""
    name = outcome.user or ""
    try:
        name.encode()
        good = "\0" not in name
    except UnicodeEncodeError:
        good = False
    return outcome if good else Outcome(refusal=(Reason.BAD_USER_NAME_OR_PASSWORD, "the name is no text that MQTT has (MQTT-1.5.4)"))
