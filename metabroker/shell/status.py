"""What the metabroker tells of itself: one map for its status topic, one line for the log (docs/metabroker.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...base.metabroker import Code
from ..core.core import Core


def report(core: Core, community: int, store: int, backlogs: Mapping[int, int], broker: str | None = None) -> dict[str, Any]:
    """How things are. community, store: bytes that wait for them; backlogs: bytes that wait for each remote, by its number. broker: name of
    the one that it is inside of, None: it is a process."""
    durable = [session.durable for session in core.sessions.values() if session.durable is not None]
    counts = core.counts
    return {
        "up": True,
        "inside": broker,
        "sessions": {"all": len(core.sessions), "durable": len(durable), "away": sum(one.away for one in durable)},
        "remotes": [
            {
                "remote": remote.credentials.remote,
                "up": remote.up,
                "sessions": len(remote.sessions),
                "filters": len(remote.held),
                "bytes_waiting": backlogs.get(remote.number, 0),
                "error": "" if remote.up else remote.reason,
            }
            for remote in core.remotes.values()
        ],
        "requests": counts.requests,
        "messages": {
            "to_remotes": counts.published,
            "from_remotes": counts.incoming,
            "to_sessions": counts.delivered,
            "repeated_requests": counts.repeated,
            "dropped": counts.dropped,
            "expired": counts.expired,
            "not_published": counts.not_published,
        },
        "stored": {"messages": sum(len(one.kept) for one in durable), "bytes": sum(one.bytes for one in durable)},
        "bytes_waiting": {"community": community, "store": store, "remotes": sum(backlogs.values())},
        "refused": {Code(code).name.lower(): count for code, count in sorted(counts.refused.items())},
    }


def body(values: Mapping[str, Any]) -> bytes:
    """A report as its topic has it."""
    return json.dumps(values, separators=(",", ":")).encode()


GONE = body({"up": False})


def line(values: Mapping[str, Any]) -> str:
    """A report as a line of the log."""
    sessions, messages, stored, waiting = (values[name] for name in ("sessions", "messages", "stored", "bytes_waiting"))
    up = sum(remote["up"] for remote in values["remotes"])
    refused = ",".join(f"{name}:{count}" for name, count in values["refused"].items()) or "none"
    return (
        f"event=status sessions={sessions['all']} durable={sessions['durable']} away={sessions['away']}"
        f" remotes={len(values['remotes'])} up={up} to_remotes={messages['to_remotes']} from_remotes={messages['from_remotes']}"
        f" to_sessions={messages['to_sessions']} dropped={messages['dropped']} not_published={messages['not_published']}"
        f" stored={stored['messages']} stored_bytes={stored['bytes']}"
        f" waiting_community={waiting['community']} waiting_store={waiting['store']} waiting_remotes={waiting['remotes']} refused={refused}"
    )
