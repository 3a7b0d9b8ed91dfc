"""Makes of one topology a folder for each of its brokers, each to be copied to a machine of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base.address import is_loopback, parse_address
from ...base.settings import ConfigError, expanded, is_file, read
from ...broker.config import of_topology
from ...mesh.topology.topology import Topology
from ..authority import Authority
from . import certificates, folder

DAYS = 365  # of a certificate; an authority has ten times as many


def split(topology: Topology, out: Path) -> list[Path]:
    """Write a folder for each broker into `out`, and return them. What is there is written anew, except keys.

    Certificates that the topology names and that are not there are made beside it, as `mqmesh cert` does. Raises ConfigError,
    AuthorityError, OSError, and ValueError (one line).
    """
    configs = [of_topology(topology, one.name, out) for one in topology.brokers]
    _make_missing_certificates(topology)
    folders = {one.name: out / one.name for one in topology.brokers}
    folder.begin(out)
    for one in folders.values():
        folder.begin(one)
    keys = {name: folder.public_key(one) for name, one in folders.items() if name not in topology.mesh.keys} | topology.mesh.keys
    for config in configs:
        assert config.mesh is not None
        config.mesh = replace(config.mesh, keys=keys)
        _write(topology, config.name, folders[config.name], config)
    return list(folders.values())


def weaknesses(topology: Topology) -> list[str]:
    """What works on one machine and not on several, or not safely: one line each."""
    found = []
    for link in topology.links:
        address = topology.dial_address(link)
        where = parse_address(address)
        if where.scheme == "unix" or is_loopback(where.host):
            found.append(
                f"{link.dialler} dials {link.listener} at {address}, which other machines cannot reach: "
                f"let {link.listener} listen at its own address, or give the [[link]] an address"
            )
        elif not where.tls:
            found.append(
                f"{link.dialler} dials {link.listener} at {address}: what passes is not encrypted; see With TLS in docs/topologies.md"
            )
    return found


def _make_missing_certificates(topology: Topology) -> None:
    named = {one.name for one in topology.brokers if one.tls is not None and one.tls.certificate is not None}
    beside = Path(topology.file).parent / "tls"
    wanted = [one for one in certificates.of_topology(topology, beside) if one.name in named]
    certificates.refuse_twice(wanted)
    missing = [one for one in wanted if not (one.certificate.exists() or one.key.exists())]
    if missing:
        ca = certificates.authority_file(topology, beside)
        authority = Authority(topology.mesh.name, ca, ca.with_suffix(".key"), 10 * DAYS)
        for one in missing:
            authority.issue(one.name, one.certificate, one.key, one.hosts, DAYS, one.server, False)


def _write(topology: Topology, name: str, to: Path, config: Any) -> None:
    source = Path(topology.file).parent
    elsewhere: list[str] = []
    tables = {key: _brought(value, topology.file, key, source, to, elsewhere) for key, value in topology.tables_of(name).items()}
    if config.metabroker is not None and config.metabroker.inside is not None:
        _bring_files_of_policy(tables["metabroker"]["policy"], source, to, elsewhere)
    if config.tls is not None:
        tables = {"tls": folder.copy_certificates(to, name, config.tls), **tables}
    folder.write(to, config, tables, _remarks(topology, name, elsewhere))


def _bring_files_of_policy(text: str, source: Path, to: Path, elsewhere: list[str]) -> None:
    """Copy the files that the policy of a metabroker names relative to itself. text: the policy's path in the topology."""
    path = expanded(text)
    policy = source / path
    if is_file(policy):
        beside = None if path.is_absolute() else (to / path).parent
        for key, value in read(policy).table.items():
            _brought(value, str(policy), key, policy.parent, beside, elsewhere)


def _brought(value: Any, file: str, key: str, source: Path, to: Path | None, elsewhere: list[str]) -> Any:
    """A value of a table of `file`. A text that names a file beside it is copied with its path; other files are noted in `elsewhere`.

    source: the folder of `file`. to: the folder that its copy lies in; None: it is not copied, so nothing is.
    """
    if isinstance(value, Mapping):
        return {name: _brought(one, file, f"{key}.{name}", source, to, elsewhere) for name, one in value.items()}
    if isinstance(value, list):
        return [_brought(one, file, key, source, to, elsewhere) for one in value]
    if not isinstance(value, str) or not value or "\0" in value:
        return value
    path = expanded(value) if value.startswith("~") else Path(value)
    if path.is_absolute() or to is None:
        elsewhere += [str(source / path)] * is_file(source / path)
        return value
    if not is_file(source / path):
        return value
    if ".." in path.parts:
        raise ConfigError(file, key, value, f"is not in the folder of {Path(file).name}: give an absolute path, or put it there")
    (to / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source / path, to / path)
    return value


def _remarks(topology: Topology, name: str, elsewhere: list[str]) -> list[str]:
    remarks = []
    dials = [f"- {link.listener} at `{topology.dial_address(link)}`" for link in topology.dialled_by(name)]
    if dials:
        remarks.append("It dials\n\n" + "\n".join(dials))
    dialled = sorted(link.dialler for link in topology.links if link.listener == name)
    if dialled:
        remarks.append(f"It is dialled by {', '.join(dialled)}.")
    if elsewhere:
        remarks.append(
            "Its file names these files, which are not in this folder. Put them there:\n\n"
            + "\n".join(f"- `{one}`" for one in dict.fromkeys(elsewhere))
        )
    return remarks
