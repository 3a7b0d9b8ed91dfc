"""The services in a file, as every site of a mesh may have it:

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

[[services."bank/credit".rules]]  # in their sequence (`rules/`)
name = "strangers are filtered"
when = {not = {header = "sender.organisation", equals = "shop"}}
then = [{include = "filter/names"}]
"""

from __future__ import annotations

from pathlib import Path

from ...base.settings import Section, read
from ..reading import service_name
from ..refusals import Refusal
from ..rules.routing import Routing, read_includes
from ..rules.rules import read_script
from .records import ANYBODY, Registry, Service

ALERTS = "/alerts"  # ends the topic of a queue's alerts


def load(path: Path, site: str) -> Registry:
    """Read a file. site: name of this broker. Raises ConfigError."""
    section = read(path)
    table = section.section("services")
    found = [_service(table, name, site) for name in table.table]
    section.done()
    return Registry(found)


def _service(table: Section, name: str, site: str) -> Service:
    try:
        service_name(name, "name")
    except Refusal as refusal:
        raise table.error(name, f"name the service as {refusal.right.removeprefix('give ')}") from None
    if name.endswith(ALERTS):
        raise table.error(name, 'name it otherwise: topics that end with "/alerts" are those of queues')
    one = table.section(name)
    found = Service(
        name,
        tuple(one.strings("users", [], "give a list of user names, with * and ?")),
        one.string("site", site),
        tuple(one.strings("callers", [ANYBODY], "give a list of services, with * and ?")),
        one.choice("duplicates", ("refuse", "take"), "refuse") == "refuse",
        one.choice("form", ("properties", "json"), "properties") == "json",
        one.flag("suspended", False),
        _routing(one),
    )
    one.done()
    return found


def _routing(one: Section) -> Routing:
    rules = [rule.table for rule in one.sections("rules")]
    includes = one.section("includes").table if one.has("includes") else None
    dynamic = one.choice("routing", ("static", "dynamic"), "static") == "dynamic"
    try:
        known = None if includes is None else read_includes(includes, "includes")
        return Routing(read_script(rules), dynamic, known)
    except Refusal as refusal:
        raise one.error(refusal.what.partition(":")[0], str(refusal)) from None
