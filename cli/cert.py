"""`mqmesh cert`: an authority and certificates for the brokers of a topology, and for clients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..base.extras import install
from .output import FAILED, WRONG_USE, fail

if TYPE_CHECKING:
    from ..mesh.topology.topology import Topology
    from .authority import Made
    from .site.certificates import Wanted


def cert(
    file: Annotated[
        Path | None, typer.Argument(metavar="[TOPOLOGY]", help="Issue certificates for all brokers of this topology.", show_default=False)
    ] = None,
    broker: Annotated[
        list[str], typer.Option("--broker", metavar="NAME", help="Issue one for a broker of this name; again for more.", show_default=False)
    ] = [],  # noqa: B006
    client: Annotated[
        list[str], typer.Option("--client", metavar="NAME", help="Issue one for a client of this name; again for more.", show_default=False)
    ] = [],  # noqa: B006
    host: Annotated[
        list[str],
        typer.Option("--host", metavar="HOST", help="Host or address of the brokers; again for more.", show_default=False),
    ] = [],  # noqa: B006
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder. By default where the topology's [tls] says, else 'tls' beside it.", show_default=False),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=36500, help="How long the certificates are valid.")] = 365,
    ca_days: Annotated[int, typer.Option("--ca-days", min=1, max=36500, help="How long a new authority is valid.")] = 3650,
    renew: Annotated[bool, typer.Option("--renew", help="Replace existing certificates (never the authority).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make an authority and certificates, for tests, first steps, and meshes without another authority.

    \b
    For every broker of a topology, where its [tls] table says (else in tls/ beside it), and for two clients:
      mqmesh cert sites.toml --client sensor-7 --client desk

    \b
    For brokers without a topology:
      mqmesh cert --broker porto --broker lyon --host porto.example.com --out tls

    \b
    Later: new certificates from the same authority, then tell each broker (its connections stay)
      mqmesh cert sites.toml --renew
      kill -HUP $(cat sites/porto.pid)

    A certificate names its broker, so addresses may change. It also names the hosts in the topology, for clients.
    Only you can read the private keys. Keep the authority's key (ca.key) where no broker runs.

    Status: 0 done; 1 files cannot be read or written; 2 wrong command line or topology.
    """
    try:
        from .authority import Authority, AuthorityError
    except ImportError:
        raise fail(f"cert: needs the package cryptography: {install('certificates')}", WRONG_USE) from None
    from .site import certificates

    topology = _topology(file)
    folder = out or (file.parent / "tls" if file is not None else Path("tls"))
    in_topology = certificates.of_topology(topology, folder, out is not None, host) if topology else []
    wanted = [*in_topology, *_named(broker, client, folder, host)]
    if not wanted:
        raise fail("cert: for whom? Give a topology, --broker NAME or --client NAME; see mqmesh cert --help", WRONG_USE)
    try:
        certificates.refuse_twice(wanted)
        ca = certificates.authority_file(topology, folder, out is not None) if topology else folder / "ca.crt"
    except ValueError as error:
        raise fail(f"cert: {error}", WRONG_USE) from None
    try:
        authority = Authority(topology.mesh.name if topology else "mqmesh", ca, ca.with_suffix(".key"), ca_days)
        made = [authority.issue(one.name, one.certificate, one.key, one.hosts, days, one.server, renew) for one in wanted]
    except (AuthorityError, OSError) as error:
        raise fail(f"cert: {error}", FAILED) from None
    if as_json:
        print(json.dumps({"authority": _as_dict(authority.made), "certificates": [_as_dict(one) for one in made]}, indent=1))
    else:
        _tell(authority.made, made, show_table=topology is None or all(one.tls is None for one in topology.brokers))


def _topology(file: Path | None) -> Topology | None:
    from ..base.settings import ConfigError
    from ..mesh.topology.topology import load

    try:
        return load(file) if file is not None else None
    except ConfigError as error:
        raise fail(f"cert: {error}", WRONG_USE) from None


def _named(brokers: Iterable[str], clients: Iterable[str], folder: Path, hosts: Iterable[str]) -> list[Wanted]:
    from ..base.settings import NAME
    from .site.certificates import LOCAL, Wanted

    wanted = []
    for name, server in [*((name, True) for name in brokers), *((name, False) for name in clients)]:
        if not NAME.fullmatch(name):
            text = "a name has 1 to 64 letters, digits, '.', '_' and '-' and does not start with '.' or '-'"
            raise fail(f"cert: --{'broker' if server else 'client'} {name}: {text}", WRONG_USE)
        wanted.append(Wanted(name, folder / f"{name}.crt", folder / f"{name}.key", (*LOCAL, *hosts) if server else (), server))
    return wanted


def _as_dict(made: Made) -> dict[str, Any]:
    return {
        "name": made.name,
        "certificate": str(made.certificate),
        "key": str(made.key),
        "names": list(made.names),
        "ends": made.ends.isoformat(),
        "new": made.new,
    }


def _tell(authority: Made, made: list[Made], show_table: bool) -> None:
    for one in (authority, *made):
        names = f" for {', '.join(one.names)}" if one.names else ""
        kind = "authority" if one is authority else one.name
        print(f"{'made' if one.new else 'kept'} {kind}: {one.certificate}{names}, until {one.ends:%Y-%m-%d}; key {one.key}")
    if not all(one.new for one in made):
        print("--renew replaces the certificates that were kept")
    if show_table and made:
        print(
            "in a broker's file or a topology (paths are relative to it, {name} is the broker's name):\n\n"
            f'[tls]\ncertificate = "{authority.certificate.parent}/{{name}}.crt"\nkey = "{authority.certificate.parent}/{{name}}.key"\n'
            f'ca = "{authority.certificate}"\nclient_certificates = "optional"'
        )
