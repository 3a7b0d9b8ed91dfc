"""What becomes of a client that comes to a site of a mesh whose clients roam."""

from __future__ import annotations

from enum import Enum


class Arrival(Enum):
    """The values of the last two are for the client."""

    OPEN = "it is let in now"
    WAITS = "it is let in when its session is here, or refused"
    BUSY = "its session is on its way from another site: try again"
    TAKEN = "another user's client with this identifier waits for its session"
