"""`$SYS`: what the broker says of itself, under the names that users of other brokers know.

Values are published, retained, every `sys_interval` seconds, each only when it changed. `$SYS/broker/mesh/...` is this
project's own: one JSON object that says who is linked and what has been carried.
"""

from __future__ import annotations

import asyncio
import json
import resource
from typing import TYPE_CHECKING

from ... import __version__
from ...mqtt.batch.run import Run
from ..persistence.quota import OK
from .health import troubles

if TYPE_CHECKING:
    from ..server import Broker

PAGE = resource.getpagesize()
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

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._said: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._loads = {name: Load() for name in LOADS}

    def start(self) -> None:
        interval = self._broker.config.limits.sys_interval
        if interval:
            self._last = self._broker.loop.time()
            self._timer = self._broker.loop.call_soon(self._issue)  # type: ignore[assignment]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _issue(self) -> None:
        broker = self._broker
        broker.now = broker.loop.time()
        for name, value in self.values().items():
            self.say(f"$SYS/broker/{name}", value)
        broker.flush()
        self._timer = broker.loop.call_later(broker.config.limits.sys_interval, self._issue)

    def say(self, topic: str, value: str) -> None:
        """Publish one value, retained, if it changed."""
        if self._said.get(topic) != value:
            self._said[topic] = value
            self._broker.issue(Run(topic.encode(), 0, True, [value.encode()], received=self._broker.now))

    def say_json(self, topic: str, value: object) -> None:
        """Publish an object as JSON."""
        self.say(topic, json.dumps(value, separators=(",", ":"), sort_keys=True))

    def totals(self) -> dict[str, int]:
        """name below `$SYS/broker` -> number, as of now; `sockets` and `connections` have no topic of their own."""
        broker = self._broker
        counters = broker.counters
        connections = broker.connections
        sent = broker.sent_before + sum(connection.sent for connection in connections)
        received = broker.received_before + sum(connection.received for connection in connections)
        connected = sum(1 for session in broker.sessions if session.connection is not None)
        counters.clients_maximum = max(counters.clients_maximum, connected)
        return {
            "messages/received": counters.packets_received + received,
            "messages/sent": counters.packets_sent + sent,
            "publish/messages/received": received,
            "publish/messages/sent": sent,
            "publish/messages/dropped": counters.dropped,
            "publish/bytes/received": counters.publish_bytes_received,
            "publish/bytes/sent": counters.publish_bytes_sent,
            "bytes/received": counters.bytes_received,
            "bytes/sent": counters.bytes_sent,
            "clients/connected": connected,
            "clients/disconnected": len(broker.sessions) - connected,
            "clients/active": connected,
            "clients/inactive": len(broker.sessions) - connected,
            "clients/total": len(broker.sessions),
            "clients/maximum": counters.clients_maximum,
            "clients/expired": counters.clients_expired,
            "subscriptions/count": broker.router.subscriptions,
            "shared_subscriptions/count": len(broker.router.groups),
            "retained messages/count": len(broker.retained),
            "store/messages/count": sum(session.queued for session in broker.sessions) + len(broker.retained),
            "store/messages/bytes": broker.account.queued + broker.retained.bytes,
            "messages/stored": sum(session.queued for session in broker.sessions) + len(broker.retained),
            "access/connects/refused": counters.denied_connects,
            "access/subscriptions/refused": counters.denied_subscriptions,
            "access/publish/refused": counters.denied_messages,
            "access/protocol/errors": counters.errors,
            "access/connects/late": counters.connect_timeouts,
            "limits/connections/refused": counters.refused_connections,
            "limits/subscriptions/refused": counters.refused_subscriptions,
            "limits/clients/slowed": counters.slowed,
            "held/bytes": broker.account.total,
            "held/bytes/limit": broker.account.limit,
            "heap/current": _resident(),
            "heap/maximum": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "sockets": counters.sockets,
            "connections": counters.connects,
        }

    def values(self) -> dict[str, str]:
        """name below `$SYS/broker` -> value."""
        broker = self._broker
        now = broker.loop.time()
        totals = self.totals()
        values = {name: str(value) for name, value in totals.items() if name not in UNSAID}
        if broker.durable is not None:
            values.update(broker.durable.values())
        if broker.tls is not None:
            values.update(broker.tls.values())
        if broker.websocket is not None:
            values.update(broker.websocket.values())
        if broker.registrar is not None:
            values.update(broker.registrar.values())
        if broker.roaming is not None:
            values.update(broker.roaming.values())
        values["name"] = broker.config.name
        values["clock"] = str(int(broker.wall()))
        values["state"] = "; ".join(troubles(broker)) or OK
        values["version"] = f"mqmesh version {__version__}"
        values["uptime"] = f"{int(now - broker.started)} seconds"
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
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
