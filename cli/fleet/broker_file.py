"""Writes a broker's configuration as the TOML file that `mqmesh broker --config` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import date, time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.process.files import replace_file
from ...broker.journal.settings import TOPIC
from ...broker.settings.directory import BY_NAME, DirectorySettings
from ...mesh.custody.bounds import CustodyBounds
from ...mesh.topology.rules import LinkRules, table_of
from ...mesh.topology.tls import FILES, TlsSettings

if TYPE_CHECKING:
    from ...broker.config import BrokerConfig
    from ...broker.journal.settings import JournalSettings
    from ...broker.queues.settings import QueueSettings
    from ...broker.recipients.settings import Intervals, RecipientSettings
    from ...broker.settings.interchange import InterchangeSettings

_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key of TOML without quotes


def write(path: Path, config: BrokerConfig, tables: Mapping[str, Any] | None = None, folder: Path | None = None) -> None:
    """Write `config`; see `render`. Only its owner can read the file, because it holds the mesh's key. Raises OSError."""
    replace_file(path, render(config, tables or {}, folder))


def render(config: BrokerConfig, tables: Mapping[str, Any], folder: Path | None = None, data: str | None = None) -> str:
    """The text of the file. `broker.config.load` reads it as an equal configuration.

    tables: of a topology, for this broker: they are written as they stand there, for what `config` has of them. folder: what relative paths
    in them are relative to; None: the folder of the file. It stands in the file only beside tables: earlier releases do not know it.
    data: the data folder as the file calls it; None: that of `config`.
    """
    number = config.number if config.number >= 0 else None  # the directory gives it
    lines = [
        *_pairs({"name": config.name, "number": number, "workers": config.workers if config.workers > 1 else None}),
        f"listen = {_listeners(config)}",
        *_pairs({"data": data or config.data, "folder": folder if tables else None}),
    ]
    if config.mesh is not None:
        values = _said(config.mesh)
        peers, rules, brokers = values.pop("peers", []), values.pop("rules", {}), values.pop("brokers", None)
        keys, custody = values.pop("keys", {}), values.pop("custody", None)
        lines += ["", "[mesh]", *_pairs(values)]
        if custody is not None:
            lines += _custody(custody)
        if keys:
            lines += ["", "[mesh.keys]", *_pairs({_key(name): key for name, key in keys.items()})]
        if brokers is not None:
            lines += ["", "[mesh.brokers]", *(f"{_key(name)} = {number}" for name, number in brokers.items())]
        for peer in peers:
            table = {field.name: getattr(peer, field.name) for field in fields(peer)}
            if peer.address.startswith(BY_NAME):
                del table["address"]
            lines += ["", "[[mesh.peer]]", *_pairs(table)]
        for peer_key, one in rules.items():
            lines += ["", f"[mesh.policy.{_key(str(peer_key))}]", *_pairs(table_of(one)), *_map(one)]
    made = {
        "tls": _tls(config.tls) if config.tls is not None else [],
        "directory": _directory(config.directory) if config.directory is not None else [],
        "recipients": _recipients(config.recipients) if config.recipients is not None else [],
        "queues": _queues(config.queues) if config.queues is not None else [],
        "interchange": _interchange(config.interchange) if config.interchange is not None else [],
        "journal": _journal(config.journal) if config.journal is not None else [],
        "websocket": ["", "[websocket]", *_pairs({"origins": config.websocket.origins})] if config.websocket.origins else [],
        "store": ["", "[store]", *_pairs(stored)] if (stored := _said(config.store)) else [],
        "limits": ["", "[limits]", *_pairs(limits)] if (limits := _said(config.limits)) else [],
    }
    for name, own in made.items():
        lines += own if name not in tables else []
    for name, table in tables.items():
        for one in table if isinstance(table, list) else ():
            lines += ["", f"[[{name}]]", *_pairs({_value(key): value for key, value in one.items()})]
        lines += _table([name], table) if isinstance(table, Mapping) else []
    return "\n".join(lines) + "\n"


def tables_text(table: Mapping[str, Any]) -> str:
    """The text of a whole file of such tables."""
    return "\n".join(_inside([], table)) + "\n"


def _table(path: list[str], table: Mapping[str, Any]) -> list[str]:
    """A table of any depth; without its heading if it is only around others."""
    inside = _inside(path, table)
    return inside if inside and not inside[0] else ["", f"[{'.'.join(map(_key, path))}]", *inside]


def _inside(path: list[str], table: Mapping[str, Any]) -> list[str]:
    """What stands in a table; a list of tables stands as `[[...]]`, a mixed one inline."""
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) or _tables(value)}
    lines = _pairs({_key(key): one for key, one in table.items() if key not in inner})
    for key, value in inner.items():
        if isinstance(value, Mapping):
            lines += _table([*path, key], value)
        else:
            for one in value:
                lines += ["", f"[[{'.'.join(map(_key, [*path, key]))}]]", *_inside([*path, key], one)]
    return lines


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _listeners(config: BrokerConfig) -> str:
    """The list of listeners; one that has a name, or says whom it serves, is an inline table."""
    entries = []
    for address in config.listen:
        table = {"address": address, "serves": config.serves.get(address), "name": config.listeners.get(address)}
        pairs = _pairs(table)
        entries.append(f"{{ {', '.join(pairs)} }}" if len(pairs) > 1 else _value(address))
    return f"[{', '.join(entries)}]"


