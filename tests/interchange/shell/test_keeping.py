"""What an interchange keeps of its counts."""

from __future__ import annotations

import msgpack
from mqmesh.interchange.identifiers import EACH
from mqmesh.interchange.shell.keeping import COUNTS, Keeping


class Noted(Keeping):
    """It notes what is kept."""

    def __init__(self) -> None:
        super().__init__(None)
        self.kept: list[int] = []

    def put(self, key: bytes, value: bytes | None) -> None:
        assert key == COUNTS
        self.kept.append(msgpack.unpackb(value)[1])


def test_what_is_kept_is_never_below_what_is_issued_and_not_written_with_each_post() -> None:
    """A life that begins after a kill issues nothing that this one has issued."""
    keeping = Noted()
    for last in range(1_000_000, 1_000_000 + 100 * EACH, 3):
        keeping.put_counts(1_000_000, last)
        assert keeping.kept[-1] >= last
    assert len(keeping.kept) < 20
    assert keeping.kept[-1] - last <= 8 * EACH
