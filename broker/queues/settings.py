"""The tables `[queues.NAME]` of a broker's file: which queues there are, and what each is set to.

[queues.orders]
plan = "pool"               # or "all", or groups such as "a | b, c" (a or b, and c), "a > b" (a, then b)
subscribers = ["a", "b"]    # whom the plan "all" gives each message to; who subscribes is added
deliveries = 5              # how often a message is given to members before it is dead; 0: no limit
dead_letters = "orders-dead"
backoff = "1s"              # until it is given again; doubled each time, up to backoff_most
retention = "7d"            # how long a journalled message stays
messages = 1000000          # bounds: of messages, bytes, age; and what then happens: refuse, drop-oldest or dead-letter
bytes = "10 GiB"
age = "30d"
when_full = "refuse"
delay = "0s"                # until a message is given for the first time
prefetch = 1000             # messages that a member has at most
reveal = true               # false: a message is PUT only, until its publisher reveals it
single = false              # true: only one member is active at a time
explicit = false            # true: subscribers say JOURNALLED themselves
acknowledge = "puback"      # or "request": PUBACK is FETCHED, and members say the rest by requests
topics = ["orders/#"]       # what clients publish here to these topics is put as well
homes = ["lyon", "porto"]   # brokers of which one is the queue's home at a time; the store is PostgreSQL
publish = true              # it holds delayed messages to topics, which the broker publishes when they are due
loaded = "pool"             # the plan while `high` messages or more wait, until `low` or fewer do
high = 10000
low = 1000

What a queue checks on receipt: `checks/settings.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ...base.settings import Section
from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter
from .archive.periods import NEVER, PERIODS
from .checks.checks import Checks
from .checks.settings import checks_of
from .core.plan import LoadRule, Plan, plan_of
from .core.rules import REFUSE, WHEN_FULL, Rules
from .log.locations import POSTGRESQL, wrong

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST = 10 * 366 * 86400.0  # seconds of a duration
DEFAULT_BACKOFF_MOST = 60.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def seconds_of(value: object) -> float:
    """A duration in seconds: a number, or a text such as "500ms", "10s", "5m", "1h", "7d". ValueError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        seconds = float(found[1]) * UNITS[found[2]] if found is not None else -1.0
    if not 0 <= seconds <= LONGEST:
        raise ValueError('give seconds, or a text such as "500ms", "10s", "5m", "1h" or "7d"')
    return seconds


@dataclass(slots=True)
class QueueSettings:
    """All queues of a broker's file, by name. subscribers: of the plan "all", by the queue's name. folder: of the log.

    declared: names of those that were declared by requests, not by the file. paused: names of those whose members get nothing for now.
    checks: of queues that check what they receive. archives: folders of archives that the file names. site: the broker's name. shared:
    rules of queues with several homes, of which this broker is one; they stand in `rules` while it is their home.
    """

    rules: dict[str, Rules] = field(default_factory=dict)
    subscribers: dict[str, list[str]] = field(default_factory=dict)
    shared: dict[str, Rules] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    checks: dict[str, Checks] = field(default_factory=dict)
    archives: dict[str, Path] = field(default_factory=dict)
    site: str = ""
    folder: Path | None = None
    durability: str = "fsync"

    def archive_of(self, name: str) -> Path:
        """The folder of a queue's archive."""
        assert self.folder is not None
        return self.archives.get(name) or self.folder.parent / "queue-archive"

    @classmethod
    def of(cls, section: Section, data: Path | None, durability: str, folder: Path | None = None, site: str = "") -> QueueSettings:
        """Check the tables. folder: what paths of keys and schemas are relative to. site: the broker's name. Raises ConfigError."""
        if data is None:
            raise section.error("data", "queues need a place on the disk: give data (or --data) in the broker's file")
        settings = cls(folder=data / "queues", durability=durability)
        for name in section.table:
            if not _NAME.fullmatch(name):
                raise section.error(
                    name, "give the queue a name of 1 to 64 letters, digits, '.', '_' and '-' that does not begin with '.' or '-'"
                )
            one = section.section(name)
            checks = checks_of(one, folder)
            if one.has("archive_folder"):
                settings.archives[name] = (folder or Path()) / one.string("archive_folder")
                if not one.has("archive"):
                    raise one.error("archive_folder", "say how often: archive, " + ", ".join(PERIODS))
            settings.rules[name], settings.subscribers[name] = queue_of(one, name)
            if checks is not None:
                settings.checks[name] = checks
        homes = _homes_of_stores(settings.rules)
        for name, rules in settings.rules.items():
            if (text := wrong_dead_letters(settings.rules, name)) is not None:
                raise section.section(name).error("dead_letters", text)
            if name in settings.checks and not rules.dead_letters:
                text = "name a queue for messages that fail the checks and cannot be refused any more: those of other sites, and wills"
                raise section.section(name).error("dead_letters", text)
            if (text := _wrong_homes(rules, homes[rules.store], site)) is not None:
                raise section.section(name).error("homes", text)
        settings.shared = {name: rules for name, rules in settings.rules.items() if rules.homes}
        for name in settings.shared:
            del settings.rules[name]
        section.done()
        return settings


