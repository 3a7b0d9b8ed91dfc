"""Dialling again: how long a neighbour waits for the next attempt after its link has ended, by why it ended and who else leads there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from mqmesh.broker.mesh import dialer
from mqmesh.broker.mesh.dialer import Dialler
from mqmesh.mesh.topology.settings import MeshSettings, PeerSettings

PEER = PeerSettings("mqtt://peer:1883", number=2)


class Ended(Exception):
    """Enough attempts."""


def pauses(monkeypatch: pytest.MonkeyPatch, attempts: list[str], live: int = 0) -> list[float]:
    """The pause after each attempt.

    attempts: "broke" (up for 0.2 s, then the connection is lost), "ended" (the peer says a word instead) or "refused".
    live: the brokers that can be reached afterwards.
    """
    found: list[float] = []
    clock = [100.0]

    def ended(broke: bool) -> Any:
        closed = asyncio.Event()
        closed.set()
        machine = SimpleNamespace(outdated=False, incarnation=7, answered=True)
        return SimpleNamespace(closed=closed, error="it is over", machine=machine, peer=SimpleNamespace(number=2), up=True, broke=broke)

    async def dial(self: Dialler, peer: PeerSettings, form: int) -> tuple[Any, str]:
        clock[0] += 0.2
        what = attempts[len(found)]
        return (None, "refused") if what == "refused" else (ended(what == "broke"), "")

    async def sleep(seconds: float) -> None:
        found.append(seconds)
        clock[0] += seconds
        if len(found) == len(attempts):
            raise Ended

    shell: Any = SimpleNamespace(
        settings=MeshSettings("mesh", "a key of sixteen bytes", retry_first=0.1, retry_last=5.0),
        now=lambda: clock[0],
        node=SimpleNamespace(live=lambda: live),
        context=SimpleNamespace(wall=lambda: clock[0]),
        config=SimpleNamespace(worker=None),
        met={},
        by_number={},
        errors={},
        down_since={},
        status_soon=lambda: None,
    )
    monkeypatch.setattr(Dialler, "_dial", dial)
    monkeypatch.setattr(dialer.asyncio, "sleep", sleep)
    with pytest.raises(Ended):
        asyncio.run(Dialler(shell)._keep(PEER))
    return found


def test_the_only_way_to_a_broker_is_tried_often_while_it_flaps(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pauses(monkeypatch, ["broke", "refused", "broke", "refused", "refused"] * 10)
    assert max(found) == 0.5


def test_a_link_that_flaps_beside_another_way_must_not_stir_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses(monkeypatch, ["broke"] * 20, live=1 << 2)[-1] >= 0.8 * 5.0


@pytest.mark.parametrize(("after", "longest"), [("ended", 5.0), ("refused", 1.0)])
def test_who_ends_links_or_is_gone_is_tried_less_often(monkeypatch: pytest.MonkeyPatch, after: str, longest: float) -> None:
    found = pauses(monkeypatch, ["broke", *[after] * 40])
    assert max(found[:10]) <= 0.5
    assert found[-1] >= 0.8 * longest
