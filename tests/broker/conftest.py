"""Tests that are coroutines run in a loop of their own: asyncio's with a clock that tests can move on, and uvloop's where marked."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from support.broker_site import JumpingLoop


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "any_loop: runs in asyncio's loop and in uvloop's")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("any_loop"):
        metafunc.fixturenames.append("loop_kind")
        metafunc.parametrize("loop_kind", ["asyncio", "uvloop"])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner(loop_factory=_factory(pyfuncitem)) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


def _factory(item: pytest.Function) -> Any:
    if getattr(item, "callspec", None) is not None and item.callspec.params.get("loop_kind") == "uvloop":
        return pytest.importorskip("uvloop").new_event_loop
    return JumpingLoop
