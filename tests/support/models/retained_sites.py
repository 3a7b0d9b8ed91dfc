"""Sites that keep retained messages, and links between them without a network, for tests of the rules."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st
from mqmesh.mesh.retained import Key, RetainedSync
from mqmesh.mqtt.batch.run import Run

WALL = 1_700_000_000.0
T = 1000.0
KEYS = st.builds(Key, st.integers(0, 2**48 - 1), st.integers(0, 65_535), st.integers(0, 2**48 - 1))


def site(number: int, now: float = 0.0, *, skew: float = 0.0, members: Iterable[int] = (1, 2), persist: bool = False) -> RetainedSync:
    sync = RetainedSync(number, int((WALL + skew + now) * 1000), WALL + skew, now, tombstone_seconds=T, compare_every=30.0, persist=persist)
    sync.set_members(members)
    return sync


def message(topic: str, payload: str, now: float, qos: int = 0, expiry: int | None = None) -> Run:
    return Run(topic.encode(), qos, True, [payload.encode()], b"", expiry, now)


def put(sync: RetainedSync, topic: str, payload: str, now: float, *, custody: int = 0, qos: int = 0, expiry: int | None = None) -> bytes:
    return sync.put_local(message(topic, payload, now, qos, expiry), custody, now)


class Talk:
    """A link between two sites: what they say to each other until both are silent."""

    def __init__(self, a: RetainedSync, b: RetainedSync, now: float) -> None:
        self.sites = {1: a, 2: b}
        self.sizes: list[int] = []
        self.updates: dict[int, list[tuple[str, str, bool]]] = {1: [], 2: []}
        b.link_up(1, now)
        a.link_up(2, now)
        self.run(now)

    def run(self, now: float) -> None:
        while True:
            said = [(number, *sync.take()) for number, sync in self.sites.items()]
            for number, _, updates in said:
                self.updates[number] += [(u.record.topic.decode(), u.record.payload.decode(), u.announce) for u in updates]
            if not any(sends for _, sends, _ in said):
                return
            for number, sends, _ in said:
                for send in sends:
                    self.sizes.append(len(send.data))
                    self.sites[send.peer].receive(number, send.data, now)

    def end(self) -> None:
        self.sites[1].link_down(2)
        self.sites[2].link_down(1)


def talk(a: RetainedSync, b: RetainedSync, now: float, times: int = 1) -> Talk:
    """Link, compare `times` times, unlink."""
    found = Talk(a, b, now)
    for count in range(1, times):
        for sync in (a, b):
            sync.handle_timer(now + 30.0 * count)
        found.run(now + 30.0 * count)
    found.end()
    assert times == 1 or a.digest() == b.digest()
    return found


def contents(sync: RetainedSync) -> dict[str, str]:
    return {record.topic.decode(): record.payload.decode() for record in sync.values()}
