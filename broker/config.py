"""The configuration of one broker: a TOML file, the command line's additions, or one broker of a topology.

    name = "porto"                          # 1 to 64 letters, digits, '.', '_', '-'
    number = 1                              # 0 to 65535, unique in the mesh
    listen = ["mqtt://127.0.0.1:1883"]      # also mqtts://, ws://, wss://, unix:///run/mqmesh.sock; port 0 takes any free port;
                                            # { address = "mqtt://10.0.0.1:1883", serves = "links" } says whom a listener serves
    data = "data/porto"                     # folder of what must survive a restart; relative to the file
    workers = 4                             # processes, or "auto" for one a core; left out: one (docs/workers.md)
    folder = "/etc/mqmesh"                  # what relative paths are relative to; left out: the folder of the file

    [mesh]                                  # left out: a broker alone
    name = "sites"
    key = "a secret of 16 bytes or more"
    mode = "routed"                         # or "flood"
    [[mesh.peer]]
    address = "mqtt://127.0.0.1:1884"
    cost = 1
    number = 2

    [tls]                                   # see mesh/topology/tls.py; for mqtts:// listeners and links
    certificate = "tls/porto.crt"
    key = "tls/porto.key"
    ca = "tls/ca.crt"

    [websocket]                             # see mesh/topology/websocket.py; for ws:// and wss:// listeners
    origins = ["https://app.example.com"]

    [directory]                             # see broker/settings/directory.py
    url = "http://127.0.0.1:8090"
    account = "plant-a"
    secret_file = "directory.secret"

    [store]                                 # left out: SQLite in the data folder; without a data folder, memory
    kind = "sqlite"                         # or "lmdb", "postgresql", "memory"
    durability = "fsync"                    # or "os", "memory"

    [http]                                  # left out: no /metrics, /health, /ready
    listen = "http://127.0.0.1:9883"

    [access]                                # who may come in and what it may do; see broker/auth/settings.py
    users = "users"

    [metabroker]                            # who is the metabroker; see docs/metabroker.md
    password_file = "metabroker.password"

    [queues.orders]                         # a queue, and what it is set to; see docs/queues.md
    [recipients]                            # who is watched, and who stands in for whom; see docs/recipients.md
    fault_interval = "5m"
    [management]                            # who may look into the broker and change it; see broker/auth/roles.py
    accept = ["lyon"]

    [interchange]                           # services that find and call each other; see broker/settings/interchange.py
    services = "services.toml"

    [journal]                               # left out: no journal; see broker/journal/settings.py
    folder = "journal"

    [[attach]]                              # a broker that is no member of the mesh; see broker/settings/attach.py
    name = "plant"
    address = "mqtt://10.0.0.7:1883"

    [limits]                                # see `Limits` and docs/configuration.md
    session_queue_bytes = "64 MiB"

Reading ends in a `BrokerConfig` whose every value has been checked, or in a `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..base.settings import MISSING, ConfigError, Section, merged, read
from ..mesh.topology.listeners import read_listeners
from ..mesh.topology.rules import OTHERS, SHUT, UNRULED, LinkRules, rules_by_peer, rules_of
from ..mesh.topology.settings import START_WAIT, Limits, MeshSettings, PeerSettings, number_of
from ..mesh.topology.tls import TlsSettings, check
from ..mesh.topology.websocket import WebSocketSettings
from ..mesh.wire.identity import HIGHEST_NUMBER
from ..store.base import StoreError
from ..store.locations import path_of
from .auth.metabroker_secret import MetabrokerSettings
from .auth.roles import ManagementSettings
from .auth.settings import AccessSettings
from .journal.settings import JournalSettings
from .queues.settings import QueueSettings
from .recipients.settings import RecipientSettings
from .settings.attach import AttachSettings, attachments_of
from .settings.directory import BY_NAME, DirectorySettings
from .settings.http import HttpAddress, http_address
from .settings.interchange import InterchangeSettings
from .settings.workers import Worker, workers_of

if TYPE_CHECKING:
    from ..mesh.topology.topology import Topology

__all__ = [
    "AttachSettings",
    "BrokerConfig",
    "DirectorySettings",
    "Limits",
    "MeshSettings",
    "MetabrokerSettings",
    "PeerSettings",
    "RecipientSettings",
    "StoreSettings",
    "TlsSettings",
    "WebSocketSettings",
    "load",
    "of_topology",
    "parse",
]

DEFAULT_NAME = "mqmesh"
DEFAULT_LISTEN = "mqtt://127.0.0.1:1883"
STORES = ("sqlite", "lmdb", "postgresql", "memory")
STORE_URLS = "give sqlite:///path/store.db, lmdb:///path/folder, postgresql://user@host/database?schema=name or memory:"
DURABILITIES = ("fsync", "os", "memory")
RENEWED = "renewed-passwords"  # in the data folder, see auth/renewed_passwords.py
UNASSIGNED = -1  # the number of a broker that gets one from its directory


@dataclass(slots=True)
class StoreSettings:
    """What keeps sessions, queues and retained messages: the table `[store]` of a broker's file. See docs/store.md.

    kind: which store; None: SQLite if there is a data folder, else memory. path: its file (sqlite) or folder (lmdb); None: in the
    data folder. url: of a PostgreSQL server. durability: what an acknowledgement waits for. pending_bytes: what may wait for the
    store before publishers who need it are not read. on_damage: what a start does with a store that the disk has damaged.
    """

    kind: str | None = None
    path: Path | None = None
    url: str | None = field(default=None, repr=False)
    durability: str = "fsync"
    pending_bytes: int = 32 * 2**20
    on_damage: str = "salvage"


@dataclass(slots=True)
class BrokerConfig:
    """One broker.

    name, number: unique in the mesh; UNASSIGNED until its directory has given it one. listen: addresses for `parse_address`, at least
    one. data: folder of what survives a restart, None to keep everything in memory. mesh: None for a broker alone. limits: what it
    grants and keeps to. store: where and how what must survive is kept. tls: its certificates, None without. http: address of
    `/metrics`, `/health` and `/ready`, None for nowhere. websocket: which web pages may connect. metabroker: the rule for its topics;
    None: there is none. directory: where it is registered, None for nowhere. access: who may come in and what it may do; None: all, all.
    serves: whom listeners serve that say it, by address (mesh/topology/listeners.py). listeners: names of those that have one, by
    address. recipients: the applications that it watches; None: no topic is reserved for them. queues, interchange: None for none.
    journal: what it writes down, None for nothing. management: roles of users. attach: brokers that are no members of the mesh, and
    that it brings in. workers: processes that it is to have. worker: which of them this is; None: the only one, or what starts them.
    """

    name: str = DEFAULT_NAME
    number: int = 0
    listen: list[str] = field(default_factory=lambda: [DEFAULT_LISTEN])
    data: Path | None = None
    mesh: MeshSettings | None = None
    limits: Limits = field(default_factory=Limits)
    store: StoreSettings = field(default_factory=StoreSettings)
    tls: TlsSettings | None = None
    http: HttpAddress | None = None
    websocket: WebSocketSettings = field(default_factory=WebSocketSettings)
    metabroker: MetabrokerSettings | None = field(default_factory=MetabrokerSettings)
    directory: DirectorySettings | None = None
    access: AccessSettings | None = None
    serves: dict[str, str] = field(default_factory=dict)
    listeners: dict[str, str] = field(default_factory=dict)
    recipients: RecipientSettings | None = None
    queues: QueueSettings | None = None
    interchange: InterchangeSettings | None = None
    journal: JournalSettings | None = None
    management: ManagementSettings = field(default_factory=ManagementSettings)
    attach: list[AttachSettings] = field(default_factory=list)
    workers: int = 1
    worker: Worker | None = None

    @property
    def broker_name(self) -> str:
        """The name of the whole broker, also at one of its workers."""
        return self.name if self.worker is None else self.worker.name

    @property
    def store_address(self) -> str | None:
        """The address for `broker.store.locations.store_at`; None when nothing is kept."""
        store = self.store
        kind = store.kind or ("sqlite" if self.data is not None or store.path is not None else "memory")
        if kind == "memory" or store.durability == "memory":
            return None
        if kind == "postgresql":
            return store.url
        path = store.path
        if path is None:
            assert self.data is not None
            path = self.data / ("store.db" if kind == "sqlite" else "store")
        return f"{kind}://{quote(str(path.absolute()))}"


def load(path: str | Path, extra: Mapping[str, Any] | None = None) -> BrokerConfig:
    """Read a broker's file; `extra` (the same keys as the file) goes over what it says. Raises ConfigError."""
    section = read(path)
    table = merged(section.table, extra or {})
    return parse(table, section.file, Path(path).parent)


