"""The report of a broker: what `$SYS` and `metabroker/status/` say, as values for JSON. docs/monitoring.md lists its keys.

It reads the `$SYS` of any broker as far as it goes, with the names that Mosquitto uses. A missing value is None. Payloads come from the
network: one that is not a number, or not a JSON object, counts as missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ...base.plural import counted

BROKER = "$SYS/broker/"
MESH = BROKER + "mesh/status"
WORKERS = BROKER + "workers/status"  # the same of a mesh of workers inside the machine
CLOCK = BROKER + "clock"
METABROKER = "metabroker/status/"
ATTACH = BROKER + "attach/"
ATTACH_NUMBERS = {
    "out": "messages/out",
    "into": "messages/into",
    "refused": "messages/refused",
    "withheld": "messages/withheld",
    "faults": "faults",
    "since": "since",
}  # key -> topic below the broker's
STALE = 30.0  # seconds that the last uptime may be old: `$SYS` is published each `limits.sys_interval`, 10 by default
OK = "ok"

NUMBERS = {  # key -> topics below $SYS/broker; the first that exists counts
    "clients": ("clients/connected", "clients/active"),
    "clients_maximum": ("clients/maximum",),
    "sessions_away": ("clients/disconnected", "clients/inactive"),
    "subscriptions": ("subscriptions/count",),
    "retained_messages": ("retained messages/count", "messages/retained/count"),
    "dropped": ("publish/messages/dropped",),
    "refused_connects": ("access/connects/refused",),
    "refused_publish": ("access/publish/refused",),
    "held_bytes": ("held/bytes", "store/messages/bytes"),
    "held_bytes_limit": ("held/bytes/limit",),
    "held_unfinished": ("held/unfinished/bytes",),
    "held_refused": ("held/refused",),
    "held_evicted": ("held/evicted",),
    "stored_bytes": ("store/bytes",),
    "stored_bytes_limit": ("store/bytes/limit",),
    "stored_sessions": ("store/sessions",),
    "stored_sessions_limit": ("store/sessions/limit",),
    "memory": ("heap/current",),
    "recipients_operational": ("recipients/operational",),
    "recipients_fault": ("recipients/fault",),
    "recipients_defunct": ("recipients/defunct",),
    "failed_over": ("recipients/failed-over",),
    "returned": ("recipients/returned",),
    "dead_lettered": ("recipients/dead-lettered",),
}
RATES = {"publish_in": "load/publish/received/1min", "publish_out": "load/publish/sent/1min"}  # per minute there, per second here
ENDS = "%Y-%m-%d %H:%M UTC"  # when a certificate ends, in $SYS
LAST_DAYS = 3 * 86400.0  # seconds before its end in which that is a problem; the broker's log warns from 14 days
FLOAT = int | float
Fields = Mapping[str, tuple[Any, Any]]  # key -> its type, and the value for anything else

LINK_FIELDS: Fields = {
    "number": (int, None),
    "name": (str, None),
    "address": (str, "?"),
    "up": (bool, False),
    "left": (bool, False),
    "cost": (int, None),
    "since": (FLOAT, None),
    "round_trip": (FLOAT, None),
    "unsent": (int, 0),
    "full": (bool, False),
    "tls": (str, None),
    "policy": (str, "none"),
    "error": (str, ""),
}
MEMBER_FIELDS: Fields = {
    "number": (int, None),
    "name": (str, "?"),
    "live": (bool, False),
    "next": (int, None),
    "hops": (int, 0),
    "cost": (int, 0),
    "since": (FLOAT, None),
    "filters": (int, 0),
    "open": (int, 0),
    "open_bytes": (int, 0),
    "waits": (str, ""),
}
MESH_FIELDS: Fields = {
    "metabrokers": (list, []),
    "name": (str, "?"),
    "number": (int, None),
    "mesh": (str, None),
    "graph": (list, []),
    "custody": (dict, {}),
}
CUSTODY_FIELDS: Fields = dict.fromkeys(("messages", "bytes", "messages_limit", "bytes_limit", "stored_messages", "stored_bytes"), (int, 0))
METABROKER_FIELDS: Fields = {
    "up": (bool, False),
    "inside": (str, None),
    "sessions": (dict, {}),
    "messages": (dict, {}),
    "remotes": (list, []),
}
REMOTE_FIELDS: Fields = {
    "remote": (str, "?"),
    "up": (bool, False),
    "sessions": (int, 0),
    "filters": (int, 0),
    "bytes_waiting": (int, 0),
    "error": (str, ""),
}
WAITS = {
    "reach": "no path to it",
    "join": "it has not reported its progress yet",
    "credit": "it confirms more slowly than messages arrive",
    "receipt": "under way, not confirmed yet",
}


def report(values: Mapping[str, str], address: str, now: float, failure: str | None = None) -> dict[str, Any]:
    """Make a report.

    values: topic -> last payload.
    now: this machine's clock, seconds since 1970.
    failure: why the broker cannot be asked.
    """
    broker = _broker(values)
    clock, said = _clock(values, now), _number(values.get(CLOCK))
    if said is not None and broker["uptime"] is not None:
        broker["age"] = max(0, int(clock - said))
        broker["uptime"] += broker["age"]  # both were published together
    mesh = _object(values.get(MESH))
    if mesh is not None:
        mesh = _mesh(mesh, clock)
    attached = _attached(values)
    metabrokers = [_metabroker(topic, text, mesh) for topic, text in sorted(values.items()) if topic.startswith(METABROKER)]
    found = {
        "address": address,
        "time": round(now, 1),
        "broker": broker,
        "mesh": mesh,
        "attached": attached,
        "metabrokers": metabrokers,
    }
    problems = (
        [failure]
        if failure is not None
        else [
            *_troubles(broker),
            *_certificate_troubles(broker["certificate_ends"], clock),
            *_attached_troubles(attached),
            *_mesh_troubles(mesh),
            *_metabroker_troubles(metabrokers),
        ]
    )
    return {"ok": not problems, "problems": problems, **found}


# The broker


def _broker(values: Mapping[str, str]) -> dict[str, Any]:
    said = {topic.removeprefix(BROKER): text for topic, text in values.items() if topic.startswith(BROKER)}
    version = said.get("version")
    kind = None
    if version is not None or said:
        kind = next((name for name in ("mqmesh", "mosquitto") if version is not None and version.startswith(name)), "other")
    found: dict[str, Any] = {
        "kind": kind,
        "version": version,
        "name": said.get("name"),
        "state": said.get("state"),
        "store": said.get("store/state"),
        "certificate_ends": said.get("tls/certificate/ends"),
        "uptime": _number(said.get("uptime", "").partition(" ")[0]),
        "age": None,
    }
    for key, topics in NUMBERS.items():
        found[key] = next((number for topic in topics if (number := _number(said.get(topic))) is not None), None)
    found["workers"] = _workers(_object(said.get(WORKERS.removeprefix(BROKER))))
    found["recipients_dead"] = _names(said.get("recipients/dead"))
    for key, topic in RATES.items():
        rate = _number(said.get(topic))
        found[key] = None if rate is None else round(rate / 60, 2)
    return found


def _workers(status: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The processes of the broker, as the one that was asked sees them; none of a broker that has one."""
    members = [] if status is None else [_typed(row, MEMBER_FIELDS) for row in _rows(status, "members")]
    return [{"name": one["name"], "number": one["number"], "up": one["live"]} for one in members]


