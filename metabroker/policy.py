"""The policy file: who may reach which remotes, with which topics, and how much. What no `[[allow]]` names is refused.

    [limits]
    sessions = 1000

    [[allow]]
    clients = ["meter-*"]
    remotes = ["mqtts://broker.example.com:8883", "weather"]
    publish = ["readings/#"]
    subscribe = ["weather/+/now"]

The first `[[allow]]` whose `clients` and `remotes` both match decides. `*` in them stands for any characters, `?` for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..base.address import SCHEMES
from ..base.settings import ConfigError, expanded, guess, is_file, read_toml
from ..mqtt.errors import MqttError
from ..mqtt.topics import check_filter, covers, matches
from . import credentials
from .libraries import missing_library

VERSIONS = {"5": 5, "3.1.1": 4}
_READ = ("password", "credentials")  # from files
EXCHANGE, QUEUE_LENGTH = "amq.topic", 100_000  # of AMQP remotes
EXCHANGES = r"[A-Za-z0-9\-_.:@#,/+ ]{1,127}"  # names that the AMQP library takes


@dataclass(frozen=True, slots=True)
class Limits:
    """How much. idle: seconds without a request until a session ends. connect: seconds until a connect request is answered.

    body: bytes of a request. waiting: publish requests of a session without an answer. subscriptions: filters of a session.
    buffer: bytes that wait for the community broker until remotes are read no longer. durable: seconds without a request until a durable
    session ends. stored, stored_bytes: publications that a durable session holds. window: those of them that are sent at one time.
    """

    sessions: int = 1000
    sessions_per_client: int = 10
    subscriptions: int = 100
    waiting: int = 1000
    body: int = 1_048_576
    buffer: int = 8_388_608
    idle: int = 86_400
    connect: int = 30
    durable: int = 604_800
    stored: int = 10_000
    stored_bytes: int = 67_108_864
    window: int = 500


@dataclass(frozen=True, slots=True)
class Rule:
    """One `[[allow]]`. version: of MQTT, 4 or 5. ca: PEM file of the authorities that sign the remotes' certificates.

    username, password: for the remote, in place of the client's. Of AMQP remotes: exchange: where topics are. queue_length: messages that
    wait there for us. credentials: for NATS remotes, in place of all that: the text of a credentials file.
    """

    clients: tuple[str, ...]
    remotes: tuple[str, ...]
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    version: int = 5
    ca: Path | None = None
    exchange: str = EXCHANGE
    queue_length: int = QUEUE_LENGTH
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    credentials: str | None = field(default=None, repr=False)

    def may_publish(self, topic: str) -> bool:
        """Whether a topic may be published to."""
        return any(matches(filter_, topic) for filter_ in self.publish)

    def may_subscribe(self, filter_: str) -> bool:
        """Whether a filter asks for nothing beyond what is allowed."""
        return any(covers(wide, filter_) for wide in self.subscribe)


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole file."""

    limits: Limits = field(default_factory=Limits)
    rules: tuple[Rule, ...] = ()

    def rule(self, client: str, remote: str) -> Rule | None:
        """What a client may do with a remote; None: nothing. remote: an address with its port, or a service name."""
        for rule in self.rules:
            if any(fnmatchcase(client, one) for one in rule.clients) and any(fnmatchcase(remote, one) for one in rule.remotes):
                return rule
        return None


def load(file: Path) -> Policy:
    """Read a policy file. Raises ConfigError."""
    return parse(read_toml(file), str(file), file.parent)


def parse(table: dict[str, Any], file: str = "policy", folder: Path | None = None) -> Policy:
    """A policy from a table as TOML gives it. Raises ConfigError."""
    _known(file, "", table, ("limits", "allow"))
    given = table.get("limits", {})
    if type(given) is not dict:
        raise ConfigError(file, "limits", given, "write a table, [limits]")
    names = tuple(Limits.__dataclass_fields__)
    _known(file, "limits.", given, names)
    for name, value in given.items():
        if type(value) is not int or not 1 <= value < 1 << 32:
            raise ConfigError(file, f"limits.{name}", value, "give a whole number of at least 1")
    rules = table.get("allow", [])
    if type(rules) is not list or not rules or not all(type(rule) is dict for rule in rules):
        raise ConfigError(file, "allow", rules, "write at least one [[allow]]: what none of them names is refused")
    return Policy(Limits(**given), tuple(_rule(file, f"allow[{index}].", rule, folder) for index, rule in enumerate(rules, 1)))


