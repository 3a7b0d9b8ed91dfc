"""What was made of a batch: its frames in the forms that its recipients get, and what they are made from.

A batch goes to many recipients of few kinds (protocol version, QoS, retain flag, further properties). Each form is made for the first of
a kind, and the others share it. A batch that waits in a session needs none of its forms, and would hold a copy of its messages for each
kind. So only the few batches have forms whose forms were made last: `BATCHES` small ones, and one large one.

Several threads may have batches: one of them may lose its forms to another thread's, but not while it looks at them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any, Protocol

BATCHES = 16  # that have forms
SMALL = 64 * 2**10  # bytes of the forms of a batch, beyond which no other batch has any
MOST = 4 * 2**20  # bytes of the forms of a batch; beyond, those made so far are forgotten


class Forms(dict[Hashable, Any]):
    """Those of one batch. size: in bytes."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class HasForms(Protocol):
    """A batch. forms: None: it has none."""

    forms: Forms | None


_recent: deque[HasForms] = deque()  # the batches that have forms, the oldest first


def form_of(batch: HasForms, key: Hashable) -> Any:
    """A form that was made of a batch; None: it has to be made."""
    forms = batch.forms
    return forms.get(key) if forms is not None else None


def keep_form(batch: HasForms, key: Hashable, form: Any, size: int) -> None:
    """Have a form for the next recipients. size: its bytes."""
    forms = batch.forms
    if forms is None:
        forms = batch.forms = Forms()
        _recent.append(batch)
        if len(_recent) > BATCHES:
            _recent.popleft().forms = None
    elif forms.size + size > MOST:
        forms.clear()
        forms.size = 0
    if forms.size <= SMALL < forms.size + size:
        _forget_others(batch)
    forms[key] = form
    forms.size += size


def _forget_others(batch: HasForms) -> None:
    for _ in range(len(_recent)):
        try:
            other = _recent.popleft()
        except IndexError:  # another thread was faster
            return
        if other is batch:
            _recent.append(batch)
        else:
            other.forms = None
