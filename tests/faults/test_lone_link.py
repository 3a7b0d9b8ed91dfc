"""The only link between two brokers breaks again and again, 0.2 s after it could be made: it carries messages meanwhile, and loses none.

`FLAPS=150 pytest -s tests/faults/test_lone_link.py` does it for a minute, and says how many messages arrived before its end.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from mqmesh.mesh.topology.settings import MeshSettings
from support.scenes import Scene, assert_clean, mesh
from support.services import PATIENCE

pytestmark = pytest.mark.slow
FLAPS = int(os.environ.get("FLAPS", "10"))
PAUSE = 0.2  # seconds that the link is down, and then can be made
CARRIES = 3  # times that it must have carried something


def test_the_only_link_flaps(tmp_path: Path) -> None:
    topology = mesh([("a", "b")])
    topology.mesh.retry_last = MeshSettings("", "").retry_last
    with Scene(topology, tmp_path) as scene:
        scene.subscribe(["b"], qos=1)
        scene.publish(200, sites=["a"])
        scene.start()
        assert_clean(scene.check("stable"))
        scene.load.start()
        broken, load = scene.cut(("a", "b")), scene.load
        flaps = carried = 0
        published, came, end = load.sent, load.count().received, time.monotonic() + FLAPS * 2 * PAUSE + PATIENCE
        while flaps < FLAPS or carried < CARRIES:
            assert time.monotonic() < end, f"of {flaps} times that the link could be made, it carried something {carried} times"
            broken.begin()
            time.sleep(PAUSE)
            before = load.count().received
            broken.end()
            time.sleep(PAUSE)
            flaps += 1
            carried += load.count().received > before
        print(f"{flaps} flaps: {load.sent - published} published, {load.count().received - came} arrived meanwhile, at {carried} times")
        assert_clean(scene.check("all arrive"))
