"""The mesh that several tests break one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.scenes import RING, SIZES, Scene, mesh


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A ring of five under load: QoS 1 and 2 with mixed sizes and with runs of one size, everybody subscribed to everything.

    `make soak` breaks such a ring under ten times as much.
    """
    with Scene(mesh(RING), tmp_path_factory.mktemp("ring")) as scene:
        scene.subscribe()
        scene.publish(500)
        scene.publish(150, sizes=SIZES)
        scene.publish(100, qos=2)
        scene.publish(50, qos=2, sizes=SIZES)
        scene.start()
        yield scene