def parse(table: Mapping[str, Any], file: str = "command line", folder: Path | None = None) -> BrokerConfig:
    """Check a table of the file's shape. folder: what relative paths are relative to, if it does not say so. Raises ConfigError."""
    section = Section(file, table)
    folder = section.path_of("folder", folder, "give what relative paths are relative to") if section.has("folder") else folder
    with_directory = section.has("directory")
    mesh = _mesh(section.section("mesh"), with_directory) if section.has("mesh") else None
    name = section.name("name", MISSING if mesh or with_directory else DEFAULT_NAME)  # a member of a mesh has to say who it is
    right, least = 'give a list such as ["mqtt://127.0.0.1:1883"]', 'give at least one address, as ["mqtt://127.0.0.1:1883"]'
    listen, serves, names = read_listeners(section, right, mesh is not None, DEFAULT_LISTEN, least)
    config = BrokerConfig(name, UNASSIGNED, listen, _data(section, folder), mesh, serves=serves, listeners=names)
    config.tls = TlsSettings.of(section.section("tls"), name, folder) if section.has("tls") else None
    _read_tables(config, section, folder)
    if config.access is not None:
        config.access.check_listeners(section.section("access"), {*config.listeners.values()})
    config.number = _number(section, mesh, config.directory)
    config.workers = _workers(section, config)
    section.done()
    peers = [(f"mesh.peer[{i}].address", peer.address) for i, peer in enumerate(mesh.peers if mesh else (), 1)]
    dialled = [(where, address) for where, address in peers if not address.startswith(BY_NAME)]
    check(section.file, config.tls, ("listen", config.listen), mesh, dialled)
    return config


