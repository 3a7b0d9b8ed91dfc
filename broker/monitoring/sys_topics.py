"""`$SYS`: what the broker says of itself, under the names that users of other brokers know.

Values are published, retained, every `sys_interval` seconds, each only when it changed. They do not count themselves.
`$SYS/broker/mesh/...` is this project's own: one JSON object that says who is linked and what has been carried.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ... import __version__
from ...mqtt.batch.run import Run
from ..ledger import IN_FLIGHT, KINDS, QUEUED
from ..persistence.quota import OK
from ..workers.totals import INTERVAL, WorkerTotals
from .health import troubles

if TYPE_CHECKING:
    from ..site import Site

PAGE = resource.getpagesize()
MAXIMUM_UNIT = {"darwin": 1}.get(sys.platform, 1024)  # bytes, in which the system says the largest memory
UNSAID = ("sockets", "connections")  # totals that are shown as rates alone
WINDOWS = (1, 5, 15)  # minutes of the load averages


LOADS = {  # name below `load` -> the total that it is the rate of
    "messages/received": "messages/received",
    "messages/sent": "messages/sent",
    "publish/dropped": "publish/messages/dropped",
    "publish/received": "publish/messages/received",
    "publish/sent": "publish/messages/sent",
    "bytes/received": "bytes/received",
    "bytes/sent": "bytes/sent",
    "sockets": "sockets",
    "connections": "connections",
}


class Load:
    """Exponential averages of a rate, for one minute each of `WINDOWS`, in events a minute."""

    def __init__(self) -> None:
        self.before = 0
        self.values = [0.0] * len(WINDOWS)

    def update(self, total: int, seconds: float) -> None:
        """Take the total so far and the seconds since the last call."""
        if seconds <= 0:
            return
        rate = (total - self.before) * 60 / seconds
        self.before = total
        for index, minutes in enumerate(WINDOWS):
            weight = pow(2.718281828459045, -seconds / (60 * minutes))
            self.values[index] = rate + weight * (self.values[index] - rate)


class SysTopics:
    """Publishes the values of one broker."""

    def __init__(self, site: Site, publish: Callable[[Run], None]) -> None:
        self._site = site
        self._publish = publish
        self._said: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._loads = {name: Load() for name in LOADS}
        worker = site.config.worker
        self._shared = WorkerTotals(worker, self._figures, partial(troubles, site)) if worker is not None else None
        self.broker_totals: Callable[[], dict[str, int]] = self._shared or self.totals  # of all workers, if there are several

    def start(self) -> None:
        interval = self._site.config.limits.sys_interval
        if interval or self._shared is not None:
            self._last = self._site.context.loop.time()
            self._timer = self._site.context.loop.call_soon(self._issue)  # type: ignore[assignment]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _issue(self) -> None:
        site = self._site
        site.context.now = site.context.loop.time()
        interval = site.config.limits.sys_interval
        if self._shared is not None:
            self._shared.write()
        if interval:
            for name, value in self.values().items():
                self.say(f"$SYS/broker/{name}", value)
            site.context.flush()
        self._timer = site.context.loop.call_later(interval or INTERVAL, self._issue)

    def say(self, topic: str, value: str) -> None:
        """Publish one value, retained, if it changed."""
        if self._said.get(topic) != value:
            self._said[topic] = value
            self._publish(Run(topic.encode(), 0, True, [value.encode()], received=self._site.context.now))

    def totals(self) -> dict[str, int]:
        """name below `$SYS/broker` -> number, as of now; `sockets` and `connections` have no topic of their own."""
        site = self._site
        counters, ledger = site.context.counters, site.context.ledger
        connections = site.connections
        sent = site.sent_before + sum(connection.sent for connection in connections)
        received = site.received_before + sum(connection.received for connection in connections)
        connected = counters.clients
        retained = len(site.retained) - site.retained.sys_count
        queued = sum(session.queued for session in site.sessions)
        return {
            "messages/received": counters.packets_received + received,
            "messages/sent": counters.packets_sent + sent,
            "publish/messages/received": received,
            "publish/messages/sent": sent,
            "publish/messages/dropped": counters.dropped,
            "publish/messages/repeated": site.handles.repeats,
            "publish/handles": len(site.handles),
            "publish/bytes/received": counters.publish_bytes_received,
            "publish/bytes/sent": counters.publish_bytes_sent,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "clients/connected": connected,
            "clients/disconnected": len(site.sessions) - connected,
            "clients/active": connected,
            "clients/inactive": len(site.sessions) - connected,
            "clients/total": len(site.sessions),
            "clients/maximum": counters.clients_maximum,
            "clients/expired": counters.clients_expired,
            "subscriptions/count": site.router.subscriptions,
            "shared_subscriptions/count": len(site.router.groups),
            "retained messages/count": retained,
            "store/messages/count": queued + retained,
            "store/messages/bytes": ledger.held[QUEUED] + ledger.held[IN_FLIGHT] + site.retained.bytes - site.retained.sys_bytes,
            "messages/stored": queued + retained,
            "access/connects/refused": counters.denied_connects,
            "access/subscriptions/refused": counters.denied_subscriptions,
            "access/publish/refused": counters.denied_messages,
            "access/protocol/errors": counters.errors,
            "access/connects/late": counters.connect_timeouts,
            "limits/connections/refused": counters.refused_connections,
            "limits/subscriptions/refused": counters.refused_subscriptions,
            "limits/clients/slowed": counters.slowed,
            "loop/stalls": counters.stalls,
            "loop/stall/maximum": round(1000 * counters.stall_maximum),
            "loop/late/maximum": round(1000 * counters.late_maximum),
            "held/bytes": ledger.total,
            "held/bytes/limit": ledger.limit,
            **{f"held/{kind}/bytes": size for kind, size in zip(KINDS, ledger.held, strict=True)},
            "held/unfinished/bytes": ledger.unfinished,
            "held/refused": counters.refused_holders,
            "held/evicted": counters.evicted,
            "heap/current": _resident(),
            "heap/maximum": _largest(),
            "sockets": counters.sockets,
            "connections": counters.connects,
        }

    def _figures(self) -> dict[str, int]:
        """All numbers of this worker."""
        return self.totals() | {name: int(value) for name, value in self._of_parts().items() if value.isdigit()}

    def _of_parts(self) -> dict[str, str]:
        """What the parts of the broker say of themselves."""
        site, values = self._site, {}
        if site.persistence is not None:
            values.update(site.persistence.values())
        if site.tls is not None:
            values.update(site.tls.values())
        if site.websocket is not None:
            values.update(site.websocket.values())
        if site.registrar is not None:
            values.update(site.registrar.values())
        if site.roaming is not None:
            values.update(site.roaming.values())
        if site.attachments is not None:
            values.update(site.attachments.values())
        if site.overview is not None:
            values.update(site.overview.values())
        return values

    def values(self) -> dict[str, str]:
        """name below `$SYS/broker` -> value."""
        site = self._site
        now = site.context.loop.time()
        totals = self.broker_totals()
        values = self._of_parts() | {name: str(value) for name, value in totals.items() if name not in UNSAID}
        worker = site.config.worker
        values["name"] = site.config.broker_name
        values["clock"] = str(int(site.context.wall()))
        values["state"] = "; ".join(troubles(site) if self._shared is None else self._shared.troubles()) or OK
        values["version"] = f"mqmesh version {__version__}"
        values["uptime"] = f"{int(now - site.context.started if worker is None else site.context.wall() - worker.started)} seconds"
        values.update(self._load(totals, now))
        return values

    def _load(self, totals: dict[str, int], now: float) -> dict[str, str]:
        seconds, self._last = now - self._last, now
        values = {}
        for name, load in self._loads.items():
            load.update(totals[LOADS[name]], seconds)
            for minutes, value in zip(WINDOWS, load.values, strict=True):
                values[f"load/{name}/{minutes}min"] = f"{value:.2f}"
        return values


def _resident() -> int:
    """Resident memory in bytes (Linux; elsewhere the maximum so far)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return _largest()


def _largest() -> int:
    """The largest resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXIMUM_UNIT
