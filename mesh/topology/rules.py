"""What an operator says of one link's end: its policy and its rates, as a table of either kind of file.

    out = ["orders/#"]                          # topics that may leave to the peer; left out: all, []: none
    out_except = ["orders/internal/#"]          # of these, what may not
    in = ["partner/bolt/#"]                     # topics that may come in from the peer
    in_except = []
    map = [{ here = "orders/", there = "partner/acme/orders/" }]
    rate_out = "1 MiB/s"                        # bytes a second towards the peer
    messages_out = "500/s"                      # messages a second towards the peer

Filters are in the names of this end. The table stands in a topology file as `[link.policy.NAME]` behind its `[[link]]`, and in a broker's
file as `[mesh.peer.policy]` behind its `[[mesh.peer]]` or as `[mesh.policy.PEER]`, whoever dials.

It knows tables and their mistakes; `policy.py` says what a policy means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...base.settings import NAME, ConfigError, Section, parse_size
from ..wire.identity import HIGHEST_NUMBER, Identity
from ..wire.policy import CLOSED, LONGEST, OPEN, Policy, check_policy, check_prefix, check_prefixes, check_topics

OTHERS = "*"  # the key of what counts for peers that nothing else names
SLOWEST, FASTEST = 100, 2**40  # bytes a second
MOST = 10**9  # messages a second
_RATE = re.compile(r"(.*?)\s*/\s*s")


@dataclass(slots=True, frozen=True)
class LinkRules:
    """One end's rules for one link. bytes_out, messages_out: a second, None without a bound."""

    policy: Policy = OPEN
    bytes_out: int | None = None
    messages_out: int | None = None

    @property
    def paced(self) -> bool:
        """Whether it has a rate."""
        return self.bytes_out is not None or self.messages_out is not None


UNRULED = LinkRules()
SHUT = LinkRules(CLOSED)


def rules_of(section: Section) -> LinkRules:
    """The rules in a table. Raises ConfigError."""
    policy = Policy(
        _filters(section, "out") if section.has("out") else None,
        _filters(section, "out_except"),
        _filters(section, "in") if section.has("in") else None,
        _filters(section, "in_except"),
        _prefixes(section),
    )
    for key, but in (("out", policy.out_except), ("in", policy.into_except)):
        if section.has(key) and not section.table[key] and but:
            raise section.error(f"{key}_except", f"{key} = [] lets nothing pass that could be excepted: leave one out")
    try:
        check_policy(policy)
    except ValueError as error:
        raise ConfigError(section.file, section.path, f"over {LONGEST} characters", str(error)) from None
    rules = LinkRules(policy, _rate(section, "rate_out"), _messages(section, "messages_out"))
    section.done()
    return rules


def table_of(rules: LinkRules) -> dict[str, Any]:
    """The table that `rules_of` reads back as these rules, but for `map`; None for what is left out."""
    policy = rules.policy
    return {
        "out": None if policy.out is None else list(policy.out),
        "out_except": list(policy.out_except) or None,
        "in": None if policy.into is None else list(policy.into),
        "in_except": list(policy.into_except) or None,
        "rate_out": rules.bytes_out,
        "messages_out": rules.messages_out,
    }


def rules_by_peer(section: Section) -> dict[int | str, LinkRules]:
    """The tables of `[mesh.policy]`: a key of digits is a peer's number, `*` stands for all that no other key names. Raises ConfigError."""
    found: dict[int | str, LinkRules] = {}
    for key in section.table:
        peer: int | str = int(key) if key.isascii() and key.isdigit() else key
        if key != OTHERS and not (peer <= HIGHEST_NUMBER if isinstance(peer, int) else NAME.fullmatch(key)):
            raise section.error(key, f'name the peer: its name, its number (0 to {HIGHEST_NUMBER}), or "{OTHERS}" for all others')
        if peer in found:
            raise section.error(key, f"number {peer} has a policy already: leave one out")
        found[peer] = rules_of(section.section(key))
    section.done()
    return found


def rules_for(rules: dict[int | str, LinkRules], peer: Identity) -> LinkRules:
    """What counts for a peer: what its number says, else its name, else what counts for all others."""
    for key in (peer.number, peer.name, OTHERS):
        if key in rules:
            return rules[key]
    return UNRULED


def _filters(section: Section, key: str) -> tuple[str, ...]:
    filters = section.strings(key, [], 'give a list of topic filters, as ["orders/#"]')
    for filter_ in filters:
        try:
            check_topics(filter_)
        except ValueError as error:
            raise ConfigError(section.file, section.key(key), filter_, str(error)) from None
    return tuple(filters)


def _prefixes(section: Section) -> tuple[tuple[str, str], ...]:
    pairs = []
    for one in section.sections("map"):
        pair = []
        for key in ("here", "there"):
            value = one.table.get(key) if one.has(key) else None
            if not isinstance(value, str):
                raise one.error(key, 'give the beginning of topics with a / at its end, as "orders/", or "" for all')
            try:
                check_prefix(value)
            except ValueError as error:
                raise one.error(key, str(error)) from None
            pair.append(value)
        one.done()
        pairs.append((pair[0], pair[1]))
    try:
        check_prefixes(pairs)
    except ValueError as error:
        raise section.error("map", f"{error}: give each prefix once") from None
    return tuple(pairs)


def _rate(section: Section, key: str) -> int | None:
    if not section.has(key):
        return None
    value = section.table[key]
    right = f'give bytes a second, as "1 MiB/s", at least {SLOWEST}'
    try:
        rate = parse_size(_each_second(value))
    except ValueError:
        raise section.error(key, right) from None
    if not SLOWEST <= rate <= FASTEST:
        raise section.error(key, right)
    return rate


def _messages(section: Section, key: str) -> int | None:
    if not section.has(key):
        return None
    value = _each_second(section.table[key])
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise section.error(key, 'give messages a second, as "500/s", at least 1')
    return value


def _each_second(value: Any) -> Any:
    """`500/s` -> `500`; anything else as it is."""
    matched = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    return matched[1] if matched else value
