"""A shell that is given what the documents say to paste."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Timer

import psutil

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0


class Terminal:
    """A shell in a folder where `examples` and `topologies` are, as in a checkout."""

    def __init__(self, folder: Path) -> None:
        for name in ("examples", "topologies"):
            (folder / name).symlink_to(ROOT / name)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", "-m"],
            cwd=folder,
            env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        self._timer = Timer(PATIENCE, self.kill)
        self._timer.start()

    def kill(self) -> None:
        """End the shell and whatever it has started: its session, in which programs stay whose own parents have ended."""
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(one.pid) == self.process.pid:
                    one.kill()

    def paste(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def wait(self, *patterns: str) -> None:
        """Until there is a line for each pattern, in any order."""
        assert self.process.stdout is not None
        missing = list(patterns)
        while missing:
            line = self.process.stdout.readline()
            assert line, f"no {missing[0]!r} in:\n{''.join(self.said)}"
            self.said.append(line)
            for one in missing:
                if re.search(one, line):
                    missing.remove(one)
                    break

    def close(self) -> str:
        """End of the input: what else was said until the shell and all of its jobs have ended."""
        rest, _ = self.process.communicate("jobs -p | xargs -r kill; wait; exit\n")
        self._timer.cancel()
        self.kill()  # programs of jobs that were functions
        self.said.append(rest)
        return "".join(self.said)
