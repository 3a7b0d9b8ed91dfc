"""`mqmesh migrate`: the files of other brokers become files of ours."""

from __future__ import annotations

import json
import re
import secrets
import socket
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from ...base.plural import counted
from ...base.process.files import replace_file
from ...base.settings import ConfigError
from ...broker.config import load, of_topology
from ..fleet.broker_file import tables_text
from ..output import FAILED, WRONG_USE, fail, note
from ..tables import titled_table
from .bridges import Site, topology_of
from .broker_tables import tables_of
from .database_import import import_database
from .emqx_acl import rules_of as rules_of_emqx
from .mosquitto_conf import MigrateError, options_of, parse, read_options, read_text
from .remarks import Option, Remark, Remarks
from .vernemq_acl import rules_of as rules_of_vernemq

TOPOLOGY, ACCESS = "topology.toml", "access.toml"
_COMMON = ("mosquitto", "default", "conf")  # names of files that say nothing of their broker


def migrate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="A mosquitto.conf; those of several hosts give a topology.", show_default=False)
    ] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option("--out", help="Folder for what is written; stdout without this option.")] = None,
    host: Annotated[
        list[str],
        typer.Option(
            "--host", metavar="NAME=ADDRESS", help="Under which address bridges know a file's broker; again for more.", show_default=False
        ),
    ] = [],  # noqa: B006
    database: Annotated[
        Path | None, typer.Option("--database", help="A mosquitto.db to import instead, with --config.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="The file of the broker whose new store gets it.", show_default=False)
    ] = None,
    emqx_acl: Annotated[Path | None, typer.Option("--emqx-acl", help="An acl.conf of EMQX: rules of access.", show_default=False)] = None,
    vernemq_acl: Annotated[Path | None, typer.Option("--vernemq-acl", help="A vmq.acl of VerneMQ: the same.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are in --out with another text.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write the report, and without --out the files, as one JSON object.")] = False,
) -> None:
    """Turn a mosquitto.conf into a broker's file, and those of bridged hosts into a topology.

    What has no equivalent is reported, with the reason, and stands in the file as a comment.

    \b
      mqmesh migrate /etc/mosquitto/mosquitto.conf --out mqmesh
      mqmesh migrate porto.conf lyon.conf --host lyon=10.0.0.2 --out mqmesh
      mqmesh migrate --database /var/lib/mosquitto/mosquitto.db --config mqmesh/porto.toml
      mqmesh migrate --emqx-acl /etc/emqx/acl.conf --out mqmesh

    A database has retained messages and sessions, with their subscriptions and the messages that wait. Stop Mosquitto before.

    Nothing that is read is changed. A broker is called like its file, or like the file's folder. A file that is in --out
    already with another text, because somebody has edited it, is written over with --force only.

    Status: 0 all was taken; 1 written, but something has no equivalent here; 2 a file is wrong, or there with another text: nothing is
    written.
    """
    if database is not None:
        _import(files, database, config, as_json)
        return
    if not (files or emqx_acl or vernemq_acl):
        raise fail("migrate: give a mosquitto.conf, or --database and --config, or --emqx-acl or --vernemq-acl", WRONG_USE)
    remarks = Remarks()
    try:
        if emqx_acl or vernemq_acl:
            made = _access(files, emqx_acl, vernemq_acl, remarks)
        else:
            sites = _sites(files, host, remarks)
            mesh = {"name": "mesh", "key": secrets.token_hex(32)}
            topology = topology_of(sites, mesh, remarks)
            made = _texts(sites, topology, remarks)
    except MigrateError as error:
        raise fail(f"migrate: {error}", WRONG_USE) from None
    if out is not None:
        _write(out, made, force)
    if as_json:
        _print_json(remarks, {str(out / name): None for name in made} if out is not None else made)
    else:
        if out is None:
            for text in made.values():
                print(text, end="")
        _print_report(remarks, out, list(made))
    if remarks.anything_lost:
        raise typer.Exit(FAILED)


def _import(files: list[Path], database: Path, config: Path | None, as_json: bool) -> None:
    if files or config is None:
        raise fail("migrate: --database takes --config with the file of the broker that gets it, and nothing else", WRONG_USE)
    try:
        store, taken = import_database(database, config)
    except MigrateError as error:
        raise fail(f"migrate: {error}", WRONG_USE) from None
    if as_json:
        print(json.dumps({"store": store, **taken._asdict()}, ensure_ascii=False))
    else:
        for one in taken.lost:
            note(f"lost: a subscription to what is no topic filter: {one}")
        parts = [
            counted(number, word)
            for number, word in zip(taken[:4], ("session", "subscription", "message", "retained message"), strict=True)
        ]
        note(f"{', '.join(parts)} into {store}")
    if taken.lost:
        raise typer.Exit(FAILED)


def _access(files: list[Path], emqx: Path | None, vernemq: Path | None, remarks: Remarks) -> dict[str, str]:
    """The rules of another broker's ACL file, as a table of a broker's file."""
    if files or (emqx and vernemq):
        raise MigrateError("give one ACL file, and no other file with it")
    if emqx is not None:
        rules = rules_of_emqx(read_text(emqx), str(emqx), remarks)
    else:
        assert vernemq is not None
        rules = rules_of_vernemq(options_of(read_text(vernemq), str(vernemq)), remarks)
    if not rules:
        raise MigrateError(f"{emqx or vernemq}: no rule is left, and without rules everything is allowed")
    head = f"# From {emqx or vernemq}, by mqmesh migrate. It belongs into a broker's file, with users, certificates or tokens.\n"
    return {ACCESS: head + tables_text({"access": {"on_overlap": "filter", "rule": rules}})}


