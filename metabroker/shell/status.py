"""What the metabroker tells of itself: one map for its status topic, one line for the log (docs/metabroker.md)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...base.metabroker import Code
from ...mqtt.packets import Publish
from ..core.core import Core
from ..protocol.events import State

if TYPE_CHECKING:
    from ..mqtt.connection import Connection

log = logging.getLogger(__name__)
REPORT, LINE = 2.0, 60.0  # seconds between two reports, at least; between two of them in the log


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


class Reporter:
    """Publishes how things are, when that has changed, and logs it, less often.

    topic: where; None: it is only logged. community: to its broker; only the last report counts, so nothing waits for a connection.
    """

    def __init__(self, topic: str | None, community: Connection) -> None:
        self.topic = topic
        self._community = community
        self._next_report = self._next_line = 0.0
        self._reported: Mapping[str, Any] = {}

    def due(self, now: float) -> bool:
        """Whether a report is wanted."""
        return now >= self._next_report

    def again(self) -> None:
        """Report at once, though nothing has changed: our will may have been published."""
        self._next_report, self._reported = 0.0, {}

    def say(self, values: Mapping[str, Any], now: float) -> None:
        """A report that was due."""
        self._next_report = now + REPORT
        if values == self._reported:
            return
        self._reported = values
        self._tell(body(values), now)
        if now >= self._next_line:
            self._next_line = now + LINE
            log.info("%s", line(values))

    def gone(self, now: float) -> None:
        """The metabroker ends in order."""
        self._tell(GONE, now)

    def _tell(self, told: bytes, now: float) -> None:
        machine = self._community.machine
        if self.topic and machine.state is State.UP:
            machine.publish(Publish(self.topic, told, 0, retain=True), 0, now)
