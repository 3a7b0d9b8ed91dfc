"""What an operator says of custody for sites that are away, as a table of either kind of file.

    [mesh.custody]
    bytes = "4 GiB"                  # that may wait for each site; by default 4 GiB
    total = "20 GiB"                 # for all sites together; left out: as much as the store may have of it
    age = 604800                     # seconds that a message may wait; left out: as long as its site is away
    at_bound = "refuse"              # or "drop-oldest", or "expire"

    [[mesh.custody.rule]]            # exceptions; the first one that says something of a question counts
    site = "ship"                    # name or number; left out: each
    topics = ["telemetry/#"]         # left out: all; with topics, only at_bound may stand there
    at_bound = "drop-oldest"

It knows tables and their mistakes; `mesh/custody/bounds.py` says what they mean.
"""

from __future__ import annotations

from ...base.settings import NAME, ConfigError, Section
from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter
from ..custody.bounds import AtBound, CustodyBounds, CustodyRule
from ..wire.identity import HIGHEST_NUMBER

CHOICES = tuple(one.value for one in AtBound)
LEAST, MOST = 2**20, 2**60  # bytes
OLDEST = 2**32  # seconds


def custody_of(section: Section) -> CustodyBounds:
    """The bounds in a table, defaults for what it leaves out. Raises ConfigError."""
    bounds = CustodyBounds(
        bytes=section.size("bytes", LEAST, MOST, CustodyBounds().bytes),
        total=section.size("total", LEAST, MOST) if section.has("total") else 0,
        age=section.seconds("age", 1, OLDEST) if section.has("age") else 0.0,
        at_bound=AtBound(section.choice("at_bound", CHOICES, AtBound.REFUSE.value)),
        rules=tuple(_rule(one) for one in section.sections("rule")),
    )
    section.done()
    return bounds


def _rule(section: Section) -> CustodyRule:
    site: int | str | None = section.table.get("site")
    if section.has("site"):
        number = isinstance(site, int) and not isinstance(site, bool) and 0 <= site <= HIGHEST_NUMBER
        if not number and not (isinstance(site, str) and NAME.fullmatch(site)):
            raise section.error("site", f"give the name of a broker or its number, 0 to {HIGHEST_NUMBER}")
    topics = section.strings("topics", [], 'give a list of topic filters such as ["telemetry/#"]')
    for topic_filter in topics:
        try:
            check_filter(topic_filter, shared=False)
        except MqttError as error:
            raise ConfigError(section.file, section.key("topics"), topic_filter, f"not a topic filter: {error}") from None
    rule = CustodyRule(
        site,
        tuple(topics),
        AtBound(section.choice("at_bound", CHOICES)) if section.has("at_bound") else None,
        section.size("bytes", LEAST, MOST) if section.has("bytes") else None,
        section.seconds("age", 1, OLDEST) if section.has("age") else None,
    )
    for key, value in (("bytes", rule.bytes), ("age", rule.age)):
        if topics and value is not None:
            raise section.error(key, "it counts for all topics of a site: give it in a rule without topics")
    if rule.at_bound is None and rule.bytes is None and rule.age is None:
        raise section.error("at_bound", "the rule says nothing: give " + ", ".join(f'"{one}"' for one in CHOICES) + ", or bytes or age")
    section.done()
    return rule
