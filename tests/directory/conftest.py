from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.directory import uddi_client
from support.directories import Directory
from support.services import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """A directory on a busy machine takes its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uddi_client, "TIMEOUT", PATIENCE)
        patch.setattr(uddi_client, "LONGEST", PATIENCE)
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Directory]:
    """One directory over SQLite for the tests of a module; each uses names of its own."""
    folder: Path = tmp_path_factory.mktemp("directory")
    made = Directory(f"sqlite:///{folder / 'directory.db'}", folder / "log")
    made.accounts()
    yield made
    made.kill()


@pytest.fixture
def mesh(directory: Directory) -> Iterator[str]:
    """A new mesh of alice."""
    name = f"mesh-{uuid.uuid4()}"
    directory.client("alice").put("mesh", name)
    yield name
    directory.client("alice").delete("mesh", name)
