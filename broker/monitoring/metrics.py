"""A broker's numbers in Prometheus's exposition format (https://prometheus.io/docs/instrumenting/exposition_formats/).

Nothing is counted for it: each scrape reads the counters that `$SYS` topics show too. Names follow Prometheus's rules (base units, `_total`
at what only grows), labels are few: a neighbour, a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ... import __version__
from ..ledger import KINDS

if TYPE_CHECKING:
    from ..ledger import Ledger
    from ..site import Site


class Row(NamedTuple):
    """A number of `SysTopics.totals` and how it is called here."""

    total: str
    name: str
    help: str


COUNTERS = (
    Row("messages/received", "mqmesh_packets_received", "MQTT packets that came from clients."),
    Row("messages/sent", "mqmesh_packets_sent", "MQTT packets sent to clients."),
    Row("publish/messages/received", "mqmesh_publish_received", "PUBLISH packets that came from clients."),
    Row("publish/messages/sent", "mqmesh_publish_sent", "PUBLISH packets sent to clients."),
    Row(
        "publish/messages/repeated",
        "mqmesh_publish_repeated",
        "Messages that were known by their publisher's handle, and not delivered again.",
    ),
    Row("publish/messages/dropped", "mqmesh_publish_dropped", "Messages that were dropped for want of room or permission."),
    Row("bytes/received", "mqmesh_received_bytes", "Bytes that came from clients."),
    Row("bytes/sent", "mqmesh_sent_bytes", "Bytes sent to clients."),
    Row("sockets", "mqmesh_connections_accepted", "Network connections that listeners have accepted."),
    Row("connections", "mqmesh_connects", "Clients that were let in."),
    Row("clients/expired", "mqmesh_sessions_expired", "Sessions whose time ended while their clients were away."),
    Row("access/connects/refused", "mqmesh_connects_denied", "CONNECTs and wills that were not allowed."),
    Row("access/connects/late", "mqmesh_connect_timeouts", "Connections that did not send CONNECT in time."),
    Row("access/subscriptions/refused", "mqmesh_subscriptions_denied", "Subscriptions that were not allowed."),
    Row("access/publish/refused", "mqmesh_publish_denied", "Messages that were not allowed."),
    Row("limits/connections/refused", "mqmesh_connections_refused", "Connections and CONNECTs refused for want of room."),
    Row("limits/subscriptions/refused", "mqmesh_subscriptions_refused", "Subscriptions beyond limits.subscriptions."),
    Row("limits/clients/slowed", "mqmesh_clients_slowed", "How often a client was not read for a while, for its rate of messages."),
)
GAUGES = (
    Row("clients/connected", "mqmesh_clients_connected", "Clients that are connected."),
    Row("clients/disconnected", "mqmesh_sessions_away", "Sessions whose clients are away."),
    Row("subscriptions/count", "mqmesh_subscriptions", "Subscriptions of all sessions."),
    Row("shared_subscriptions/count", "mqmesh_shared_subscriptions", "Shared subscriptions, each counted once."),
    Row("retained messages/count", "mqmesh_retained_messages", "Retained messages."),
    Row("store/messages/count", "mqmesh_stored_messages", "Messages that wait for clients, and retained ones."),
)


Totals = Callable[[], dict[str, int]]  # name below `$SYS/broker` -> number


def registry(site: Site, totals: Totals) -> CollectorRegistry:
    """The registry of one broker: its own numbers, and those of its process."""
    found = CollectorRegistry()
    found.register(BrokerCollector(site, totals))
    ProcessCollector(registry=found)
    PlatformCollector(registry=found)
    return found


class BrokerCollector(Collector):
    """Reads a broker at each scrape; to be called in the broker's own thread."""

    def __init__(self, site: Site, totals: Totals) -> None:
        self._site = site
        self._totals = totals

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: the broker may not have started."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, as of now."""
        site = self._site
        totals = self._totals()
        info = GaugeMetricFamily("mqmesh_broker_info", "Always 1; which broker this is.", labels=["name", "number", "version"])
        info.add_metric([site.config.broker_name, str(site.config.number), __version__], 1)
        yield info
        yield _gauge("mqmesh_uptime_seconds", "Seconds since the broker started.", site.context.loop.time() - site.context.started)
        for row in COUNTERS:
            yield _counter(row.name, row.help, totals[row.total])
        for row in GAUGES:
            yield _gauge(row.name, row.help, totals[row.total])
        counters, ledger = site.context.counters, site.context.ledger
        yield _counter("mqmesh_messages_expired", "Messages whose lifetime ended before they were sent.", counters.expired)
        yield _counter("mqmesh_protocol_errors", "Connections that were ended because of what the client sent.", counters.errors)
        yield _counter("mqmesh_loop_stalls", "Pieces of work that held the event loop for more than 20 ms.", counters.stalls)
        yield _gauge("mqmesh_loop_stall_maximum_seconds", "Processor time of the longest of them.", counters.stall_maximum)
        yield _gauge("mqmesh_loop_late_maximum_seconds", "By how much a timer came too late at most.", counters.late_maximum)
        yield _gauge("mqmesh_held_bytes", "Bytes of all that the broker holds in memory for somebody.", ledger.total)
        yield _gauge("mqmesh_held_bytes_limit", "The bound for mqmesh_held_bytes.", ledger.limit)
        yield _held(ledger)
        yield _counter("mqmesh_held_refused", "What was refused because its holder has its share of memory.", counters.refused_holders)
        yield _counter("mqmesh_held_evicted", "Connections closed because their holder has its share of memory.", counters.evicted)
        if site.tls is not None:
            yield _counter("mqmesh_tls_handshakes", "TLS handshakes that listeners have finished.", counters.tls_handshakes)
            yield _counter("mqmesh_tls_refused", "TLS handshakes of listeners that failed or did not end.", counters.tls_refused)
        if site.websocket is not None:
            yield _counter(
                "mqmesh_websocket_handshakes", "WebSocket handshakes that listeners have finished.", counters.websocket_handshakes
            )
            yield _counter("mqmesh_websocket_refused", "WebSocket handshakes that failed or did not end.", counters.websocket_refused)
            yield _counter("mqmesh_websocket_broken", "WebSockets ended because of what the peer sent.", counters.websocket_broken)
        yield from _store(site)
        yield from _roaming(site)
        yield from _recipients(site)
        yield from _queues(site)
        yield from _mesh(site)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _held(ledger: Ledger) -> Metric:
    held = GaugeMetricFamily("mqmesh_held_kind_bytes", "Parts of mqmesh_held_bytes.", labels=["kind"])
    for kind, size in zip(KINDS, ledger.held, strict=True):
        held.add_metric([kind], size)
    return held


