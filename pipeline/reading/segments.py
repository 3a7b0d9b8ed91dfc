"""Which segments of a journal a run reads, and which it sets aside with a reason.

Repeats are removed here, by segment: rows are never compared. Each segment is looked at before Spark starts: its hash, and its Parquet
footer (rows, columns, least and greatest values). What cannot be used is set aside and counted, and the run goes on.

It knows files, not Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ...broker.journal.layout import Segment, read_manifest
from ...broker.journal.place import Place
from ...broker.journal.schema import VERSION, Kind, arrow_schema
from ..errors import MissingExtra, PipelineError

TOLERANCE = 300_000_000  # microseconds that a broker's clock may be ahead of ours
_CHUNK = 1 << 20
_WORKERS = 4
_KINDS = (min(Kind), max(Kind))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A segment, or some of its events, that a run does not use. reason: one word. events: how many; -1 when that is not known."""

    path: str
    reason: str
    detail: str
    events: int
    broker: int = -1
    epoch: int = 0
    first: int = 0
    last: int = 0

    @classmethod
    def of(cls, segment: Segment, reason: str, detail: str, events: int | None = None) -> Rejected:
        count = segment.events if events is None else events
        return cls(segment.path, reason, detail, count, segment.broker, segment.epoch, segment.first, segment.last)


@dataclass(slots=True)
class Looked:
    """What the footer of a whole segment says. rejected: events in it that are filtered out."""

    segment: Segment
    longest: int = 1  # the greatest `count`
    suspect: bool = False
    rejected: list[Rejected] = field(default_factory=list)


@dataclass(slots=True)
class Selection:
    """What a run reads.

    segments: in order of broker, epoch and first event. repeated: left out because the same events stand in another segment. rejected: set
    aside. runs: whether an event may stand for several messages. suspect: whether rows have to be filtered. older: whether a segment has
    columns of an older version. latest: the greatest time that is believed, microseconds since 1970.
    """

    segments: list[Segment] = field(default_factory=list)
    repeated: list[Segment] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    runs: bool = False
    suspect: bool = False
    older: bool = False
    latest: int = 0

    @property
    def events(self) -> int:
        """How many events are read."""
        apart = sum(one.events for one in self.rejected if one.reason in ("future", "kind"))
        return sum(segment.events for segment in self.segments) - apart

    @property
    def brokers(self) -> list[int]:
        return sorted({segment.broker for segment in self.segments})

    @property
    def lives(self) -> int:
        """The most lives that one broker has here."""
        found: dict[int, set[int]] = {}
        for segment in self.segments:
            found.setdefault(segment.broker, set()).add(segment.epoch)
        return max(map(len, found.values()), default=0)


def select(
    place: Place,
    now: int,
    since: int | None = None,
    until: int | None = None,
    verify: bool = True,
    progress: Callable[[int, int], None] | None = None,
    looking: Callable[[Place, Segment, int, bool], Looked | Rejected] | None = None,
) -> Selection:
    """Look at every segment that may hold events of messages published in [since, until).

    now, since, until: microseconds since 1970. Messages of a day may end on a later one, so `until` leaves nothing out here.
    verify: compare the hash of each file with its manifest. progress: is told how many segments of how many were looked at.
    looking: in place of `look`, for one who has looked at most of them before.
    Raises PipelineError when the journal cannot be listed.
    """
    try:
        manifest = read_manifest(place)
    except OSError as error:
        raise PipelineError(f"{place.root}: the journal cannot be listed: {error}") from None
    made = Selection(latest=now + TOLERANCE)
    made.rejected += [Rejected(name, "manifest", text, -1) for name, text in manifest.rejected]
    candidates = [one for one in (*manifest.segments, *manifest.repeated) if since is None or one.max_time >= since - TOLERANCE]
    done, looked, see = 0, [], looking or look
    with ThreadPoolExecutor(_WORKERS) as pool:
        for one in pool.map(lambda segment: see(place, segment, made.latest, verify), candidates):
            looked.append(one)
            done += 1
            if progress is not None:
                progress(done, len(candidates))
    _choose(made, candidates, looked)
    return made


def look(place: Place, segment: Segment, latest: int, verify: bool) -> Looked | Rejected:
    """One segment: what is in it, or why it is set aside."""
    if segment.newer:
        return Rejected.of(segment, "newer", f"schema version {segment.schema_version}; this release knows {VERSION}")
    if segment.min_time > latest:
        return Rejected.of(segment, "future", "all of its events have a time that has not come")
    try:
        if verify:
            wrong = _hash_differs(place, segment)
            if wrong:
                return Rejected.of(segment, "corrupt", wrong)
        with place.open(segment.path) as file:
            return _look_inside(file, segment, latest)
    except FileNotFoundError:
        return Rejected.of(segment, "missing", "the manifest names it and there is no such file")
    except (OSError, ValueError) as error:
        return Rejected.of(segment, "corrupt", _line(error))


