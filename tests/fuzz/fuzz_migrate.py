"""Fuzzing of what `mqmesh migrate` reads: mosquitto.conf with its includes, ACL files of three brokers, password files.

By hand:  python -m tests.fuzz.fuzz_migrate --for 600          seeded rounds; prints the seed
          python -m tests.fuzz.fuzz_migrate --seed 7 --runs 1  one round again; --json for a report in JSON

`check` is the contract: the command ends with a status of its own, and what it has written can be started from, or is said to need more.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import load, of_topology, parse
from mqmesh.cli.main import app
from mqmesh.mesh.topology.topology import load as load_topology
from typer.testing import CliRunner

from .runs import main_of

ROUND = 20  # calls
CONF = """
per_listener_settings true
listener 1883 127.0.0.1
allow_anonymous true
acl_file acl
listener 8883
certfile cert.pem
keyfile key.pem
cafile ca.pem
require_certificate true
use_identity_as_username true
password_file users
max_connections 100
listener 9001
protocol websockets
persistence true
persistence_location data/
message_size_limit 100000
max_inflight_messages 20
max_queued_messages 1000
max_queued_bytes 0
memory_limit 100000000
retain_available true
sys_interval 10
persistent_client_expiration 2m
log_type error
connection one
address 10.0.0.1:1883 10.0.0.2
topic sensors/# both 1 here/ there/
topic # out 0
remote_username u
remote_password p
try_private true
cleansession false
bridge_protocol_version mqttv50
start_type automatic
restart_timeout 5 30
keepalive_interval 60
clientid_prefixes a
include_dir more
plugin /x.so
plugin_opt_a b
"""
OTHER = "listener 1883\nallow_anonymous true\nconnection two\naddress 10.0.0.9\ntopic x/# in 2 a/ b/\n"
ACL = """
topic read #
topic readwrite $SYS/#
user ann
topic write a/+/b
topic deny a/secret/#
pattern read c/%u/%c
pattern write c/%c/#
"""
EMQX = """
{allow, {username, {re, "^dashboard$"}}, subscribe, ["$SYS/#"]}.
{allow, {ipaddr, "127.0.0.1"}, all, ["$SYS/#", "#"]}.
{allow, {'and', [{user, "a"}, {client, "b"}]}, publish, ["x/%u", "y/${clientid}/${username}"]}.
{deny, all, subscribe, ["$SYS/#", {eq, "#"}, {eq, "+/#"}]}.
{allow, all}.
"""
USERS = f"ann:$6$abcdefgh${'A' * 86}==\nbob:$7$101$QUJDREVGR0hJSktM${'B' * 86}==\n"
WORDS = (
    *("", "-1", "0", "99999999999999999999", "1e9", "\u00fc", "#", "+", "%u", "a" * 5000, "true", '"', "'", "[", "{", "}", ".", ","),
    *(
        "::1",
        "[::1]",
        "127.0.0.1",
        "socks5",
        "mqttv31",
        "2y",
        "unix",
        "../../x",
        "\x00",
        "\x1b",
        "\u2028",
        "\t",
        "\r",
        "\\",
        "${x}",
        "{re, ",
    ),
)


def mutated(chance: random.Random, text: str) -> str:
    """A text with one to four changes of lines and words."""
    lines = text.split("\n")
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(lines))
        change = chance.randrange(6)
        if change == 0:
            del lines[place]
            lines = lines or [""]
        elif change == 1:
            lines.insert(place, chance.choice(lines))
        elif change == 2:
            words = lines[place].split(" ")
            words[chance.randrange(len(words))] = chance.choice(WORDS)
            lines[place] = " ".join(words)
        elif change == 3:
            lines[place] += " " + chance.choice(WORDS)
        elif change == 4:
            lines[place] = lines[place][: chance.randint(0, len(lines[place]))]
        else:
            chance.shuffle(lines)
    return "\n".join(lines)


def furnish(chance: random.Random, folder: Path) -> list[str]:
    """Files as somebody got some of them wrong. Returns the words of a call that reads them."""
    wrong = {chance.choice(("conf", "acl", "users", "more", "other", "emqx")) for _ in range(2)}

    def text(name: str, right: str) -> bytes:
        return (mutated(chance, right) if name in wrong else right).encode()

    (folder / "more").mkdir()
    (folder / "plant.conf").write_bytes(text("conf", CONF))
    (folder / "other.conf").write_bytes(text("other", OTHER))
    (folder / "acl").write_bytes(text("acl", ACL))
    (folder / "users").write_bytes(text("users", USERS))
    (folder / "more" / "x.conf").write_bytes(text("more", "max_keepalive 65535\n"))
    (folder / "emqx").write_bytes(text("emqx", EMQX))
    (folder / "vmq").write_bytes(text("acl", ACL))
    kind = chance.randrange(6)
    if kind == 4:
        return ["--emqx-acl", str(folder / "emqx")]
    if kind == 5:
        return ["--vernemq-acl", str(folder / "vmq")]
    files = [str(folder / "plant.conf"), str(folder / "other.conf")][: 1 + kind % 2]
    return [*files, "--host", f"plant={chance.choice(('10.0.0.9', '', '[::1]', 'x y'))}"] if kind == 3 else files


def check(words: list[str], out: Path) -> str:
    """What becomes of a call; AssertionError if it does not end as it should, or has written what nobody can start from unsaid."""
    done = CliRunner().invoke(app, ["migrate", *words, "--json", "--out", str(out)])
    if not isinstance(done.exception, SystemExit | None):
        raise AssertionError(f"{words}: {done.exception!r}") from done.exception
    assert done.exit_code in (0, 1, 2), done.exit_code
    if done.exit_code == 2:
        assert not out.exists(), "it failed, and has written something"
        assert done.stderr.strip().count("\n") == 0, done.stderr
        return "refused"
    needs = {one["file"] for one in json.loads(done.stdout)["remarks"] if "no broker starts from it yet" in one["text"]}
    assert done.exit_code == 1 or not needs
    for file in out.iterdir():
        wrong = _wrong(file)
        assert wrong is None or file.name in needs, f"it is written, and nobody can start from it: {wrong}"
        assert wrong is not None or file.name not in needs, f"{file.name} is said to need more, and does not"
    return "written, needs more" if needs else "written"


def _wrong(file: Path) -> ConfigError | None:
    """Why nobody can start from a file."""
    try:
        _read(file)
    except ConfigError as error:
        return error
    return None


def _read(file: Path) -> None:
    if file.name == "topology.toml":
        topology = load_topology(file)
        for broker in topology.brokers:
            of_topology(topology, broker.name)
    elif file.name == "access.toml":  # belongs into a file with users
        users = file.parent.parent / "good"
        users.write_text(USERS)
        table = tomllib.loads(file.read_text())
        table["access"]["users"] = str(users)
        parse(table)
    else:
        load(file)


def round_of(seed: int) -> Counter[str]:
    """Some calls: what became of them."""
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mqmesh-fuzz-") as name:
        for number in range(ROUND):
            folder = Path(name) / str(number)
            folder.mkdir()
            outcomes[check(furnish(chance, folder), folder / "out")] += 1
    return outcomes


if __name__ == "__main__":
    main_of(__doc__, round_of)