def _rule(file: str, where: str, table: dict[str, Any], folder: Path | None) -> Rule:
    _known(file, where, table, (*(name for name in Rule.__dataclass_fields__ if name not in _READ), *(f"{name}_file" for name in _READ)))
    clients = _texts(file, where, table, "clients", needed=True)
    remotes = _texts(file, where, table, "remotes", needed=True)
    for remote in remotes:
        scheme = SCHEMES.get(remote.partition("://")[0])
        if scheme is not None and (text := missing_library(scheme.protocol)) is not None:
            raise ConfigError(file, f"{where}remotes", remote, text)
    publish = _filters(file, where, table, "publish")
    subscribe = _filters(file, where, table, "subscribe")
    version = table.get("version", "5")
    if type(version) is not str or version not in VERSIONS:
        raise ConfigError(file, f"{where}version", version, 'give "5" or "3.1.1"')
    ca = table.get("ca")
    if ca is not None and (type(ca) is not str or not ca):
        raise ConfigError(file, f"{where}ca", ca, "give the path of a PEM file")
    try:
        path = None if ca is None else (folder or Path()) / expanded(ca)
    except ValueError as error:
        raise ConfigError(file, f"{where}ca", ca, str(error)) from None
    if path is not None and not is_file(path):
        raise ConfigError(file, f"{where}ca", ca, "there is no such file: give the PEM file of the remotes' authorities")
    exchange = table.get("exchange", EXCHANGE)
    if type(exchange) is not str or not re.fullmatch(EXCHANGES, exchange, re.ASCII):
        raise ConfigError(file, f"{where}exchange", exchange, f"give the name of a topic exchange of an AMQP remote: {EXCHANGES}")
    length = table.get("queue_length", QUEUE_LENGTH)
    if type(length) is not int or not 1 <= length < 1 << 31:
        raise ConfigError(file, f"{where}queue_length", length, "give a whole number of messages, at least 1")
    username, password = _account(file, where, table, folder)
    account = _credentials(file, where, table, folder)
    return Rule(clients, remotes, publish, subscribe, VERSIONS[version], path, exchange, length, username, password, account)


def _account(file: str, where: str, table: dict[str, Any], folder: Path | None) -> tuple[str | None, bytes | None]:
    """The metabroker's own user name and password for a remote: the password is the first line of a file."""
    username, name = table.get("username"), table.get("password_file")
    if username is not None and (type(username) is not str or not username):
        raise ConfigError(file, f"{where}username", username, "give a user name of the remote")
    if name is None:
        return username, None
    if type(name) is not str or not name or username is None:
        raise ConfigError(file, f"{where}password_file", name, "give the path of a file with the password, beside username")
    try:
        with ((folder or Path()) / Path(name).expanduser()).open("rb") as opened:
            return username, opened.readline(65_537).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(file, f"{where}password_file", name, f"cannot be read: {error.strerror or error}") from None


def _credentials(file: str, where: str, table: dict[str, Any], folder: Path | None) -> str | None:
    """Who the metabroker is at NATS remotes."""
    name = table.get("credentials_file")
    if name is None:
        return None
    key = f"{where}credentials_file"
    if type(name) is not str or not name or "\0" in name:
        raise ConfigError(file, key, name, "give the path of a NATS credentials file")
    if "username" in table:
        raise ConfigError(file, key, name, "give it or username, not both")
    try:
        return credentials.read((folder or Path()) / Path(name).expanduser())
    except (ValueError, RuntimeError) as error:
        raise ConfigError(file, key, name, str(error)) from None


def _known(file: str, where: str, table: dict[str, Any], names: tuple[str, ...]) -> None:
    for name, value in table.items():
        if name not in names:
            raise ConfigError(
                file, f"{where}{name}", value, f"there is no such key{guess(name, names) or '; there are ' + ', '.join(names)}"
            )


def _texts(file: str, where: str, table: dict[str, Any], key: str, needed: bool = False) -> tuple[str, ...]:
    value = table.get(key, [])
    if type(value) is not list or not all(type(item) is str and item for item in value) or (needed and not value):
        raise ConfigError(file, where + key, value, "give a list of texts")
    return tuple(value)


def _filters(file: str, where: str, table: dict[str, Any], key: str) -> tuple[str, ...]:
    filters = _texts(file, where, table, key)
    for filter_ in filters:
        try:
            check_filter(filter_)
        except MqttError as error:
            raise ConfigError(file, where + key, filter_, getattr(error, "text", str(error))) from None
    return filters
