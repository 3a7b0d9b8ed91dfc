"""The direct lane of the mesh's shell: one message by itself, written before anything else is done.

A frame that `Node.receive_one` takes is sent on, and given to its sole subscriber, with as few steps as there are. What only a commit
or a receipt needs comes after. Everything else goes the general way, which does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...mqtt.batch.run import PIDS
from ...mqtt.session import Delivery
from ..journal.tally import ONE

if TYPE_CHECKING:
    from ...mesh.node.direct import Taken
    from ..ports import Context
    from ..routing.route import Recipients
    from ..session.session import Session
    from .shell import MeshShell


def receive_one(shell: MeshShell, link: int, data: bytes, now: float) -> bool:
    """Bytes that came over a link with nothing before them: take them if they are a frame like one before. False: nothing was done."""
    if not shell.ordinary:
        return False
    taken = shell.node.receive_one(link, data, now)
    if taken is None:
        return False
    if taken.outcome.forwards:
        _send(shell, taken.sends())
    if taken.delivers:
        if not _to_sole_subscriber(shell, taken, now):
            shell.incoming.deliver(taken.delivery(now))
        shell.context.write()
        if taken.token is not None:
            shell.context.flush()
    return True


def publish_one(shell: MeshShell, mask: int, topic: bytes, qos: int, payload: bytes) -> bool:
    """A client's message for these brokers, which is the only one that came. False: nothing was done, it has to go the general way."""
    if not shell.ordinary:
        return False
    sends = shell.node.publish_one(mask, topic, qos, payload, shell.context.now)
    if sends is None:
        return False
    _send(shell, sends)
    if qos:
        shell.saved()
    return True


def count_given(context: Context, recipients: Recipients, amount: int) -> None:
    """Count a message for the sessions that it is given to. amount: as in `journal/tally.py`."""
    if not recipients.tally and context.journal is not None:
        context.journal.tally.begin(recipients)
    recipients.tally += amount


def _send(shell: MeshShell, sends: Sequence[tuple[int, bytes | bytearray]]) -> None:
    for number, frame in sends:
        link = shell.links.get(number)
        if link is not None:
            link.send_now(frame)


def _to_sole_subscriber(shell: MeshShell, taken: Taken, now: float) -> bool:
    """Give the message to the only client here that wants it, as QoS 0 or 1. False: it has to go the general way."""
    outcome, data, start, _, token = taken
    context = shell.context
    route = shell.router.routes.get(outcome.topic)
    recipients = route.recipients if route is not None else None
    if recipients is None:
        return False
    here = recipients.local or recipients
    sole = here.sole
    if sole is None or outcome.qos == 2 or context.hooks is not None:
        return False
    session: Session = sole.session  # type: ignore[assignment]  # what stands for a session while it moves is no sole recipient
    target = session.connection
    if target is None or target.special or target.congested:
        return False
    parts = [b"", data[start : start + 2 + len(outcome.topic)], b"", b"\0" if target.version == 5 else b"", data[taken.payload :]]
    if sole.qos and outcome.qos:
        outbound = session.outbound
        if session.stored or target.sends or session.queue or session.resending or session.replays or outbound.in_flight >= outbound.limit:
            return False
        if outbound.bytes >= session.max_bytes and outbound.in_flight:
            return False
        identifier = 2 * outbound.send_one(Delivery(taken.run(now), 1))
        parts[2] = PIDS[identifier : identifier + 2]
    size = sum(map(len, parts))
    parts[0] = bytes((0x32 if parts[2] else 0x30, size)) if size < 128 else bytes((0x32 if parts[2] else 0x30, size & 127 | 128, size >> 7))
    packet = b"".join(parts)
    target.sent += 1
    if context.journal is not None:
        count_given(context, here, ONE + len(data) - taken.payload)
    context.counters.publish_bytes_sent += len(packet)
    target.send(packet)
    shell.incoming.carried_out(outcome.stream.head.origin, token)
    return True
