"""What the files of one broker and of a whole topology have in common: tables of TOML read with errors that help.

A `Section` is one table of a file. Each value is taken out by a method that says what would be right, and `done()`
complains about keys that nobody took. All mistakes end in `ConfigError`, whose one line names the file, the key, the
value and what to write instead. The settings that both kinds of file hold stand here too: `Limits` and
`MeshSettings`. All defaults of the broker are the defaults of these two classes and have no second place.

It knows files and tables; it does not know sockets, brokers or graphs.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter
from ..link.keys import given_keys
from ..wire.identity import HIGHEST_NUMBER

if TYPE_CHECKING:
    from .rules import LinkRules

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}  # where an address names none
WEBSOCKETS = ("ws", "wss")
WEBSOCKET_PATH = "/mqtt"  # where an address names none
SHORTEST_KEY = 16
START_WAIT = 2.0  # seconds
SECRET = "key"  # whose value stays out of messages
MODES = ("routed", "flood")
AUTHS = ("key", "certificate", "both")  # how the brokers of a mesh prove who they are
ADDRESS_FORMS = "mqtt://HOST:PORT, mqtts://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH or unix:///PATH"
LINK_FORMS = "mqtt://HOST:PORT, mqtts://HOST:PORT or unix:///PATH"
WEEK = 7 * 86_400.0
CLIENTS = ("site", "roam")
ACKS = ("custody", "receipts")
MEMORY_QUEUE = (100_000, 64 * 2**20)  # messages and bytes that may wait in one session in memory
DISK_QUEUE = (10_000_000, 8 * 2**30)  # the same when a store keeps the session
NAME = re.compile(r"\w[\w.-]{0,63}")
_LONGEST_KEY, _LONGEST_VALUE, _LONGEST_TEXT = 200, 80, 1000  # characters of them in an error
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")


class Placeholder:
    """What an error shows where there is no value, or none that may be seen."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return f"({self._text})"


MISSING = Placeholder("missing")


class ConfigError(Exception):
    """A mistake of whoever wrote a configuration: one line that names file, key, value and what would be right.

    file: as the user gave it, or "command line". key: dotted, with the place in a list as `broker[2].number`; "" for
    the file as a whole. value: what stands there, `MISSING` when nothing does. text: what would be right.
    """

    def __init__(self, file: str, key: str, value: object, text: str) -> None:
        self.file, self.key, self.value, self.text = file, key, value, text
        super().__init__(file, key, value, text)

    def __str__(self) -> str:
        text = _short(_printable(self.text), _LONGEST_TEXT)  # it may quote what stands in the file
        if not self.key:
            return f"{self.file}: {text}"
        key = _short(_printable(self.key), _LONGEST_KEY)
        if self.value is MISSING:
            return f"{self.file}: {key} is missing: {text}"
        if isinstance(self.value, Path):  # the name of a file is no use in part
            return f'{self.file}: {key} = "{_short(_printable(str(self.value)), _LONGEST_TEXT)}": {text}'
        shown = _shown(self.value)
        if isinstance(self.value, str):
            shown = f'"{_printable(self.value)}"'
        return f"{self.file}: {key} = {_short(shown, _LONGEST_VALUE)}: {text}"


def _shown(value: object) -> str:
    """As `repr`, which refuses whole numbers of thousands of figures and lists in lists in lists."""
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return "(too much to be shown)"