def _troubles(broker: Mapping[str, Any]) -> list[str]:
    """Problems of the broker itself."""
    if broker["kind"] is None:
        return ["it answers, and says nothing of itself: there is no $SYS here"]
    found: list[str] = []
    for state in (broker["store"], broker["state"]):  # the first is quicker, the second says more
        if state is not None and state != OK and not any(state in one for one in found):
            found.append(f"the broker is not well: {state}")
    found += [f"the worker {one['name']} is down" for one in broker["workers"] if not one["up"]]
    dead = (broker["recipients_fault"] or 0) + (broker["recipients_defunct"] or 0)
    if dead:
        names = broker["recipients_dead"]
        more = f" and {dead - len(names):,} more" if 0 < len(names) < dead else ""
        found.append(f"no messages are taken by {counted(dead, 'recipient')}: {', '.join(names)}{more} (mqmesh recipients)")
    if broker["held_bytes_limit"] and broker["held_bytes"] >= broker["held_bytes_limit"]:
        found.append(f"the broker is full: it holds the {broker['held_bytes_limit']:,} bytes in memory that it may (limits.broker_bytes)")
    return found


def _certificate_troubles(ends: str | None, clock: float) -> list[str]:
    """Problems of its certificate, within the last days. ends: as `$SYS` has it. clock: the broker's."""
    try:
        left = datetime.strptime(ends or "", ENDS).replace(tzinfo=UTC).timestamp() - clock
    except ValueError:  # it has none
        return []
    if left > LAST_DAYS:
        return []
    return [f"its certificate {'expired' if left <= 0 else 'expires'} on {ends}: renew it, then send SIGHUP"]


# The mesh


def _clock(values: Mapping[str, str], now: float) -> float:
    """The time of the broker's clock now, roughly. Times in the status are of that clock, which may differ from ours.

    Its last value may be `STALE` seconds old. With less difference, the two clocks count as equal.
    """
    said = _number(values.get(CLOCK))
    return now if said is None or -1 <= now - said <= STALE else float(said)


