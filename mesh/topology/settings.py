"""The settings that the file of one broker and a topology file share: `Limits` and `MeshSettings`.

All defaults of a broker are the defaults of these two classes and have no second place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ...base.settings import MISSING, NAME, SECRET, ConfigError, Section
from ...mqtt.errors import MqttError
from ...mqtt.length import LARGEST_PACKET
from ...mqtt.topics import check_filter
from ..custody.bounds import CustodyBounds
from ..wire.identity import HIGHEST_NUMBER, OLDEST, PROTOCOL
from ..wire.keys import given_keys
from .custody import custody_of

if TYPE_CHECKING:
    from .rules import LinkRules

SHORTEST_KEY = 16
HIGHEST_COST = 65535  # of a link
START_WAIT = 2.0  # seconds
MODES = ("routed", "flood")
AUTHS = ("key", "certificate", "both")  # how the brokers of a mesh prove who they are
WEEK = 7 * 86_400.0
CLIENTS = ("site", "roam")
VERSIONS = ("3.1", "3.1.1", "5")  # of MQTT
ACKS = ("custody", "receipts")
SHARES = ("once", "available")  # what happens to a message whose shared subscription's member went with its site
MEMORY_QUEUE = (100_000, 64 * 2**20)  # messages and bytes that may wait in one session in memory
DISK_QUEUE = (10_000_000, 8 * 2**30)  # the same when a store keeps the session


def _limit(default: Any, kind: str, low: float, high: float, text: str) -> Any:
    return field(default=default, metadata={"kind": kind, "low": low, "high": high, "text": text})


def _flag(default: bool, text: str) -> Any:
    return field(default=default, metadata={"kind": "flag", "text": text})


@dataclass(slots=True)
class Limits:
    """What one broker grants and keeps to: the table `[limits]` of its file or of a topology. See docs/configuration.md."""

    max_packet_size: int = _limit(2**20, "size", 20, LARGEST_PACKET, "largest packet taken from a client, bytes")
    unsent_bytes: int = _limit(
        16 * 2**20,
        "size",
        4096,
        2**40,
        "unsent bytes of one connection; past it QoS 0 is dropped and counted, QoS 1 and 2 wait in the session",
    )
    link_unsent_bytes: int = _limit(
        8 * 2**20,
        "size",
        65_536,
        2**40,
        "unsent bytes of one link; past it a relay drops what others sent, and their origins send it again",
    )
    session_queue_messages: int | None = _limit(
        None, "whole", 1, 10**9, "messages that wait in one session; left out: 100000, on disk 10000000"
    )
    session_queue_bytes: int | None = _limit(
        None,
        "size",
        1024,
        2**40,
        "bytes of messages that wait in one session; left out: 64 MiB, on disk 8 GiB",
    )
    session_queue_age: float | None = _limit(None, "seconds", 1, 2**32, "seconds that a message may wait in a session")
    session_memory_bytes: int = _limit(8 * 2**20, "size", 4096, 2**40, "bytes in memory of one session that is kept on disk")
    receive_maximum: int = _limit(65535, "whole", 1, 65535, "unacknowledged QoS 1 and 2 messages taken from one client")
    in_flight: int = _limit(4096, "whole", 1, 65535, "unacknowledged QoS 1 and 2 messages sent to a client that names no Receive Maximum")
    topic_alias_maximum: int = _limit(64, "whole", 0, 65535, "topic aliases that a client may use")
    keep_alive_maximum: int = _limit(0, "whole", 0, 65535, "longest keep-alive granted, seconds; 0 takes any")
    session_expiry_maximum: int | None = _limit(None, "whole", 0, 2**32 - 1, "longest session expiry granted, seconds")
    broker_bytes: int = _limit(
        2**30,
        "size",
        2**20,
        2**50,
        "bytes of all that the broker holds in memory; see docs/memory.md",
    )
    stored_bytes: int | None = _limit(
        None,
        "size",
        0,
        2**60,
        "bytes that the store keeps in all; more is refused (0x97); 0: no bound. "
        "Left out: half of the disk's space at the start; in memory broker_bytes; for PostgreSQL no bound",
    )
    stored_sessions: int = _limit(
        1_000_000, "whole", 0, 10**9, "sessions kept when their connections end; CONNECT refuses more (0x97); 0: no bound"
    )
    sys_interval: float = _limit(10.0, "seconds", 0, 86400, "seconds between two issues of the $SYS topics; 0 for none")
    connect_timeout: float = _limit(
        10.0,
        "seconds",
        0.1,
        3600,
        "seconds for a CONNECT, and for a TLS, WebSocket or dialled link's handshake",
    )

    connections: int | None = _limit(
        None,
        "whole",
        1,
        10**7,
        "connections after CONNECT; more are refused (0x97). Left out: as many as there are file descriptors",
    )
    connecting_per_address: int = _limit(
        5000,
        "whole",
        1,
        10**7,
        "connections from one address that have not logged in; more are closed at once",
    )
    link_handshakes: int = _limit(
        100,
        "whole",
        1,
        10**7,
        "dialled links that have not proved the key; with more, the oldest of the address that has most is closed",
    )
    link_timeout: float = _limit(5.0, "seconds", 0.1, 3600, "seconds that such a link has for its handshake")
    subscriptions: int | None = _limit(None, "whole", 1, 10**9, "subscriptions of one session; SUBACK refuses more (0x97)")
    packet_properties: int = _limit(1000, "whole", 1, 10**6, "properties of one packet, and of the will in it; more: disconnected (0x97)")
    packet_filters: int = _limit(4000, "whole", 1, 10**6, "topic filters of one SUBSCRIBE or UNSUBSCRIBE; more: disconnected (0x97)")
    message_rate: int | None = _limit(None, "whole", 1, 10**9, "messages a second from one client; one that sends more is read more slowly")

    publisher_handles: int = _limit(
        200_000,
        "whole",
        1,
        10**7,
        "remembered handles of publishers (user property mqmesh-handle); with more, the user that has most loses its oldest",
    )

    maximum_qos: int = _limit(
        2,
        "whole",
        0,
        2,
        "highest QoS of clients' messages and subscriptions; a higher PUBLISH disconnects (0x9B)",
    )
    retain_available: bool = _flag(True, "whether clients may retain messages; if not, one that does is disconnected (0x9A)")
    empty_client_ids: bool = _flag(True, "whether a client may leave its identifier to the broker; if not, CONNECT is refused (0x85)")
    versions: tuple[str, ...] = field(
        default=VERSIONS, metadata={"kind": "versions", "text": "versions of MQTT that clients may speak; CONNECT refuses others (0x84)"}
    )
    topic_levels: int = _limit(
        200,
        "whole",
        1,
        32_768,
        "levels of a topic filter with a wildcard; SUBACK refuses others one by one (0x8F; MQTT 3.1.1: 0x80)",
    )

    def queue(self, on_disk: bool) -> tuple[int, int]:
        """(messages, bytes) that may wait in one session. on_disk: whether a store keeps it."""
        messages, size = DISK_QUEUE if on_disk else MEMORY_QUEUE
        return (
            messages if self.session_queue_messages is None else self.session_queue_messages,
            size if self.session_queue_bytes is None else self.session_queue_bytes,
        )

    @classmethod
    def of(cls, section: Section) -> Limits:
        """The limits in a table, defaults for what it leaves out."""
        limits = cls()
        for one in fields(cls):
            kind = one.metadata["kind"]
            if not section.has(one.name):
                continue
            if kind == "flag":
                setattr(limits, one.name, section.flag(one.name))
            elif kind == "versions":
                limits.versions = _versions(section, one.name)
            else:
                setattr(limits, one.name, getattr(section, kind)(one.name, one.metadata["low"], one.metadata["high"]))
        section.done()
        return limits


def _versions(section: Section, key: str) -> tuple[str, ...]:
    right = 'give a list of "3.1", "3.1.1" and "5"'
    versions = section.strings(key, right=right)
    if not versions or not set(versions) <= set(VERSIONS):
        raise section.error(key, right)
    return tuple(one for one in VERSIONS if one in versions)


@dataclass(slots=True)
class PeerSettings:
    """A neighbour to dial.

    address: the peer's listener (or a proxy before it), or "directory:NAME" for what a directory says of it. cost: of the link for
    shortest paths, 1 to 65535. number, name: the peer's, when known: the link refuses any other broker at that address.
    """

    address: str
    cost: int = 1
    number: int | None = None
    name: str | None = None


@dataclass(slots=True)
class MeshSettings:
    """A broker's membership of a mesh: the table `[mesh]` of its file.

    name, key, auth: the same at every broker of the mesh; the key is a secret of at least 16 bytes that links prove to each other.
    brokers: name -> number of all that may link, None for whoever proves the key or shows a certificate.
    keys: name -> public key, in hexadecimal digits, of brokers that are known under it alone (mesh/wire/keys.py). keys_held: seconds that
    the number of a broker out of reach is kept for its key.
    managers: names of the brokers whose orders to the whole mesh count (mesh/node/orders.py); None: those of all.
    lowest_protocol: version of the mesh protocol that links still speak; 2 lets brokers of the previous release in.
    auth: "key", "certificate" (each end's certificate names its broker; then there is no key), or "both".
    mode: "routed" or "flood". peers: the neighbours that this broker dials (others may dial it). silence: seconds without a
    byte after which a link is taken for broken. retry_first, retry_last: seconds between attempts to dial, first and longest.
    retained_compare: seconds between two comparisons of retained messages with a neighbour. deletions_kept: seconds that a deletion of a
    retained message is remembered if not every broker has confirmed it. rules: what links let through, by the peer's number or name, "*"
    for all others (`rules.rules_for`).
    clients: whether a client identifier is one client at each site ("site") or in the whole mesh ("roam"). roam_wait: seconds that a
    client that roams waits for brokers that may have its session.
    start_wait: seconds that clients wait at most, behind a start that does not know what other brokers want, for the first link;
    None: `START_WAIT` for a broker that dials somebody, else 0. ack: what acknowledges QoS 1 and 2, "custody" here or the "receipts" of all
    reachable destinations. receipt_topics: filters of topics for which it is always receipts. receipts_wait: seconds that such an
    acknowledgement waits at most. receipts_kept: messages so acknowledged that their publisher may ask for.
    custody: what may wait for sites that are away. share: whether a message whose member of a shared subscription went with its site waits
    ("once") or goes to another member, who may be the second to get it ("available"). forget_after: seconds after which a site that is away
    is given up, None: never.
    """

    name: str
    key: str = field(default="", repr=False)
    mode: str = "routed"
    peers: list[PeerSettings] = field(default_factory=list)
    silence: float = 0.8
    retry_first: float = 0.1
    retry_last: float = 5.0
    auth: str = "key"
    brokers: dict[str, int] | None = None
    keys: dict[str, str] = field(default_factory=dict)
    keys_held: float = WEEK
    lowest_protocol: int = OLDEST
    managers: list[str] | None = None
    retained_compare: float = 30.0
    deletions_kept: float = WEEK
    clients: str = "site"
    roam_wait: float = 3.0
    rules: dict[int | str, LinkRules] = field(default_factory=dict)
    start_wait: float | None = None
    ack: str = "custody"
    receipt_topics: list[str] = field(default_factory=list)
    receipts_wait: float = 30.0
    receipts_kept: int = 10_000
    custody: CustodyBounds = field(default_factory=CustodyBounds)
    share: str = "once"
    forget_after: float | None = None

    @property
    def certified(self) -> bool:
        """Whether both ends of a link show a certificate that names their broker."""
        return self.auth != "key"

    @property
    def start_waits(self) -> float:
        """`start_wait` with its default."""
        if self.start_wait is not None:
            return self.start_wait
        return START_WAIT if self.peers else 0.0

    @classmethod
    def of(cls, section: Section) -> MeshSettings:
        """The settings that brokers of one mesh share (no peers): the table `[mesh]` of either kind of file."""
        auth = section.choice("auth", AUTHS, "key")
        settings = cls(
            name=section.name("name"),
            key=_mesh_key(section, auth),
            auth=auth,
            brokers=_brokers_of(section.section("brokers")) if section.has("brokers") else None,
            keys=given_keys(section.section("keys")) if section.has("keys") else {},
            keys_held=section.seconds("keys_held", 1, 2**32, WEEK),
            managers=section.strings("managers", [], 'give names of brokers, as ["porto", "lyon"]') if section.has("managers") else None,
            lowest_protocol=section.whole("lowest_protocol", OLDEST, PROTOCOL, OLDEST),
            mode=section.choice("mode", MODES, "routed"),
            silence=section.seconds("silence", 0.1, 3600, 0.8),
            retry_first=section.seconds("retry_first", 0.01, 3600, 0.1),
            retry_last=section.seconds("retry_last", 0.01, 3600, 5.0),
            retained_compare=section.seconds("retained_compare", 0.1, 86_400, 30.0),
            deletions_kept=section.seconds("deletions_kept", 1, 2**32, WEEK),
            clients=section.choice("clients", CLIENTS, "site"),
            roam_wait=section.seconds("roam_wait", 0, 60, 3.0),
            start_wait=section.seconds("start_wait", 0, 3600) if section.has("start_wait") else None,
            ack=section.choice("ack", ACKS, "custody"),
            receipt_topics=section.strings("receipt_topics", [], 'give a list of topic filters such as ["orders/#"]'),
            receipts_wait=section.seconds("receipts_wait", 0.1, 86400, 30.0),
            receipts_kept=section.whole("receipts_kept", 1, 10**8, 10_000),
            custody=custody_of(section.section("custody")),
            share=section.choice("share", SHARES, "once"),
            forget_after=section.seconds("forget_after", 1, 2**32) if section.has("forget_after") else None,
        )
        for topic_filter in settings.receipt_topics:
            try:
                check_filter(topic_filter, shared=False)
            except MqttError as error:
                raise ConfigError(section.file, section.key("receipt_topics"), topic_filter, f"not a topic filter: {error}") from None
        unproved = [name for name in settings.managers or () if name not in settings.keys]
        if unproved:
            raise section.error("managers", f"give the key of {unproved[0]} in mesh.keys too: without it any broker can take that name")
        if settings.retry_last < settings.retry_first:
            raise section.error("retry_last", f"give at least retry_first, {settings.retry_first:g}")
        return settings


def _brokers_of(section: Section) -> dict[str, int]:
    """The brokers that may link, as `brokers = { porto = 1, lyon = 2 }`."""
    brokers = {name: number_of(section, name) for name in section.table}
    for name, number in brokers.items():
        if not NAME.fullmatch(name):
            raise section.error(name, "give names of brokers, as brokers = { porto = 1, lyon = 2 }")
        if list(brokers.values()).count(number) > 1:
            raise section.error(name, "another broker of the list has this number: give each its own")
    return brokers


def _mesh_key(section: Section, auth: str) -> str:
    """The secret, "" where certificates alone count."""
    right = f"give the secret that all brokers of the mesh share, a string of at least {SHORTEST_KEY} bytes"
    key = section.table.get(SECRET)
    if not section.has(SECRET):
        if auth == "certificate":
            return ""
        raise section.error(SECRET, right)
    if auth == "certificate":
        raise section.secret_error(SECRET, 'auth = "certificate" uses no key: leave it out, or give auth = "both"')
    if not isinstance(key, str) or len(key.encode()) < SHORTEST_KEY:
        raise section.secret_error(SECRET, right)
    return key


def number_of(section: Section, key: str, default: Any = MISSING) -> int:
    """A broker's number."""
    return section.whole(key, 0, HIGHEST_NUMBER, default)
