"""Tests that are coroutines run in a loop whose clock they can move on."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from support.broker_site import JumpingLoop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True
