"""`mqmesh broker`: one broker in this process, from options, from a file, or from a file and options that override it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints
from urllib.parse import parse_qsl

import typer

from .logs import LEVELS, start_logging
from .option_groups import with_option_groups
from .output import WRONG_USE, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..base.settings import ConfigError
    from ..broker.config import BrokerConfig
    from ..broker.program import EmbeddedClient
    from ..directory.registration import Registration

DEFAULT_MESH = "mesh"


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a broker's file that an option sets."""

    name: str


@dataclass(slots=True)
class BrokerOptions:
    """Options that stand for a key of the broker's file."""

    listen: Annotated[
        list[str],
        Key("listen"),
        typer.Option(
            "--listen",
            metavar="URL",
            help="mqtt[s]://host:port, ws[s]://host:port/path or unix:///path; again for more. Port 0: any.",
            show_default=False,
        ),
    ] = field(default_factory=list)
    name: Annotated[str | None, Key("name"), typer.Option("--name", help="This broker's name, unique in its mesh.")] = None
    number: Annotated[int | None, Key("number"), typer.Option("--number", metavar="0..65535", help="Its number, unique in its mesh.")] = (
        None
    )
    peer: Annotated[
        list[str],
        Key("mesh.peer"),
        typer.Option(
            "--peer", metavar="URL", help="A neighbour to dial: mqtt[s]://host:port[?cost=2]; again for more.", show_default=False
        ),
    ] = field(default_factory=list)
    mesh: Annotated[
        str | None,
        Key("mesh.name"),
        typer.Option("--mesh", help=f"The mesh's name, the same at all its brokers; '{DEFAULT_MESH}' without this option."),
    ] = None
    mesh_key: Annotated[
        str | None,
        Key("mesh.key"),
        typer.Option("--mesh-key", envvar="MQMESH_KEY", show_envvar=True, help="The secret that its brokers share."),
    ] = None
    auth: Annotated[
        str | None,
        Key("mesh.auth"),
        typer.Option("--auth", metavar="key|certificate|both", help="How its brokers prove who they are; 'key' without this option."),
    ] = None
    mode: Annotated[
        str | None, Key("mesh.mode"), typer.Option("--mode", metavar="routed|flood", help="How messages travel through the mesh.")
    ] = None
    data: Annotated[
        Path | None, Key("data"), typer.Option("--data", help="Folder for what must survive a restart; memory without this option.")
    ] = None
    workers: Annotated[
        str | None,
        Key("workers"),
        typer.Option("--workers", metavar="N|auto", help="Processes that share the port; auto: one a core (docs/workers.md)."),
    ] = None
    durability: Annotated[
        str | None,
        Key("store.durability"),
        typer.Option("--durability", metavar="fsync|os|memory", help="What an acknowledgement waits for; 'fsync' without this option."),
    ] = None
    tls_certificate: Annotated[
        Path | None,
        Key("tls.certificate"),
        typer.Option("--tls-certificate", help="PEM file of its certificate, for mqtts:// (see mqmesh cert)."),
    ] = None
    tls_key: Annotated[Path | None, Key("tls.key"), typer.Option("--tls-key", help="PEM file of the certificate's private key.")] = None
    tls_ca: Annotated[
        Path | None, Key("tls.ca"), typer.Option("--tls-ca", help="PEM file of the authorities of clients and neighbours.")
    ] = None
    client_certificates: Annotated[
        str | None,
        Key("tls.client_certificates"),
        typer.Option("--client-certificates", metavar="none|optional|required", help="Whether TLS listeners ask clients for certificates."),
    ] = None
    http: Annotated[
        str | None,
        Key("http.listen"),
        typer.Option("--http", metavar="URL", help="http://host:port for /metrics, /health and /ready; nowhere without this option."),
    ] = None
    directory: Annotated[
        str | None,
        Key("directory.url"),
        typer.Option("--directory", metavar="URL", help="Where it registers, as $MQMESH_DIRECTORY_ACCOUNT with ..._SECRET."),
    ] = None
    journal: Annotated[
        Path | None,
        Key("journal.folder"),
        typer.Option("--journal", help="Folder of a journal (docs/journal.md)."),
    ] = None
    metabroker: Annotated[
        Path | None,
        Key("metabroker.policy"),
        typer.Option("--metabroker", metavar="FILE", help="Run a metabroker inside, with this policy (docs/metabroker.md)."),
    ] = None
    origin: Annotated[
        list[str],
        Key("websocket.origins"),
        typer.Option(
            "--origin", metavar="URL", help="Web pages that may connect, as https://app.example.com; again for more.", show_default=False
        ),
    ] = field(default_factory=list)

    def table(self, has_file: bool) -> dict[str, Any]:
        """The options as a table of the broker's file, without those that were not given. Raises ConfigError."""
        values = {name: value for name in KEYS if (value := getattr(self, name))}
        if self.number is not None:
            values["number"] = self.number
        if self.workers is not None and self.workers.isdigit():
            values["workers"] = int(self.workers)
        in_mesh = self.mesh or self.peer or self.auth or self.mode
        if has_file and not in_mesh:
            values.pop("mesh_key", None)  # of the environment, perhaps: the file may say that there is no mesh
        if not (in_mesh or self.name or self.number is not None) and self.mesh_key == os.environ.get("MQMESH_KEY"):
            values.pop("mesh_key", None)  # of the environment: it alone makes no member of a mesh
        found: dict[str, Any] = {}
        for name, value in values.items():
            *tables, key = KEYS[name].split(".")
            place = found
            for table in tables:
                place = place.setdefault(table, {})
            place[key] = str(value.absolute()) if isinstance(value, Path) else value
        if "peer" in (mesh := found.get("mesh", {})):
            mesh["peer"] = [_peer(text) for text in self.peer]
        if not has_file and mesh:
            mesh.setdefault("name", DEFAULT_MESH)
        if self.directory and self.mesh and not has_file and not self.peer:
            found["directory"]["neighbours"] = "all"
        return found


