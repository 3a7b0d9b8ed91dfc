"""Turns the bridges of several hosts' files into the links of a topology, and those to other brokers into tables `[[attach]]`.

A bridge becomes a link that its owner dials, with a policy at the owner's end: what goes out, what comes in, and which prefix stands for
which. Two bridges between the same brokers, one in each file, become one link; both are told in the names of the broker that is read first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from ...mesh.wire.policy import check_prefix, check_topics
from . import words
from .mosquitto_conf import DEFAULT_PORT, Bridge, Conf
from .remarks import Option, Remarks

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
STRANGER = "is not among these files, so it is attached as it is (docs/attach.md). To have it in the mesh, give its mosquitto.conf too"
_DIRECTIONS = ("out", "in", "both")
_NOTED = {
    "remote_username": "links prove the mesh's key: no user name and password is needed",
    "username": "links prove the mesh's key: no user name and password is needed",
    "start_type": "a link is always up",
    "notification_topic": "$SYS/broker/mesh/status says which neighbours are linked",
    "bridge_certfile": "a link shows the broker's own certificate (tls.certificate)",
}


@dataclass(slots=True)
class Site:
    """One file's broker. hosts: names and addresses under which others know it. table: of its own file. attached: its
    tables `[[attach]]`, by the address."""

    name: str
    conf: Conf
    table: dict[str, Any]
    hosts: set[str] = field(default_factory=set)
    attached: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def listens(self, host: str, port: int) -> bool:
        """Whether an address that a bridge dials is this broker's."""
        ports = {one.port: one.host for one in self.conf.listeners if not one.host.startswith("/")}
        if port not in ports:
            return False
        known = host in self.hosts or self.name in (host, host.partition(".")[0]) or host == ports[port]
        return known or (host in _LOOPBACK and ports[port] in ("", *_LOOPBACK))


class _Share(NamedTuple):
    """Topics that cross a link, as the end sees them that has the policy. out, into: which way. here, there: the prefixes."""

    option: Option
    out: bool
    into: bool
    pattern: str
    here: str
    there: str
    qos: int = 0

    def turned(self) -> _Share:
        return _Share(self.option, self.into, self.out, self.pattern, self.there, self.here, self.qos)

    @property
    def filter(self) -> str:
        return self.here + self.pattern


@dataclass(slots=True)
class _Link:
    listener: str
    dialler: str
    address: str
    cost: int
    shares: list[_Share] = field(default_factory=list)


def topology_of(sites: list[Site], mesh: dict[str, Any], remarks: Remarks) -> dict[str, Any] | None:
    """The tables of a topology file of those brokers that bridges join; None: no bridge joins two of them. mesh: its `[mesh]`.

    Brokers that are not among the sites are attached: their tables come to those of the site.
    """
    links: dict[frozenset[str], _Link] = {}
    for site in sites:
        for bridge in site.conf.bridges:
            remarks.lines += len(bridge.options) + 1
            _read(site, bridge, sites, links, remarks)
    if not links:
        return None
    joined = [site for site in sites if any(site.name in ends for ends in links)]
    brokers = [{"name": site.name, "number": number, **site.table} for number, site in enumerate(joined, 1)]
    return {"mesh": mesh, "broker": brokers, "link": [_link(one, remarks) for one in links.values()]}


def _read(site: Site, bridge: Bridge, sites: list[Site], links: dict[frozenset[str], _Link], remarks: Remarks) -> None:
    """Add what one bridge says."""
    addresses = bridge.last("address", "addresses")
    if addresses is None:
        remarks.lost(bridge.option, "the connection has no address")
        return
    secure = bridge.last("bridge_cafile", "bridge_capath") is not None
    strangers = []
    for cost, word in enumerate(addresses.value.split(), 1):
        host, port = _split(word)
        other = next((one for one in sites if one is not site and one.listens(host, port)), None)
        if other is None:
            strangers.append((host, port))
            continue
        ends = frozenset((site.name, other.name))
        link = links.setdefault(ends, _Link(other.name, site.name, f"mqtt{'s' * secure}://{_shown(host)}:{port}", cost))
        shares = _shares(bridge, remarks)
        link.shares += shares if link.dialler == site.name else [one.turned() for one in shares]
        _trust(site, bridge, remarks)
        _others(bridge, words.BRIDGE_LOST, _NOTED, remarks)
    if strangers:
        _attach(site, bridge, addresses, strangers, secure, remarks)