def _custody(bounds: CustodyBounds) -> list[str]:
    values = _said(bounds)
    rules = values.pop("rules", ())
    lines = ["", "[mesh.custody]", *_pairs(values)]
    for rule in rules:
        lines += ["", "[[mesh.custody.rule]]", *_pairs(_said(rule) | ({"topics": list(rule.topics)} if rule.topics else {}))]
    return lines


def _tls(tls: TlsSettings) -> list[str]:
    return ["", "[tls]", *_pairs({key: getattr(tls, key) for key in (*FILES, "client_certificates")})]


def _directory(directory: DirectorySettings) -> list[str]:
    values = {field.name: getattr(directory, field.name) for field in fields(directory)}
    services = values.pop("services")
    values["url"] = values.pop("urls")
    values["neighbours"] = "all" if directory.neighbours else "configured"
    lines = ["", "[directory]", *_pairs({key: None if value == "" else value for key, value in values.items()})]
    for service in services:
        table = {field.name: getattr(service, field.name) or None for field in fields(service)}
        lines += ["", "[[directory.service]]", *_pairs(table)]
    return lines


def _recipients(settings: RecipientSettings) -> list[str]:
    values = {"prefix": settings.prefix, **_intervals(settings.intervals), "dead_letters": settings.dead_letters}
    lines = ["", "[recipients]", *_pairs(values)]
    for one in settings.applications:
        table = {field.name: getattr(one, field.name) for field in fields(one) if field.name != "intervals"}
        lines += ["", "[[recipients.application]]", *_pairs(table | _intervals(one.intervals))]
    return lines


def _queues(settings: QueueSettings) -> list[str]:
    lines = []
    for name, rules in {**settings.rules, **settings.shared}.items():
        values = _said(rules)
        load = values.pop("load", None)
        if load is not None:
            values |= {"loaded": str(load.loaded), "high": load.high, "low": load.low}
        if "plan" in values:
            values["plan"] = str(values["plan"])
        if values.pop("requests", False):
            values["acknowledge"] = "request"
        values["subscribers"] = settings.subscribers.get(name) or None
        lines += ["", f"[queues.{_key(name)}]", *_pairs(values)]
    return lines


def _interchange(settings: InterchangeSettings) -> list[str]:
    values = {key: value for key, value in _said(settings).items() if key != "file"}
    if (http := settings.http) is not None:
        values["http"] = f"http{'s' * http.tls}://{f'[{http.host}]' if ':' in http.host else http.host}:{http.port}"
    if settings.push_networks:
        values["push_networks"] = list(map(str, settings.push_networks))
    return ["", "[interchange]", *_pairs(values)]


def _journal(settings: JournalSettings) -> list[str]:
    values = _said(settings)
    root, rules, dimension = values.pop("root"), values.pop("topics", None), values.pop("dimension", None)
    if settings.dimension == TOPIC:
        values["dimension"] = "topic"
    elif dimension is not None:
        values["dimension"] = dimension
    options = values.pop("options", None)
    lines = ["", "[journal]", *_pairs({"url" if "://" in root else "folder": root, **values})]
    for one in rules if rules is not None else ():
        table = {"filter": one.filter, "mode": one.mode} | ({"rate": one.rate} if one.mode == "sampled" else {})
        lines += ["", "[[journal.topics]]", *_pairs(table)]
    return lines + (["", "[journal.options]", *_pairs(options)] if options else [])


def _intervals(intervals: Intervals) -> dict[str, float]:
    return {f"{name}_interval": seconds for name, seconds in intervals._asdict().items()}


def _said(settings: Any) -> dict[str, Any]:
    """The settings that are not the defaults: a broker of another release may not know all keys, and has defaults of its own."""
    defaults = {
        field.name: field.default_factory() if field.default is MISSING and field.default_factory is not MISSING else field.default
        for field in fields(settings)
    }
    return {name: getattr(settings, name) for name, default in defaults.items() if getattr(settings, name) != default}


def _map(rules: LinkRules) -> list[str]:
    """The prefixes, as a list of inline tables; none without any."""
    pairs = [f"{{ here = {_value(here)}, there = {_value(there)} }}" for here, there in rules.policy.prefixes]
    return [f"map = [{', '.join(pairs)}]"] if pairs else []


def _pairs(values: dict[str, Any]) -> list[str]:
    """``key = value`` lines, without None. Strings, numbers and lists of strings are written the same in JSON and TOML."""
    return [f"{key} = {_value(value)}" for key, value in values.items() if value is not None]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, Path):
        value = str(value.absolute())  # the file may lie in another folder
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs({_key(key): one for key, one in value.items()}))} }}"
    if isinstance(value, date | time):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one character that only TOML escapes
