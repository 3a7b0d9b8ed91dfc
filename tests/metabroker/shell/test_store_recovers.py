"""A store of sessions that takes nothing for a while: the log says so, and when that is over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mqmesh.metabroker.shell.session_store import SessionStore
from mqmesh.store import Kind, StoreError


def test_a_store_that_is_written_again_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(_fail_and_recover(tmp_path, caplog))
    assert [one.split()[0] for one in caplog.messages] == ["event=store-fails", "event=store-recovered"]


async def _fail_and_recover(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SessionStore(tmp_path, asyncio.get_running_loop())
    store.writer._report(StoreError(Kind.FULL, "here", "no space left"))
    store._on_commit(0)
    assert len(caplog.messages) == 1, "it fails still"
    store.writer.error = None
    store._on_commit(0)
    store._on_commit(0)
    store.close()
