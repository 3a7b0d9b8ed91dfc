"""The table `[journal]` of a broker's file.

[journal]
folder = "journal"           # relative to the file; or url = "s3://bucket/journal", with spool = "a local folder"
topics = [{ filter = "shop/#", mode = "full" }, { filter = "#", mode = "sampled", rate = 0.01 }]
dimension = 1                # levels of a topic that the counters tell apart; 0: none, "topic": all
segment_bytes = "16 MiB"     # an open segment is closed at this size,
segment_seconds = 300        # or after this time
retention = 2592000          # seconds that closed segments are kept; 0: for ever
accounts = { alice = "acme" }  # in [access]: whom the use of a user is charged to
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...base.settings import ConfigError, Section
from ...mqtt.topics import check_filter
from .selecting import MOST, Selection, steps_of

MODES = ("full", "sampled", "counted")
TOPIC = -1  # as a dimension: the whole topic


@dataclass(frozen=True, slots=True)
class TopicRule:
    """Which topics are journalled how. rate: of "sampled", which part of the messages, 0 to 1. select: values of payloads that are kept."""

    filter: str
    mode: str
    rate: float = 1.0
    select: Selection = ()


@dataclass(slots=True)
class JournalSettings:
    """The table `[journal]`. See docs/journal.md.

    root: a folder or URL. spool: the folder of open segments; None: in the root. topics: the first rule that matches counts; what none
    matches is counted only. dimension: levels of a topic in the counters, `TOPIC` for all. pending: events that may wait for the disk.
    batch_seconds: between two writes. compact_bytes: closed segments below this size are joined.
    """

    root: str
    spool: Path | None = None
    topics: tuple[TopicRule, ...] = (TopicRule("#", "full"),)
    dimension: int = 1
    segment_bytes: int = 16 * 2**20
    segment_seconds: float = 300.0
    retention: float = 30 * 86_400.0
    pending: int = 200_000
    batch_seconds: float = 0.25
    compact_bytes: int = 4 * 2**20
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, section: Section, folder: Path | None, data: Path | None) -> JournalSettings:
        """Read the table. folder: what relative paths are relative to. data: the broker's data folder. Raises ConfigError."""
        settings = cls("")
        if section.has("url"):
            settings.root = _url(section)
            if section.has("spool"):
                settings.spool = section.path_of("spool", folder, "give the path of a folder")
            elif data is not None:
                settings.spool = data / "journal"
            else:
                raise section.error("spool", "segments are written to a local folder first: give one, or data")
        else:
            path = section.path_of("folder", folder, 'give the path of a folder, or url = "s3://bucket/journal"')
            settings.root = str(path.absolute())
        if section.has("topics"):
            settings.topics = tuple(_rule(one) for one in section.sections("topics"))
        settings.dimension = _dimension(section)
        settings.segment_bytes = section.size("segment_bytes", 2**16, 2**32, settings.segment_bytes)
        settings.segment_seconds = section.seconds("segment_seconds", 1, 86_400, settings.segment_seconds)
        settings.retention = section.seconds("retention", 0, 100 * 365 * 86_400.0, settings.retention)
        settings.pending = section.whole("pending", 1000, 10**8, settings.pending)
        settings.compact_bytes = section.size("compact_bytes", 0, 2**32, settings.compact_bytes)
        settings.batch_seconds = section.seconds("batch_seconds", 0.01, 60, settings.batch_seconds)
        if section.has("options"):
            settings.options = {key: str(value) for key, value in section.section("options").table.items()}
        section.done()
        return settings


def _url(section: Section) -> str:
    text = section.string("url", right='give a URL, as "s3://bucket/journal"')
    if "://" not in text:
        raise section.error("url", 'give a URL, as "s3://bucket/journal"; a folder is given as folder')
    if section.has("folder"):
        raise section.error("folder", "give folder or url, not both")
    return text


def _rule(section: Section) -> TopicRule:
    text = section.string("filter", right='give a topic filter, as "shop/#"')
    try:
        check_filter(text)
    except Exception as error:
        raise section.error("filter", f"is no topic filter: {error}") from None
    mode = section.choice("mode", MODES)
    rate = 1.0
    if mode == "sampled":
        rate = section.seconds("rate", 0, 1) if section.has("rate") else 0.01
    elif section.has("rate"):
        raise section.error("rate", 'only mode = "sampled" has a rate')
    select = _selection(section.section("select")) if section.has("select") else ()
    if select and mode == "counted":
        raise section.error("select", 'values stand in events, and mode = "counted" writes none: give full or sampled')
    section.done()
    return TopicRule(text, mode, rate, select)


def _selection(section: Section) -> Selection:
    if not 0 < len(section.table) <= MOST:
        raise ConfigError(section.file, section.key("*"), len(section.table), f"give 1 to {MOST} values, each a name and a path")
    made = []
    for name in section.table:
        try:
            made.append((name, steps_of(section.string(name))))
        except ValueError as error:
            raise section.error(name, str(error)) from None
    section.done()
    return tuple(made)


def _dimension(section: Section) -> int:
    if not section.has("dimension"):
        return 1
    value = section.table["dimension"]
    if value == "topic":
        return TOPIC
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100:
        raise ConfigError(section.file, section.key("dimension"), value, 'give how many levels of a topic are told apart, or "topic"')
    return value
