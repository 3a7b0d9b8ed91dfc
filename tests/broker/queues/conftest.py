"""Servers that keep the log of queues, started once for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from support.peers.logs import Server, started


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Servers by name, started when they are asked for. A test that kills one starts it again; `log_at` names a log of its own."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(started(name, tmp_path_factory.mktemp(name))))
