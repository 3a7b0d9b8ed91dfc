"""Fuzzing of everything that people write for a program to start from: the broker's file, topologies, the metabroker's policy and its
file of services, users and their passwords, with rules of access, TLS, the directory and all else that stands in such files.

By hand:  python -m tests.fuzz.fuzz_config --for 600          seeded rounds; prints the seed
          python -m tests.fuzz.fuzz_config --seed 7 --runs 1  one round again; --json for a report in JSON

`check` is the contract: what is read is either good or ends in `ConfigError` (`PasswordError` for users), one line that names the file; and
what is good can be used: a broker of a topology has a configuration, an address can be read again. Nothing else may come out.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mqmesh.base.address import parse_address
from mqmesh.base.settings import ConfigError
from mqmesh.broker import config as broker_config
from mqmesh.broker.auth import passwords
from mqmesh.broker.config import of_topology
from mqmesh.mesh.topology import topology
from mqmesh.metabroker import policy
from mqmesh.metabroker.shell.resolver import Services

from .runs import main_of

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = 150  # of a round
LONGEST = 4000  # characters of an error: people read it

BROKER = """
name = "porto"
number = 1
listen = ["mqtt://127.0.0.1:0", "mqtts://[::1]:8883", "ws://0.0.0.0:80/mqtt", "wss://*:443", "unix:///run/mqmesh.sock"]
data = "data/porto"
[mesh]
name = "sites"
key = "a secret of 16 bytes or more"
auth = "both"
mode = "routed"
silence = 0.9
retry_first = 0.1
retry_last = 5
ack = "receipts"
receipt_topics = ["orders/#"]
clients = "roam"
brokers = { porto = 1, lyon = 2, turin = 3 }
[[mesh.peer]]
address = "mqtts://127.0.0.1:1884"
cost = 1
number = 2
name = "lyon"
[mesh.peer.policy]
out = ["orders/#"]
out_except = ["orders/secret/#"]
in = ["stock/+/now"]
rate_out = "64 KiB"
messages_out = 100
map = [{ here = "orders/", there = "porto/orders/" }]
[[mesh.peer]]
name = "turin"
[mesh.policy.3]
in = []
[mesh.policy."*"]
out = []
[tls]
certificate = "file.pem"
key = "file.pem"
ca = "file.pem"
client_certificates = "optional"
[websocket]
origins = ["https://app.example.com"]
[directory]
url = ["http://127.0.0.1:8090", "https://[::1]:8090"]
account = "plant-a"
secret_file = "secret"
lease = 60
visibility = "organisation"
addresses = ["mqtt://porto.example.com:1883"]
neighbours = "all"
[[directory.service]]
name = "weather"
addresses = ["mqtt://porto.example.com:1883"]
permissions = ["weather/#"]
[store]
kind = "sqlite"
durability = "fsync"
path = "store.db"
pending_bytes = "32 MiB"
[http]
listen = "http://127.0.0.1:9883"
[access]
anonymous = false
users = "users"
certificates = true
[access.tokens]
key = "file.pem"
issuer = "https://id.example.com"
audience = "mqtt"
user = "sub"
[[access.rule]]
users = ["meter-*"]
clients = ["*"]
allow = ["publish"]
topics = ["meters/%u/#", "log/%c"]
[[access.rule]]
deny = ["publish", "subscribe"]
topics = ["#"]
[metabroker]
client = "metabroker"
password_file = "secret"
[limits]
session_queue_bytes = "64 MiB"
max_packet_size = 1000000
"""
POLICY = """
[limits]
sessions = 1000
idle = 60
[[allow]]
clients = ["meter-*"]
remotes = ["mqtts://broker.example.com:8883", "weather", "[a-"]
publish = ["readings/#"]
subscribe = ["weather/+/now", "$share/g/a"]
version = "3.1.1"
ca = "file.pem"
exchange = "amq.topic"
queue_length = 10
"""
SERVICES = """
[services]
weather = ["mqtts://broker.example.com", "nats://host:4222"]
"a b" = ["mqtt://[::1]"]
"""
USERS = """# people
anna:$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$MTIzNDU2Nzg5MDEyMzQ1Ng

