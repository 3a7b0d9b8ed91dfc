"""Reads a mosquitto.conf (mosquitto.conf(5) of Mosquitto 2.0) into its listeners, bridges and general options.

A line is a name, a space and a value. `listener` begins a listener and `connection` a bridge; an option of theirs belongs to the last one.
Before the first `listener`, options of listeners belong to the default listener. With `per_listener_settings true` the options of security
belong to listeners too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .remarks import Option

_OF_LISTENERS_WORDS = """
bind_interface http_dir max_connections max_qos max_topic_alias mount_point protocol socket_domain
use_username_as_clientid cafile capath certfile ciphers ciphers_tls1.3 crlfile dhparamfile keyfile require_certificate
tls_engine tls_engine_kpass_sha1 tls_keyform tls_version use_identity_as_username use_subject_as_username psk_hint
"""
OF_LISTENERS = frozenset(_OF_LISTENERS_WORDS.split())
_OF_SECURITY_WORDS = """
password_file acl_file psk_file allow_anonymous allow_zero_length_clientid auth_plugin plugin auto_id_prefix
auth_plugin_deny_special_chars
"""
OF_SECURITY = frozenset(_OF_SECURITY_WORDS.split())
_OF_BRIDGES_WORDS = """
address addresses bridge_attempt_unsubscribe bridge_bind_address bridge_max_packet_size bridge_outgoing_retain
bridge_protocol_version cleansession local_cleansession clientid keepalive_interval idle_timeout local_clientid
local_password local_username notifications notifications_local_only notification_topic remote_clientid remote_password
password remote_username username restart_timeout round_robin start_type threshold topic try_private bridge_alpn
bridge_cafile bridge_capath bridge_certfile bridge_identity bridge_insecure bridge_keyfile bridge_psk bridge_require_ocsp
bridge_tls_version
"""
OF_BRIDGES = frozenset(_OF_BRIDGES_WORDS.split())
DEFAULT_PORT = 1883
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # of these none is in a file that a person wrote, and TOML takes none


class MigrateError(Exception):
    """A file that cannot be read; one line."""


@dataclass(slots=True)
class Listener:
    """One listener. option: the line that begins it; None for the default one. host: "" for all addresses."""

    port: int
    host: str
    option: Option | None
    options: dict[str, Option] = field(default_factory=dict)

    def value(self, name: str) -> str | None:
        return self.options[name].value if name in self.options else None


@dataclass(slots=True)
class Bridge:
    """One `connection`. options: in their order, `topic` as often as it stands there."""

    name: str
    option: Option
    options: list[Option] = field(default_factory=list)

    def last(self, *names: str) -> Option | None:
        return next((one for one in reversed(self.options) if one.name in names), None)


@dataclass(slots=True)
class Conf:
    """One mosquitto.conf with what it includes. file: its name. listeners: those that Mosquitto opens. options: of the whole broker, in
    order. local: no listener is given, so only this machine may connect."""

    file: str
    listeners: list[Listener] = field(default_factory=list)
    bridges: list[Bridge] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    per_listener: bool = False
    local: bool = False

    def last(self, name: str) -> Option | None:
        return next((one for one in reversed(self.options) if one.name == name), None)


def flag(option: Option) -> bool:
    """The value of a line that is true or false. Raises MigrateError."""
    word = option.value.lower()
    if word not in ("true", "1", "false", "0"):
        raise MigrateError(f"{option.place}: {option.name} {option.value}: true or false is right")
    return word in ("true", "1")


def whole(option: Option) -> int:
    """The value of a line that is a number. Raises MigrateError."""
    try:
        return int(option.value)
    except ValueError:
        raise MigrateError(f"{option.place}: {option.name} {option.value}: a whole number is right") from None


def options_of(text: str, file: str) -> Iterator[Option]:
    """The lines of a text that say something."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            name, _, value = line.strip().partition(" ")
            yield Option(name, value.strip(), file, number)


def read_options(path: Path) -> list[Option]:
    """The lines of a mosquitto.conf, and, where `include_dir` stands, those of its folder's files. Raises MigrateError."""
    found: list[Option] = []
    for option in options_of(read_text(path), str(path)):
        if option.name != "include_dir":
            found.append(option)
            continue
        folder = Path(option.value)
        if not os.path.isdir(folder):
            folder = path.parent / option.value
        if not os.path.isdir(folder):
            raise MigrateError(f"{option.place}: include_dir {option.value}: there is no such folder")
        names = sorted((one for one in folder.iterdir() if one.name.endswith(".conf")), key=_order)
        for one in names:
            found += options_of(read_text(one), str(one))
    return found


def _order(path: Path) -> list[tuple[str, bool]]:
    """Files in the order of mosquitto.conf(5): by letter, the upper case of a letter before its lower case."""
    return [(letter.lower(), letter.islower()) for letter in path.name]


def read_text(path: Path) -> str:
    """The text of a file. Raises MigrateError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise MigrateError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise MigrateError(f"{path} is no UTF-8 text") from None
    control = _CONTROL.search(text)
    if control is not None:
        line = text.count("\n", 0, control.start()) + 1
        raise MigrateError(f"{path}:{line}: the character {control.group()!r} stands in no text: take it out")
    return text


def parse(options: Iterable[Option], file: str) -> Conf:
    """Give each option to what it belongs to. Raises MigrateError."""
    options = list(options)
    conf = Conf(file)
    conf.per_listener = any(flag(one) for one in options if one.name == "per_listener_settings")
    default = listener = Listener(DEFAULT_PORT, "", None)
    bridge: Bridge | None = None
    asked = False  # whether the default listener is asked for by `port` or `bind_address`
    for option in options:
        name = option.name
        if name == "listener":
            listener = _listener(option)
            conf.listeners.append(listener)
        elif name == "connection":
            bridge = Bridge(option.value, option)
            conf.bridges.append(bridge)
        elif name in OF_BRIDGES:
            if bridge is None:
                raise MigrateError(f"{option.place}: {name} stands before any connection")
            bridge.options.append(option)
        elif name in ("port", "bind_address"):
            asked = True
            default.option = default.option or option
            if name == "port":
                default.port = whole(option)
                if not 0 < default.port < 65536:
                    raise MigrateError(f"{option.place}: port {option.value}: 1 to 65535 is right")
            else:
                default.host = option.value
        elif name in OF_LISTENERS or (conf.per_listener and _of_security(name)):
            listener.options[name] = option
        else:
            conf.options.append(option)
    conf.local = not asked and not conf.listeners
    if asked or conf.local:
        conf.listeners.insert(0, default)
    return conf


def _of_security(name: str) -> bool:
    return name in OF_SECURITY or name.startswith(("auth_opt_", "plugin_opt_"))


def _listener(option: Option) -> Listener:
    port, _, host = option.value.partition(" ")
    if not port.isdigit() or int(port) > 65535 or (port == "0") != host.strip().startswith("/"):
        raise MigrateError(f"{option.place}: listener {option.value}: a port is right, or 0 and the path of a Unix socket")
    return Listener(int(port), host.strip(), option)
