"""What a home knows of a call: its request or notification, and a branch for each recipient, with every hop (us-9037726, l. 220-226).

A branch goes its way out through the services of its route to the recipient, and, for a request, back through those of the way back to
the sender. Each delivery on this way is a hop, with an identifier of its own.

`pack` and `unpack` make bytes of a call and back: one value of the store for each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgpack
import msgspec

from .message import BODY, Access, Declaration, Header, Kind, Message, Part, read_header, stored_header


class State(StrEnum):
    """The state of a branch. The last five are final."""

    OUT = "out"  # a service on the way out, or the recipient, has it
    BACK = "back"  # the recipient has answered, and a service on the way back has the response
    ANSWERED = "answered"  # the response is in the sender's inbox
    DELIVERED = "delivered"  # the notification is in the recipient's inbox
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens."""
        return self is not State.OUT and self is not State.BACK


class Step(msgspec.Struct, frozen=True, gc=False):
    """One delivery that a route foresees.

    to: the service, with its arguments and the parts that it may see.
    context: variables that it is told.
    recipient: the recipient whose part of the route this is; empty: the part of the sender.
    topic, expires: what rules have made of those of the header; None: nothing. expires: milliseconds since 1970.
    revision: of the service's rules that made it.
    dynamic: the service's rules are to be evaluated when the message comes to it (`route.py`).
    chain, path: the services that invoked each other up to this one, and which invocation of each; `route.py` goes by them.
    """

    to: Declaration
    context: Mapping[str, str] = msgspec.field(default_factory=dict)
    recipient: str = ""
    topic: str | None = None
    expires: int | None = None
    dynamic: bool = False
    chain: tuple[str, ...] = ()
    path: tuple[int, ...] = ()
    revision: int = 0


class Hop(msgspec.Struct, array_like=True, gc=False):
    """One delivery. given, ended: milliseconds since 1970; 0: not yet. acknowledged: the service has said that it has it.

    kind: of the message. size: bytes of its parts, as the service sees them.
    received: the protocol of the post that led to it; empty: the interchange itself has made it, or that is not known.
    sent: how the service takes it (`Routes.delivery`). works: the service is to answer it, and has not.
    """

    id: str
    service: str
    given: int
    ended: int = 0
    acknowledged: int = 0
    kind: str = ""
    size: int = 0
    received: str = ""
    sent: str = ""
    works: bool = False


class Branch(msgspec.Struct, gc=False):
    """The way to one recipient and back.

    out: its steps, the last of which is the recipient. back: those of the way back, without the sender. at: index of the step whose service
    has it. message: all of it, while services of the route are to come or see a part only; else None.
    missing: numbers of the responses that are still to come, where its recipient gives several; of: how many. number: of the one response
    that this branch brings back, `2/3`: each but the last has a branch of its own, whose hops begin with the response.
    code, reason: why it has failed.
    """

    out: tuple[Step, ...]
    back: tuple[Step, ...] = ()
    state: State = State.OUT
    at: int = 0
    hops: list[Hop] = msgspec.field(default_factory=list)
    message: Message | None = None
    code: str = ""
    reason: str = ""
    missing: tuple[int, ...] = ()
    of: int = 1
    number: str = ""

    @property
    def recipient(self) -> str:
        """The service that the branch is for."""
        return self.out[-1].recipient or self.out[-1].to.service

    @property
    def step(self) -> Step:
        """The step whose service has it."""
        return (self.out if self.state is State.OUT else self.back)[self.at]

    @property
    def hop(self) -> Hop:
        """The latest delivery."""
        return self.hops[-1]


class Call(msgspec.Struct, gc=False):
    """A request or a notification, and all that followed. header: as it was posted, without identifiers. ended: 0 while it is open.

    identifiers: what services call its messages by: service, name and value of each.
    services: who takes part in it: who has had a hop, and the sender. size: bytes of it in the store.
    packed: the header as bytes, which never changes: made once, whatever becomes of the call.
    """

    id: str
    session: str
    header: Header
    created: int
    expires: int
    branches: list[Branch]
    ended: int = 0
    identifiers: tuple[tuple[str, str, str], ...] = ()
    size: int = 0
    packed: msgspec.Raw | None = None
    services: set[str] = msgspec.field(default_factory=set)

    def __post_init__(self) -> None:
        self.services.add(self.header.sender)
        self.services.update([hop.service for hop in self.hops()])

    @property
    def request(self) -> bool:
        """Whether it wants responses."""
        return self.header.kind is Kind.REQUEST

    def hops(self) -> Iterator[Hop]:
        """All deliveries."""
        for branch in self.branches:
            yield from branch.hops

    def ends(self, branch: Branch) -> int:
        """When the time of a branch is over: rules of its way may have made that earlier than it is for others."""
        own = branch.out[-1].expires
        return self.expires if own is None else min(self.expires, own)

    def is_over(self) -> bool:
        """Whether all its branches have ended."""
        for branch in self.branches:  # noqa: SIM110  (a generator would take longer)
            if branch.state is State.OUT or branch.state is State.BACK:
                return False
        return True

    def next_end(self) -> int:
        """When the time of the first branch that is open is over."""
        return min([self.ends(branch) for branch in self.branches if not branch.state.ended])

    def standing(self) -> list[dict[str, str]]:
        """How far it came, for each recipient."""
        return [
            {"recipient": one.recipient, "state": one.state.value}
            | ({"number": one.number} if one.number else {})
            | ({} if one.state.ended else {"at": one.step.to.service})
            | ({"code": one.code} if one.code else {})
            for one in self.branches
        ]