b:$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$MTIzNDU2Nzg5MDEyMzQ1Ng
"""

TEXTS = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\n",
        "é",
        "\U0001f600",
        "x" * 70_000,
        "~",
        "~nobody-here/x",
        "~\0",
        "/",
        "..",
        ".",
        "/dev/null",
        "/proc/self/mem",
        "%u",
        "{name}",
    ),
    *(
        "mqtt://",
        "mqtt://a:99999",
        "mqtt://a:" + "9" * 5000,
        "mqtt://[::1",
        "mqtt://[1.2.3]:1",
        "http://[",
        "http://a]:80",
        "http://:1",
        "https://a@b",
        "ws://a/?",
    ),
    *(
        "unix://",
        "unix:///\0",
        "#",
        "+/#",
        "a/#/b",
        "$share/g/a",
        "$SYS/#",
        "$",
        "*",
        "[",
        "[!",
        "9" * 5000 + " MiB",
        "1 XB",
        "٣",
        "64 MiB",
        "https://[::",
        "null",
    ),
    *(
        "certificate",
        "receipts",
        "flood",
        "postgresql",
        "postgresql://[",
        "lmdb",
        "memory",
        "roam",
        "required",
        "all",
        "file.pem",
        "secret",
        "users",
        "folder",
    ),
)
NUMBERS = (
    0,
    -1,
    1,
    2,
    255,
    65_535,
    65_536,
    2**31,
    2**32,
    2**63,
    2**64,
    10**400,
    10**5000,
    0.0,
    -0.0,
    1.5,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)


# ---- damage


def value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that TOML can say."""
    match chance.randrange(8 if depth < 3 else 5):
        case 0 | 1:
            return chance.choice(TEXTS)
        case 2 | 3:
            return chance.choice(NUMBERS)
        case 4:
            return chance.choice((True, False, datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1)))
        case 5 | 6:
            return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {
        chance.choice(("name", "", "key", "a.b", "\0", "1", "out", *TEXTS[:6])): value(chance, depth + 1)
        for _ in range(chance.randrange(4))
    }


def changed(table: Any, chance: random.Random) -> Any:
    """A copy with one damage somewhere: a value, a key, something left out, twice or elsewhere."""
    if isinstance(table, dict) and table and chance.random() < 0.95:
        copy = dict(table)
        key = chance.choice(list(copy))
        match chance.randrange(12):
            case 0:
                del copy[key]
            case 1:
                copy[chance.choice((key + "x", key[:-1], key.upper(), "key", "policy", "name", chance.choice(TEXTS)))] = copy[key]
            case 2:
                copy[key] = copy[chance.choice(list(copy))]
            case 3:
                copy[key] = [copy[key]]
            case 4:
                copy[key] = value(chance)
            case _:
                copy[key] = changed(copy[key], chance)
        return copy
    if isinstance(table, list) and table and chance.random() < 0.8:
        items = list(table)
        at = chance.randrange(len(items))
        match chance.randrange(6):
            case 0:
                del items[at]
            case 1:
                items.append(items[at])
            case 2:
                items.insert(at, value(chance))
            case _:
                items[at] = changed(items[at], chance)
        return items
    if isinstance(table, str) and table and chance.random() < 0.4:
        at = chance.randrange(len(table))
        return (
            table[:at]
            + chance.choice(("", "/", ":", "+", "#", "\0", "[", "%", "..", table, chance.choice(TEXTS)))
            + table[at + chance.randrange(2) :]
        )
    return value(chance)


def written(table: dict[str, Any]) -> str:
    """The table as TOML, on one line a key: all values in line."""
    return "".join(f"{_text(key)} = {_inline(item)}\n" for key, item in table.items())


def _inline(item: Any) -> str:
    if isinstance(item, dict):
        return "{" + ", ".join(f"{_text(key)} = {_inline(one)}" for key, one in item.items()) + "}"
    if isinstance(item, list):
        return "[" + ", ".join(map(_inline, item)) + "]"
    if isinstance(item, str):
        return _text(item)
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, int):
        return str(item) if abs(item) < 10**4000 else "1" + "0" * 5000
    return item.isoformat() if isinstance(item, date) else repr(item)


def _text(text: str) -> str:
    return '"' + re.sub(r'[\0-\x1f\x7f"\\]', lambda found: f"\\u{ord(found[0]):04x}", text) + '"'


