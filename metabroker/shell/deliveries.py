"""Messages of remotes on their way to the community: the remote is acknowledged once every recipient has acknowledged."""

from __future__ import annotations

from ..core.actions import Deliver, DeliverMany


class PendingDelivery:
    """A remote's message at the community: how many of its publications are not acknowledged there."""

    __slots__ = ("epoch", "left", "packet_id", "remote")

    def __init__(self, deliver: Deliver, left: int) -> None:
        self.remote, self.packet_id, self.epoch = deliver.remote, deliver.packet_id, deliver.epoch
        self.left = left


class PendingRun:
    """A run of a remote's messages at the community. recipients: sessions that acknowledge it. left: of each message, how many have to."""

    __slots__ = ("acks", "epoch", "left", "open", "recipients", "remote")

    def __init__(self, deliver: DeliverMany) -> None:
        self.remote, self.acks, self.epoch = deliver.remote, deliver.acks, deliver.epoch
        self.recipients = 0
        self.open: dict[int, int] = {}  # token -> messages without an acknowledgement
        self.left: list[int] = []

    def settled(self, start: int, count: int) -> bytes:
        """One recipient has `count` messages, from number `start` on. Returns the acknowledgements for the remote."""
        if self.recipients == 1:
            return self.acks[4 * start : 4 * (start + count)]
        if not self.left:
            self.left = [self.recipients] * (len(self.acks) // 4)
        found = []
        for index in range(start, start + count):
            self.left[index] -= 1
            if not self.left[index]:
                found.append(self.acks[4 * index : 4 * index + 4])
        return b"".join(found)
