from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.directory.uddi import inquiry
from support.directories import Directory
from support.services import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """A directory on a busy machine takes its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inquiry, "TIMEOUT", PATIENCE)
        patch.setattr(inquiry, "LONGEST", PATIENCE)
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Directory]:
    """One directory over SQLite for the tests of a module; each uses names of its own."""
    folder: Path = tmp_path_factory.mktemp("directory")
    made = Directory(f"sqlite:///{folder / 'directory.db'}", folder / "log")
    made.accounts()
    yield made
    made.kill()