def _printable(text: str) -> str:
    """One line, whatever stands in it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


class Address(NamedTuple):
    """Where a broker listens or a link dials: TCP (`host`, `port`), with TLS (`mqtts`), WebSocket (`ws`, `wss`, and `path`), or a Unix
    socket (`path`)."""

    scheme: str  # "mqtt", "mqtts", "ws", "wss" or "unix"
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def websocket(self) -> bool:
        """MQTT in frames of WebSocket."""
        return self.scheme in WEBSOCKETS


def parse_address(text: str) -> Address:
    """`mqtt://host:port` (port 1883 when left out), with TLS `mqtts://host:port` (8883), WebSocket `ws://host:port/path` (80) and
    `wss://` (443) with the path `/mqtt` when left out, IPv6 hosts in brackets, or `unix:///path`.

    Port 0 asks a listener for any free port. ValueError says what would be right.
    """
    right = f"write {ADDRESS_FORMS}"
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in (*PORTS, "unix"):
        raise ValueError(right if separator else f'{right}; perhaps "mqtt://{text}"')
    if scheme == "unix":
        if not rest.startswith("/"):
            raise ValueError("write unix:/// with three slashes and an absolute path, as unix:///run/mqmesh.sock")
        return Address("unix", path=rest)
    matched = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\s:/@\[\]]+))(?::(\d+))?(/[!-~]*)?", rest)
    if matched is None:
        raise ValueError(f"{right}; an IPv6 address stands in brackets, as mqtt://[::1]:1883")
    port = int(matched[3]) if matched[3] else PORTS[scheme]
    if port > 65535:
        raise ValueError(f"port {port} is above 65535")
    path = matched[4] or ""
    if scheme in WEBSOCKETS:
        path = path if len(path) > 1 else WEBSOCKET_PATH
        if "?" in path or "#" in path:
            raise ValueError(f"write a path without ? and #, as {scheme}://{rest.partition('/')[0]}{WEBSOCKET_PATH}")
    elif len(path) > 1:
        raise ValueError(f"{scheme}:// has no path: {right}")
    return Address(scheme, matched[1] or matched[2], port, path if scheme in WEBSOCKETS else "")


def parse_size(value: object) -> int:
    """A size in bytes: a whole number, or a string such as "64 MiB" (KiB, MiB, GiB, kB, MB, GB). ValueError otherwise."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    matched = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if matched is None or matched[2].upper() not in _UNITS:
        raise ValueError('give bytes as a whole number or a string such as "64 MiB"')
    return int(matched[1]) * _UNITS[matched[2].upper()]


class Section:
    """One table of a configuration: each getter takes a key, checks its value and raises `ConfigError` if it is wrong.

    A getter whose `default` is left out requires its key.
    """

    def __init__(self, file: str, table: Mapping[str, Any], path: str = "") -> None:
        self.file, self.table, self.path = file, table, path
        self._taken: set[str] = set()

    def key(self, key: str) -> str:
        """The key as the user knows it, with the tables around it."""
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, text: str) -> ConfigError:
        """The error to raise about what stands (or does not stand) under `key`."""
        return ConfigError(self.file, self.key(key), self.table.get(key, MISSING), text)

    def secret_error(self, key: str, text: str) -> ConfigError:
        """The same about a value that must not be shown."""
        value = self.table[key]
        shown = f"{len(value.encode())} bytes" if isinstance(value, str) else "not a string"
        return ConfigError(self.file, self.key(key), Placeholder(shown), text)

    def has(self, key: str) -> bool:
        """Whether the key is there; asking makes it a known one."""
        self._taken.add(key)
        return key in self.table

    def _take(self, key: str, default: Any, right: str) -> Any:
        self._taken.add(key)
        if key not in self.table:
            if default is MISSING:
                near = [word for word in difflib.get_close_matches(key, self.table, 1, 0.8) if word.isidentifier()]
                raise self.error(key, f'{right}; is "{near[0]}" misspelled?' if near else right)
            return default
        return self.table[key]

    def string(self, key: str, default: Any = MISSING, right: str = "give a string") -> str:
        value = self._take(key, default, right)
        if not isinstance(value, str) or not value:
            raise self.error(key, right)
        return value

    def name(self, key: str, default: Any = MISSING) -> str:
        """A name that is also a part of file names, client identifiers and topics."""
        right = "give a name of 1 to 64 letters, digits, '.', '_' and '-' that does not start with '.' or '-'"
        value = self.string(key, default, right)
        if not NAME.fullmatch(value):
            raise self.error(key, right)
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: Any = MISSING) -> str:
        right = "give " + " or ".join(f'"{choice}"' for choice in choices)
        value = self.string(key, default, right)
        if value not in choices:
            raise self.error(key, right + guess(value, choices))
        return value

    def flag(self, key: str, default: Any = MISSING) -> bool:
        value = self._take(key, default, "write true or false")
        if not isinstance(value, bool):
            raise self.error(key, "write true or false")
        return value

    def whole(self, key: str, low: int, high: int, default: Any = MISSING) -> int:
        right = f"give a whole number from {low} to {high}"
        value = self._take(key, default, right)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, right)
        return value

    def size(self, key: str, low: int, high: int, default: Any = MISSING) -> int:
        """Bytes, as a whole number or with a unit."""
        try:
            value = parse_size(self._take(key, default, "give a size in bytes"))
        except ValueError as error:
            raise self.error(key, str(error)) from None
        if not low <= value <= high:
            raise self.error(key, f"give from {low} to {high} bytes")
        return value

    def seconds(self, key: str, low: float, high: float, default: Any = MISSING) -> float:
        right = f"give seconds from {low:g} to {high:g}"
        value = self._take(key, default, right)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.error(key, right)
        return float(value)

    def strings(self, key: str, default: Any = MISSING, right: str = "give a list of strings") -> list[str]:
        value = self._take(key, default, right)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, right)
        return list(value)

    def path_of(self, key: str, folder: Path | None, right: str = "give a path") -> Path:
        """A path. folder: what a relative one is relative to; None: to where the program runs."""
        text = self.string(key, right=right)
        try:
            path = expanded(text)
        except ValueError as error:
            raise self.error(key, str(error)) from None
        return path if folder is None else folder / path

    def address(self, key: str, default: Any = MISSING) -> str:
        """An address that links can dial, as it was written."""
        value = self.string(key, default, f"write {LINK_FORMS}")
        if self.checked_address(key, value).startswith(("ws://", "wss://")):
            raise ConfigError(self.file, self.key(key), value, f"links do not run over WebSocket: write {LINK_FORMS}")
        return value

    def checked_address(self, key: str, value: str) -> str:
        """An address that `parse_address` takes, as it was written."""
        try:
            parse_address(value)
        except ValueError as error:
            raise ConfigError(self.file, self.key(key), value, str(error)) from None
        return value

    def section(self, key: str) -> Section:
        """The table under `key`, empty when there is none."""
        value = self._take(key, {}, "")
        if not isinstance(value, dict):
            raise self.error(key, f"make it a table: [{self.key(key)}]")
        return Section(self.file, value, self.key(key))

    def sections(self, key: str) -> list[Section]:
        """The tables of the list under `key` (`[[key]]` in TOML), counted from 1 in errors."""
        value = self._take(key, [], "")
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(key, f"make it a list of tables: [[{self.key(key)}]]")
        return [Section(self.file, item, f"{self.key(key)}[{i}]") for i, item in enumerate(value, 1)]

    def done(self) -> None:
        """Complain about the first key that no getter asked for."""
        for key in self.table:
            if key not in self._taken:
                near = guess(key, sorted(self._taken))
                text = f"unknown key{near}" if near else f"unknown key; known: {', '.join(sorted(self._taken))}"
                raise self.secret_error(key, text) if SECRET in near else self.error(key, text)