def _split(word: str) -> tuple[str, int]:
    host, colon, port = word.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and port.isdigit() else (word, DEFAULT_PORT)


def _trust(site: Site, bridge: Bridge, remarks: Remarks) -> None:
    """The authorities of a bridge with TLS."""
    option = bridge.last("bridge_cafile")
    if option is None:
        return
    tls = site.table.setdefault("tls", {})
    if tls.setdefault("ca", option.value) != option.value:
        remarks.lost(option, "tls.ca is one file, for clients and for links: put both authorities into one")


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _others(bridge: Bridge, lost: dict[str, str], noted: dict[str, str], remarks: Remarks) -> None:
    for option in bridge.options:
        if option.name in lost:
            remarks.lost(option, lost[option.name])
        elif option.name in noted and (option.name, option.value) != ("start_type", "automatic"):
            remarks.note(option, noted[option.name])


def _attach(site: Site, bridge: Bridge, place: Option, addresses: list[tuple[str, int]], secure: bool, remarks: Remarks) -> None:
    """The table `[[attach]]` of a bridge to a broker whose file is not given. addresses: the first one is taken."""
    psk = bridge.last("bridge_psk", "bridge_identity")
    if psk is not None:
        remarks.lost(psk, f"the bridge is left out: {words.PSK}")
        return
    _others(bridge, words.ATTACH_LOST, words.ATTACH_NOTED, remarks)
    host, port = addresses[0]
    if len(addresses) > 1:
        remarks.lost(place, "an attached broker has one address: the first one is taken")
    known = site.attached.setdefault((host, port), {})
    if known:
        remarks.lost(bridge.option, f"one broker takes one [[attach]]: put this connection's topics into that of {known['name']}")
        return
    names = {one["name"] for one in site.attached.values() if one}
    name = re.sub(r"[^\w.-]", "-", bridge.name, flags=re.ASCII).lstrip(".-")[:60] or "attached"
    while name in names:
        name += "-"
    remarks.note(
        place,
        f"{_shown(host)}:{port} {STRANGER}, or say --host NAME={host}",
    )
    version = bridge.last("bridge_protocol_version")
    known |= {
        "name": name,
        "address": f"mqtt{'s' * secure}://{_login(bridge)}{_shown(host)}:{port}",
        "version": "5" if version is not None and version.value == "mqttv50" else "3.1.1",
        **_attach_files(bridge),
        **_policy(_shares(bridge, remarks), remarks),
    }
    client_id = bridge.last("remote_clientid", "clientid")
    if client_id is not None:
        known["client_id"] = client_id.value
    highest = max((one.qos for one in _shares(bridge, Remarks())), default=0)
    if highest < 2:
        known["qos"] = highest
    site.table.setdefault("attach", []).append(known)


def _login(bridge: Bridge) -> str:
    user, password = bridge.last("remote_username", "username"), bridge.last("remote_password", "password")
    if user is None:
        return ""
    return quote(user.value, safe="") + (f":{quote(password.value, safe='')}" if password is not None else "") + "@"


def _attach_files(bridge: Bridge) -> dict[str, str]:
    found = {}
    for name, key in (("bridge_cafile", "ca"), ("bridge_certfile", "certificate"), ("bridge_keyfile", "key")):
        option = bridge.last(name)
        if option is not None:
            found[key] = option.value
    return found


