"""Queues as lines: a table of all, one with its members, its messages, the history of one."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from ...base.plural import counted
from ..recipients.view import lines, moment, name_of

HEAD = ("QUEUE", "SITE", "PLAN", "WAITING", "IN FLIGHT", "MEMBERS", "OLDEST", "PUT", "DONE", "RETURNED", "DEAD")


def table(answer: dict[str, Any]) -> str:
    """All queues."""
    rows: list[Sequence[str]] = [HEAD]
    for one in answer["queues"]:
        counts = [_count(one, key) for key in ("waiting", "in_flight", "members")]
        totals = [_count(one, key) for key in ("put", "done", "returned", "dead")]
        plan = _plain(one.get("plan")) + (", paused" if one.get("paused") else "")
        rows.append((name_of(one["name"]), _plain(one.get("site")), plan, *counts, moment(one.get("oldest")), *totals))
    return "\n".join(lines(rows, right={3, 4, 5, 7, 8, 9, 10})) if len(rows) > 1 else "no queues"


def details(answer: dict[str, Any]) -> str:
    """One queue."""
    one = answer["queue"]
    totals = ("put", "done", "returned", "unusable", "expired", "dead", "refused", "withdrawn")
    rows = [
        ("queue", name_of(one["name"])),
        ("site", _plain(one.get("site"))),
        ("plan", _plain(one.get("plan"))),
        ("waiting", f"{_count(one, 'waiting')}, the oldest since {moment(one.get('oldest'))}"),
        ("in flight", _count(one, "in_flight")),
        ("dead letters", _plain(one.get("dead_letters"))),
        *([("paused", "yes: members get no more")] if one.get("paused") else []),
        ("since the start", ", ".join(f"{_count(one, key)} {key}" for key in totals)),
        ("declared", _plain(one.get("declared"))),
        ("store", _store(one)),
        *([("homes", f"{_plain(one.get('site'))} now, of {', '.join(map(_plain, one['homes']))}")] if one.get("homes") else []),
        ("settings", ", ".join(f"{key} {_plain(value)}" for key, value in (one.get("settings") or {}).items())),
    ]
    shown = lines(rows, right=())
    members: list[Sequence[str]] = [("MEMBER", "STATE", "IN FLIGHT")]
    members += [
        (name_of(who["name"]), "there" if who.get("active") else "away", _count(who, "in_flight")) for who in one.get("members") or []
    ]
    return "\n".join([*shown, *(lines(members, right={2}) if len(members) > 1 else ["no members"])])


def _store(one: dict[str, Any]) -> str:
    """Where a queue is, and where it goes."""
    store, moving = _plain(one.get("store")), one.get("moving")
    if not isinstance(moving, dict):
        return store
    share = 100 * moving["read"] // moving["of"] if moving.get("of") else 100
    why = f": {_plain(moving['why'])}; it is tried again" if moving.get("why") else ""
    return f"{store}, goes to {_plain(moving.get('to'))}: {_plain(moving.get('state'))}, {share} % of the log is read{why}"


def messages(answer: dict[str, Any]) -> str:
    """What is in a queue."""
    rows: list[Sequence[str]] = [("POSITION", "PUT", "PUBLISHER", "PRIORITY", "BYTES", "DELIVERIES", "STATE", "SUBSCRIBERS", "PAYLOAD")]
    for one in answer["messages"]:
        who = ", ".join(f"{name_of(name)} {_plain(state)}" for name, state in (one.get("subscribers") or {}).items())
        payload = _plain(one.get("payload"))
        rows.append(
            (
                str(one["position"]),
                moment(one.get("put")),
                name_of(one.get("publisher")),
                str(one.get("priority")),
                _count(one, "size"),
                _count(one, "deliveries"),
                _plain(one.get("state")),
                who or "-",
                payload if len(payload) <= 40 else payload[:39] + "…",
            )
        )
    more = answer.get("more")
    end = [f"more from position {more} on"] if more is not None else []
    return "\n".join([*lines(rows, right={0, 3, 4, 5}), *end]) if len(rows) > 1 else "no messages"


def contents(answer: dict[str, Any]) -> str:
    """Messages of the log."""
    rows: list[Sequence[str]] = [("POSITION", "PUT", "PUBLISHER", "BYTES", "STATE", "PAYLOAD")]
    for one in answer["messages"]:
        payload = _plain(b64decode(one["payload"]).decode("utf-8", "backslashreplace"))
        shown = payload if len(payload) <= 60 else payload[:59] + "…"
        at = str(one["position"]), moment(one.get("put")), name_of(one.get("publisher")), _count(one, "size")
        rows.append((*at, _plain(one.get("state") or "at an end"), shown))
    more = answer.get("more")
    end = [f"more from position {more} on"] if more is not None else []
    return "\n".join([*lines(rows, right={0, 3}), *end]) if len(rows) > 1 or end else "no messages"


def needed(answer: dict[str, Any]) -> str:
    """Who still needs which messages."""
    rows: list[Sequence[str]] = [("WHO", "MESSAGES", "WAITS FOR", "HAS")]
    for who, one in answer["needed"].items():
        rows.append((name_of(who), _count(one, "messages"), _ranges(one["waits"]), _ranges(one["has"])))
    more = answer.get("more")
    end = [f"more from position {more} on"] if more is not None else []
    return "\n".join([*lines(rows, right={1}), *end]) if len(rows) > 1 else "nobody needs a message any more"


def _ranges(ranges: list[list[int]]) -> str:
    shown = [f"{first}-{last}" if last > first else str(first) for first, last in ranges[:8]]
    return ", ".join(shown + ["…"] * (len(ranges) > 8)) or "-"


def history(answer: dict[str, Any]) -> str:
    """Every state of one message."""
    who = name_of(answer.get("publisher"))
    shown = [
        f"message {answer['position']} of {name_of(answer['queue'])}, {_count(answer, 'size')} bytes, plan {_plain(answer.get('plan'))}"
    ]
    rows: list[Sequence[str]] = [("WHO", "STATE", "SINCE")]
    rows += [(f"publisher {who}", _plain(one.get("state")), _exact(one.get("at"))) for one in answer.get("states") or []]
    for name, states in (answer.get("subscribers") or {}).items():
        rows += [(f"subscriber {name_of(name)}", _plain(one.get("state")), _exact(one.get("at"))) for one in states]
    return "\n".join([*shown, *lines(rows, right=()), _wanted(answer)])


def _wanted(answer: dict[str, Any]) -> str:
    """Who still needs a message, or has it. A pool without members names nobody: the first that comes may take it."""
    needed = ", ".join(map(name_of, answer.get("needed_by") or []))
    if needed:
        return f"still needed by {needed}"
    subscribers = answer.get("subscribers") or {}
    has = ", ".join(name_of(who) for who, states in subscribers.items() if _last(states) in ("GET", "FETCHED", "IN PROCESS"))
    if has:
        return f"{has} has it"
    state = _last(answer.get("states"))
    if not subscribers and state in ("PUT", "REVEALED"):
        return "it is not revealed yet" if state == "PUT" else "any member may take it"
    return "nobody needs it any more"


def _last(states: list[dict[str, Any]] | None) -> Any:
    return states[-1].get("state") if states else None


def done(answer: dict[str, Any]) -> str:
    """What an action has done."""
    would = " would be" if answer.get("dry_run") else ""
    for key in ("purged", "redriven", "distributed"):
        if key in answer:
            more = f"; more from position {answer['more']} on" if answer.get("more") is not None else ""
            more += f": {_plain(answer['refused'])}" if answer.get("refused") else ""
            more += f"; there are more: {_plain(answer['left'])}" if answer.get("left") else ""
            return f"{counted(answer[key], 'message')}{would} {key}{more}"
    if "cleaned" in answer:
        counts = f"{answer['children']:,} children with their parents, {counted(answer['revealed'], 'message')} revealed"
        return f"{'would be ' * bool(would)}put right: {counts}, {answer['cleaned']:,} taken back from members that are gone"
    if "edited" in answer:
        return f"message {answer['position']} is in the place of message {answer['edited']}"
    if "paused" in answer:
        return f"queue {name_of(answer['queue'])}{would or ' is'} {'paused' if answer['paused'] else 'worked again'}"
    if "declared" in answer:
        return f"queue {name_of(answer['queue'])}{would or ' is'} declared"
    if "store" in answer and "queues" in answer:
        names = ", ".join(map(name_of, answer["queues"]))
        return f"{names}{' would go' if would else ' goes'} to {_plain(answer['store'])}; mqmesh queue show says how far it is"
    if "deleted" in answer:
        return f"queue {name_of(answer['queue'])}{would or ' is'} deleted, with {counted(answer['deleted'], 'message')}"
    message = answer.get("message") or {}
    return f"message {message.get('position', '?')} is {_plain(message.get('state'))}"


def priority(answer: dict[str, Any]) -> str:
    """Which priority a message has now."""
    return f"{done(answer)}, with priority {(answer.get('message') or {}).get('priority', '?')}"


def _exact(text: object) -> str:
    return str(text).replace("T", " ").removesuffix("Z") if isinstance(text, str) and text else "-"


def _count(one: dict[str, Any], key: str) -> str:
    value = one.get(key)
    return f"{value:,}" if isinstance(value, int) else "-"


def _plain(text: object) -> str:
    return "-" if text is None or text == "" else "".join(letter if letter.isprintable() else "?" for letter in str(text))
