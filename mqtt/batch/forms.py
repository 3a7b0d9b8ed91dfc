"""What was last made of a batch: its frames in the forms that its recipients get, and what they are made from.

A batch goes to many recipients of few kinds (protocol version, QoS, retain flag, further properties). Each form is made for the first of
a kind, and the others share it. A batch that waits in a session needs none of its forms, and would hold a copy of its messages for each
kind. So they are no part of it: there are those of one batch at a time, the one that was last delivered.

Several threads may have batches: what one of them looks at does not change under it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

MOST = 4 * 2**20  # bytes of forms; beyond, those made so far are forgotten


class _Forms:
    __slots__ = ("batch", "bytes", "made")

    def __init__(self, batch: object) -> None:
        self.batch = batch
        self.bytes = 0
        self.made: dict[Hashable, Any] = {}


_last = _Forms(None)


def form_of(batch: object, key: Hashable) -> Any:
    """A form that was made of a batch; None: it has to be made."""
    last = _last
    return last.made.get(key) if last.batch is batch else None


def keep_form(batch: object, key: Hashable, form: Any, size: int) -> None:
    """Have a form for the next recipients. size: its bytes."""
    global _last
    last = _last
    if last.batch is not batch or last.bytes + size > MOST:
        last = _last = _Forms(batch)
    last.made[key] = form
    last.bytes += size
