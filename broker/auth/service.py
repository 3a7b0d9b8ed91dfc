"""Finds out who a client is before its CONNECT is answered.

Passwords are compared off the loop, two at a time: a comparison takes 20 ms and 19 MiB on purpose. What was right once is remembered by its
keyed hash until the file changes, so that a thousand clients that come back are let in at once. Failures slow down: the answer to a wrong
password comes later each time that one comes from the same address or for the same user, and while it is awaited the next from there
waits too; whoever shows what was right before does not wait.
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
from ...mqtt.reasons import Reason
from ..transport.tls.transport import TlsTransport

if TYPE_CHECKING:
    from ...mqtt.packets import Connect
    from ..ports import Connection, Context
    from .settings import AccessSettings
    from .tokens import Tokens

log = logging.getLogger("mqmesh.broker")

WAITING = 1000  # CONNECTs whose passwords wait to be compared
REMEMBERED = 10_000  # right passwords, and addresses and users with failures
FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0  # seconds
FORGOTTEN = 300.0  # seconds without a failure after which it starts again


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


BAD = Outcome(None, None, (Reason.BAD_USER_NAME_OR_PASSWORD, "user name or password is wrong"))


class Authenticator:
    """Of one broker. Raises AuthError for files that cannot be used."""

    def __init__(self, context: Context, settings: AccessSettings) -> None:
        self._context = context
        self._key = secrets.token_bytes(32)
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = 0
        self._failures: Cache[str, tuple[int, float, float]] = Cache(REMEMBERED)  # address or user -> how many, last, end of its delay
        self.apply(settings)

    def apply(self, settings: AccessSettings) -> None:
        """Read the files, and take their content over if all of it is good."""
        users: dict[str, str] = {}
        tokens: Tokens | None = None
        try:
            if settings.users is not None:
                from . import passwords

                users = passwords.load(settings.users)
            if settings.tokens is not None:
                from .tokens import Tokens

                tokens = Tokens.of(settings.tokens)
        except ImportError as error:
            raise AuthError(f"[access] needs more packages: pip install 'mqmesh[access]' ({error})") from error
        except (OSError, ValueError) as error:
            raise AuthError(f"[access]: {error}") from error
        self.settings, self.users, self._tokens = settings, users, tokens
        self._right: Cache[bytes, None] = Cache(REMEMBERED)

    def holds(self, user: str | None, proof: Proof) -> bool:
        """Whether what a client has shown would still let it in: a removed user, another password and another key of tokens do not."""
        if proof.kind == "password":
            return user is not None and self.users.get(user) == proof.by
        if proof.kind == "token":
            return self._tokens is not None and self._tokens.judges == proof.by
        return self.settings.certificates if proof.kind == "certificate" else self.settings.anonymous

    def stop(self) -> None:
        """Compare no more."""
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
            return (
                Outcome(proof=Proof("nothing")) if self.settings.anonymous else Outcome(refusal=(Reason.NOT_AUTHORIZED, "say who you are"))
            )
        if self._tokens is not None and password is not None and password.count(b".") == 2:
            holder = self._tokens.holder(password)
            if isinstance(holder, str):
                self._failed(connection, packet, Outcome(refusal=(Reason.BAD_USER_NAME_OR_PASSWORD, holder)), go)
                return None
            if packet.user_name not in (None, "", holder.user):
                return Outcome(refusal=(Reason.NOT_AUTHORIZED, f"the token is of {holder.user!r}, the user name is another one"))
            return checked(Outcome(holder.user, holder.ends, proof=Proof("token", self._tokens.judges)))
        if not packet.user_name or password is None or self.settings.users is None:
            self._failed(connection, packet, BAD, go)
            return None
        if self._digest(packet.user_name, password) in self._right:
            return Outcome(packet.user_name, proof=Proof("password", self.users.get(packet.user_name)))
        if self._waiting >= WAITING:
            return Outcome(refusal=(Reason.SERVER_BUSY, "too many passwords wait to be compared; come again later"))
        self._waiting += 1
        task = self._context.loop.create_task(self._compare(connection, packet.user_name, password, go), name="password")
        task.add_done_callback(self._compared)
        return None

    def _compared(self, task: asyncio.Task[None]) -> None:
        self._waiting -= 1
        if not task.cancelled() and task.exception() is not None:
            log.error("event=password-failed error=%r", task.exception())

    async def _compare(self, connection: Connection, user: str, password: bytes, go: Callable[[Outcome], None]) -> None:
        from . import passwords

        loop, users = self._context.loop, self.users
        await asyncio.sleep(self._pause(connection, user))
        if connection.closing:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2, "password")
        hash_ = users.get(user, passwords.NOBODY)
        good = await loop.run_in_executor(self._pool, passwords.right, hash_, password)
        good = good and self.users.get(user) == hash_  # the file may have been read again meanwhile
        if good:
            self._right.keep(self._digest(user, password), None)
        if not good:
            await asyncio.sleep(self._delay(connection, user))
        go(Outcome(user, proof=Proof("password", hash_)) if good else BAD)

    def _failed(self, connection: Connection, packet: Connect, outcome: Outcome, go: Callable[[Outcome], None]) -> None:
        """Answer later that it is wrong."""
        loop = self._context.loop
        loop.call_later(self._pause(connection, packet.user_name) + self._delay(connection, packet.user_name), go, outcome)

    def _digest(self, user: str, password: bytes) -> bytes:
        name = user.encode()
        return hmac.digest(self._key, len(name).to_bytes(2, "big") + name + password, "sha256")

    # What failures cost

    @staticmethod
    def _names(connection: Connection, user: str | None) -> list[str]:
        return [connection.address.rpartition(":")[0], *([f"user {user}"] if user else [])]

    def _pause(self, connection: Connection, user: str | None) -> float:
        """Seconds until the delays that run for this address and this user are over."""
        now = self._context.loop.time()
        return max([0.0, *(self._failures[name][2] - now for name in self._names(connection, user) if name in self._failures)])

    def _delay(self, connection: Connection, user: str | None) -> float:
        """Count a failure: seconds that its answer is put off."""
        now = self._context.loop.time()
        longest = 0.0
        for name in self._names(connection, user):
            count, last, _ = self._failures.get(name, (0, now, 0.0))
            count = 1 if now - last > FORGOTTEN else count + 1
            delay = min(FIRST_DELAY * 2.0 ** min(count - 1, 10), LONGEST_DELAY)
            self._failures.keep(name, (count, now, now + delay))
            longest = max(longest, delay)
        return longest


def checked(outcome: Outcome) -> Outcome:
    """The same, or a refusal of a name that a token or certificate has and that can be nobody's."""
    name = outcome.user or ""
    try:
        name.encode()
        good = "\0" not in name
    except UnicodeEncodeError:
        good = False
    return outcome if good else Outcome(refusal=(Reason.BAD_USER_NAME_OR_PASSWORD, "the name is no text that MQTT has (MQTT-1.5.4)"))