def _read_tables(config: BrokerConfig, section: Section, folder: Path | None) -> None:
    """Read the tables that a broker's file and a topology say alike (`TABLES` in mesh/topology/topology.py). Raises ConfigError."""
    mesh = config.mesh
    config.directory = _directory(section.section("directory"), mesh, config.listen, folder) if section.has("directory") else None
    config.access = AccessSettings.of(section.section("access"), folder) if section.has("access") else None
    if config.access is not None and config.data is not None:
        config.access.renewed = config.data / RENEWED
    config.limits = Limits.of(section.section("limits"))
    config.store = _store(section.section("store"), folder, config.data is not None)
    config.http = _http(section.section("http")) if section.has("http") else None
    config.websocket = WebSocketSettings.of(section.section("websocket"))
    config.metabroker = MetabrokerSettings.of(section.section("metabroker"), folder)
    config.recipients = RecipientSettings.of(section.section("recipients")) if section.has("recipients") else None
    if config.recipients is not None and mesh is not None and mesh.clients == "roam":
        right = "give \"site\" where there is a table [recipients]: the session of a recipient's client stays at the recipient's home"
        raise ConfigError(section.file, "mesh.clients", mesh.clients, right)
    if section.has("management"):
        proven = config.access is not None and config.access.asks
        config.management = ManagementSettings.of(section.section("management"), proven)
    if section.has("interchange"):
        config.interchange = InterchangeSettings.of(section.section("interchange"), folder)
    if section.has("queues") or config.interchange is not None:  # its inboxes are queues
        config.queues = QueueSettings.of(section.section("queues"), config.data, config.store.durability, folder, config.name)
    if section.has("journal"):
        config.journal = JournalSettings.of(section.section("journal"), folder, config.data)
    config.attach = attachments_of(section.sections("attach"), folder, mesh is not None and mesh.clients == "roam")