def _store(site: Site) -> Iterator[Metric]:
    persistence = site.persistence
    if persistence is not None:
        yield _gauge("mqmesh_store_ok", "1 while the store takes what it is given, 0 while it does not.", float(persistence.error is None))
        yield _gauge("mqmesh_store_pending_bytes", "Bytes that wait for the store.", persistence.writer.bytes_pending)
        yield _counter("mqmesh_store_commits", "Commits of the store.", persistence.commits)
        bound = persistence.quota
        yield _gauge("mqmesh_store_full", "1 while the store has all that it may have, 0 while it has not.", float(bound.full))
        yield _gauge("mqmesh_store_bytes", "Bytes of all that the store keeps.", bound.stored)
        yield _gauge("mqmesh_store_bytes_limit", "The bound for mqmesh_store_bytes, 0 for none.", bound.limit)
        yield _gauge("mqmesh_store_sessions", "Sessions that the store keeps.", bound.sessions)
        yield _gauge("mqmesh_store_sessions_limit", "The bound for mqmesh_store_sessions, 0 for none.", bound.session_limit)
        yield _counter("mqmesh_store_refused_messages", "Messages that the store could not take.", bound.refused)
        yield _counter("mqmesh_store_refused_sessions", "Sessions that could not be kept for want of room.", bound.refused_sessions)


def _roaming(site: Site) -> Iterator[Metric]:
    if site.roaming is not None:
        moves = CounterMetricFamily("mqmesh_roaming", "Sessions that moved between brokers, by what happened.", labels=["what"])
        for what, count in site.roaming.roamer.counts.items():
            moves.add_metric([what], count)
        yield moves


def _recipients(site: Site) -> Iterator[Metric]:
    if site.overview is None:
        return
    totals = site.overview.totals()
    states = GaugeMetricFamily("mqmesh_recipients", "Recipients whose home is here, by state.", labels=["state"])
    for state in ("operational", "fault", "defunct"):
        states.add_metric([state], totals[state])
    yield states
    yield _counter("mqmesh_failed_over", "Messages that recipients here did not take, and that went on to others.", totals["failed_over"])
    yield _counter("mqmesh_returned", "Messages that went back to who published them.", totals["returned"])
    yield _counter(
        "mqmesh_dead_lettered", "Messages that nobody took, and that nobody is there for to be returned to.", totals["dead_lettered"]
    )
    yield _counter("mqmesh_repeated", "Messages among those that failed over that the first recipient may have too.", totals["repeated"])


def _queues(site: Site) -> Iterator[Metric]:
    """Those of each queue are in `queue_metrics.py`."""
    if site.queues is None or not site.queues.settings.rules:
        return
    yield _gauge("mqmesh_queues_memory_bytes", "Payloads of queues in memory.", site.queues.store.resident)


def _mesh(site: Site) -> Iterator[Metric]:
    if site.mesh is None:
        return
    status: dict[str, Any] = site.mesh.status()
    up = GaugeMetricFamily("mqmesh_mesh_link_up", "1 for a link that is up, 0 for one that is dialled in vain.", labels=["peer", "address"])
    cost = GaugeMetricFamily("mqmesh_mesh_link_cost", "The cost of a link.", labels=["peer", "address"])
    for link in status["links"]:
        labels = [str(link["name"] or link["number"] or ""), link["address"]]
        up.add_metric(labels, float(link["up"]))
        cost.add_metric(labels, link["cost"])
    yield up
    yield cost
    reachable = GaugeMetricFamily("mqmesh_mesh_member_reachable", "1 for a broker that a path leads to.", labels=["name", "number"])
    held = GaugeMetricFamily("mqmesh_mesh_member_held_messages", "Messages held until that broker has them.", labels=["name", "number"])
    for member in status["members"]:
        labels = [member["name"], str(member["number"])]
        reachable.add_metric(labels, float(member["live"]))
        held.add_metric(labels, member["open"])
    yield reachable
    yield held
    yield _gauge("mqmesh_mesh_custody_messages", "Messages held for other brokers.", status["custody"]["messages"])
    yield _gauge("mqmesh_mesh_custody_bytes", "Bytes held for other brokers.", status["custody"]["bytes"])
    for name, value in status["counters"].items():
        yield _counter(f"mqmesh_mesh_{name}", f"Counter `{name}` of the mesh, see docs/monitoring.md.", value)
