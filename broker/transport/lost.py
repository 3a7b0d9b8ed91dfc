"""What stands for the transport of a connection that is lost, until its turn comes to end: what is written there is for nobody."""

from __future__ import annotations

import asyncio
from typing import Any


class Lost(asyncio.Transport):
    """See the module. Without state: all lost connections share `LOST`. uvloop's own transports raise RuntimeError then."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


LOST = Lost()