def seen(step: Step, access: Mapping[str, Access], message: Message) -> frozenset[str] | None:
    """The parts of a message that the service of a step may see; None: all."""
    service, visible = step.to.service, step.to.visible
    if visible is None and not access:
        return None
    names = {BODY, *(one.name for one in message.attachments)}
    found = {name for name in names if (visible is None or name in visible) and _may(access.get(name, Access()).see, service)}
    return None if found == names else frozenset(found)


def changed(step: Step, access: Mapping[str, Access], message: Message, answer: Message) -> Message:
    """A message with what an in-transit service has made of it: only parts that the service sees and may change are another's now."""
    service, parts = step.to.service, seen(step, access, message)
    mine = {name for name, rights in access.items() if not _may(rights.change, service)}  # what it may not change

    def stays(name: str) -> bool:
        return name in mine or (parts is not None and name not in parts and message.part(name) is not None)

    body = message.body if stays(BODY) else answer.body
    attachments = [one for one in message.attachments if stays(one.name)]
    attachments += [one for one in answer.attachments if not stays(one.name)]
    return Message(message.header, body, tuple(attachments), message.has)


def _may(names: frozenset[str] | None, service: str) -> bool:
    return names is None or service in names


# Bytes


def pack_message(message: Message) -> list[Any]:
    """A message as plain values."""
    parts = [[one.name, one.content_type, one.data] for one in (message.body, *message.attachments)]
    return [message.header.fields(), parts, sorted(message.has)]


def unpack_message(found: list[Any], check: bool = True) -> Message:
    """The same back. check: whether its header may be wrong."""
    fields, parts, *later = found  # messages of earlier releases end here
    body, *attachments = (Part(data, kind, name) for name, kind, data in parts)
    return Message(_header(fields, check), body, tuple(attachments), frozenset(*later))


def _header(fields: Any, check: bool) -> Header:
    return read_header(fields, posted=False) if check else stored_header(fields)


_encode = msgspec.msgpack.Encoder().encode  # it puts in what is packed already


def pack(call: Call) -> bytes:
    """A call as bytes."""
    if call.packed is None:
        call.packed = msgspec.Raw(_encode(call.header.fields()))
    branches = [
        [
            [_packed(one) for one in branch.out],
            [_packed(one) for one in branch.back],
            branch.state,
            branch.at,
            branch.hops,
            None if branch.message is None else pack_message(branch.message),
            branch.code,
            branch.reason,
            branch.missing,
            branch.of,
            branch.number,
        ]
        for branch in call.branches
    ]
    return _encode([call.id, call.session, call.packed, call.created, call.expires, call.ended, branches, call.identifiers])


def unpack(value: bytes, check: bool = True) -> Call:
    """The same back. ValueError, TypeError, KeyError or Refusal for what is none. check: False for what this process has packed."""
    id, session, fields, created, expires, ended, branches, *later = msgpack.unpackb(value)
    found = [
        Branch(
            tuple(map(_step, out)),
            tuple(map(_step, back)),
            State(state),
            at,
            [Hop(*one) for one in hops],
            None if message is None else unpack_message(message, check),
            code,
            reason,
            *_numbers(*later),  # earlier releases have none
        )
        for out, back, state, at, hops, message, code, reason, *later in branches
    ]
    identifiers = tuple(map(tuple, later[0])) if later else ()  # earlier releases have none
    return Call(id, session, _header(fields, check), created, expires, found, ended, identifiers, len(value))


def _numbers(missing: Iterable[int] = (), of: int = 1, number: str = "") -> tuple[tuple[int, ...], int, str]:
    return tuple(missing), of, number


def _packed(step: Step) -> list[Any]:
    visible = None if step.to.visible is None else sorted(step.to.visible)
    rest = [step.recipient, step.topic, step.expires, step.dynamic, step.chain, step.path, step.revision]
    return [step.to.service, dict(step.to.arguments), visible, dict(step.context), *rest]


def _step(found: list[Any]) -> Step:
    service, arguments, visible, context, recipient, topic, expires, dynamic, chain, path, *later = found
    to = Declaration(service, arguments, None if visible is None else frozenset(visible))
    return Step(to, context, recipient, topic, expires, dynamic, tuple(chain), tuple(path), *later)
