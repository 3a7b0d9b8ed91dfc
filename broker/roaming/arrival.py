"""What becomes of a client that comes to a site of a mesh whose clients roam."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ports import Connection


class Arrival(Enum):
    """The values of the last two are for the client."""

    OPEN = "it is let in now"
    WAITS = "it is let in when its session is here, or refused"
    BUSY = "its session is on its way from another site: try again"
    TAKEN = "another user's client with this identifier waits for its session"


@dataclass(slots=True, eq=False)
class Waiting:
    """A connection whose session is looked for. client: its name. go: lets it in. timer: refuses it."""

    client: str
    connection: Connection
    go: Callable[[], None]
    timer: asyncio.TimerHandle
