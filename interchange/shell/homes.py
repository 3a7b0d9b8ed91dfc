"""What interchanges of a mesh say to each other, as posts of their brokers: in custody, each once, through cuts and restarts.

    kind                 from, to        what
    interchange/post     entry, home     a message about a call of that home, whose sender the entry has proved
    interchange/verdict  home, entry     what became of it, if the client would hear it
    interchange/ask      entry, home     may a service begin a call in a session of that home?
    interchange/said     home, entry     the session, or why not

An entry is the interchange that a client has posted to. The brokers of a mesh believe each other who the sender is. A call that waits for
what the home of its session says stands in the store, since its post is acknowledged; it is asked for again after a restart.

What it does not know: what becomes of a message.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgpack
from msgspec.structs import replace

from ...base.quoting import quoted
from ...mqtt.errors import UsageError
from ..calls import pack_message, unpack_message
from ..deadlines import Deadlines
from ..exchange import DEFAULT_EXPIRY, Elsewhere
from ..message import Message
from ..refusals import Code, Refusal

if TYPE_CHECKING:
    from ...broker.mesh.shell import MeshShell
    from .keeping import Keeping

log = logging.getLogger("mqmesh.interchange")

POST, VERDICT, ASK, SAID = "interchange/post", "interchange/verdict", "interchange/ask", "interchange/said"
NOBODY = b""  # in place of a token: nobody waits for the verdict
MOST_PENDING = 100_000  # posts whose verdict of another home is awaited
Told = Callable[[dict[str, Any]], None]


class Here(Protocol):
    """The interchange of this broker."""

    def decide(self, message: Message, vouched: bool = False) -> dict[str, Any]:
        """Take a message, and do what follows: what its poster is told. Raises Refusal, Elsewhere."""

    def session_for(self, service: str, session: str, call: str) -> str:
        """The session in which a service may begin a call: `session`, or that of `call`. Raises Refusal."""

    def undecided(self, message: Message, refusal: Refusal) -> None:
        """A request that was acknowledged is refused all the same, and its poster is gone: it ends in an error."""

    def now(self) -> int:
        """Milliseconds since 1970."""

    def wait(self) -> None:
        """Deadlines have changed."""


class Homes:
    """Other homes, for the interchange of one broker. waiting: calls that wait for the home of their session, by token."""

    def __init__(self, here: Here, keeping: Keeping, mesh: MeshShell) -> None:
        self._here = here
        self._keeping = keeping
        self._mesh = self.mesh = mesh
        self._posts = mesh.peer_messages
        self._pending: dict[bytes, Told] = {}
        self.waiting: dict[bytes, Message] = {}
        self.deadlines = Deadlines()
        for kind, take in ((POST, self._posted), (VERDICT, self._decided), (ASK, self._asked), (SAID, self._said)):
            self._posts.register(kind, _Handler(take, self._returned))

    def restore(self, kept: dict[bytes, bytes]) -> None:
        """Take up calls that an earlier process has left waiting."""
        for token, value in kept.items():
            self._await(token, unpack_message(msgpack.unpackb(value)))

    def start(self) -> None:
        """Ask again for what waits. The mesh has begun."""
        for token, message in list(self.waiting.items()):
            self._ask(token, message)

    # The entry's side

    def hand(self, message: Message, elsewhere: Elsewhere, told: Told, listens: bool = True) -> dict[str, Any] | None:
        """Have another home decide. told: gets what the poster is told; what is returned is told at once. Raises Refusal.

        A poster that was told that its message waits for a home out of reach is told once more if that refuses it.
        listens: whether the poster would hear what it is told.
        """
        answer = None
        home, token = elsewhere.home, secrets.token_bytes(12) if listens or elsewhere.asks else NOBODY
        here = f"{home} ({self._mesh.node.name(home)})"
        live = bool(self._mesh.node.live() >> home & 1)
        if elsewhere.asks:
            if not live:
                raise Refusal(Code.UNAVAILABLE, f"the home of this session, broker {here}, is out of reach", "post it later, or without it")
            if message.header.expires is None:
                message = replace(message, header=replace(message.header, expires=self._here.now() + DEFAULT_EXPIRY))
            self._await(token, message)
            self._keeping.put_waiting(token, msgpack.packb(pack_message(message)))
            self._ask(token, message)
        else:
            self._send(home, POST, [token, pack_message(message)])
            if not live:
                answer = {"call": message.header.call or message.header.hop, "waits_for": self._mesh.node.name(home)}
        if token != NOBODY and len(self._pending) < MOST_PENDING:
            self._pending[token] = told if answer is None else partial(_if_refused, told)
        return answer

    def _await(self, token: bytes, message: Message) -> None:
        self.waiting[token] = message
        if message.header.expires is not None:
            self.deadlines.set(token.hex(), message.header.expires)

    def _ask(self, token: bytes, message: Message) -> None:
        header = message.header
        try:
            self._send(int((header.session or header.call)[:4], 16), ASK, [token, header.sender, header.session, header.call])
        except Refusal as refusal:
            self._resolve(token, "", refusal)

    def _send(self, home: int, kind: str, body: list[Any], must: bool = False) -> None:
        """Raises Refusal."""
        try:
            if self._posts.send(1 << home, kind, msgpack.packb(body), must=must, together=True):
                return
        except UsageError:
            raise Refusal(Code.UNAVAILABLE, f"its home is broker {home}, which is not known here") from None
        raise Refusal(Code.UNAVAILABLE, f"too much waits here for broker {home}", "post it again later")

    def _decided(self, origin: int, body: list[Any]) -> None:
        token, answer = body
        told = self._pending.pop(token, None)
        if told is not None:
            told(answer)

    def _said(self, origin: int, body: list[Any]) -> None:
        token, session, refused = body
        self._resolve(token, session, None if refused is None else Refusal(Code(refused["code"]), refused["what"], refused["right"]))

    def _resolve(self, token: bytes, session: str, refusal: Refusal | None) -> None:
        """The home of a session has said, or it never will, whether a call may begin there."""
        message = self.waiting.pop(token, None)
        if message is None:
            return
        self.deadlines.drop(token.hex())
        self._keeping.put_waiting(token, None)
        told = self._pending.pop(token, None)
        try:
            if refusal is not None:
                raise refusal
            answer = self._here.decide(replace(message, header=replace(message.header, session=session, call="")), vouched=True)
        except Refusal as wrong:
            answer = dict(wrong.fields())
            if told is None:
                self._here.undecided(message, wrong)
        if told is not None:
            told(answer)

    def on_timer(self, now: int) -> None:
        """End what has waited for too long."""
        while (token := self.deadlines.due(now)) is not None:
            self._resolve(bytes.fromhex(token), "", Refusal(Code.EXPIRED, "the home of its session has not answered in time"))

    # The home's side

    def _posted(self, origin: int, body: list[Any]) -> None:
        token, packed = body
        try:
            answer = self._here.decide(unpack_message(packed))
        except Refusal as refusal:
            answer = dict(refusal.fields())
            log.info("event=post-refused code=%s origin=%d text=%s", refusal.code, origin, quoted(refusal.what[:200]))
        except Elsewhere as elsewhere:
            answer = dict(Refusal(Code.UNAVAILABLE, f"its home is broker {elsewhere.home}").fields())
        if token != NOBODY:
            self._send(origin, VERDICT, [token, answer], must=True)

    def _asked(self, origin: int, body: list[Any]) -> None:
        token, service, session, call = body
        try:
            found, refused = self._here.session_for(service, session, call), None
        except Refusal as refusal:
            found, refused = "", refusal.fields()
        self._send(origin, SAID, [token, found, refused], must=True)

    def _returned(self, body: list[Any], reason: str) -> None:
        """The other broker will never have it."""
        token = body[0]
        lost = Refusal(Code.HOME_LOST, f"its home is gone ({reason})")
        if token in self.waiting:
            self._resolve(token, "", lost)
        elif (told := self._pending.pop(token, None)) is not None:
            told(dict(lost.fields()))


def _if_refused(told: Told, answer: dict[str, Any]) -> None:
    if "code" in answer:
        told(answer)


class _Handler:
    """Receives posts of one kind from other brokers."""

    def __init__(self, take: Callable[[int, list[Any]], None], back: Callable[[list[Any], str], None]) -> None:
        self._take, self._back = take, back

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        """See `Handler` of `broker/mesh/peer_message.py`."""
        try:
            self._take(origin, msgpack.unpackb(body))
        except (ValueError, TypeError, KeyError, Refusal) as error:
            log.error("event=post-damaged origin=%d text=%s", origin, quoted(str(error)[:200]))

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        """See `Handler`."""
        self._back(msgpack.unpackb(body), reason)