def _hash_differs(place: Place, segment: Segment) -> str:
    digest, size = sha256(), 0
    with place.open(segment.path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    if size != segment.bytes:
        return f"has {size} bytes, its manifest says {segment.bytes}"
    return "" if digest.hexdigest() == segment.sha256 else "its content is not what its manifest says: the hash differs"


def _look_inside(file: Any, segment: Segment, latest: int) -> Looked | Rejected:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("pyarrow") from None
    parquet = pq.ParquetFile(file)
    footer = parquet.metadata
    if footer.num_rows != segment.events:
        return Rejected.of(segment, "corrupt", f"has {footer.num_rows} events, its manifest says {segment.events}")
    wrong = _columns_differ(parquet.schema_arrow, segment.schema_version)
    if wrong:
        return Rejected.of(segment, "columns", wrong)
    found = Looked(segment, _greatest(footer, "count", 2))
    least, most = _least(footer, "kind", -1), _greatest(footer, "kind", 1 << 15)
    if _greatest(footer, "time", latest + 1) > latest or least < _KINDS[0] or most > _KINDS[1]:
        found.suspect = True
        found.rejected = _count_suspects(parquet, segment, latest)
    return found


def _columns_differ(schema: Any, version: int) -> str:
    """Why the columns of a segment cannot be used; "" when they can. An older version may lack columns that came later."""
    for wanted in arrow_schema():
        place = schema.get_field_index(wanted.name)
        if place < 0:
            if version >= VERSION:
                return f"has no column {wanted.name}"
        elif schema.field(place).type != wanted.type:
            return f"the column {wanted.name} is {schema.field(place).type}, not {wanted.type}"
    return ""


def _count_suspects(parquet: Any, segment: Segment, latest: int) -> list[Rejected]:
    import pyarrow.compute as pc

    table = parquet.read(["time", "kind"])
    future = pc.greater(table.column("time"), latest)
    kinds = table.column("kind")
    unknown = pc.or_(pc.less(kinds, _KINDS[0]), pc.greater(kinds, _KINDS[1]))
    ahead = pc.sum(future).as_py() or 0
    strange = pc.sum(pc.and_(unknown, pc.invert(future))).as_py() or 0
    found = []
    if ahead:
        found.append(Rejected.of(segment, "future", "events with a time that has not come", ahead))
    if strange:
        found.append(Rejected.of(segment, "kind", "events of kinds that this release does not know", strange))
    return found


def _statistic(footer: Any, column: str, unknown: int, greatest: bool) -> int:
    """The least or greatest value of a column. unknown: where the file does not say it."""
    place = next((i for i in range(footer.num_columns) if footer.schema.column(i).name == column), -1)
    if place < 0:
        return 1 if column == "count" else unknown
    values = []
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max:
            return unknown
        values.append(statistics.max if greatest else statistics.min)
    if not values:
        return _KINDS[0] if column == "kind" else 0
    return int(max(values) if greatest else min(values))


def _greatest(footer: Any, column: str, unknown: int) -> int:
    return _statistic(footer, column, unknown, True)


def _least(footer: Any, column: str, unknown: int) -> int:
    return _statistic(footer, column, unknown, False)


def _choose(made: Selection, candidates: Sequence[Segment], looked: Iterable[Looked | Rejected]) -> None:
    """Of segments with the same events take one that is whole; of those that share some, the larger one."""
    whole: dict[tuple[int, int, int, int], Looked] = {}
    hashes: set[str] = set()
    for segment, found in zip(candidates, looked, strict=True):
        key = (segment.broker, segment.epoch, segment.first, segment.last)
        if isinstance(found, Rejected):
            made.rejected.append(found)
        elif key in whole or segment.sha256 in hashes:
            made.repeated.append(segment)
        else:
            whole[key] = found
            hashes.add(segment.sha256)
    life, end = (-1, -1), -1
    for broker, epoch, first, last in sorted(whole, key=lambda key: (*key[:3], -key[3])):
        found = whole[broker, epoch, first, last]
        if (broker, epoch) == life and first <= end:
            if last <= end:
                made.repeated.append(found.segment)
            else:
                made.rejected.append(Rejected.of(found.segment, "overlap", f"has events up to {end} that another segment has too"))
            continue
        life, end = (broker, epoch), last
        made.segments.append(found.segment)
        made.rejected += found.rejected
        made.runs |= found.longest > 1
        made.suspect |= found.suspect
        made.older |= found.segment.schema_version < VERSION


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300] or type(error).__name__
