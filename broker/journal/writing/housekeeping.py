"""What is too old is deleted, what is too small is joined.

A segment is deleted by its manifest first, so that no reader finds a manifest without its file for long. Segments are joined into one whose
manifest names those that it replaces; their files stay for an hour, for readers that have listed them.
"""

from __future__ import annotations

import logging

from ..kinds import VERSION
from ..layout import COUNTS_FOLDER, PARQUET, Segment, broker_in, date_in, date_of, read_manifest
from ..place import Place
from ..reading import Damaged, Journal
from ..settings import JournalSettings
from .segment import store_events

log = logging.getLogger("mqmesh.journal")

GRACE = 3600.0  # seconds that replaced files stay


class Housekeeping:
    """Cares for one broker's part of a journal."""

    def __init__(self, place: Place, broker: int, settings: JournalSettings) -> None:
        self._place = place
        self._broker = broker
        self._settings = settings
        self._replaced: dict[str, float] = {}  # manifest of a replaced segment -> when it was first seen as such

    def look(self, now: float) -> tuple[int, int]:
        """Delete and join. now: seconds since 1970. Returns how many segments were deleted and how many were joined. Raises OSError."""
        manifest = read_manifest(self._place, [self._broker])
        gone = 0
        for segment in manifest.replaced:
            if now - self._replaced.setdefault(segment.name, now) >= GRACE:
                self._delete(segment)
                del self._replaced[segment.name]
                gone += 1
        kept = []
        for segment in manifest.segments:
            if self._settings.retention and segment.max_time < (now - self._settings.retention) * 1_000_000:
                self._delete(segment)
                gone += 1
            else:
                kept.append(segment)
        if self._settings.retention:
            self._delete_counts(date_of(int((now - self._settings.retention) * 1_000_000)))
        joined = sum(self._join(group) for group in self.groups(kept))
        if gone or joined:
            log.info("event=journal-care deleted=%d joined=%d", gone, joined)
        return gone, joined

    def _delete(self, segment: Segment) -> None:
        self._place.remove(segment.name)
        self._place.remove(segment.path)

    def _delete_counts(self, before: str) -> None:
        """Counters of dates before one."""
        for name in self._place.files(COUNTS_FOLDER, PARQUET):
            if broker_in(name) == self._broker and (date_in(name) or before) < before:
                self._place.remove(name)

    def groups(self, segments: list[Segment]) -> list[list[Segment]]:
        """Small segments in a row, of one life and date, that make one of the usual size."""
        made: list[list[Segment]] = []
        small, most = self._settings.compact_bytes, self._settings.segment_bytes
        for segment in segments:
            if segment.bytes >= small or segment.schema_version != VERSION:
                continue
            last = made[-1] if made else []
            if (
                last
                and last[-1].epoch == segment.epoch
                and last[-1].last + 1 == segment.first
                and date_of(last[-1].min_time) == date_of(segment.min_time)
                and sum(one.bytes for one in last) + segment.bytes <= most
            ):
                last.append(segment)
            else:
                made.append([segment])
        return [group for group in made if len(group) > 1]

    def _join(self, group: list[Segment]) -> int:
        import pyarrow as pa

        journal = Journal(self._place)
        try:
            table = pa.concat_tables([journal.table(segment) for segment in group])
        except Damaged as error:
            log.warning("event=journal-damaged text=%s", error)
            return 0
        store_events(self._place, table, [segment.name for segment in group])
        return len(group)
