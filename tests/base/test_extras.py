"""Hints say how to install what is missing here: in a checkout, from a wheel, from an index."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest
from mqmesh.base import extras

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "install"]


class Installed:
    """What pip notes of an installation."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.requires = ["rich>=13", 'aio-pika<11,>=10; extra == "amqp"', "pamqp<5,>=4; extra == 'amqp'", 'lmdb>=3; extra == "lmdb"']

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.url and json.dumps({"url": self.url})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Not a checkout."""
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    return monkeypatch


def test_a_checkout_has_make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    monkeypatch.chdir(ROOT)
    assert extras.install("lmdb") == "make venv"
    monkeypatch.chdir(tmp_path)
    assert shlex.split(extras.install("lmdb")) == ["make", "-C", str(ROOT), "venv"]


def test_a_checkout_in_another_environment_is_installed_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/opt/mqmesh")
    assert shlex.split(extras.install("lmdb")) == [*PIP, "-e", f"{ROOT}[lmdb]"]


def test_a_wheel_is_named_while_it_is_there(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "a folder" / "mqmesh-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    installed.setattr(metadata, "distribution", lambda name: Installed(wheel.as_uri()))
    assert shlex.split(extras.install("amqp")) == [*PIP, f"{wheel}[amqp]"]
    wheel.unlink()
    assert shlex.split(extras.install("amqp")) == [*PIP, "aio-pika<11,>=10", "pamqp<5,>=4"]


def test_an_index_that_has_us_is_asked_again(installed: pytest.MonkeyPatch) -> None:
    installed.setattr(metadata, "distribution", lambda name: Installed(None))
    assert shlex.split(extras.install("lmdb")) == [*PIP, "mqmesh[lmdb]"]


def test_nothing_else_says_pip_install_mqmesh() -> None:
    """The package is not on PyPI: hints come from one place, and pages name the extra."""
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("packaging/**/*.*"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    layers = ("base", "mqtt", "store", "mesh", "client", "broker", "directory", "metabroker", "pipeline", "cli", "examples")
    files += [path for layer in layers for path in (ROOT / layer).rglob("*.py")]
    wrong = [str(path) for path in files if path.is_file() and re.search(r"pip install\W+mqmesh", path.read_text())]
    assert not wrong
