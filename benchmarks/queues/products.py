"""What queues are measured beside: each product set so that what it confirms is on the disk, as far as it can promise that.

- mqmesh: `mqmesh broker` with one queue, `durability = "fsync"`. `mqmesh STORE`: the queue names another store.
- redis: a stream and a consumer group, `appendfsync always`.
- nats: JetStream with a stream in files and a pull consumer. Version 2.9 confirms before fsync; `sync_interval: always` came with 2.10.
- rabbitmq: a quorum queue of one node.
- postgresql: a table, DELETE of what SKIP LOCKED finds, 250 rows at a time, `fsync` and `synchronous_commit` on.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers import Deployment, binary, first_line, free_port, listens, says_ready
from benchmarks.recipients.systems import system

USER = "bench"


class Product(ABC):
    """A queue product. protocol: what the load generator speaks with it. protocols: and where clients say more, by what that is."""

    protocol = ""
    protocols: Mapping[str, str] = {}

    @abstractmethod
    def version(self) -> str:
        """The installed version. PeerError if there is none."""

    @abstractmethod
    def deploy(self, folder: Path) -> Deployment:
        """Start it. PeerError if it does not start."""


class Mqmesh(Product):
    """A broker of this repository. store: of the queue; for PostgreSQL a server is started too."""

    protocol, protocols = "mqtt", {"properties": "mqtt-properties", "reorders": "mqtt-reorders"}

    def __init__(self, store: str = "log") -> None:
        self.store = store
        self.python = [sys.executable]  # a profiler replaces it

    def version(self) -> str:
        return first_line([sys.executable, "-m", "mqmesh.cli.main", "--version"])

    def deploy(self, folder: Path) -> Deployment:
        store, beside = self.store, None
        if store == "postgresql":
            beside = PostgreSQL().deploy(folder.parent / f"{folder.name}-postgresql")
            store = f"postgresql://{USER}@127.0.0.1:{beside.ports[0]}/postgres"
        folder.mkdir(parents=True)
        deployment = Deployment(folder, ports=[free_port()])
        config = folder / "broker.toml"
        lines = [f'listen = ["mqtt://127.0.0.1:{deployment.ports[0]}"]', f'data = "{folder}/data"', "[queues.orders]", f'store = "{store}"']
        config.write_text("\n".join(lines) + "\n")
        try:
            deployment.start("mqmesh", [*self.python, "-m", "mqmesh.cli.main", "broker", "--config", str(config)], says_ready)
        except BaseException:
            if beside is not None:
                beside.stop()
            raise
        deployment.processes += beside.processes if beside is not None else []
        return deployment


class Other(Product):
    """A product that the benchmark of recipients starts too. name: there."""

    def __init__(self, name: str, protocol: str) -> None:
        self.name = name
        self.protocol = protocol

    def version(self) -> str:
        return system(self.name, False).version()

    def deploy(self, folder: Path) -> Deployment:
        return system(self.name, False).deploy(folder)


class Redis(Product):
    """A server with an append-only file."""

    protocol = "redis"

    def version(self) -> str:
        return first_line([binary("REDIS_SERVER", "redis-server"), "--version"])

    def deploy(self, folder: Path) -> Deployment:
        folder.mkdir(parents=True)
        deployment = Deployment(folder, ports=[free_port()])
        options = ["--port", str(deployment.ports[0]), "--bind", "127.0.0.1", "--dir", str(folder)]
        options += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        deployment.start("redis", [binary("REDIS_SERVER", "redis-server"), *options], listens(deployment.ports[0]))
        return deployment


class PostgreSQL(Product):
    """A cluster of its own. It is not run by root, who becomes the user `postgres` for it."""

    protocol = "postgresql"

    def version(self) -> str:
        return first_line([binary("POSTGRES", "postgres"), "--version"])

    def deploy(self, folder: Path) -> Deployment:
        postgres = Path(binary("POSTGRES", "postgres")).resolve()
        folder.mkdir(parents=True)
        become: list[str] = []
        if os.getuid() == 0:
            owner = pwd.getpwnam("postgres")
            shutil.chown(folder, owner.pw_uid, owner.pw_gid)
            become = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        data = str(folder / "data")
        made = [*become, str(postgres.parent / "initdb"), "-D", data, "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C"]
        subprocess.run(made, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        deployment = Deployment(folder, ports=[free_port()])
        command = [*become, str(postgres), "-D", data, "-k", str(folder), "-p", str(deployment.ports[0])]
        deployment.start("postgresql", [*command, "-c", "listen_addresses=127.0.0.1"], listens(deployment.ports[0]))
        return deployment


PRODUCTS: dict[str, Product] = {
    "mqmesh": Mqmesh(),
    "mqmesh sqlite": Mqmesh("sqlite"),
    "mqmesh lmdb": Mqmesh("lmdb"),
    "mqmesh postgresql": Mqmesh("postgresql"),
    "redis": Redis(),
    "nats": Other("jetstream", "nats"),
    "rabbitmq": Other("rabbitmq", "amqp"),
    "postgresql": PostgreSQL(),
}
DEFAULT = ("mqmesh", "redis", "nats", "rabbitmq", "postgresql")
