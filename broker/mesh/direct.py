"""The direct lane of the mesh's shell: one message by itself, written before anything else is done.

A frame that `Node.receive_one` takes is sent on, and given to its sole subscriber, with as few steps as there are. What only a commit
or a receipt needs comes after. Nothing of a message for a subscriber without a stored session is kept, so its receipt goes at once
(`mesh/node/single/receipts.py`), and back by the same lane. Everything else goes the general way, which does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...mesh.wire.control import PREFIX
from ...mqtt.batch.packets import PacketBatch
from ...mqtt.batch.run import PIDS
from ...mqtt.session import Delivery
from ..journal.tally import ONE

if TYPE_CHECKING:
    from ...mesh.node.single.frames import Taken
    from ..ports import Context
    from ..routing.route import Recipients
    from ..session.session import Session
    from ..write_rounds import WriteRounds
    from .shell import MeshShell


def receive_one(shell: MeshShell, link: int, data: bytes, now: float) -> bool:
    """Bytes that came over a link with nothing before them: take them if they are a frame like one before, or a single receipt.

    False: nothing was done.
    """
    if data.startswith(PREFIX, 4):
        return _receive_receipt(shell, link, data, now)
    if not shell.ordinary:
        return False
    taken = shell.node.receive_one(link, data, now)
    if taken is None:
        return False
    outcome, context = taken.outcome, shell.context
    if outcome.forwards:
        _send(shell, taken.sends())
    if not outcome.stream.deliver:
        return True
    given = _to_sole_subscriber(shell, taken, now)
    if not given:
        shell.incoming.deliver(shell.node.single.delivery(taken, now))
    context.write()
    if outcome.qos and (not given or _carried_out(shell, taken, now) or shell.node.stirred):
        context.flush()
    return True


def _carried_out(shell: MeshShell, taken: Taken, now: float) -> bool:
    """The sole subscriber has a message of QoS 1, and nothing of it is stored. Whether there is something to be committed.

    While sessions roam it counts as delivered after a commit, where there is a store: what is stored of their places relies on that.
    """
    custody, single = shell.custody, shell.node.single
    if custody is not None and shell.roaming is not None:
        shell.incoming.carried_out(taken.outcome.stream.head.origin, single.admit(taken))
        return True
    receipt = single.given(taken, now)
    if receipt is not None:
        _send(shell, (receipt,), urgent=True)
    if custody is None:
        return False
    custody.save_soon()
    return shell.context.unsaved()


def _receive_receipt(shell: MeshShell, link: int, data: bytes, now: float) -> bool:
    sends = shell.node.single.take_receipt(link, data, now)
    if sends is None:
        return False
    _send(shell, sends, urgent=True)
    if not sends:
        if shell.custody is not None:
            shell.custody.save_soon()
        shell.context.flush()
    return True


def publish_one(shell: MeshShell, mask: int, topic: bytes, qos: int, payload: bytes, rounds: WriteRounds | None) -> int | None:
    """A client's message for these brokers, which is the only one that came. None: nothing was done, it has to go the general way.

    Else its order, if it is to be held back with its answer (`MeshShell.hold_back`), or 0. rounds: its frames wait for others; None: not.
    """
    if not shell.ordinary:
        return None
    node, custody = shell.node, shell.custody
    asks = qos > 0 and custody is not None and custody.may_hold_back and node.single.may_ask
    sends = node.publish_one(mask, topic, qos, payload, shell.context.now, asks)
    if sends is None:
        return None
    _send(shell, sends, rounds=rounds)
    if not qos:
        return 0
    order = node.single.hold_back() if node.keep_one() and asks else 0
    if custody is not None and not order:
        custody.save(single=True)
    return order


def count_given(context: Context, recipients: Recipients, amount: int) -> None:
    """Count a message for the sessions that it is given to. amount: as in `journal/tally.py`."""
    if not recipients.tally and context.journal is not None:
        context.journal.tally.begin(recipients)
    recipients.tally += amount


def _send(
    shell: MeshShell, sends: Sequence[tuple[int, bytes | bytearray]], urgent: bool = False, rounds: WriteRounds | None = None
) -> None:
    for number, frame in sends:
        link = shell.links.get(number)
        if link is None:
            continue
        if rounds is None:
            link.send_now(frame, urgent)
        else:
            link.send(frame, urgent)
            rounds.frame_given(link)


def _to_sole_subscriber(shell: MeshShell, taken: Taken, now: float) -> bool:
    """Give the message to the only client here that wants it, as QoS 0 or 1. False: it has to go the general way."""
    outcome, data = taken.outcome, taken.data
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
    name, payload = outcome.name, taken.payload
    rest = data[payload:] if target.version == 4 else b"\0" + data[payload:]
    acknowledged = sole.qos and outcome.qos
    size = len(name) + len(rest) + (2 if acknowledged else 0)
    first = 0x32 if acknowledged else 0x30
    front = (bytes((first, size)) if size < 128 else bytes((first, size & 127 | 128, size >> 7))) + name
    if acknowledged:
        outbound = session.outbound
        if session.stored or target.sends or session.queue or session.resending or session.replays or outbound.in_flight >= outbound.limit:
            return False
        if outbound.bytes >= session.max_bytes and outbound.in_flight:
            return False
        packet = front + b"\0\0" + rest
        identifier = 2 * outbound.send_one(Delivery(PacketBatch(packet, target.version, 1, 1, now, [len(front)]), 1))
        packet = front + PIDS[identifier : identifier + 2] + rest
    else:
        packet = front + rest
    target.sent += 1
    if context.journal is not None:
        count_given(context, here, ONE + len(data) - payload)
    context.counters.publish_bytes_sent += len(packet)
    target.send(packet)
    return True
