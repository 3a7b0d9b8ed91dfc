"""One play for two brokers: a Mosquitto with a file, and ours with what the file was migrated to."""

from __future__ import annotations

import contextlib
import getpass
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mqmesh.cli.main import app
from support.paho_client import Paho
from support.services import PATIENCE, free_port, require, wait_for_port
from typer.testing import CliRunner, Result

FILES = Path(__file__).parent / "mosquitto"
PROGRAM = [sys.executable, "-m", "mqmesh.cli.main"]


class Seen(NamedTuple):
    """A message as a client has got it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Place(NamedTuple):
    """A broker to play at. ports: those of the file's PORT1, PORT2, ...; folder: where HERE is."""

    ports: list[int]
    folder: Path


@contextlib.contextmanager
def client(port: int, name: str, user: str | None = None, password: str | None = None, **options: Any) -> Iterator[Paho]:
    """A client of MQTT 3.1.1 whose CONNECT is answered; `reason` says how."""
    found = Paho(port, options.pop("version", 4), name, **options)
    if user is not None:
        found.client.username_pw_set(user, password)
    found.open()
    try:
        yield found
    finally:
        found.close()


def trusting(place: Place, name: str | None = None) -> ssl.SSLContext:
    """TLS of a client that knows the place's authority, with a certificate of its own."""
    context = ssl.create_default_context(cafile=str(place.folder / "ca.crt"))
    context.check_hostname = False
    if name is not None:
        context.load_cert_chain(place.folder / f"{name}.crt", place.folder / f"{name}.key")
    return context


def taken(one: Paho) -> list[Seen]:
    """What has come to a client: the answer to UNSUBSCRIBE comes behind it."""
    one.unsubscribe("nothing/at/all")
    found = []
    while not one.messages.empty():
        message = one.messages.get()
        found.append(Seen(message.topic, message.payload, message.qos, message.retain))
    return sorted(found)


def prepared(name: str, folder: Path, source: Path) -> Place:
    """A folder with the file `name` and what belongs to it, with ports of its own. source: a folder whose files are taken too."""
    folder.mkdir()
    place = Place([free_port() for _ in range(3)], folder)
    for path in [*FILES.rglob("*"), *source.iterdir()]:
        if path.is_dir():
            continue
        target = folder / (path.relative_to(FILES) if path.is_relative_to(FILES) else path.name)
        target.parent.mkdir(exist_ok=True)
        text = path.read_text()
        for number, port in enumerate(place.ports, 1):
            text = text.replace(f"PORT{number}", str(port))
        target.write_text(text.replace("HERE", str(folder)))
    (folder / "STATE").mkdir()
    assert (folder / name).exists()
    return place


@contextlib.contextmanager
def mosquitto(place: Place, *names: str) -> Iterator[None]:
    with contextlib.ExitStack() as ends:
        for name in names:
            path = place.folder / f"{name}.played"  # a Mosquitto that root starts becomes another user, who may not read these folders
            path.write_text(f"user {getpass.getuser()}\n{(place.folder / name).read_text()}")
            with (place.folder / f"{name}.log").open("a") as log:
                process = subprocess.Popen([require("mosquitto"), "-c", str(path)], stdout=subprocess.DEVNULL, stderr=log)
            ends.callback(process.wait, PATIENCE)
            ends.callback(process.terminate)
        for port in _ports_of(place, *names):
            wait_for_port(port)
        yield


def _ports_of(place: Place, *names: str) -> list[int]:
    """The ports of a file that are open."""
    texts = [path.read_text() for name in names for path in [FILES / name, *(FILES / "conf.d").glob("*.conf")]]
    return [port for number, port in enumerate(place.ports, 1) if any(f" PORT{number}" in text.partition("psk_hint")[0] for text in texts)]


def migrate(place: Place, *names: str) -> Result:
    files = [str(place.folder / name) for name in names]
    return CliRunner().invoke(app, ["migrate", *files, "--out", str(place.folder / "out"), "--json"])


@contextlib.contextmanager
def ours(place: Place, file: str) -> Iterator[None]:
    """A broker with a file that `migrate` has written, or all of a topology."""
    path = place.folder / "out" / file
    command = ["up", str(path)] if file == "topology.toml" else ["broker", "--config", str(path)]
    with (place.folder / "ours.log").open("a") as log:
        process = subprocess.Popen([*PROGRAM, *command], stdout=subprocess.PIPE, stderr=log, text=True, cwd=place.folder)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready"), (place.folder / "ours.log").read_text()
        yield
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


Play = Callable[[Place], Any]
