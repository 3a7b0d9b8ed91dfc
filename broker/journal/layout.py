"""Where the journal's files stand below its root, and the manifest that lists the closed segments.

    open/broker=7/EPOCH-FIRST.arrows                                segments that are being written: Arrow IPC streams
    open/broker=7/EPOCH-names.jsonl, EPOCH-counts.jsonl             names and counters that stand in no file of their own yet
    open/broker=7/EPOCH.life                                        a life of the broker that has not ended well, or not yet
    events/date=2026-11-22/broker=7/EPOCH-FIRST-LAST.parquet        closed segments
    counts/date=2026-11-22/broker=7/EPOCH-FIRST-LAST.parquet        the always-on counters, by minute; FIRST and LAST are minutes
    names/broker=7/EPOCH-N.parquet                                  dimension files
    manifest/broker=7/EPOCH-FIRST-LAST.json                         one for each closed segment

A reader lists the manifest and never the folders: a file without its manifest is not there yet, or not there any more.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from .kinds import VERSION
from .place import Place

MANIFEST = "manifest"
EVENTS_FOLDER, COUNTS_FOLDER, NAMES_FOLDER, OPEN_FOLDER = "events", "counts", "names", "open"
PARQUET, JSON, IPC = ".parquet", ".json", ".arrows"
_BROKER = re.compile(r"broker=(\d+)")
_DATE = re.compile(r"date=(\d{4}-\d\d-\d\d)")


@dataclass(frozen=True, slots=True)
class Segment:
    """One closed segment, as its manifest says.

    path: below the root. first, last: numbers of its events in the broker's life. events: rows. min_time, max_time: microseconds since
    1970. sha256: of the file. bytes: of the file. replaces: names of manifests whose events it holds too, after compaction.
    """

    path: str
    schema_version: int
    broker: int
    epoch: int
    first: int
    last: int
    events: int
    min_time: int
    max_time: int
    sha256: str
    bytes: int
    replaces: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of its manifest, below the root."""
        return f"{MANIFEST}/broker={self.broker}/{self.epoch}-{self.first}-{self.last}{JSON}"

    @property
    def newer(self) -> bool:
        """Whether a later release wrote it, so that this one cannot know what its columns mean."""
        return self.schema_version > VERSION

    def dumped(self) -> builtins.bytes:
        """The manifest's content."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def loaded(cls, data: builtins.bytes) -> Segment:
        """From a manifest's content. Raises ValueError, one line."""
        try:
            values = json.loads(data)
            segment = cls(**{key: value for key, value in values.items() if key in cls.__dataclass_fields__})
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"is no manifest: {error}") from None
        numbers = (segment.schema_version, segment.broker, segment.epoch, segment.first, segment.last, segment.events, segment.bytes)
        if not all(isinstance(number, int) for number in numbers) or not isinstance(segment.path, str):
            raise ValueError("is no manifest: a number or the path is of the wrong kind")
        if segment.path.startswith(("/", "\\")) or ".." in segment.path.split("/"):
            raise ValueError(f'is no manifest: the path "{segment.path}" leaves the journal')
        return segment


@dataclass(slots=True)
class Manifest:
    """What the manifests of a journal say.

    segments: sorted by broker, epoch and first event; without repeats. repeated: segments that are there twice, which are left out.
    replaced: segments that a compacted one holds. rejected: manifests that cannot be read, with the reason.
    """

    segments: list[Segment] = field(default_factory=list)
    repeated: list[Segment] = field(default_factory=list)
    replaced: list[Segment] = field(default_factory=list)
    rejected: list[tuple[str, str]] = field(default_factory=list)


def date_of(microseconds: int) -> str:
    """The date (UTC) of a time since 1970, as it stands in a path."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d")


def events_path(date: str, broker: int, epoch: int, first: int, last: int) -> str:
    return f"{EVENTS_FOLDER}/date={date}/broker={broker}/{epoch}-{first}-{last}{PARQUET}"


def counts_path(date: str, broker: int, epoch: int, first: int, last: int) -> str:
    return f"{COUNTS_FOLDER}/date={date}/broker={broker}/{epoch}-{first}-{last}{PARQUET}"


def names_path(broker: int, epoch: int, number: int) -> str:
    return f"{NAMES_FOLDER}/broker={broker}/{epoch}-{number}{PARQUET}"


def broker_in(path: str) -> int | None:
    """The broker's number in a path."""
    found = _BROKER.search(path)
    return int(found[1]) if found else None


def date_in(path: str) -> str | None:
    """The date in a path."""
    found = _DATE.search(path)
    return found[1] if found else None


def read_manifest(place: Place, brokers: Iterable[int] | None = None) -> Manifest:
    """All closed segments. brokers: only theirs; None: all. Raises OSError when the root cannot be listed."""
    wanted = None if brokers is None else set(brokers)
    found, made = [], Manifest()
    for name in sorted(place.files(MANIFEST, JSON)):
        if wanted is not None and broker_in(name) not in wanted:
            continue
        try:
            found.append(Segment.loaded(place.read(name)))
        except FileNotFoundError:
            continue  # retention has just removed it
        except (ValueError, OSError) as error:
            made.rejected.append((name, str(error)))
    replaced = {name for segment in found for name in segment.replaces}
    seen: set[object] = set()
    for segment in sorted(found, key=lambda one: (one.broker, one.epoch, one.first, one.last)):
        same = (segment.broker, segment.epoch, segment.first, segment.last)
        if segment.name in replaced and segment.name not in segment.replaces:
            made.replaced.append(segment)
        elif same in seen or segment.sha256 in seen:
            made.repeated.append(segment)
        else:
            seen |= {same, segment.sha256}
            made.segments.append(segment)
    return made
