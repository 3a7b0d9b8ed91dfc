"""The services in a file, as every site of a mesh may have it; the directory has the same tables, as JSON:

[services."shop/orders"]
users = ["shop"]                  # who posts as it and takes from its inbox: patterns; "*": everybody
site = "porto"                    # the broker where its inbox is; left out: every broker with this file

[services."bank/credit"]
users = ["bank-*"]
callers = ["shop/*"]              # services that may send to it; left out: all
duplicates = "take"               # or "refuse", the default: a second post with one handle
form = "json"                     # or "properties", the default: how it gets messages (MQTT 3.1.1: json)
suspended = false
includes = {"map/*" = true, "score/*" = ["body"]}  # services that may be included into its part of a route; left out: all
routing = "dynamic"               # or "static", the default: its rules are evaluated when the message comes, or at the post
needs = ["tls", "certificate"]    # what its connections have: tls, password, certificate
identifiers = {order = {json = "$.order.id"}}  # its own identifiers for messages
limit = 100000                    # messages that it posts in a month
sessions = "follow"               # or "own", the default: what it posts while it works on a message is of that message's session
responses = 3                     # to each request, numbered; left out: 1
delivery = "push"                 # or "mqtt", the default, or "poll"
push = {url = "https://bank.example.com/in", tries = 10, interval = 60, windows = ["01:00-02:00"], zone = "Europe/Lisbon"}

[services."bank/old"]
virtual = "bank/credit"           # another service gets its messages, and answers under its name

[[services."bank/credit".rules]]  # in their sequence (`rules/`)
name = "strangers are filtered"
when = {not = {header = "sender.organisation", equals = "shop"}}
then = [{include = "filter/names"}]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from ...base.http.url import web_address
from ...base.settings import ConfigError, Section, read
from ..reading import service_name
from ..refusals import Refusal
from ..rules.conditions import read_place
from ..rules.routing import NEEDS, Routing, read_includes
from ..rules.rules import EMPTY, read_script
from .records import ANYBODY, MQTT, POLL, PUSH, Push, Registry, Service

MOST_RESPONSES = 100  # to one request
ALERTS = "/alerts"  # ends the topic of a queue's alerts
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
_REDIRECTED = {"name": "virtual", "when": {"header": "kind", "exists": True}}  # the one rule of a virtual service


def load(path: Path, site: str) -> Registry:
    """Read a file. site: name of this broker. Raises ConfigError."""
    section = read(path)
    table = section.section("services")
    found = [read_service(table, name, site) for name in table.table]
    section.done()
    return Registry(found)


def tables(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a file, by service, each as the directory takes it. Raises ConfigError."""
    load(path, "here")
    return dict(read(path).section("services").table)


def read_profile(name: str, profile: Mapping[str, Any], site: str, revision: int, owner: str = "") -> Service:
    """A service of the directory. Raises ConfigError."""
    return read_service(Section("directory", {"services": {name: profile}}).section("services"), name, site, revision, owner)


def check_profile(name: str, profile: Mapping[str, Any]) -> str | None:
    """Why a table cannot be that of a service; None: it can."""
    try:
        read_profile(name, profile, "here", 0)
    except ConfigError as error:
        return str(error)
    return None