KEYS: dict[str, str] = {
    name: next(one.name for one in hint.__metadata__ if isinstance(one, Key))
    for name, hint in get_type_hints(BrokerOptions, include_extras=True).items()
}
# The key that an error of the configuration names -> the option that sets it.
OPTION_OF = {key: f"--{name.replace('_', '-')}" for name, key in KEYS.items()} | {"directory.mesh": "--mesh"}


@with_option_groups
def broker(
    *,
    options: BrokerOptions,
    port: Annotated[
        list[int] | None,
        typer.Option(
            "-p", "--port", metavar="PORT", min=0, max=65535, help="--listen mqtt://127.0.0.1:PORT: for this machine; again for more."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option("-c", "--config", help="A TOML file; options override what it says.")] = None,
    log_level: Annotated[str, typer.Option("--log-level", metavar="|".join(LEVELS), help="What goes to stderr.")] = "info",
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="--log-level debug.")] = False,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True, help="End when stdin is closed.")] = False,
    worker: Annotated[Path | None, typer.Option("--worker", hidden=True, help="Be one of its workers: FOLDER/INDEX.")] = None,
) -> None:
    """Run one broker; it prints one line that starts with 'ready' once it listens.

    \b
    Alone, for any MQTT client of this machine; for other machines too:
      mqmesh broker -p 1883
      mqmesh broker --listen mqtt://0.0.0.0:1883

    \b
    Two brokers that form a mesh (one end of a link dials, the other listens):
      export MQMESH_KEY='a secret of 16 bytes or more'
      mqmesh broker --name porto --number 1 --mesh sites --listen mqtt://127.0.0.1:1883
      mqmesh broker --name lyon --number 2 --mesh sites --listen mqtt://127.0.0.1:1884 --peer mqtt://127.0.0.1:1883

    \b
    With TLS (mqmesh cert makes certificates to begin with):
      mqmesh broker --listen mqtts://127.0.0.1:8883 --tls-certificate tls/porto.crt --tls-key tls/porto.key

    \b
    For web pages (WebSocket), and for other clients:
      mqmesh broker --listen ws://127.0.0.1:9001/mqtt --origin http://127.0.0.1:8000 --listen mqtt://127.0.0.1:1883

    \b
    In a mesh with a directory, which gives it its number and knows the others:
      mqmesh broker --name graz --mesh sites --listen mqtt://127.0.0.1:1885 --data data/graz --directory http://127.0.0.1:8090

    \b
    From a file, on another port:
      mqmesh broker -c porto.toml -p 2883

    Ends with SIGTERM or Ctrl-C. SIGHUP: it reads its certificates again and, from its file, users,
    rules, the policies of its links and the origins of web pages.
    Status: 0 stopped; 2 it could not start, one line on stderr says why.
    """
    options.listen += [f"mqtt://127.0.0.1:{one}" for one in port or ()]
    serve("broker", options, config, "debug" if verbose else log_level, worker=worker, stop_with_stdin=stop_with_stdin)