def queue_of(one: Section, name: str) -> tuple[Rules, list[str]]:
    """The rules and subscribers of a queue. Raises ConfigError."""
    found = _rules(one, name), one.strings("subscribers", [])
    one.done()
    return found


def wrong_dead_letters(rules: dict[str, Rules], name: str) -> str | None:
    """Why the dead letters of a queue cannot go where they are to go; None: they can."""
    to = rules[name].dead_letters
    if to and to not in rules:
        return f"there is no queue {to!r}: declare that one too"
    if to and rules[to].store != rules[name].store:
        return f"queue {to!r} has another store: dead letters change their queue in one commit, so both have one"
    if len(circle := _circle(rules, name)) > 1:
        return f"dead letters go round: {' -> '.join(circle)}; one of these queues keeps its own, or names another one"
    return None


def _homes_of_stores(every: dict[str, Rules]) -> dict[str, set[frozenset[str]]]:
    """For each store, the homes that its queues name."""
    found: dict[str, set[frozenset[str]]] = {}
    for rules in every.values():
        found.setdefault(rules.store, set()).add(frozenset(rules.homes))
    return found


def _wrong_homes(rules: Rules, named: set[frozenset[str]], site: str) -> str | None:
    """Why a queue cannot have the homes that it names; None: it can. named: by the queues of its store."""
    if len(named) > 1:
        return "all queues of a store have the same homes: give this one another store, such as another ?schema="
    if not rules.homes:
        return None
    if rules.store.partition("://")[0] not in POSTGRESQL:
        return "several homes share the store of a queue: give store, as postgresql://USER@HOST/DATABASE"
    if site not in rules.homes:
        return f"{site!r} is not among them: give the names of all brokers whose files have this table, this one's too"
    if rules.topics or rules.archive:
        return "a queue with several homes is bound to no topics, and has no archive"
    return None


def _rules(one: Section, name: str) -> Rules:
    rules = Rules(plan=_plan(one, "plan") if one.has("plan") else Rules().plan)
    rules.store = one.string("store", rules.store)
    if (text := wrong(rules.store)) is not None:
        raise one.secret_error("store", text)
    rules.messages = one.whole("messages", 0, 2**40, 0)
    rules.bytes = one.size("bytes", 0, 2**50, 0)
    rules.when_full = one.choice("when_full", WHEN_FULL, REFUSE)
    rules.deliveries = one.whole("deliveries", 0, 1_000_000, 0)
    rules.dead_letters = one.name("dead_letters") if one.has("dead_letters") else ""
    if rules.dead_letters == name:
        raise one.error("dead_letters", "a queue does not take its own dead letters: name another one")
    if rules.when_full == "dead-letter" and not rules.dead_letters:
        raise one.error("when_full", "name a queue for them: dead_letters")
    for key in ("age", "backoff", "delay", "retention"):
        setattr(rules, key, _duration(one, key, 0.0))
    rules.backoff_most = _duration(one, "backoff_most", DEFAULT_BACKOFF_MOST)
    rules.prefetch = one.whole("prefetch", 1, 65535, rules.prefetch)
    rules.reveal = one.flag("reveal", True)
    rules.single = one.flag("single", False)
    rules.explicit = one.flag("explicit", False)
    rules.requests = one.choice("acknowledge", ("puback", "request"), "puback") == "request"
    rules.archive = one.choice("archive", tuple(PERIODS), NEVER) if one.has("archive") else NEVER
    rules.topics = tuple(_filter(one, text) for text in one.strings("topics", []))
    rules.homes = tuple(one.strings("homes", []))
    rules.publish = one.flag("publish", False)
    if rules.publish and (rules.homes or rules.topics or rules.requests):
        raise one.error("publish", "a queue that holds delayed messages has no homes, no topics, and no members that make requests")
    if one.has("loaded"):
        high = one.whole("high", 1, 2**40)
        rules.load = LoadRule(rules.plan, _plan(one, "loaded"), high, one.whole("low", 0, high - 1, high // 2))
    return rules


def _filter(one: Section, text: str) -> str:
    """A topic filter that a queue may be bound to."""
    try:
        check_filter(text)
    except MqttError as error:
        raise one.error("topics", f"{text!r}: {getattr(error, 'text', error)}") from None
    if text.startswith("$"):
        raise one.error("topics", f"{text!r}: topics that begin with '$' are the broker's own, and are not put into queues")
    return text


def _circle(rules: dict[str, Rules], name: str) -> list[str]:
    """The queues that dead letters of a queue go through, if they come to it again; else nothing."""
    way, seen = [name], {name}
    while (name := rules[way[-1]].dead_letters) and name in rules:
        way.append(name)
        if name in seen:
            return way if name == way[0] else []
        seen.add(name)
    return []


def _plan(one: Section, key: str) -> Plan:
    try:
        return plan_of(one.string(key))
    except ValueError as error:
        raise one.error(key, str(error)) from None


def _duration(one: Section, key: str, default: float) -> float:
    if not one.has(key):
        return default
    try:
        return seconds_of(one.table[key])
    except ValueError as error:
        raise one.error(key, str(error)) from None
