"""The folder of one broker from a few answers: its name, who reaches it, whether with TLS, and its users."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.address import is_loopback
from ...broker.config import parse
from ...mesh.topology.tls import TlsSettings
from ..authority import Authority, write_private
from . import folder
from .certificates import LOCAL

DAYS = 365  # of its certificate; the authority has ten times as many
USERS = "users"
LOOPBACK = "127.0.0.1"
ALL = "0.0.0.0"


@dataclass(slots=True)
class Answers:
    """What a broker is to be.

    name: of the broker. host: where other machines reach it, None: they do not. tls: whether they use TLS. users: name -> password; none:
    everybody may come in. origins: web pages that may connect over WebSocket.
    """

    name: str
    host: str | None = None
    tls: bool = False
    users: dict[str, bytes] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)


def write_broker(answers: Answers, out: Path) -> Path:
    """Write `out`/NAME, with TLS also an authority in `out`/tls, and return the folder.

    Raises ConfigError, AuthorityError, PasswordError and OSError; FileExistsError when a broker's file is there.
    """
    table: dict[str, Any] = {"name": answers.name, "listen": listeners(answers), "data": folder.DATA}
    parse({"name": answers.name, "websocket": {"origins": answers.origins}}, "answers")  # mistakes are told before anything is written
    hashes = _hashes(answers.users)
    to = out / answers.name
    if (to / folder.FILE).exists():
        raise FileExistsError(errno.EEXIST, "is there already: give another name, or another folder", str(to / folder.FILE))
    folder.begin(to)
    tables: dict[str, Any] = {}
    if answers.tls:
        tables["tls"] = folder.copy_certificates(to, answers.name, _certificate(answers, out / "tls"))
    if answers.users:
        write_private(to / USERS, "".join(f"{name}:{hash_}\n" for name, hash_ in hashes.items()).encode())
        tables["access"] = {"users": USERS}
    if answers.origins:
        tables["websocket"] = {"origins": answers.origins}
    folder.write(to, parse(table | tables, folder.FILE, to), tables)
    return to


def listeners(answers: Answers) -> list[str]:
    """Plain MQTT on loopback, and for other machines the usual port, with TLS if wanted; the same for web pages where there are any."""
    host = LOOPBACK if answers.host is None or is_loopback(answers.host) else ALL
    if not answers.tls:
        return [f"mqtt://{host}:1883", *([f"ws://{host}:9001/mqtt"] if answers.origins else [])]
    return [f"mqtts://{host}:8883", f"mqtt://{LOOPBACK}:1883", *([f"wss://{host}:8884/mqtt"] if answers.origins else [])]


def _certificate(answers: Answers, tls: Path) -> TlsSettings:
    ca = tls / "ca.crt"
    authority = Authority("mqmesh", ca, ca.with_suffix(".key"), 10 * DAYS)
    hosts = [*LOCAL, *([answers.host] if answers.host else [])]
    made = authority.issue(answers.name, tls / f"{answers.name}.crt", tls / f"{answers.name}.key", hosts, DAYS, server=True, renew=False)
    return TlsSettings(made.certificate, made.key, ca=ca, client_certificates="optional", file="answers")


def _hashes(users: dict[str, bytes]) -> dict[str, str]:
    if not users:
        return {}
    from ...broker.auth import passwords  # needs the extra `access`

    for name in users:
        passwords.check_name(name)
    return {name: passwords.hashed(password) for name, password in users.items()}