def serve(
    command: str,
    options: BrokerOptions,
    config: Path | None,
    log_level: str,
    more: Mapping[str, Any] | None = None,
    *,
    worker: Path | None = None,
    stop_with_stdin: bool,
) -> NoReturn:
    """Run a broker until it ends. command: for errors. more: what goes over its file, beside the options. worker: which one it is."""
    from ..base.settings import ConfigError, merged
    from ..broker.config import load, parse
    from ..broker.settings.workers import Worker, left_behind
    from ..broker.workers.configuration import worker_of

    _check_level(command, log_level)
    place = Worker.read(worker) if worker is not None else None

    def read() -> BrokerConfig:
        table = merged(options.table(config is not None), more or {})
        found = load(config, table) if config is not None else parse(table)
        return found if place is None else worker_of(found, place)

    try:
        settings = read()
    except ConfigError as error:
        raise fail(f"{command}: {_explain(error)}", WRONG_USE) from None
    start_logging(settings.name, log_level)
    if stop_with_stdin:
        threading.Thread(target=_stop_with_stdin, name="stdin", daemon=True).start()
    if place is None and max(settings.workers, left_behind(settings.data)) > 1:
        raise typer.Exit(_run_workers(settings))
    raise typer.Exit(_run(settings, read if config is not None else None))


def _run_workers(settings: BrokerConfig) -> int:
    from ..broker.config import needs_one_process
    from .workers import WorkersError, run_workers

    why = needs_one_process(settings)
    if why:  # it had workers once
        text = f"{settings.data} holds sessions of workers: start it with workers = 2 until they are gone (docs/workers.md); {why}"
        raise fail(f"broker {settings.name}: {text}", WRONG_USE)
    try:
        return run_workers(settings, settings.workers)
    except WorkersError as error:
        raise fail(f"broker {settings.name}: {error}", WRONG_USE) from None


def _check_level(command: str, log_level: str) -> None:
    if log_level not in LEVELS:
        raise fail(f"{command}: --log-level {log_level}: there are {', '.join(LEVELS)}", WRONG_USE)


def _run(settings: BrokerConfig, reload: Callable[[], BrokerConfig] | None) -> int:
    from ..base.settings import ConfigError
    from ..broker.program import StartError, run
    from .fleet.watch import report

    registration = _registration(settings) if settings.directory is not None else None
    try:
        run(settings, reload, registration, [one for one in (_metabroker(settings), _interchange(settings)) if one is not None], report)
    except (StartError, OSError) as error:
        text = _explain(error.__cause__) if isinstance(error.__cause__, ConfigError) else str(error)
        raise fail(f"broker {settings.name}: {text}", WRONG_USE) from None
    return 0


def _metabroker(settings: BrokerConfig) -> EmbeddedClient | None:
    """The metabroker inside the broker, if the file asks for one."""
    if settings.metabroker is None or settings.metabroker.inside is None:
        return None
    from ..base.settings import ConfigError
    from ..metabroker.shell.embedded import Metabroker

    try:
        return Metabroker(settings.metabroker)
    except ConfigError as error:
        raise fail(f"broker {settings.name}: {_explain(error)}", WRONG_USE) from None


def _interchange(settings: BrokerConfig) -> EmbeddedClient | None:
    """The interchange inside the broker, if the file asks for one."""
    if settings.interchange is None:
        return None
    from ..base.settings import ConfigError
    from ..interchange.shell.embedded import Interchange

    try:
        return Interchange(settings)
    except ConfigError as error:
        raise fail(f"broker {settings.name}: {_explain(error)}", WRONG_USE) from None


def _registration(settings: BrokerConfig) -> Registration:
    """The registration in the directory. Waits until the directory gives the broker its number."""
    from ..directory.registration import Refused, Registration

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # nothing runs yet that must end in order
    try:
        registration = Registration(settings)
        settings.number = registration.number()
    except (Refused, OSError, ValueError) as error:
        raise fail(f"broker {settings.name}: directory: {error}", WRONG_USE) from None
    return registration


def _stop_with_stdin() -> None:
    """End in order when the parent process is gone, which closes our stdin."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _peer(text: str) -> dict[str, Any]:
    """``mqtt://host:port?cost=2&number=3`` as a table of the file's ``[[mesh.peer]]``."""
    from ..base.settings import ConfigError

    address, _, query = text.partition("?")
    peer: dict[str, Any] = {"address": address}
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option not in ("cost", "number") or not value.isdigit():
            raise ConfigError("command line", "mesh.peer", text, "after ? write cost=1..65535 and number=0..65535, as in ?cost=2&number=7")
        peer[option] = int(value)
    return peer


def _explain(error: ConfigError) -> str:
    """The error in the user's words: a mistake on the command line names the option instead of the file's key."""
    if error.file != "command line":
        return str(error)
    key = re.sub(r"\[\d+\]", "", error.key)
    option = OPTION_OF.get(key, "--peer" if key.startswith("mesh.peer") else error.key)
    return str(error).replace(f"command line: {error.key}", option, 1)