def of_topology(topology: Topology, name: str, data: str | Path | None = None) -> BrokerConfig:
    """The configuration of the broker `name` of a topology.

    data: a folder in which each broker gets one of its own; without it the topology's `data` for that broker counts, and
    without either the broker keeps everything in memory. Each link is dialled by one of its two ends, see `Link.dialler`.
    KeyError for a name that the topology does not have, ConfigError for a mistake in its tables.
    """
    broker = topology.broker(name)
    peers = [
        PeerSettings(topology.dial_address(link), link.cost, topology.broker(link.listener).number, link.listener)
        for link in topology.dialled_by(name)
    ]
    folder = Path(data) / name if data else broker.data
    mesh = replace(topology.mesh, peers=peers, rules=_rules_of_topology(topology, name))
    if mesh.certified and mesh.brokers is None:
        mesh.brokers = {one.name: one.number for one in topology.brokers}
    if mesh.start_wait is None and any(name in link.ends for link in topology.links):
        mesh.start_wait = START_WAIT  # links will come, whoever dials them
    config = BrokerConfig(name, broker.number, list(broker.listen), folder, mesh, tls=broker.tls)
    config.serves, config.listeners = dict(broker.serves), dict(broker.listeners)
    try:
        _read_tables(config, Section(topology.file, topology.tables_of(name)), Path(topology.file).parent)
    except ConfigError as error:
        if error.key.partition(".")[0].partition("[")[0] not in broker.tables:
            raise
        key = f"broker[{topology.brokers.index(broker) + 1}].{error.key}"
        raise ConfigError(error.file, key, error.value, error.text) from None
    return config


def _number(section: Section, mesh: MeshSettings | None, directory: DirectorySettings | None) -> int:
    if mesh is not None and directory is not None and directory.register and not section.has("number"):
        return UNASSIGNED
    return number_of(section, "number", MISSING if mesh else 0)


def _workers(section: Section, config: BrokerConfig) -> int:
    """How many processes the broker is to have. Raises ConfigError for what only a broker of one process can do."""
    workers = workers_of(section)
    if workers > 1:
        why = needs_one_process(config)
        if why:
            raise section.error("workers", why)
        if config.number + workers - 1 > HIGHEST_NUMBER:
            raise section.error("workers", f"they have the numbers from {config.number} on, and {HIGHEST_NUMBER} is the highest")
    return workers


def needs_one_process(config: BrokerConfig) -> str:
    """Why a broker cannot have workers; empty: it can."""
    if config.mesh is not None:
        return "a broker of a mesh is one process: leave out workers or [mesh]"
    if config.directory is not None:
        return "a broker that a directory knows is one process: leave out workers or [directory]"
    if config.recipients is not None:
        return "sessions move between workers, and that of a recipient stays at its home: leave out workers or [recipients]"
    if config.interchange is not None:
        return "a broker with an interchange is one process: leave out workers or [interchange]"
    if config.attach:
        return "a broker that others are attached to is one process: leave out workers or [[attach]]"
    if config.store.path is not None or config.store.url is not None:
        return "each worker keeps a store of its own in the data folder: leave out store.path and store.url, and give data"
    return ""


def _directory(section: Section, mesh: MeshSettings | None, listen: list[str], folder: Path | None) -> DirectorySettings:
    settings = DirectorySettings.of(section, mesh.name if mesh else None, listen, folder)
    if settings.neighbours and mesh is not None and mesh.start_wait is None:
        mesh.start_wait = START_WAIT  # links will come
    return settings


def _http(section: Section) -> HttpAddress:
    address = http_address(section, "listen", ("http", "https"))
    section.done()
    return address


def _data(section: Section, folder: Path | None) -> Path | None:
    if not section.has("data"):
        return None
    return section.path_of("data", folder, "give the path of a folder")


