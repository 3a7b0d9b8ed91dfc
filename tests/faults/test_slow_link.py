"""A link that carries less than is sent over it: a relay drops, the origin sends again, nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.scenes import RING, Scene, assert_clean, mesh

pytestmark = pytest.mark.slow


def test_overflow_at_a_relay(tmp_path: Path) -> None:
    limits = {"link_unsent_bytes": 256 * 1024, "session_queue_bytes": "512 MiB"}  # the second: clients may be slow on a busy machine
    with Scene(replace(mesh(RING), tables={"limits": limits}), tmp_path) as scene:
        scene.subscribe()
        scene.publish(1000, sizes=(20_000, 64, 5000))
        scene.publish(200, qos=2)
        scene.start()
        for _ in range(5):  # how much is under way when the bound is reached depends on the machine
            assert_clean(scene.round(scene.throttle(("a", "b"), 200_000), 4.0))
            if scene.still().get("cut", 0) > 0:
                break
        else:
            pytest.fail("the link was not slow enough to overflow")
        assert_clean(scene.round(scene.cut(("a", "b")), 0.5))  # and it goes on working