def _mesh(status: dict[str, Any], clock: float) -> dict[str, Any]:
    """The status with ages beside the times."""
    found = _typed(status, MESH_FIELDS)
    found["custody"] = _typed(found["custody"], CUSTODY_FIELDS)
    found["metabrokers"] = [number for number in found["metabrokers"] if isinstance(number, int)]
    found["links"] = [_typed(row, LINK_FIELDS) for row in _rows(status, "links")]
    found["members"] = [_typed(row, MEMBER_FIELDS) for row in _rows(status, "members")]
    for one in (*found["links"], *found["members"]):
        one["age"] = None if one["since"] is None else max(0, round(clock - one["since"]))
    return found


def _mesh_troubles(mesh: Mapping[str, Any] | None) -> list[str]:
    if mesh is None:
        return []
    found = []
    for link in mesh["links"]:
        who = neighbour(link)
        if not link["up"] and link["left"]:
            continue  # it left in order, or was forgotten
        if not link["up"]:
            found.append(f"the link to {who} is down: {link['error'] or 'no reason given'}")
        elif link["full"]:
            found.append(f"the link to {who} is full: {counted(link['unsent'], 'byte')} unsent (limits.link_unsent_bytes)")
    for member in mesh["members"]:
        if not member["live"]:
            waiting = f", waiting for it: {counted(member['open'], 'message')}" if member["open"] else ""
            found.append(f"{member['name']} (number {member['number']}) cannot be reached{waiting}")
    custody = mesh["custody"]
    for unit in ("messages", "bytes"):
        held, limit = custody[unit] - custody[f"stored_{unit}"], custody[f"{unit}_limit"]  # in memory
        if held >= limit > 0:
            found.append(f"custody is full: {held:,} {unit} are held for other brokers, of {limit:,}")
    return found


def neighbour(link: Mapping[str, Any]) -> str:
    """The name of a link's other end, or the address that is dialled if the name is not known."""
    name, number, address = link["name"], link["number"], link["address"]
    return str(name) if name else f"number {number} at {address}" if number is not None else str(address)


# Attached brokers


def _attached(values: Mapping[str, str]) -> list[dict[str, Any]]:
    """The brokers that this one brings into the mesh."""
    names = sorted({topic[len(ATTACH) :].partition("/")[0] for topic in values if topic.startswith(ATTACH)})
    found = []
    for name in names:
        said = {topic.removeprefix(f"{ATTACH}{name}/"): text for topic, text in values.items()}
        numbers = {key: _number(said.get(topic)) for key, topic in ATTACH_NUMBERS.items()}
        found.append({"name": name, "state": said.get("state", "?"), "trouble": said.get("trouble", ""), **numbers})
    return found


def _attached_troubles(attached: list[dict[str, Any]]) -> list[str]:
    down = [one for one in attached if one["state"] == "down"]
    return [f"the attached broker {one['name']} is down: {one['trouble'] or 'no reason given'}" for one in down]


# Metabrokers


def _metabroker(topic: str, text: str, mesh: Mapping[str, Any] | None) -> dict[str, Any]:
    """The state of a metabroker. reachable: false if it is inside a broker that cannot be reached; the state may then be old."""
    found = {"id": topic.removeprefix(METABROKER), **_typed(_object(text) or {}, METABROKER_FIELDS)}
    members = [] if mesh is None else mesh["members"]
    found["reachable"] = not any(member["name"] == found["inside"] and not member["live"] for member in members)
    found["sessions"] = _typed(found["sessions"], {"all": (int, 0), "durable": (int, 0), "away": (int, 0)})
    found["messages"] = _typed(found["messages"], {"to_remotes": (int, 0), "from_remotes": (int, 0)})
    found["remotes"] = [_typed(row, REMOTE_FIELDS) for row in _rows(found, "remotes")]
    return found


def _metabroker_troubles(metabrokers: list[dict[str, Any]]) -> list[str]:
    found = []
    for one in metabrokers:
        if not one["reachable"]:
            found.append(f"the metabroker {one['id']} cannot be reached: it is inside {one['inside']}")
        elif not one["up"]:
            found.append(f"the metabroker {one['id']} is down")
        else:
            down = [remote for remote in one["remotes"] if not remote["up"]]
            whose = f"of the metabroker {one['id']} is down"
            found += [f"the remote {remote['remote']} {whose}: {remote['error'] or 'no reason given'}" for remote in down]
    return found


# Values from the network


def _typed(row: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """A row with at least these keys. A value of another type is replaced by the default. Other keys stay unchanged."""
    found = dict(row)
    for key, (kind, otherwise) in fields.items():
        value = row.get(key)
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) and (kind is not FLOAT or math.isfinite(value))
        found[key] = value if right else otherwise
    return found


def _rows(whole: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    rows = whole.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _names(text: str | None) -> list[str]:
    try:
        found = json.loads(text) if text is not None else []
    except (ValueError, RecursionError):
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite) if text is not None else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _number(text: str | None) -> Any:
    """An int where it is one, else a float."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else value