def guess(word: str, known: tuple[str, ...] | list[str]) -> str:
    """`; did you mean "..."?` when something known is near the word, else ""."""
    near = difflib.get_close_matches(word, known, 1, 0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


def read(path: str | Path) -> Section:
    """The file as a section; ConfigError when it cannot be read or is not TOML."""
    return Section(str(path), read_toml(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """What stands in a file of TOML; ConfigError when it cannot be read or is not TOML."""
    file = str(path)
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(file, "", MISSING, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(file, "", MISSING, "is not UTF-8 text") from None
    except RecursionError:
        raise ConfigError(file, "", MISSING, "is not TOML: lists or tables stand in each other too deeply") from None
    except ValueError as error:  # TOMLDecodeError, and numbers of thousands of figures and dates that are none, which tomllib lets through
        raise ConfigError(file, "", MISSING, f"is not TOML: {error}") from None


def is_file(path: Path) -> bool:
    """Whether there is such a file; also of a name that no file can have."""
    try:
        return path.is_file()
    except OSError:  # too long
        return False


def expanded(text: str) -> Path:
    """A path as people write it, with ~ for their home folder. ValueError (one line) for what can be no path."""
    if "\0" in text:
        raise ValueError("a path holds no zero byte")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("there is no home folder of this user: write the path without ~") from None


def _limit(default: Any, kind: str, low: float, high: float, text: str) -> Any:
    return field(default=default, metadata={"kind": kind, "low": low, "high": high, "text": text})


@dataclass(slots=True)
class Limits:
    """What one broker grants and keeps to: the table `[limits]` of its file or of a topology. See docs/configuration.md."""

    max_packet_size: int = _limit(
        268_435_460, "size", 128, 268_435_460, "largest packet taken from a client, fixed header included, bytes [MQTT-3.2.2-15]"
    )
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
        "unsent bytes of one link to a neighbour; past it this broker as a relay drops what others sent, and their origins send it again",
    )
    session_queue_messages: int | None = _limit(
        None, "whole", 1, 10**9, "messages that wait in one session; left out: 100000, and 10000000 in a session that is kept on disk"
    )
    session_queue_bytes: int | None = _limit(
        None,
        "size",
        1024,
        2**40,
        "bytes of the messages that wait in one session; left out: 64 MiB, and 8 GiB in a session that is kept on disk",
    )
    session_queue_age: float | None = _limit(
        None, "seconds", 1, 2**32, "seconds that a message may wait in a session, whatever its own expiry; none when left out"
    )
    session_memory_bytes: int = _limit(
        8 * 2**20, "size", 4096, 2**40, "bytes of messages that one session kept on disk holds in memory: in flight, and read ahead"
    )
    receive_maximum: int = _limit(65535, "whole", 1, 65535, "unacknowledged QoS 1 and 2 messages taken from one client")
    in_flight: int = _limit(4096, "whole", 1, 65535, "unacknowledged QoS 1 and 2 messages sent to a client that names no Receive Maximum")
    topic_alias_maximum: int = _limit(64, "whole", 0, 65535, "topic aliases that a client may use")
    keep_alive_maximum: int = _limit(0, "whole", 0, 65535, "longest keep-alive granted, seconds; 0 takes any")
    session_expiry_maximum: int | None = _limit(None, "whole", 0, 2**32 - 1, "longest session expiry granted, seconds; none when left out")
    broker_bytes: int = _limit(
        2**30,
        "size",
        2**20,
        2**50,
        "bytes of all messages that the broker holds in memory, deletions of retained ones that a mesh remembers included",
    )
    stored_bytes: int | None = _limit(
        None,
        "size",
        0,
        2**60,
        "bytes that the store keeps, of sessions, messages for other sites and retained messages together; what would have to be kept "
        "beyond is refused (0x97), and beyond half of it what is for sites out of reach; 0: no bound. Left out: half of the space "
        "that its disk has for it at the start; for a store in memory broker_bytes, for PostgreSQL no bound",
    )
    stored_sessions: int = _limit(
        1_000_000, "whole", 0, 10**9, "sessions that are kept when their connections end; CONNECT refuses more (0x97); 0: no bound"
    )
    sys_interval: float = _limit(10.0, "seconds", 0, 86400, "seconds between two issues of the $SYS topics; 0 for none")
    connect_timeout: float = _limit(
        10.0,
        "seconds",
        0.1,
        3600,
        "seconds that a new connection has for its CONNECT, a new link, TLS connection or WebSocket for its handshake",
    )

    connections: int | None = _limit(
        None,
        "whole",
        1,
        10**7,
        "connections whose CONNECT is here; more are refused (0x97). Left out: as many as the process has file descriptors for",
    )
    connecting_per_address: int = _limit(
        5000, "whole", 1, 10**7, "connections from one address that have not sent CONNECT, handshakes included; more are closed at once"
    )
    subscriptions: int | None = _limit(
        None, "whole", 1, 10**9, "subscriptions of one session; SUBACK refuses more (0x97); none when left out"
    )
    message_rate: int | None = _limit(
        None, "whole", 1, 10**9, "messages a second from one client; one that sends more is read more slowly; none when left out"
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
            if section.has(one.name):
                get = getattr(section, one.metadata["kind"])
                setattr(limits, one.name, get(one.name, one.metadata["low"], one.metadata["high"]))
        section.done()
        return limits


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
    keys: name -> public key, in hexadecimal digits, of brokers that are known under it alone (mesh/link/keys.py). keys_held: seconds that
    the number of a broker out of reach is kept for its key.
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
    """

    name: str
    key: str = field(default="", repr=False)
    mode: str = "routed"
    peers: list[PeerSettings] = field(default_factory=list)
    silence: float = 0.9
    retry_first: float = 0.1
    retry_last: float = 5.0
    auth: str = "key"
    brokers: dict[str, int] | None = None
    keys: dict[str, str] = field(default_factory=dict)
    keys_held: float = WEEK
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
            mode=section.choice("mode", MODES, "routed"),
            silence=section.seconds("silence", 0.1, 3600, 0.9),
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
        )
        for topic_filter in settings.receipt_topics:
            try:
                check_filter(topic_filter, shared=False)
            except MqttError as error:
                raise ConfigError(section.file, section.key("receipt_topics"), topic_filter, f"not a topic filter: {error}") from None
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
