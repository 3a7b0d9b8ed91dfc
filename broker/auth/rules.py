"""Rules of access: who may publish and subscribe to what. The first rule that fits decides; where none does, nothing is allowed.

    [[access.rule]]
    users = ["meter-*"]                  # `*` any characters, `?` one; left out: everybody, also without a name; "" nobody's name
    clients = ["*"]                      # client identifiers; left out: any
    listeners = ["hall"]                 # names of listeners; left out: any; "" those without a name
    allow = ["publish"]                  # or deny = ["publish", "subscribe"]
    topics = ["meters/%u/#", "log/%c"]   # filters; %u the user, %c the client identifier

A subscription is allowed by a rule that allows *all* that its filter matches, and denied by a rule that denies *any* of it: so what is
delivered needs no second look. With `on_overlap = "filter"` a subscription that rules allow in part is granted, and `Rules.reads` decides
once for each topic. `%u` and `%c` stand for one level: a rule with them says nothing of a client whose name has `/`, `+` or `#` in it, or
that has no name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from ...base.wildcards import fits
from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter, covers, matches, overlaps, split_share

if TYPE_CHECKING:
    from ...base.settings import Section

ACTIONS = ("publish", "subscribe")
NOBODY = ""  # among the users of a rule: clients without a name
PLACE = re.compile("%[uc]")
SPECIAL = frozenset("/+#")


@dataclass(frozen=True, slots=True)
class Rule:
    """One `[[access.rule]]`. allows: else it denies. number: its place in the file, from 1, for people. listeners: names of those whose
    clients it concerns; None: of all."""

    number: int
    allows: bool
    actions: frozenset[str]
    topics: tuple[str, ...]
    users: tuple[str, ...] | None = None
    clients: tuple[str, ...] | None = None
    listeners: frozenset[str] | None = None

    def concerns(self, action: str, user: str | None, client_id: str, listener: str) -> bool:
        """Whether it speaks of this action of this client. listener: the name of the one by which it came; "" if that has none."""
        if action not in self.actions or (self.listeners is not None and listener not in self.listeners):
            return False
        if self.users is not None and not (NOBODY in self.users if user is None else any(fits(one, user) for one in self.users)):
            return False
        return self.clients is None or any(fits(one, client_id) for one in self.clients)

    def filters(self, user: str | None, client_id: str) -> list[str]:
        """Its topics with the client's names in them; without those that the names do not fit into."""
        found = []
        for topic in self.topics:
            parts = PLACE.split(topic)
            names = [user if place == "%u" else client_id for place in PLACE.findall(topic)]
            if all(name and not SPECIAL & set(name) for name in names):
                found.append("".join([part for pair in zip_longest(parts, names, fillvalue="") for part in pair if part]))
        return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision, and why. rule: which one decided; None: none fits."""

    allowed: bool
    rule: Rule | None

    def __str__(self) -> str:
        if self.rule is None:
            return "no rule allows it"
        return f"rule {self.rule.number} {'allows' if self.allowed else 'denies'} it"


class Rules:
    """The list. Empty: everything is allowed. listener: by which a client came, "" for one without a name."""

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self.rules = rules

    def __bool__(self) -> bool:
        return bool(self.rules)

    def publish(self, user: str | None, client_id: str, topic: str, listener: str = "") -> Verdict:
        """May this client publish to a topic (a well-formed one)?"""
        for rule in self.rules:
            if rule.concerns("publish", user, client_id, listener) and any(matches(one, topic) for one in rule.filters(user, client_id)):
                return Verdict(rule.allows, rule)
        return Verdict(not self.rules, None)

    def subscribe(self, user: str | None, client_id: str, full: str, listener: str = "") -> Verdict:
        """May it subscribe to a filter (a well-formed one, perhaps with `$share/NAME/` before it)?"""
        share = split_share(full)
        asked = full if share is None else share[1]
        for rule in self.rules:
            if rule.concerns("subscribe", user, client_id, listener):
                agrees = covers if rule.allows else overlaps
                if any(agrees(one, asked) for one in rule.filters(user, client_id)):
                    return Verdict(rule.allows, rule)
        return Verdict(not self.rules, None)

    def reads(self, user: str | None, client_id: str, topic: str, listener: str = "") -> bool:
        """May this client read messages of a topic (a well-formed one)? For subscriptions that are allowed in part."""
        for rule in self.rules:
            if rule.concerns("subscribe", user, client_id, listener) and any(matches(one, topic) for one in rule.filters(user, client_id)):
                return rule.allows
        return not self.rules

    def partly(self, user: str | None, client_id: str, asked: str, listener: str = "") -> bool:
        """Whether a rule allows some of what a filter (well-formed, not shared) matches, and no earlier one denies all of it."""
        for rule in self.rules:
            if rule.concerns("subscribe", user, client_id, listener):
                fits = overlaps if rule.allows else covers
                if any(fits(one, asked) for one in rule.filters(user, client_id)):
                    return rule.allows
        return False


def rules_of(sections: list[Section]) -> Rules:
    """Read the `[[access.rule]]` tables. Raises ConfigError."""
    return Rules(tuple(_rule(section, number) for number, section in enumerate(sections, 1)))


def _rule(section: Section, number: int) -> Rule:
    words = [word for word in ("allow", "deny") if section.has(word)]
    right = 'give allow = ["publish", "subscribe"], or one of the two, or deny in its place'
    if len(words) != 1:
        raise section.error("allow", right)
    actions = section.strings(words[0], [], right)
    if not actions or not set(actions) <= set(ACTIONS):
        raise section.error(words[0], right)
    topics = section.strings("topics", [], 'give a list of topic filters, as ["meters/%u/#"]')
    if not topics:
        raise section.error("topics", 'give a list of topic filters, as ["meters/%u/#"]')
    for topic in topics:
        try:
            check_filter(PLACE.sub("x", topic))
        except MqttError as error:
            raise section.error("topics", f"{topic!r}: {getattr(error, 'text', error)}") from None
        if topic.startswith("$share/"):
            raise section.error("topics", f"{topic!r}: leave $share/NAME/ out, shared subscriptions are judged by their filter")
    users, clients = (
        tuple(section.strings(key, [], "give a list of names; * stands for any characters")) if section.has(key) else None
        for key in ("users", "clients")
    )
    listeners = None
    if section.has("listeners"):
        listeners = frozenset(section.strings("listeners", [], 'give a list of names of listeners; "" those without a name'))
    section.done()
    return Rule(number, words[0] == "allow", frozenset(actions), tuple(topics), users, clients, listeners)