def _store(section: Section, folder: Path | None, has_data: bool) -> StoreSettings:
    settings = StoreSettings(durability=section.choice("durability", DURABILITIES, "fsync"))
    settings.on_damage = section.choice("on_damage", ("salvage", "refuse"), "salvage")
    if section.has("kind"):
        settings.kind = section.choice("kind", STORES)
    if section.has("path"):
        settings.path = section.path_of("path", folder, "give the path of a file (sqlite) or a folder (lmdb)")
    if section.has("url"):
        _store_url(section, settings, folder)
    settings.pending_bytes = section.size("pending_bytes", 2**16, 2**40, settings.pending_bytes)
    kind = settings.kind
    if kind == "postgresql" and settings.url is None:
        raise section.error("url", "give the server, as postgresql://user@host/database?schema=name")
    if settings.path is not None and kind in ("postgresql", "memory"):
        raise section.error("path", f'kind = "{kind}" has no path: leave it out')
    if kind in ("sqlite", "lmdb") and settings.path is None and not has_data:
        raise section.error("kind", f'a {kind} store needs a place: give data (or --data), or store.path; or kind = "memory"')
    section.done()
    return settings


def _store_url(section: Section, settings: StoreSettings, folder: Path | None) -> None:
    """The store by its address, which says its kind."""
    url = section.string("url", right=STORE_URLS)
    scheme = url.partition(":")[0]
    kind = "postgresql" if scheme == "postgres" else scheme
    if kind not in STORES or (kind == "postgresql" and "://" not in url):
        raise section.secret_error("url", STORE_URLS)  # the value may hold a password
    if section.has("kind") and settings.kind != kind:
        raise section.secret_error("url", f'kind = "{settings.kind}" is another store than this: leave kind out')
    settings.kind = kind
    if kind == "postgresql":
        settings.url = url
    elif kind != "memory":
        if settings.path is not None:
            raise section.error("path", "the url says where the store is: leave path out")
        try:
            settings.path = (folder or Path()) / path_of(url)
        except StoreError:
            raise section.secret_error("url", STORE_URLS) from None


def _mesh(section: Section, with_directory: bool) -> MeshSettings:
    settings = MeshSettings.of(section)
    for one in section.sections("peer"):
        number = number_of(one, "number") if one.has("number") else None
        name = one.name("name") if one.has("name") else None
        by_name = with_directory and name is not None and not one.has("address")
        address = f"{BY_NAME}{name}" if by_name else one.address("address")
        settings.peers.append(PeerSettings(address, one.whole("cost", 1, 65535, 1), number, name))
        if one.has("policy"):
            if number is None:
                raise one.error("number", "a policy needs the neighbour's number, so that it counts too when the neighbour dials")
            if number in settings.rules:
                raise one.error("policy", f"number {number} has a policy already: leave one out")
            settings.rules[number] = rules_of(one.section("policy"))
        one.done()
    if section.has("policy"):
        table = section.section("policy")
        for peer, rules in rules_by_peer(table).items():
            if peer in settings.rules:
                raise table.error(str(peer), f"the [[mesh.peer]] with number {peer} has a policy already: leave one out")
            settings.rules[peer] = rules
    section.done()
    if settings.mode == "flood" and any(not rules.policy.open for rules in settings.rules.values()):
        raise section.error("mode", 'a mesh with policies of topics needs mode = "routed": nothing is flooded over a link with a policy')
    return settings


def _rules_of_topology(topology: Topology, name: str) -> dict[int | str, LinkRules]:
    """One broker's rules by its neighbours' numbers. In a file with a policy of topics, links that it does not name carry nothing."""
    if not any(link.rules for link in topology.links):
        return {}
    found: dict[int | str, LinkRules] = {}
    for link in topology.links:
        if name in link.ends:
            (other,) = link.ends - {name}
            found[topology.broker(other).number] = link.rules.get(name, UNRULED)
    if topology.guarded:
        found[OTHERS] = SHUT
    return found
