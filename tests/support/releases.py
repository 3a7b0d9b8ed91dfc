"""The release before this one, taken from the repository's history, for tests that run both side by side."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PREVIOUS = ("v0.1.0", "05b2aeccf38084e998dd64184e19e7a6054f85f8")  # its tag, and its commit for clones without tags


def previous_release(folder: Path) -> Path:
    """Unpack the release before this one; the folder for PYTHONPATH in which `mqmesh` is that release.

    Skips the test where the history is not there: no repository, a shallow clone, or a checkout of files only.
    """
    found = [subprocess.run(["git", "-C", str(ROOT), "archive", "--format=tar", name], capture_output=True) for name in PREVIOUS]
    archive = next((one.stdout for one in found if one.returncode == 0), None)
    if archive is None:
        tag, commit = PREVIOUS
        pytest.skip(f"the history does not hold the previous release ({tag}, commit {commit[:7]}): git fetch --unshallow brings it")
    (folder / "mqmesh").mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(folder / "mqmesh")], input=archive, check=True)
    return folder