def read_service(table: Section, name: str, site: str, revision: int = 0, owner: str = "") -> Service:
    """One service of a file, or of the directory, where it has an owner. Raises ConfigError."""
    try:
        service_name(name, "name")
    except Refusal as refusal:
        raise table.error(name, f"name the service as {refusal.right.removeprefix('give ')}") from None
    if name.endswith(ALERTS):
        raise table.error(name, 'name it otherwise: topics that end with "/alerts" are those of queues')
    one = table.section(name)
    delivery = one.choice("delivery", (MQTT, POLL, PUSH), MQTT)
    try:
        found = Service(
            name,
            tuple(one.strings("users", [], "give a list of user names, with * and ?")),
            one.string("site", site),
            tuple(one.strings("callers", [ANYBODY], "give a list of services, with * and ?")),
            one.choice("duplicates", ("refuse", "take"), "refuse") == "refuse",
            one.choice("form", ("properties", "json"), "properties") == "json",
            one.flag("suspended", False),
            _routing(one, revision),
            service_name(one.string("virtual"), "virtual") if one.has("virtual") else "",
            delivery,
            _push(one.section("push")) if delivery == PUSH else None,
            _identifiers(one),
            one.whole("limit", 0, 1 << 53) if one.has("limit") else None,
            revision,
            one.choice("sessions", ("own", "follow"), "own") == "follow",
            owner,
            one.whole("responses", 1, MOST_RESPONSES) if one.has("responses") else 1,
        )
    except Refusal as refusal:
        raise one.error(re.split(r"[:.\[]", refusal.what)[0], str(refusal)) from None
    _check_shown(one)
    one.done()
    return found


def _routing(one: Section, revision: int) -> Routing:
    rules = [rule.table for rule in one.sections("rules")]
    if one.has("virtual"):
        if rules:
            raise one.error("rules", "a virtual service has none: leave out virtual, and redirect with a rule")
        rules = [{**_REDIRECTED, "then": [{"redirect": one.string("virtual")}]}]
    includes = one.section("includes").table if one.has("includes") else None
    dynamic = one.choice("routing", ("static", "dynamic"), "static") == "dynamic"
    needs = frozenset(one.strings("needs", [], f"give a list of {', '.join(NEEDS)}"))
    if not needs <= set(NEEDS):
        raise one.error("needs", f"give some of {', '.join(NEEDS)}")
    known = None if includes is None else read_includes(includes, "includes")
    return Routing(read_script(rules) if rules else EMPTY, dynamic, known, needs, revision)


def _push(push: Section) -> Push:
    url = push.string("url", right="give the URL that messages are posted to")
    parts = web_address(url)
    if parts is None:
        raise push.error("url", "give https://HOST/PATH, or http://HOST/PATH")
    if parts.username is not None or parts.password is not None:
        raise push.secret_error("url", "no user and password in a URL, which others see: give user and password beside it")
    windows = tuple(_window(push, one) for one in push.strings("windows", [], 'give a list such as ["01:00-02:00"]'))
    zone = push.string("zone", "UTC")
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise push.error("zone", "give a time zone, such as Europe/Lisbon") from None
    found = Push(
        url,
        push.whole("tries", 1, 1000, 10),
        push.seconds("interval", 1, 86_400, 60.0),
        windows,
        zone,
        _text(push, "user"),
        _text(push, "password"),
        _text(push, "secret"),
    )
    push.done()
    return found


def _text(section: Section, key: str) -> str:
    return section.string(key) if section.has(key) else ""


def _window(push: Section, text: str) -> tuple[int, int]:
    """Minutes of the day. One that ends before it begins goes over midnight."""
    found = _WINDOW.fullmatch(text)
    hours = tuple(map(int, found.groups())) if found else ()
    if not hours or (hours[2] == 24 and hours[3]):
        raise push.error("windows", 'give times of the day, such as "01:00-02:00"')
    return 60 * hours[0] + hours[1], 60 * hours[2] + hours[3]


def _identifiers(one: Section) -> dict[str, Any]:
    given = one.section("identifiers").table
    if len(given) > 16:
        raise one.error("identifiers", "give at most 16")
    found = {name: read_place(place, f"identifiers.{name}") for name, place in given.items()}
    if any(place.source not in ("json", "xml") for place in found.values()):
        raise one.error("identifiers", 'give places in a body or an attachment, such as {json = "$.order.id"}')
    return found


def _check_shown(one: Section) -> None:
    """What people read of a service, and what the directory goes by."""
    for key in ("description", "documentation"):
        _text(one, key)
    one.choice("visibility", ("public", "organisation", "list"), "public")
    one.strings("visible_to", [])
    arguments = one.section("arguments").table
    if not all(isinstance(value, str) for value in arguments.values()):
        raise one.error("arguments", "give for each argument what it means, or a link to that")