def _sites(files: list[Path], hosts: list[str], remarks: Remarks) -> list[Site]:
    sites: list[Site] = []
    ipv6 = _has_ipv6()
    for file in files:
        conf, name = parse(read_options(file), str(file)), _name(file)
        if any(one.name == name for one in sites):
            raise MigrateError(
                f'{file}: another file\'s broker is called "{name}" already: give the files or their folders different names'
            )
        sites.append(Site(name, conf, tables_of(conf, name, remarks, ipv6)))
    for word in hosts:
        name, equals, address = word.partition("=")
        site = next((one for one in sites if one.name == name), None)
        if site is None or not equals or not address:
            raise MigrateError(f"--host {word}: give NAME=ADDRESS with one of {', '.join(one.name for one in sites)}")
        site.hosts.add(address)
    return sites


def _name(file: Path) -> str:
    """What a file's broker is called."""
    words = [file.stem, file.absolute().parent.name, "mosquitto"]
    name = next((word for word in words if word not in _COMMON), "mosquitto")
    return re.sub(r"[^\w.-]", "-", name).lstrip(".-")[:64] or "mosquitto"


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _texts(sites: list[Site], topology: dict[str, Any] | None, remarks: Remarks) -> dict[str, str]:
    """File name -> text."""
    joined = {one["name"] for one in topology["broker"]} if topology is not None else set()
    parts = {f"{one.name}.toml": ([one], tables_text(one.table)) for one in sites if one.name not in joined}
    if topology is not None:
        parts[TOPOLOGY] = ([one for one in sites if one.name in joined], tables_text(topology))
    for name, (_, text) in parts.items():
        _check(name, text, remarks)
    return {name: _head(of, remarks) + text for name, (of, text) in parts.items()}


def _check(name: str, text: str, remarks: Remarks) -> None:
    """Read what is about to be written as those do who start from it. What Mosquitto accepts may be too little here."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_text(text)
        try:
            if name == TOPOLOGY:
                from ...mesh.topology.topology import load as load_topology

                topology = load_topology(file)
                for one in topology.brokers:
                    of_topology(topology, one.name)
            else:
                load(file)
        except ConfigError as error:
            wrong = ConfigError(name, error.key, error.value, error.text)
            remarks.lost(Option(error.key, "", name, 0), f"no broker starts from it yet: {str(wrong).removeprefix(f'{name}: ')}")


def _head(sites: list[Site], remarks: Remarks) -> str:
    lines = [f"# From {site.conf.file}, by mqmesh migrate." for site in sites]
    lines += [f"# {one.kind}: {one.place}: {one.option.name}: {one.text}" for one in remarks.found]
    return "\n".join(lines) + "\n\n"


def _write(out: Path, made: dict[str, str], force: bool) -> None:
    try:
        there = [] if force else [str(out / name) for name, text in made.items() if _differs(out / name, text)]
        if there:
            what = "is there already, with another text" if len(there) == 1 else "are there already, with other texts"
            raise fail(f"migrate: {', '.join(there)} {what}; give another --out, or --force to write over it", WRONG_USE)
        out.mkdir(parents=True, exist_ok=True)
        for name, text in made.items():
            replace_file(out / name, text)  # for its owner alone: a mesh's key, or a bridge's password, is in it
    except OSError as error:
        raise fail(f"migrate: {out}: {error.strerror or error}", FAILED) from None


def _differs(path: Path, text: str) -> bool:
    """Whether another text stands in a file. Raises OSError."""
    try:
        return path.read_bytes() != text.encode()
    except (FileNotFoundError, NotADirectoryError):
        return False


def _print_json(remarks: Remarks, made: dict[str, str] | dict[str, None]) -> None:
    found = [
        {
            "kind": one.kind,
            "file": one.option.file,
            "line": one.option.line or None,
            "option": one.option.name,
            "value": _value(one),
            "text": one.text,
        }
        for one in remarks.found
    ]
    print(json.dumps({"lines": remarks.lines, "remarks": found, "files": made}, ensure_ascii=False))


def _value(remark: Remark) -> str | None:
    return None if "password" in remark.option.name and "file" not in remark.option.name else remark.option.value


def _print_report(remarks: Remarks, out: Path | None, names: list[str]) -> None:
    console = Console(stderr=True)
    if remarks.found:
        table = titled_table("", "", "where", "reason", show_lines=True)
        for one in sorted(remarks.found, key=lambda one: (one.kind, one.option.file, one.option.line)):
            kind = f"[red]{one.kind}[/red]" if one.kind == "lost" else one.kind
            table.add_row(kind, *map(escape, (f"{Path(one.place).name}\n{one.option.name}", one.text)))
        console.print(table)
    lost = sum(one.kind == "lost" for one in remarks.found)
    where = f"; written: {', '.join(str(out / name) for name in names)}" if out is not None else ""
    note(f"{remarks.lines} lines read, {lost} without equivalent{where}")
