"""What the log of a broker says by itself at its start, at its end, at SIGHUP, and when a neighbour is lost."""

from __future__ import annotations

import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mqmesh import __version__
from support.command import start
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.process

MESH = '[mesh]\nname = "m"\nkey = "sixteen bytes or more"\n'


class Logged:
    """A broker with a file of its own; its log is read while it runs."""

    def __init__(self, folder: Path, name: str, text: str, listen: str = "mqtt://127.0.0.1:0", **options: Any) -> None:
        self.file, self.log = folder / f"{name}.toml", folder / f"{name}.log"
        self.file.write_text(f'name = "{name}"\nlisten = ["{listen}"]\n{text}')
        self.process: subprocess.Popen[str] = start("broker", "--config", self.file, stderr=self.log, **options)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[1]

    def lines(self, *words: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if all(word in line for word in words)]

    def wait(self, *words: str) -> str:
        wait_until(lambda: bool(self.lines(*words)), PATIENCE, f"line with {words}")
        return self.lines(*words)[0]

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE)
        self.process.communicate()


def test_one_line_at_the_start_and_one_at_the_end(tmp_path: Path) -> None:
    broker = Logged(tmp_path, "lyon", 'data = "d"\n')
    broker.end()
    (started,) = broker.lines("event=started")
    words = (f"version={__version__}", "name=lyon", "mesh=none", f"listeners={broker.url}", "store=sqlite://", "users=open-to-all")
    assert all(word in started for word in words), started
    assert len(broker.lines("level=info", "event=stopped name=lyon")) == 1
    assert not broker.lines("level=warning")  # strangers do not reach it


def may_open(soft: int, hard: int) -> Callable[[], None]:
    """Limits of open files for a process that begins."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("soft", "hard", "text", "says"),
    [
        (64, 1024, "", None),
        (64, 200, "", "connections=65"),
        (64, 1024, "[limits]\nconnections = 5000\n", "connections=814"),
    ],
)
def test_a_broker_opens_as_many_files_as_it_may_and_says_when_these_are_few(
    tmp_path: Path, soft: int, hard: int, text: str, says: str | None
) -> None:
    broker = Logged(tmp_path, "lyon", text, preexec_fn=may_open(soft, hard))
    assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    broker.end()
    warned = broker.lines("event=few-descriptors")
    assert len(warned) == (says is not None)
    assert says is None or says in warned[0]


@pytest.mark.parametrize(
    ("listen", "text", "warns"),
    [
        ("mqtt://0.0.0.0:0", "", True),
        ("mqtt://[::]:0", "", True),
        ("mqtt://0.0.0.0:0", '[access]\nanonymous = false\nusers = "users"\n', False),
        ("mqtt://localhost:0", "", False),
    ],
)
def test_whoever_is_open_to_strangers_says_so(tmp_path: Path, listen: str, text: str, warns: bool) -> None:
    (tmp_path / "users").touch(mode=0o600)
    broker = Logged(tmp_path, "lyon", text, listen)
    broker.end()
    assert len(broker.lines("level=warning", "event=open-to-all", "[access]")) == warns


def test_what_sighup_does_not_take_over_is_said(tmp_path: Path) -> None:
    broker = Logged(tmp_path, "lyon", 'data = "d"\n[queues.orders]\nmessages = 10\n[limits]\nin_flight = 10\n')
    text = broker.file.read_text()
    text = text.replace("messages = 10", 'messages = 20\nstore = "sqlite"')
    broker.file.write_text(text.replace("in_flight = 10", "in_flight = 20\nstored_bytes = 1_000_000") + '[journal]\nfolder = "j"\n')
    broker.process.send_signal(signal.SIGHUP)
    line = broker.wait("event=not-reloaded")
    assert "level=warning" in line
    assert "settings=journal,queues.orders,limits.in_flight text=" in line
    broker.end()


def test_a_lost_neighbour_is_a_warning_at_both_ends_and_one_that_leaves_is_not(tmp_path: Path) -> None:
    lyon = Logged(tmp_path, "lyon", f"number = 1\n{MESH}")
    porto = Logged(tmp_path, "porto", f'number = 2\n{MESH}[[mesh.peer]]\naddress = "{lyon.url}"\n')
    lyon.wait("event=member-up number=2 broker=porto")
    porto.end(signal.SIGKILL)
    lost = lyon.wait("event=link-closed peer=porto number=2 address=127.0.0.1:")
    assert "level=warning" in lost
    assert "level=warning" in lyon.wait("event=member-down number=2 broker=porto")
    porto = Logged(tmp_path, "porto", f'number = 2\n{MESH}[[mesh.peer]]\naddress = "{lyon.url}"\n')
    porto.wait("event=member-up number=1 broker=lyon")
    lyon.end(signal.SIGKILL)
    assert "level=warning" in porto.wait("event=link-closed peer=lyon number=1")
    assert "level=warning" in porto.wait("event=member-down number=1 broker=lyon")
    lyon = Logged(tmp_path, "lyon", f"number = 1\n{MESH}", lyon.url)
    porto.wait("event=link-up peer=lyon")
    before = len(porto.lines("event=link-closed"))
    lyon.wait("event=member-up number=2")
    porto.end()  # in order, by the end that dialled
    assert "level=info" in lyon.wait("event=link-closed peer=porto")
    assert len(porto.lines("event=link-closed", "level=info")) == 1
    assert len(porto.lines("event=link-closed")) == before + 1
    lyon.end()