def _shares(bridge: Bridge, remarks: Remarks) -> list[_Share]:
    found = []
    for option in bridge.options:
        if option.name == "topic":
            share = _share(option)
            try:
                if share is None:
                    raise ValueError("a line is: topic PATTERN out|in|both QOS LOCAL-PREFIX REMOTE-PREFIX")
                check_topics(share.filter)
                check_topics(share.there + share.pattern)
            except ValueError as error:
                remarks.lost(option, str(error))
                continue
            found.append(share)
    return found


def _share(option: Option) -> _Share | None:
    parts = [part if part != '""' else "" for part in option.value.split()]
    pattern, direction, qos, here, there = [*parts, *["", "out", "0", "", ""][len(parts) :]][:5]
    if direction not in _DIRECTIONS or qos not in ("0", "1", "2") or not parts:
        return None
    if not pattern:  # one topic under another name: the prefixes are what differs before the levels that both have
        common = _common_end(here, there)
        pattern = common
        here, there = here[: len(here) - len(common)], there[: len(there) - len(common)]
    return _Share(option, direction != "in", direction != "out", pattern, here, there, int(qos))


def _common_end(one: str, other: str) -> str:
    """The levels that two topics end with alike."""
    levels: list[str] = []
    for left, right in zip(reversed(one.split("/")), reversed(other.split("/")), strict=False):
        if left != right:
            break
        levels.insert(0, left)
    return "/".join(levels)


# what is written


def _link(link: _Link, remarks: Remarks) -> dict[str, Any]:
    found: dict[str, Any] = {"between": [link.listener, link.dialler], "cost": link.cost, "address": link.address}
    policy = _policy(link.shares, remarks)
    return {**found, "policy": {link.dialler: policy}} if policy else found


def _policy(given: list[_Share], remarks: Remarks) -> dict[str, Any]:
    """What crosses, as a policy says it; empty: everything, both ways."""
    if any(one.pattern == "#" and one.out and one.into and one.here == one.there == "" for one in given):
        return {}
    pairs, shares = _prefixes(given, remarks)
    policy: dict[str, Any] = {
        "out": list(dict.fromkeys(one.filter for one in shares if one.out)),
        "in": list(dict.fromkeys(one.filter for one in shares if one.into)),
    }
    if pairs:
        policy["map"] = [{"here": here, "there": there} for here, there in pairs]
    return policy


def _prefixes(shares: list[_Share], remarks: Remarks) -> tuple[list[tuple[str, str]], list[_Share]]:
    """The pairs of a policy's `map`, and the shares whose names they give; others are lost."""
    together = {(one.here, one.there) for one in shares}
    pairs: dict[str, str] = {}
    kept = []
    for share in shares:
        stem = "" if len(together) == 1 and _ends_well(share) else _stem(share.pattern)
        here, there = share.here + stem, share.there + stem
        taken = pairs.get(here, there) != there or any(known == there and key != here for key, known in pairs.items())
        if taken or not (_is_prefix(here) and _is_prefix(there)):
            remarks.lost(share.option, "a link gives a topic one name, the same in both directions, and its prefixes end with /")
            continue
        pairs[here] = there
        kept.append(share)
    needed = {key: value for key, value in pairs.items() if key != value or _covered(key, pairs)}
    return list(needed.items()), kept


def _ends_well(share: _Share) -> bool:
    return _is_prefix(share.here) and _is_prefix(share.there)


def _is_prefix(text: str) -> bool:
    try:
        check_prefix(text)
    except ValueError:
        return False
    return True


def _covered(prefix: str, pairs: dict[str, str]) -> bool:
    """Whether another pair would rename what begins so."""
    return any(prefix != here and here != there and prefix.startswith((here, there)) for here, there in pairs.items())


def _stem(pattern: str) -> str:
    """The levels of a filter before its first wildcard, or before its last level."""
    levels = pattern.split("/")
    end = next((place for place, level in enumerate(levels) if level in ("+", "#")), len(levels) - 1)
    return "".join(f"{level}/" for level in levels[:end])