def scratched(data: bytes, chance: random.Random) -> bytes:
    """A copy with damaged bytes."""
    copy = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 10))):
        at, span = chance.randrange(len(copy) + 1), chance.randrange(1, 30)
        match chance.randrange(7):
            case 0 if at < len(copy):
                copy[at] ^= 1 << chance.randrange(8)
            case 1:
                del copy[at : at + span]
            case 2:
                copy[at:at] = chance.randbytes(span)
            case 3:
                cut = chance.randrange(len(data))
                copy[at:at] = data[cut : cut + span]
            case 4:
                copy[at:at] = chance.choice(
                    (b"[", b"]", b"{", b'"', b'"""', b"=", b"\n", b"'", b"\\u", b"\\U0010ffff", b"\xff", b"\xef\xbb\xbf", b"$", b":")
                )
            case 5 if chance.random() < 0.2:
                copy[at:at] = chance.choice(
                    (b"a=" + b"[" * 5000, b"\nx = " + b"[" * 900 + b"]" * 900, b"\nx = " + b"9" * 5000, b"\n" + b"a." * 3000 + b"a = 1\n")
                )
            case _:
                copy[at:at] = copy[at : at + span]
    return bytes(copy)


# ---- what is read


@cache
def examples() -> list[tuple[str, bytes]]:
    """(kind, file): the repository's own examples, and one of each kind with all that it may hold."""
    found = [("topology", file.read_bytes()) for file in sorted((ROOT / "topologies").glob("*.toml"))]
    found += [("broker", (ROOT / "packaging" / "broker.toml").read_bytes())]
    texts = [("broker", BROKER)] * 8 + [("policy", POLICY)] * 3 + [("services", SERVICES), ("users", USERS), ("users", USERS)]
    return found + [(kind, text.encode()) for kind, text in texts]


def damaged(chance: random.Random) -> tuple[str, bytes]:
    """A damaged file, and its kind."""
    kind, data = chance.choice(examples())
    if kind == "users" or chance.random() < 0.3:
        return kind, scratched(data, chance)
    table = tomllib.loads(data.decode())
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        table = changed(table, chance)
        if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
            table = {"name": table}
    return kind, written(table).encode()


def _broker(file: Path) -> None:
    found = broker_config.load(file)
    found.store_address  # noqa: B018 - it must not raise
    for address in found.listen:
        assert str(parse_address(address))
    assert found.limits
    assert found.name


def _topology(file: Path) -> None:
    found = topology.load(file)
    found.graph()
    for broker in found.brokers:
        of_topology(found, broker.name)


def _policy(file: Path) -> None:
    found = policy.load(file)
    rule = found.rule("meter-1", "weather")
    if rule is not None:
        rule.may_publish("readings/a")
        rule.may_subscribe("weather/+/now")


READERS: dict[str, Callable[[Path], object]] = {
    "broker": _broker,
    "topology": _topology,
    "policy": _policy,
    "services": Services.load,
    "users": passwords.load,
}


def check(kind: str, data: bytes, folder: Path) -> str:
    """Have a file read; how that ended."""
    file = folder / "damaged"
    file.write_bytes(data)
    try:
        READERS[kind](file)
    except ConfigError as error:
        _check_error(str(error), file)
        return f"{kind}: {'as a file' if not error.key else 'a key'} refused"
    except passwords.PasswordError as error:
        _check_error(str(error), file)
        return f"{kind}: refused"
    return f"{kind}: taken"


def _check_error(text: str, file: Path) -> None:
    """One line for people, and which file it is about."""
    assert text.startswith(str(file)), text[:LONGEST]
    assert len(text) < LONGEST, text[:LONGEST]
    assert text.isprintable(), repr(text)


def round_of(seed: int) -> Counter[str]:
    """`FILES` damaged files of one seed; how often each outcome came."""
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        furnish(folder)
        for _ in range(FILES):
            outcomes[check(*damaged(chance), folder)] += 1
    return outcomes


def furnish(folder: Path) -> None:
    """The files that the examples name."""
    (folder / "file.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (folder / "secret").write_text("a secret of more than sixteen bytes\n")
    (folder / "users").write_text(USERS)
    (folder / "folder").mkdir()


if __name__ == "__main__":
    main_of(__doc__, round_of)
