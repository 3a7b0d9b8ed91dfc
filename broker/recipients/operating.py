"""What operators do with the recipients of one broker: hold, resume, declare defunct, move what waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .handover.failover import uniform_runs
from .handover.parcels import Parcel

if TYPE_CHECKING:
    from ...mqtt.session import Delivery
    from .recipient import Recipient
    from .shell import Recipients


class Operating:
    """The actions of one broker. moving: recipient -> whom its messages are given to just now."""

    def __init__(self, recipients: Recipients) -> None:
        self._all = recipients
        self.moving: dict[str, str] = {}

    def hold(self, name: str, on: bool = True) -> bool:
        """Let a recipient's messages wait, or go on. False: it is not here."""
        recipient = self._all.local.get(name)
        if recipient is not None:
            recipient.hold(on)
        return recipient is not None

    def resume(self, name: str) -> bool:
        """End a hold. False: the recipient is not here."""
        return self.hold(name, False)

    def defunct(self, name: str) -> bool:
        """Declare a recipient defunct. False: it is not here."""
        recipient = self._all.local.get(name)
        if recipient is not None:
            recipient.declare_defunct()
        return recipient is not None

    def forbids(self, name: str, first: str) -> str | None:
        """Why a recipient here may not have messages that are addressed to another one, in words; None: it may, or it is elsewhere."""
        recipient = self._all.local.get(name)
        if recipient is None or self._all.failover.arrivals.permits(recipient, first, f"{self._all.prefix}/{first}/#"):
            return None
        return f"its client may not read {self._all.prefix}/{first}/#"

    def move(self, name: str, to: str) -> bool:
        """Give what waits for a recipient to another one. False: the first is not here, or the other is not known."""
        recipient = self._all.local.get(name)
        if recipient is None or self._all.record(to) is None or name == to:
            return False
        self.moving[name] = to

        recipient.empty(lambda: self.moving.pop(name, None))
        return True

    def give(self, recipient: Recipient, to: str, delivery: Delivery) -> bool:
        """Give messages to the recipient that an operator has named. True: they are taken."""
        found = self._all.record(to)
        for run in uniform_runs(delivery):
            parcel = Parcel.of(run, delivery.qos, self._all.number, self._all.context.now).failed(recipient.name, "moved", False)
            left = parcel if found is None else self._all.failover.send_to(found, parcel)
            if left is not None:
                self._all.failover.place(left)
        return True
