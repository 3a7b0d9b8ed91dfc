"""`mqmesh attach`: mistakes of its command line. What it does is in tests/walks/test_attach.py."""

from __future__ import annotations

import pytest
from support.command import run
from support.services import free_port

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("http://a:1",), b'attach: attach[1].address = "http://a:1"'),
        (("mqtt://a:1", "--qos", 3), b"attach[1].qos = 3: give a whole number from 0 to 2"),
        (("mqtt://a:1", "--cafile", "ca"), b"it needs TLS"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[object, ...], text: bytes) -> None:
    done = run("attach", *arguments, "--listen", f"mqtt://127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout) == (2, b"")
    assert text in done.stderr
    assert done.stderr.count(b"\n") == 1
