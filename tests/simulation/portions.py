"""Interest in small portions, so that a few filters are as many as a million."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from mqmesh.mesh.node import interest_exchange, signalling
from mqmesh.mesh.view import interest, remembered
from mqmesh.mesh.wire import control


@contextmanager
def portions_of(entries: int) -> Iterator[None]:
    """No more than so many filters are looked at, and written, in one go; each packet of interest is a large one."""
    with ExitStack() as stack:
        for module in (control, interest, interest_exchange):
            stack.enter_context(mock.patch.object(module, "PORTION", entries))
        for module in (control, signalling):
            stack.enter_context(mock.patch.object(module, "LARGE", 0))
        stack.enter_context(mock.patch.object(remembered, "WRITTEN", entries))
        yield
