"""The configuration of one worker, from that of its broker: a member of a mesh inside the machine (docs/workers.md).

What only one process can have is at the first worker: listeners on Unix sockets, the HTTP face, queues, the metabroker inside. Its data
folder is the broker's own, so that a broker that gets workers keeps what it has. What a limit bounds for the whole broker is divided.
"""

from __future__ import annotations

from dataclasses import replace

from ...base.address import parse_address
from ...mesh.topology.listeners import CLIENTS, LINKS
from ...mesh.topology.settings import START_WAIT, Limits, MeshSettings, PeerSettings
from ..config import RENEWED, BrokerConfig
from ..settings.workers import FOLDER, Worker

MESH = "workers"
SILENCE = 10.0  # seconds: a worker that dies closes its sockets; only one that stands still is silent
ROAM_WAIT = 20.0  # seconds: a worker that died is started again, with the sessions that it has
RETRY = 0.02, 0.5  # seconds between attempts to dial a worker that starts: first, longest
LONGEST_NAME = 60  # characters of the broker's name that its workers' names have
SHARED_LIMITS = ("connections", "broker_bytes", "stored_bytes", "stored_sessions", "publisher_handles")


def name_of(config: BrokerConfig, index: int) -> str:
    """The name of a worker."""
    return f"{config.name[:LONGEST_NAME]}.{index}"


def worker_of(config: BrokerConfig, worker: Worker) -> BrokerConfig:
    """The configuration of one worker of a broker."""
    index, data = worker.index, config.data
    found = replace(config, name=name_of(config, index), number=config.number + index, worker=worker, limits=_limits(config.limits, worker))
    taken = [one for one in worker.listen if worker.first or parse_address(one).scheme != "unix"] if worker.serves else []
    found.listen = [*taken, worker.socket(index)]
    found.serves = dict.fromkeys(taken, CLIENTS) | {worker.socket(index): LINKS}
    found.mesh = _mesh(config, worker)
    names = tuple(name_of(config, one) for one in range(worker.total))
    found.management = replace(config.management, accept=(*config.management.accept, *names))
    if worker.first:
        return found
    if data is not None:
        found.data = data / FOLDER.format(index)
        if config.access is not None:
            found.access = replace(config.access, renewed=found.data / RENEWED)
    found.http = found.queues = None
    if config.metabroker is not None:
        found.metabroker = replace(config.metabroker, inside=None)
    return found


def _mesh(config: BrokerConfig, worker: Worker) -> MeshSettings:
    """Every worker dials those before it."""
    peers = [PeerSettings(worker.socket(index), number=config.number + index) for index in range(worker.index)]
    brokers = {name_of(config, index): config.number + index for index in range(worker.total)}
    first, longest = RETRY
    return MeshSettings(
        MESH,
        worker.key,
        peers=peers,
        brokers=brokers,
        clients="roam",
        roam_wait=ROAM_WAIT,
        silence=SILENCE,
        retry_first=first,
        retry_last=longest,
        start_wait=START_WAIT,
    )


def _limits(limits: Limits, worker: Worker) -> Limits:
    values = {name: getattr(limits, name) for name in SHARED_LIMITS}
    return replace(limits, **{name: max(1, value // worker.total) for name, value in values.items() if value})
