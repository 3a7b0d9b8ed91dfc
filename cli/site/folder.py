"""The folder of one broker: its file, certificates, key pair, systemd unit, and the commands that install it on its machine.

broker.toml             the broker's file; its paths are relative to it
tls/                    certificate, private key, authorities
data/identity.key       its private key in the mesh; the data folder on the machine
mqmesh-broker.service   the systemd unit
README.md               what to run on the machine
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.address import is_loopback, parse_address
from ...broker.mesh.identity import own_signer
from ...mesh.topology.tls import FILES, TlsSettings
from ...mesh.wire.keys import shown
from ..authority import write_private, write_public
from ..fleet import broker_file
from . import unit

if TYPE_CHECKING:
    from ...broker.config import BrokerConfig

FILE = "broker.toml"
DATA = "data"
INSTRUCTIONS = "README.md"
_PRIVATE = ("key", "key_password_file")
_NAMES = {
    "certificate": "{name}.crt",
    "key": "{name}.key",
    "key_password_file": "{name}.password",
    "ca": "ca.crt",
    "revoked": "revoked.pem",
}


def begin(folder: Path) -> None:
    """Make the folder, readable only for its owner: it holds secrets. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def public_key(folder: Path) -> str:
    """The public key of the broker, as `[mesh] keys` says it. Makes the key pair if there is none. Raises OSError, ValueError."""
    return shown(own_signer(folder / DATA).public)


def copy_certificates(folder: Path, name: str, tls: TlsSettings) -> dict[str, Any]:
    """Copy the files of a broker's TLS, and return the table `[tls]` that names them. Raises ConfigError for one that cannot be read."""
    table: dict[str, Any] = {}
    for key in FILES:
        path: Path | None = getattr(tls, key)
        if path is None:
            continue
        to = Path("tls") / _NAMES[key].format(name=name)
        try:
            (write_private if key in _PRIVATE else write_public)(folder / to, path.read_bytes())
        except OSError as error:
            raise tls.error(key, f"cannot be copied: {error.strerror or error}") from None
        table[key] = str(to)
    return {**table, "client_certificates": tls.client_certificates}


def write(folder: Path, config: BrokerConfig, tables: Mapping[str, Any], remarks: Iterable[str] = ()) -> None:
    """Write the broker's file, the unit and the instructions. Raises OSError.

    tables: of the broker's file, with paths relative to it. remarks: paragraphs of the instructions.
    """
    write_private(folder / FILE, broker_file.render(config, tables, data=DATA).encode())
    write_public(folder / unit.NAME, unit.unit().encode())
    write_public(folder / INSTRUCTIONS, _instructions(config, remarks).encode())


# The instructions


def _instructions(config: BrokerConfig, remarks: Iterable[str]) -> str:
    of_mesh = f', a broker of the mesh "{config.mesh.name}"' if config.mesh is not None else ", a broker"
    outside = [one for one in config.listen if not one.startswith("unix:") and not is_loopback(parse_address(one).host)]
    listeners = "It listens for other machines here; let them through the firewall:\n\n" + "\n".join(f"- `{one}`" for one in outside)
    if not outside:
        listeners = "Only this machine reaches it: see `listen` in broker.toml."
    paragraphs = "".join(f"\n{one}\n" for one in remarks)
    return _INSTRUCTIONS.format(
        name=config.name, of_mesh=of_mesh, extras=",".join(_extras(config)), status=_status(config), listeners=listeners, remarks=paragraphs
    )


def _extras(config: BrokerConfig) -> list[str]:
    """What of pyproject.toml's extras the broker needs, beside `speed`."""
    needs = {
        "http": config.http is not None,
        "access": config.access is not None and (config.access.users is not None or config.access.tokens is not None),
        "journal": config.journal is not None,
        config.store.kind or "sqlite": config.store.kind in ("lmdb", "postgresql"),
    }
    return ["speed", *(extra for extra, needed in needs.items() if needed)]


def _status(config: BrokerConfig) -> str:
    """The options of `mqmesh status` for this broker, on its machine."""
    plain = [one for one in config.listen if one.startswith("mqtt://")]
    address = parse_address((plain or config.listen)[0])
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    words = ["-h", str(address._replace(host=host))]
    tls = config.tls
    if address.tls and tls is not None:
        words += ["--cafile", f"{unit.HOME}/tls/ca.crt"] if tls.ca is not None else []
        if tls.client_certificates == "required":
            words += ["--cert", f"{unit.HOME}/tls/{config.name}.crt", "--key", f"{unit.HOME}/tls/{config.name}.key"]
    if config.access is not None and not config.access.anonymous and config.access.users is not None:
        words += ["-u", "USER"]
    return " ".join(words)


_INSTRUCTIONS = """\
# {name}{of_mesh}

This folder holds secrets. Copy it to its machine over a safe way, such as `scp -r`, and keep no copy where others can read it.

## Run it there

mqmesh has to be in /opt/mqmesh. Once, with the wheel of mqmesh (or in a checkout with `.` for the wheel):

    python3 -m venv /opt/mqmesh && /opt/mqmesh/bin/pip install 'WHEEL[{extras}]'

Then, as root and in this folder:

    useradd --system --home-dir /var/lib/mqmesh --shell /usr/sbin/nologin mqmesh
    cp -r . /var/lib/mqmesh && chown -R mqmesh: /var/lib/mqmesh
    cp mqmesh-broker.service /etc/systemd/system/ && systemctl enable --now mqmesh-broker

`systemctl enable --now` returns when the broker listens. Without systemd: `mqmesh broker --config broker.toml` in this folder.

## Look at it

    journalctl -u mqmesh-broker
    /opt/mqmesh/bin/mqmesh status {status}

{listeners}
{remarks}"""
