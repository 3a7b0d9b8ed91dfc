"""A report (`report.py`) as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...base.plural import counted
from ..sessions import lasting, size
from .picture import LEGEND, drawn, plain
from .report import WAITS, neighbour

WIDTH = 160  # of what does not go to a terminal
BAD, GOOD, PALE = "bold red", "green", "dim"


def console(terminal: bool) -> Console:
    """A console as wide as the terminal. Without a terminal, wide enough for whole lines, for `grep`."""
    return Console(highlight=False, width=None if terminal else WIDTH)


def view(report: Mapping[str, Any], picture: bool) -> RenderableType:
    """A whole report. picture: with a picture of the mesh."""
    parts: list[RenderableType] = [_head(report)]
    if report["broker"]["kind"] is not None:
        parts.append(_broker(report["broker"]))
    if report["attached"]:
        parts += ["", _attached(report["attached"])]
    mesh = report["mesh"]
    if mesh is not None:
        parts += ["", _members(mesh), "", _links(mesh), "", _custody(mesh)]
        if picture:
            parts += ["", _picture(mesh)]
    for one in report["metabrokers"]:
        parts += ["", *_metabroker(one)]
    parts += [""] * bool(report["problems"])
    parts += [Text(f"not well: {plain(problem)}", BAD) for problem in report["problems"]]
    return Group(*parts)


def _head(report: Mapping[str, Any]) -> Text:
    broker, mesh = report["broker"], report["mesh"]
    name = plain(broker["name"] or (mesh["name"] if mesh else None) or report["address"])
    words = [f"at {report['address']}"] if name != report["address"] else []
    if mesh is not None:
        words.insert(0, f"number {mesh['number']} of mesh {plain(mesh['mesh'])}")
    if broker["version"]:
        words.append(plain(broker["version"]))
    if broker["uptime"] is not None:
        words.append(f"up {lasting(int(broker['uptime']))}")
    text = Text.assemble((name, "bold"), "  ", ", ".join(words), "  ")
    return text.append("well" if report["ok"] else "not well", GOOD if report["ok"] else BAD)


def _broker(broker: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for title, words in (
        ("clients", _clients(broker)),
        ("messages", _messages(broker)),
        ("holds", _holds(broker)),
        ("recipients", _recipients(broker)),
        ("workers", _workers(broker)),
    ):
        if words and title == "clients" and broker["age"]:
            words.append(f"{lasting(broker['age'])} ago")
        if words:
            table.add_row(Text(title, PALE), ", ".join(words))
    return table if table.row_count else ""


def _workers(broker: Mapping[str, Any]) -> list[str]:
    workers = broker["workers"]
    return [f"{sum(one['up'] for one in workers)} of {len(workers)} up"] if workers else []


def _clients(broker: Mapping[str, Any]) -> list[str]:
    """The known values, in words."""
    forms = (
        ("clients", "{:,} connected"),
        ("clients_maximum", "{:,} at most so far"),
        ("sessions_away", "{:,} away"),
    )
    found = [form.format(broker[key]) for key, form in forms if broker[key] is not None]
    return found if broker["subscriptions"] is None else [*found, counted(broker["subscriptions"], "subscription")]


def _messages(broker: Mapping[str, Any]) -> list[str]:
    forms = (("publish_in", "{:,.1f} in"), ("publish_out", "{:,.1f} out a second"), ("dropped", "{:,} dropped since the start"))
    return [form.format(broker[key]) for key, form in forms if broker[key] is not None]


def _holds(broker: Mapping[str, Any]) -> list[str]:
    found = []
    for key, where in (("held_bytes", "in memory"), ("stored_bytes", "in the store")):
        if broker[key] is not None:
            found.append(f"{size(broker[key])}{_of(broker[f'{key}_limit'], size)} {where}")
    if broker["held_evicted"]:
        found.append(f"{counted(broker['held_evicted'], 'connection')} closed for want of memory")
    if broker["stored_sessions"] is not None:
        limit = _of(broker["stored_sessions_limit"], lambda count: format(count, ","))
        found.append(counted(broker["stored_sessions"], "session", limit))
    if broker["retained_messages"] is not None:
        found.append(counted(broker["retained_messages"], "retained message"))
    return found


def _recipients(broker: Mapping[str, Any]) -> list[str]:
    if broker["recipients_operational"] is None:
        return []
    forms = (
        ("recipients_operational", "{:,} operational"),
        ("recipients_fault", "{:,} in fault"),
        ("recipients_defunct", "{:,} defunct"),
        ("failed_over", "{:,} failed over"),
        ("returned", "{:,} returned"),
        ("dead_lettered", "{:,} as dead letters"),
    )
    return [form.format(broker[key]) for key, form in forms if broker[key] is not None]


def _of(limit: Any, words: Any) -> str:
    return f" of {words(limit)}" if limit else ""


def _table(title: str, *headings: str, right: Iterable[int] = ()) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), title_style="bold", header_style=PALE)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place in right else "left", overflow="fold")
    return table


def _attached(attached: Iterable[Mapping[str, Any]]) -> Table:
    table = _table("attached brokers", "name", "state", "out", "in", "dropped", "kept back", "faults", "", right=(2, 3, 4, 5, 6))
    for one in attached:
        style = {"up": GOOD, "down": BAD}.get(one["state"], PALE)
        counts = ("-" if one[key] is None else f"{one[key]:,}" for key in ("out", "into", "refused", "withheld", "faults"))
        table.add_row(plain(one["name"]), Text(plain(one["state"]), style), *counts, plain(one["trouble"]))
    return table


def _members(mesh: Mapping[str, Any]) -> Table:
    names = {member["number"]: plain(member["name"]) for member in mesh["members"]}
    headings = ("broker", "number", "reach", "by", "hops", "cost", "for", "filters", "waiting", "why")
    table = _table("brokers", *headings, right=(1, 4, 5, 6, 7, 8))
    for one in mesh["members"]:
        own, live = one["number"] == mesh["number"], one["live"]
        way = one["next"]
        waiting = f"{one['open']:,} ({size(one['open_bytes'])})" if one["open"] else "-"
        table.add_row(
            Text(plain(one["name"]), "bold" if own else ""),
            str(one["number"]),
            Text("itself", PALE) if own else Text("yes", GOOD) if live else Text("no", BAD),
            "-" if way is None else "directly" if way == one["number"] else names.get(way, str(way)),
            *((str(one["hops"]), str(one["cost"])) if live and not own else ("-", "-")),
            lasting(one["age"]),
            str(one["filters"]),
            waiting,
            WAITS.get(one["waits"], ""),
        )
    return table


def _links(mesh: Mapping[str, Any]) -> Table:
    table = _table("links", "neighbour", "address", "state", "for", "cost", "round trip", "unsent", "TLS", "", right=(3, 4, 5, 6))
    for one in mesh["links"]:
        up, trip = one["up"], one["round_trip"]
        state = Text("full", BAD) if one["full"] else Text("up", GOOD) if up else Text("down", BAD)
        words = plain(one["error"]) if not up else "" if one["policy"] == "none" else f"policy: {plain(one['policy'])}"
        table.add_row(
            plain(neighbour(one)),
            plain(one["address"]),
            state,
            lasting(one["age"]),
            str(one["cost"]),
            "-" if trip is None else f"{trip:.0f} ms" if trip >= 1 else "< 1 ms",
            size(one["unsent"]) if up else "-",
            plain(one["tls"] or "-"),
            words,
        )
    if not mesh["links"]:
        table.add_row(Text("none", PALE))
    return table


def _custody(mesh: Mapping[str, Any]) -> Text:
    custody = mesh["custody"]
    messages, held = custody["messages"], custody["bytes"]
    return Text(
        counted(messages, "message", _of(custody["messages_limit"], lambda count: format(count, ",")))
        + f" and {size(held)}{_of(custody['bytes_limit'], size)} held until other brokers confirm them"
    )


def _picture(mesh: Mapping[str, Any]) -> RenderableType:
    try:
        return Group(Text(drawn(mesh), no_wrap=True, overflow="crop"), Text(LEGEND, PALE))
    except ValueError as error:
        return Text(str(error), PALE)


def _metabroker(one: Mapping[str, Any]) -> list[RenderableType]:
    name = plain(one["id"])
    if not one["up"] or not one["reachable"]:
        state = "down" if one["reachable"] else "out of reach"
        return [Text.assemble(("metabroker ", "bold"), (name, "bold"), _where(one), "  ", (state, BAD))]
    sessions, messages = one["sessions"], one["messages"]
    words = [
        counted(sessions["all"], "session"),
        f"{sessions['durable']:,} durable, {sessions['away']:,} of them away",
        f"{counted(messages['to_remotes'], 'message')} out, {messages['from_remotes']:,} in",
    ]
    head = Text.assemble(("metabroker ", "bold"), (name, "bold"), _where(one), "  ", ("up", GOOD), "  ", ", ".join(words))
    if not one["remotes"]:
        return [head]
    table = _table("", "remote", "state", "sessions", "filters", "waiting", "", right=(2, 3, 4))
    table.title = None
    for remote in one["remotes"]:
        how = Text("up", GOOD) if remote["up"] else Text("down", BAD)
        counts = (str(remote["sessions"]), str(remote["filters"]))
        table.add_row(plain(remote["remote"]), how, *counts, size(remote["bytes_waiting"]), plain(remote["error"]))
    return [head, table]


def _where(one: Mapping[str, Any]) -> str:
    return f" inside {plain(one['inside'])}" if one["inside"] else ""
