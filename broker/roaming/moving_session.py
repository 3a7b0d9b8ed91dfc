"""What routes and share groups see of a session while it moves to another site.

It lets through what belongs to this broker (`mesh.roaming.places.Cut`), to the session itself or to another that keeps it until what came
first elsewhere is here. Sessions that do not move have none: their own face is the router's (`Session.face`).

What it does not know: why a cut is as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...mesh.roaming.places import Cut
from ...mqtt.session import Delivery

if TYPE_CHECKING:
    from ..ports import Receiver
    from ..session.session import Session


class MovingSession:
    """Stands for a session in routes and share groups.

    main: the session.
    target: the session that takes what is let through.
    cut: from which origins messages are let through.
    origin: says whose messages are being delivered.
    """

    queued = 0  # nobody slows publishers for its sake
    pressing = False
    idle = False
    stored = True  # no short path goes around it

    def __init__(self, main: Session, cut: Cut, origin: Callable[[], int]) -> None:
        self.main = main
        self.target = main
        self.cut = cut
        self._origin = origin

    @property
    def client_id(self) -> str:
        return self.main.client_id

    @property
    def known(self) -> bool:
        return self.main.face is self

    @property
    def connection(self) -> Receiver | None:
        """For QoS 0, which is not kept: only a session that takes all at once gets it."""
        return self.main.connection if self.target is self.main and self.cut.takes(self._origin()) else None

    @property
    def full(self) -> bool:
        return self.target.full

    def deliver(self, delivery: Delivery) -> int:
        """As `Session.deliver`; what another broker delivers counts as taken. Each message of a shared subscription comes to one broker."""
        if delivery.share is None:
            return self.target.deliver(delivery) if self.cut.takes(self._origin()) else delivery.count
        return self.main.deliver(delivery)

    def withdraw(self, share: object, queued_only: bool) -> list[Delivery]:
        """As `Session.withdraw`."""
        return self.main.withdraw(share, queued_only)
