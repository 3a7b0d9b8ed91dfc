"""A shared subscription with members at several sites: each message once over the whole group, whatever breaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.scenes import RING, SIZES, Scene, assert_clean, mesh

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Members at three of five sites, of one group two at one site; publishers everywhere, an ordinary subscriber at one site."""
    with Scene(mesh(RING), tmp_path_factory.mktemp("shared")) as scene:
        scene.share(["a", "b", "d", "d"])
        scene.share(["b", "c"], "h")
        scene.subscribe(["e"])
        scene.publish(800)
        scene.publish(200, qos=2, sizes=SIZES)
        scene.start()
        yield scene


def test_nothing_breaks(shared: Scene) -> None:
    shared.load.wait(lambda: shared.load.sent >= 2000, 90)
    assert_clean(shared.check("stable"))


def test_a_link_is_cut(shared: Scene) -> None:
    assert_clean(shared.round(shared.cut(("d", "e")), 1.0))


def test_a_broker_with_a_member_is_silent(shared: Scene) -> None:
    assert_clean(shared.round(shared.stop("b"), 1.3))


def test_the_mesh_is_parted(shared: Scene) -> None:
    assert_clean(shared.round(shared.cut(("a", "b"), ("c", "d")), 1.0))


def test_a_broker_without_a_member_is_killed(shared: Scene) -> None:
    assert_clean(shared.round(shared.kill("e"), 0.3))


def test_a_broker_with_members_is_killed(shared: Scene) -> None:
    """What had been given to its members may be gone with them; what was published once the mesh knew of its end may not."""
    assert_clean(shared.round(shared.kill("d"), 0.3))
