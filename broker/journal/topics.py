"""Which topics are journalled how: modes by topic filter, the part of a topic that the counters tell apart, and sampling.

Sampling chooses blocks of messages by their ids, so that every broker journals the same messages.
"""

from __future__ import annotations

from ...base.cache import LONGEST, Cache
from ...mqtt.topics import matches
from .kinds import name_id
from .settings import TOPIC, JournalSettings, TopicRule

ALL = TopicRule("$queue/#", "full")
COUNTED = TopicRule("#", "counted", 0.0)
KNOWN = 100_000  # topics whose rule is remembered
QUEUES = 10_000  # the same of queues: clients make temporary ones all the time
PREFIXES = 10_000  # parts of topics that the counters tell apart; all others are "(other)"
OTHER = "(other)"
BLOCK_BITS = 6  # messages are sampled in blocks of 64, so that runs stay runs
_SCALE = 2**32


class Topics:
    """The rules of one broker."""

    def __init__(self, settings: JournalSettings) -> None:
        self._rules = settings.topics
        self._levels = settings.dimension
        self._known: dict[bytes, TopicRule] = {}
        self._queues: Cache[str, TopicRule] = Cache(QUEUES)
        self.prefixes: dict[str, int] = {}
        self.full = any(rule.mode != "counted" for rule in settings.topics)
        self.selecting = any(rule.select for rule in settings.topics)

    def rule(self, topic: bytes) -> TopicRule:
        """The rule of a topic. What begins with `$` is the broker's own, and is counted only."""
        found = self._known.get(topic)
        if found is None:
            text = topic.decode("utf-8", "replace")
            matching = (rule for rule in self._rules if matches(rule.filter, text))
            found = COUNTED if text.startswith("$") else next(matching, COUNTED)
            if len(topic) <= LONGEST:
                if len(self._known) >= KNOWN:
                    self._known.clear()
                self._known[topic] = found
        return found

    def selects(self, topics: bytes | list[bytes]) -> bool:
        """Whether values of payloads are kept for a topic, or for one of several."""
        if isinstance(topics, bytes):
            return bool(self.rule(topics).select)
        return any(self.rule(topic).select for topic in set(topics))

    def queue_rule(self, name: str) -> TopicRule:
        """The rule of the states of a queue's messages: of a filter that begins with `$queue/`; without one they are journalled in full."""
        found = self._queues.get(name)
        if found is None:
            matching = (rule for rule in self._rules if rule.filter.startswith("$") and matches(rule.filter, f"$queue/{name}"))
            found = next(matching, ALL)
            self._queues.keep(name, found)
        return found

    def noted(self, topic: bytes) -> bool:
        """Whether messages of a topic have events of their own."""
        return self.rule(topic).mode != "counted"

    def prefix(self, topic: str) -> str:
        """The part of a topic that the counters tell apart."""
        if self._levels == 0:
            return ""
        text = topic if self._levels == TOPIC else "/".join(topic.split("/", self._levels)[: self._levels])
        if text not in self.prefixes:
            if len(self.prefixes) >= PREFIXES or len(text) > LONGEST:
                return OTHER
            self.prefixes[text] = name_id(text)
        return text


def sampled(rule: TopicRule, origin: int, epoch: int, stream: int, sequence: int) -> bool:
    """Whether a message is journalled, by its rule: the same at every broker."""
    if rule.mode == "full":
        return True
    if rule.mode == "counted":
        return False
    value = (sequence >> BLOCK_BITS) * 0x9E3779B1 ^ origin * 0x85EBCA6B ^ (epoch & 0xFFFFFFFF) * 0xC2B2AE35 ^ stream * 0x27D4EB2F
    value = (value ^ value >> 15) * 0x2C1B3C6D & 0xFFFFFFFF
    value = (value ^ value >> 12) * 0x297A2D39 & 0xFFFFFFFF
    return (value ^ value >> 15) & 0xFFFFFFFF < rule.rate * _SCALE


def sampled_parts(rule: TopicRule, origin: int, epoch: int, stream: int, first: int, count: int) -> list[tuple[int, int]]:
    """(offset, count) of the parts of a run that are journalled."""
    if rule.mode == "full":
        return [(0, count)]
    parts: list[tuple[int, int]] = []
    sequence, end = first, first + count
    while sequence < end:
        stop = min(end, (sequence >> BLOCK_BITS) + 1 << BLOCK_BITS)
        if sampled(rule, origin, epoch, stream, sequence):
            if parts and parts[-1][0] + parts[-1][1] == sequence - first:
                parts[-1] = (parts[-1][0], stop - first - parts[-1][0])
            else:
                parts.append((sequence - first, stop - sequence))
        sequence = stop
    return parts
