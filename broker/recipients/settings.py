"""The table `[recipients]` of a broker's file: which applications are watched, and who takes their messages when they are dead.

    [recipients]
    prefix = "app"                  # app/NAME/... addresses the application NAME
    message_interval = "10s"        # defaults of all applications; seconds, or a text with a unit (ms, s, m, h, d)
    fault_interval = "5m"
    defunct_interval = "1h"
    dead_letters = "dead/{site}"    # {site} becomes the broker's name
    [[recipients.application]]
    name = "orders"
    broker = "porto"                # its home; left out: the broker whose file this is
    client = "orders-client"        # or clients = [...]; left out: the client identifier is the name
    topics = ["shop/orders/#"]      # which of its own subscriptions fail over; left out: all with QoS 1 and 2
    alternatives = ["orders-lyon"]
    consents = ["*"]                # whose messages it takes as an alternative; left out: everybody's
    message_interval = "2s"         # and the other two
    probe = true                    # it takes an empty PUBLISH of QoS 1 as a probe

The same table may stand in the files of all brokers of a mesh: each one is home to the applications that name it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...base.clients import wrong_name
from ...base.settings import Section
from ...mqtt.errors import PeerError
from ...mqtt.topics import check_filter, check_topic

MOST_ALTERNATIVES = 64
MOST_APPLICATIONS = 10_000
RECIPIENT, TEXT = 4096, 100  # bytes of memory of a recipient, and of one text beside its characters
EVERYBODY = "*"
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SHORTEST, LONGEST = 0.1, 30 * 86400.0  # seconds of an interval
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


class Intervals(NamedTuple):
    """The three intervals of a recipient, in seconds (patent: message interval, fault interval, defunct interval; row F20).

    message: one attempt of one message. fault: without any success; then the recipient is in FAULT. defunct: from then on; then it is
    DEFUNCT.
    """

    message: float = 10.0
    fault: float = 300.0
    defunct: float = 3600.0

    def wrong(self) -> tuple[str, str] | None:
        """(which one, what would be right) if they contradict each other or are out of bounds (row F2)."""
        for name, value in zip(self._fields, self, strict=True):
            if not SHORTEST <= value <= LONGEST:
                return name, f"give from {SHORTEST:g} s to {LONGEST:g} s"
        if self.fault < self.message:
            return "fault", f"give at least the message interval, {self.message:g} s"
        return None


DEFAULT = Intervals()


def seconds_of(value: object) -> float:
    """An interval in seconds: a number, or a text such as "500ms", "10s", "5m", "1h". ValueError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _INTERVAL.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError('give seconds, or a text such as "500ms", "10s", "5m" or "1h"')
    return float(found[1]) * UNITS[found[2]]


def wrong_alternatives(name: str, alternatives: list[str]) -> str | None:
    """What is wrong with the alternatives of a recipient; None: nothing."""
    if len(alternatives) > MOST_ALTERNATIVES:
        return f"give at most {MOST_ALTERNATIVES} alternatives"
    if name in alternatives:
        return "an application is no alternative to itself: leave it out"
    if len(set(alternatives)) < len(alternatives):
        return "an alternative stands twice: leave one out"
    return next((text for text in map(wrong_name, alternatives) if text is not None), None)


def weight_of(application: Application) -> int:
    """Bytes that the ledger counts for what an application says of itself: it is here, and in what is told to other brokers."""
    texts = [application.name, *application.clients, *application.topics, *application.alternatives, *application.consents]
    return RECIPIENT + 2 * sum([len(text) + TEXT for text in texts])


@dataclass(slots=True)
class Application:
    """One recipient as a file, the directory or its client describes it. See docs/recipients.md.

    broker: the name of its home; None: the broker that has the description. clients: identifiers of those who serve it. topics: filters
    of the subscriptions that fail over; empty: all. consents: of which recipients it takes messages, "*": all.
    probe: it takes an empty PUBLISH as a probe.
    """

    name: str
    clients: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    alternatives: list[str] = field(default_factory=list)
    intervals: Intervals = DEFAULT
    probe: bool = False
    consents: list[str] = field(default_factory=lambda: [EVERYBODY])
    broker: str | None = None

    def takes(self, name: str) -> bool:
        """Whether it agrees to be the alternative of another recipient."""
        return EVERYBODY in self.consents or name in self.consents


@dataclass(slots=True)
class RecipientSettings:
    """The table `[recipients]`. prefix: of the topics that address recipients. dead_letters: a topic, its {site} not yet filled in."""

    prefix: str = "app"
    intervals: Intervals = DEFAULT
    dead_letters: str = "dead/{site}"
    applications: list[Application] = field(default_factory=list)

    @classmethod
    def of(cls, section: Section) -> RecipientSettings:
        """Check the table. Raises ConfigError."""
        settings = cls(_prefix(section), _intervals(section, DEFAULT), _dead_letters(section))
        names: set[str] = set()
        for one in section.sections("application"):
            application = _application(one, settings.intervals)
            if application.name in names:
                raise one.error("name", "this application stands twice: leave one out")
            if len(settings.applications) == MOST_APPLICATIONS:
                raise one.error("name", f"give at most {MOST_APPLICATIONS} applications here; a directory has room for more")
            settings.applications.append(application)
            names.add(application.name)
        section.done()
        return settings


def _prefix(section: Section) -> str:
    right = "give the levels before the name, as \"app\", without '+', '#' and '$'"
    prefix = section.string("prefix", "app", right)
    if prefix.startswith(("$", "/")) or prefix.endswith("/") or any(c in prefix for c in "+#\0"):
        raise section.error("prefix", right)
    return prefix


def _dead_letters(section: Section) -> str:
    right = 'give a topic, as "dead/{site}"'
    topic = section.string("dead_letters", "dead/{site}", right)
    try:
        check_topic(topic.replace("{site}", "site").encode())
    except PeerError:
        raise section.error("dead_letters", right) from None
    if topic.startswith("$"):
        raise section.error("dead_letters", right)
    return topic


def _intervals(section: Section, default: Intervals) -> Intervals:
    found: dict[str, Any] = {}
    for name in Intervals._fields:
        key = f"{name}_interval"
        if section.has(key):
            try:
                found[name] = seconds_of(section.table[key])
            except ValueError as error:
                raise section.error(key, str(error)) from None
    intervals = default._replace(**found)
    wrong = intervals.wrong()
    if wrong is not None:
        raise section.error(f"{wrong[0]}_interval", wrong[1])
    return intervals


def _application(one: Section, default: Intervals) -> Application:
    name = one.string("name", right="give the name that app/NAME/... addresses")
    text = wrong_name(name)
    if text is not None:
        raise one.error("name", text)
    if one.has("client") and one.has("clients"):
        raise one.error("clients", "give client or clients, not both")
    clients = [one.string("client", right="give a client identifier")] if one.has("client") else one.strings("clients", [name])
    if not clients or not all(clients):
        raise one.error("clients", "give at least one client identifier")
    application = Application(name, clients, intervals=_intervals(one, default))
    application.topics = _filters(one)
    application.alternatives = one.strings("alternatives", [])
    text = wrong_alternatives(name, application.alternatives)
    if text is not None:
        raise one.error("alternatives", text)
    application.consents = one.strings("consents", [EVERYBODY])
    application.probe = one.flag("probe", False)
    application.broker = one.name("broker") if one.has("broker") else None
    one.done()
    return application


def _filters(one: Section) -> list[str]:
    topics = one.strings("topics", [])
    for topic in topics:
        try:
            check_filter(topic)
        except PeerError:
            raise one.error("topics", f"{topic!r} is no topic filter") from None
    return topics
