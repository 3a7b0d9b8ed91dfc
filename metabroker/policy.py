"""The policy file: who may reach which remotes, with which topics, and how much. What no `[[allow]]` names is refused.

    [limits]
    sessions = 1000

    [[allow]]
    clients = ["meter-*"]
    remotes = ["mqtts://broker.example.com:8883", "weather"]
    publish = ["readings/#"]
    subscribe = ["weather/+/now"]

The first `[[allow]]` whose `clients` and `remotes` both match decides. `*` in them stands for any characters, `?` for one; in `remotes`
within one part of an address, see `remotes.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.address import SCHEMES
from ..base.metabroker import client_name
from ..base.settings import MISSING, ConfigError, Section, is_file, read
from ..base.wildcards import fits
from ..mqtt.errors import MqttError
from ..mqtt.topics import check_filter, covers, matches
from . import credentials
from .libraries import missing_library
from .remotes import Remotes, remotes_of, target

VERSIONS = {"5": 5, "3.1.1": 4}
EXCHANGE, QUEUE_LENGTH = "amq.topic", 100_000  # of AMQP remotes
EXCHANGES = r"[A-Za-z0-9\-_.:@#,/+ ]{1,127}"  # names that the AMQP library takes


@dataclass(frozen=True, slots=True)
class Limits:
    """The table `[limits]`.

    sessions, sessions_per_client: sessions at one time.
    subscriptions: filters of a session.
    waiting: publish requests of a session without an answer.
    body: bytes of a request.
    buffer: bytes pending for the community broker beyond which remotes are not read.
    idle: seconds without a request until a session ends.
    connect: seconds until a connect request is answered.
    durable: seconds without a request until a durable session ends.
    stored, stored_bytes: publications that a durable session holds.
    window: publications of it that are sent and not acknowledged.
    """

    sessions: int = 1000
    sessions_per_client: int = 10
    subscriptions: int = 100
    waiting: int = 1000
    body: int = 1_032_192  # 16 KiB below the largest packet that a broker takes by default, for the topic and the properties
    buffer: int = 8_388_608
    idle: int = 86_400
    connect: int = 30
    durable: int = 604_800
    stored: int = 10_000
    stored_bytes: int = 67_108_864
    window: int = 500


@dataclass(frozen=True, slots=True)
class Rule:
    """One `[[allow]]`.

    version: of MQTT, 4 or 5; None: 5, or 4 with remotes that do not understand it.
    ca: PEM file of the authorities that sign the remotes' certificates.
    exchange: of AMQP remotes, where topics are.
    queue_length: messages that wait at an AMQP remote for us.
    username, password: for the remote, in place of the client's.
    credentials: for NATS remotes, in place of both: the text of a credentials file.
    """

    clients: tuple[str, ...]
    remotes: tuple[Remotes, ...]
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    version: int | None = None
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


_KEYS = tuple(f"{name}_file" if name in ("password", "credentials") else name for name in Rule.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole file."""

    limits: Limits = field(default_factory=Limits)
    rules: tuple[Rule, ...] = ()

    def rule(self, client: str, remote: str) -> Rule | None:
        """What a client, or a program of it, may do with a remote; None: nothing. remote: an address with its port, or a service name."""
        name = client_name(client)
        return next((rule for rule in self.reaching(remote) if any(fits(one, name) for one in rule.clients)), None)

    def reaching(self, remote: str) -> list[Rule]:
        """The rules that name a remote, whoever asks."""
        named = target(remote)
        return [rule for rule in self.rules if named is not None and any(one.match(named) for one in rule.remotes)]


def load(file: Path) -> Policy:
    """Read a policy file. Raises ConfigError."""
    return _policy(read(file), file.parent)


def parse(table: dict[str, Any], file: str = "policy", folder: Path | None = None) -> Policy:
    """A policy from a table as TOML gives it. Raises ConfigError."""
    return _policy(Section(file, table), folder)


def _policy(section: Section, folder: Path | None) -> Policy:
    section.only(("limits", "allow"))
    limits = section.section("limits")
    limits.only(tuple(Limits.__dataclass_fields__))
    given = {name: limits.whole(name, 1, 2**32 - 1) for name in limits.table}
    rules = section.sections("allow")
    if not rules:
        raise section.error("allow", "write at least one [[allow]]: what none of them names is refused")
    return Policy(Limits(**given), tuple(_rule(rule, folder) for rule in rules))


def _rule(section: Section, folder: Path | None) -> Rule:
    section.only(_KEYS)
    remotes = _remotes(section)
    ca = section.path_of("ca", folder, "give the path of a PEM file") if section.has("ca") else None
    if ca is not None and not is_file(ca):
        raise section.error("ca", "there is no such file: give the PEM file of the remotes' authorities")
    right = f"give the name of a topic exchange of an AMQP remote: {EXCHANGES}"
    exchange = section.string("exchange", EXCHANGE, right)
    if not re.fullmatch(EXCHANGES, exchange, re.ASCII):
        raise section.error("exchange", right)
    return Rule(
        _texts(section, "clients", needed=True),
        remotes,
        _filters(section, "publish"),
        _filters(section, "subscribe"),
        VERSIONS[section.choice("version", tuple(VERSIONS), "5")] if section.has("version") else None,
        ca,
        exchange,
        section.whole("queue_length", 1, 2**31 - 1, QUEUE_LENGTH),
        section.string("username", right="give a user name of the remote") if section.has("username") else None,
        _password(section, folder),
        _credentials(section, folder),
    )


def _remotes(section: Section) -> tuple[Remotes, ...]:
    """The entries of `remotes`, each of which some request can match."""
    found = []
    for text in _texts(section, "remotes", needed=True):
        scheme = SCHEMES.get(text.partition("://")[0])
        missing = missing_library(scheme.protocol) if scheme is not None else None
        if missing is not None:
            raise ConfigError(section.file, section.key("remotes"), text, missing)
        try:
            found.append(remotes_of(text))
        except ValueError as error:
            raise ConfigError(section.file, section.key("remotes"), text, str(error)) from None
    return tuple(found)


def _password(section: Section, folder: Path | None) -> bytes | None:
    """The metabroker's own password for a remote: the first line of a file."""
    key, right = "password_file", "give the path of a file with the password, beside username"
    if not section.has(key):
        return None
    path = section.path_of(key, folder, right)
    if not section.has("username"):
        raise section.error(key, right)
    try:
        with path.open("rb") as opened:
            return opened.readline(65_537).rstrip(b"\r\n")
    except OSError as error:
        raise section.error(key, f"cannot be read: {error.strerror or error}") from None


def _credentials(section: Section, folder: Path | None) -> str | None:
    """Who the metabroker is at NATS remotes."""
    key = "credentials_file"
    if not section.has(key):
        return None
    path = section.path_of(key, folder, "give the path of a NATS credentials file")
    if section.has("username"):
        raise section.error(key, "give it or username, not both")
    try:
        return credentials.read(path)
    except ValueError as error:
        raise section.error(key, str(error)) from None


def _texts(section: Section, key: str, needed: bool = False) -> tuple[str, ...]:
    right = "give a list of texts"
    value = section.strings(key, MISSING if needed else [], right)
    if not all(value) or (needed and not value):
        raise section.error(key, right)
    return tuple(value)


def _filters(section: Section, key: str) -> tuple[str, ...]:
    filters = _texts(section, key)
    for filter_ in filters:
        try:
            check_filter(filter_)
        except MqttError as error:
            raise ConfigError(section.file, section.key(key), filter_, getattr(error, "text", str(error))) from None
    return filters
