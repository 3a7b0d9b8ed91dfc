"""Who may look into brokers and change them: roles, for whom, and where. The table `[management]` of a broker's file.

    [management]
    accept = ["lyon"]                # sites whose user and role this one believes; ["*"]: all of the mesh; left out: none

    [[management.role]]
    role = "operator"                # viewer, operator, administrator, payload-reader
    users = ["ops", "shift-*"]       # `*` any characters, `?` one; left out: everybody, also without a name
    sites = ["lyon"]                 # where; left out: all that believe this one
    topics = ["plant/#"]             # only what is about topics that one of these filters covers
    queues = ["orders"]              # only what is about these queues

A viewer sees everything but payloads. An operator also ends connections and sessions, and drains. An administrator also changes the mesh,
the log, retained messages, and has files read again. A payload reader is a viewer who sees payloads; no other role includes that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from ...base.wildcards import fits
from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter, covers

if TYPE_CHECKING:
    from ...base.settings import Section

LONGEST = 64  # grants that one broker tells another of a user


class Role(Enum):
    """What somebody may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"
    PAYLOAD_READER = "payload-reader"


INCLUDES = {  # role -> what its holder may do
    Role.VIEWER: frozenset({Role.VIEWER}),
    Role.OPERATOR: frozenset({Role.VIEWER, Role.OPERATOR}),
    Role.ADMINISTRATOR: frozenset({Role.VIEWER, Role.OPERATOR, Role.ADMINISTRATOR}),
    Role.PAYLOAD_READER: frozenset({Role.VIEWER, Role.PAYLOAD_READER}),
}
NAMES = tuple(role.value for role in Role)


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, and where it holds. users, sites: patterns; topics: filters; queues: patterns; None: all."""

    role: Role
    users: tuple[str, ...] | None = None
    sites: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None

    def concerns(self, user: str | None) -> bool:
        """Whether this user has it."""
        return self.users is None or (user is not None and any(fits(one, user) for one in self.users))

    def at(self, site: str) -> bool:
        """Whether it holds at a site."""
        return self.sites is None or any(fits(one, site) for one in self.sites)

    @property
    def whole(self) -> bool:
        """Whether it is for everything at its sites, and not for some topics or queues only."""
        return self.topics is None and self.queues is None

    def covers_topic(self, topic: str) -> bool:
        """Whether it is for all that a topic or topic filter stands for."""
        return self.whole or (self.topics is not None and any(covers(one, topic) for one in self.topics))

    def covers_queue(self, queue: str) -> bool:
        """Whether it is for a queue."""
        return self.whole or (self.queues is not None and any(fits(one, queue) for one in self.queues))


@dataclass(frozen=True, slots=True)
class Rights:
    """What somebody may do at one site: the grants that hold there."""

    grants: tuple[Grant, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.grants)

    def _with(self, role: Role) -> list[Grant]:
        return [grant for grant in self.grants if role in INCLUDES[grant.role]]

    def may(self, role: Role) -> bool:
        """Whether what takes this role is allowed, whatever it is about."""
        return any(grant.whole for grant in self._with(role))

    def may_topic(self, role: Role, topic: str) -> bool:
        """The same for what is about one topic or topic filter."""
        return any(grant.covers_topic(topic) for grant in self._with(role))

    def may_queue(self, role: Role, queue: str) -> bool:
        """The same for what is about one queue."""
        return any(grant.covers_queue(queue) for grant in self._with(role))

    def some(self, role: Role, about: str) -> bool:
        """Whether it is allowed for some topics (about: "topics") or queues ("queues"), or for everything."""
        return any(grant.whole or getattr(grant, about) is not None for grant in self._with(role))

    def at(self, site: str) -> Rights:
        """Those that hold at a site."""
        return Rights(tuple(grant for grant in self.grants if grant.at(site)))

    def joined(self, others: Rights) -> Rights:
        """These and those."""
        return Rights(self.grants + others.grants)

    def told(self) -> list[dict[str, Any]]:
        """As one broker tells another; without names of users."""
        return [
            {
                "role": one.role.value,
                **{key: list(value) for key in ("sites", "topics", "queues") if (value := getattr(one, key)) is not None},
            }
            for one in self.grants[:LONGEST]
        ]

    @classmethod
    def heard(cls, told: object) -> Rights:
        """What another broker told. Raises ValueError for anything else."""
        if not isinstance(told, list) or len(told) > LONGEST:
            raise ValueError("no list of roles")
        return cls(tuple(_heard(one) for one in told))


ALL = Rights((Grant(Role.ADMINISTRATOR), Grant(Role.PAYLOAD_READER)))  # of who runs the broker


def _heard(one: object) -> Grant:
    if not isinstance(one, Mapping):
        raise ValueError("no role")
    found: dict[str, tuple[str, ...]] = {}
    for key in ("sites", "topics", "queues"):
        values = one.get(key)
        if values is not None:
            if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
                raise ValueError(f"{key} of a role")
            found[key] = tuple(values)
    return Grant(Role(one.get("role")), None, **found)


@dataclass(slots=True)
class ManagementSettings:
    """The table `[management]`. accept: sites whose user and role this broker believes, as patterns. grants: roles of users here."""

    accept: tuple[str, ...] = ()
    grants: tuple[Grant, ...] = field(default=())

    def believes(self, site: str) -> bool:
        """Whether what a site says of its user counts here."""
        return any(fits(one, site) for one in self.accept)

    def rights(self, user: str | None) -> Rights:
        """What a user may do, here and elsewhere."""
        return Rights(tuple(grant for grant in self.grants if grant.concerns(user)))

    @classmethod
    def of(cls, section: Section, proven: bool) -> ManagementSettings:
        """Read the table. proven: clients prove their names. Raises ConfigError."""
        accept = tuple(section.strings("accept", [], 'give a list of sites, as ["lyon"], or ["*"]'))
        grants = tuple(_grant(one, proven) for one in section.sections("role"))
        section.done()
        return cls(accept, grants)


def _grant(section: Section, proven: bool) -> Grant:
    role = Role(section.choice("role", NAMES))
    names = {key: _names(section, key) for key in ("users", "sites", "topics", "queues")}
    if names["users"] is not None and not proven:
        raise section.error("users", "no name is proven: give [access] users, certificates or tokens, or leave users out")
    for topic in names["topics"] or ():
        try:
            check_filter(topic)
        except MqttError as error:
            raise section.error("topics", f"{topic!r}: {getattr(error, 'text', error)}") from None
    section.done()
    return Grant(role, **names)


def _names(section: Section, key: str) -> tuple[str, ...] | None:
    if not section.has(key):
        return None
    right = 'give a list, as ["plant/#"]' if key == "topics" else 'give a list of names, as ["ops"]; * stands for any characters'
    found = tuple(section.strings(key, [], right))
    if not found:
        raise section.error(key, f"{right}, or leave it out for all")
    return found
