"""The tables `[[attach]]` of a broker's file: brokers that are no members of the mesh, and what crosses to and from them.

    [[attach]]
    name = "plant"                      # unique in this file; the same at a stand-by
    address = "mqtt://10.0.0.7:1883"    # mqtt://, mqtts://, ws:// or wss://
    in = ["plant/sensors/#"]            # topics that come in from there, by their names here; left out: all, []: none
    in_wanted = ["plant/raw/#"]         # topics that come in only while somebody in the mesh subscribes to them
    out = ["plant/commands/#"]          # topics that go there, by their names here; left out: all, []: none
    in_except = []
    out_except = []
    map = [{ here = "plant/", there = "" }]
    qos = 2                             # the highest QoS, in both directions
    version = "5"                       # or "3.1.1": that of the other broker
    user = "mesh"
    password_file = "plant.password"
    client_id = "mqmesh-plant"          # as which client we come there
    ca = "plant-ca.pem"                 # with mqtts:// and wss://; left out: the authorities of the system
    certificate = "us.crt"              # our certificate, where the other broker wants one
    key = "us.key"
    standby = true                      # another broker of the mesh has the same table; one of them serves

What crosses is a policy as a link has one (mesh/wire/policy.py). See docs/attach.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from ...base.address import CLIENT, Address, AddressError, parse_address
from ...base.settings import ConfigError, Section
from ...mesh.topology.rules import rules_of
from ...mesh.wire.policy import OPEN, Policy, check_policy
from ...mqtt.topics import covers, overlaps

POLICY_KEYS = ("out", "out_except", "in", "in_except", "map")
VERSIONS = {"5": 5, "3.1.1": 4}
MOST_WANTED = 32  # filters of `in_wanted`


@dataclass(slots=True)
class AttachSettings:
    """One table `[[attach]]`. version: 5 or 4, of MQTT. policy: what crosses. qos: the highest, in both directions.

    wanted: what comes in only while somebody subscribes; it is in `policy.into` too.
    """

    name: str
    address: Address
    policy: Policy = OPEN
    wanted: tuple[str, ...] = ()
    qos: int = 2
    version: int = 5
    user: str | None = None
    password_file: Path | None = None
    client_id: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    standby: bool = False

    @property
    def session(self) -> str:
        """The client identifier of its session at this broker."""
        return f"attach-{self.name}"

    @property
    def mark(self) -> str:
        """The shared subscription by which the one of several that serves is known in the mesh; empty without a stand-by."""
        return "$share/{}/{}".format(*self.share) if self.standby else ""

    @property
    def asked(self) -> list[str]:
        """The topic filters, by the names there, of what always comes in."""
        into = self.policy.into
        return filters_there(self.policy._replace(into=None if into is None else tuple(one for one in into if one not in self.wanted)))

    @property
    def share(self) -> tuple[str, str]:
        """Its group and filter."""
        return self.session, f"mqmesh/attach/{self.name}"

    @classmethod
    def of(cls, section: Section, folder: Path | None) -> AttachSettings:
        """Check one table. Raises ConfigError."""
        name = section.name("name")
        settings = cls(name, _address(section), client_id=f"mqmesh-{name}")
        crossing = Section(section.file, {key: section.table[key] for key in POLICY_KEYS if section.has(key)}, section.path)
        settings.policy = rules_of(crossing).policy
        if section.has("in_wanted"):
            settings._read_wanted(section)
        settings.qos = section.whole("qos", 0, 2, 2)
        settings.version = VERSIONS[section.choice("version", tuple(VERSIONS), "5")]
        settings.client_id = section.string("client_id", settings.client_id, "give the client identifier to use there")
        settings.user = section.string("user") if section.has("user") else settings.address.user
        if section.has("password_file"):
            settings.password_file = section.path_of("password_file", folder, "give the path of a file whose first line is the password")
            if settings.user is None:
                raise section.error("password_file", "give user too: MQTT has no password without a user name")
        _read_tls(settings, section, folder)
        settings.standby = section.flag("standby", False)
        section.done()
        return settings

    def _read_wanted(self, section: Section) -> None:
        """Take `in_wanted`, beside which only what `in` names comes in. Raises ConfigError."""
        self.wanted = tuple(dict.fromkeys(section.strings("in_wanted")))
        into = (*(self.policy.into or ()), *self.wanted)
        self.policy = self.policy._replace(into=into)
        try:
            check_policy(self.policy)
        except ValueError as error:
            raise section.error("in_wanted", str(error)) from None
        if len(self.wanted) > MOST_WANTED:
            raise section.error("in_wanted", f"give at most {MOST_WANTED} filters")
        for one, other in combinations(into, 2):
            if other in self.wanted and (overlaps(one, other) or self._overlap_there(one, other)):
                raise section.error("in_wanted", f"{one} and {other} match the same topics, which would come twice")

    def _overlap_there(self, *filters: str) -> bool:
        """Whether two filters match one name at the other broker: those of `map` may be wider there."""
        one, other = (filters_there(self.policy._replace(into=(filter_,))) for filter_ in filters)
        return any(overlaps(*pair) for pair in product(one, other))


def attachments_of(sections: list[Section], folder: Path | None, roams: bool) -> list[AttachSettings]:
    """All tables. roams: whether clients of the mesh roam. Raises ConfigError."""
    found: list[AttachSettings] = []
    for section in sections:
        settings = AttachSettings.of(section, folder)
        for other in found:
            if other.name == settings.name:
                raise section.error("name", "this name stands twice: give each [[attach]] its own")
            if (other.address.host, other.address.port) == (settings.address.host, settings.address.port):
                text = f'"{other.name}" is attached there already: one broker takes one [[attach]], or messages would go round'
                raise ConfigError(section.file, section.key("address"), str(settings.address), text)
        if settings.standby and not roams:
            right = 'a stand-by takes over the session with its messages: give clients = "roam" in [mesh]'
            raise section.error("standby", right)
        found.append(settings)
    return found


def filters_there(policy: Policy) -> list[str]:
    """The topic filters, by the names there, of all that may come in. They may match more: the policy looks at each topic."""
    found: list[str] = []
    for filter_ in ("#",) if policy.into is None else policy.into:
        inside = False
        for here, there in policy.prefixes:
            if filter_.startswith(here):
                found.append(there + filter_[len(here) :])
                inside = True
            elif overlaps(f"{here}#", filter_):
                found.append(f"{there}#")
        if not inside:
            found.append(filter_)
    return widest(found)


def filters_out(policy: Policy) -> list[str]:
    """The topic filters, by the names there, of all that may go there."""
    return filters_there(policy._replace(into=policy.out))


def filters_here(policy: Policy) -> list[str]:
    """The topic filters of all that may go there."""
    return widest(["#"] if policy.out is None else list(policy.out))


def widest(filters: list[str]) -> list[str]:
    """Those that no other one covers, so that a broker which sends a copy for each filter sends one."""
    unique = list(dict.fromkeys(filters))
    return [one for one in unique if not any(other != one and covers(other, one) for other in unique)]


def _address(section: Section) -> Address:
    text = section.string("address", right=f"write {CLIENT.examples}")
    try:
        return parse_address(text, CLIENT)
    except AddressError as error:
        raise section.secret_error("address", str(error)) if "@" in text else section.error("address", str(error)) from None


def _read_tls(settings: AttachSettings, section: Section, folder: Path | None) -> None:
    for key in ("ca", "certificate", "key"):
        if section.has(key):
            if not settings.address.tls:
                raise section.error(key, "it needs TLS: give an mqtts:// or wss:// address")
            setattr(settings, key, section.path_of(key, folder, "give the path of a PEM file"))
    if (settings.certificate is None) != (settings.key is None):
        raise section.error("key" if settings.key is None else "certificate", "certificate and key belong together: give both")
