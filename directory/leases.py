"""Leases: brokers that register themselves are found while they renew their lease, and disappear when they do not.

A *holder* claims: the UUID of a broker's data folder, or of its process if it has none. One request claims and renews. In one mesh no two
holders have the same number or name at the same time:

- a holder gets the number that it asks for, if that is free or its own; without asking, the number that it had last; else the number that
  its name had last, if that lease is over and had the same owner; else the lowest free number;
- after its lease a number stays reserved for its broker for a long time (`keep`). A mesh would take another broker with this number for
  the successor of the first one, and messages that wait for the first one would be returned (docs/mesh-protocol.md, "Numbers and lives");
- an application without a broker of ours holds its own record for a time (`hold`);
- a record that somebody registered by hand stays: the holder of its name and owner gets its number, and the record does not change.

The time is the store's. When a lease ends, the broker and its services are no longer found from that moment.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from . import records as all_records
from .records import MOST, Record
from .storage.errors import DirectoryError
from .storage.rows import Records
from .storage.tables import Account, Lease
from .uddi import saving

SHORTEST, LONGEST = 1.0, 86400.0  # seconds of a lease
MOST_APPLICATIONS = 1000  # of one broker
WITHOUT_NUMBER = -1  # of the lease of an application that no broker holds
KEEP = 365 * 86400.0  # seconds for which a number stays reserved after its lease
FIRST, LAST = 1, 65535  # numbers that are given without being asked for; 0 is that of a broker without a mesh


@dataclass(slots=True)
class Claim:
    """What a holder asks for.

    broker: its record, with a number only if it wants that one.
    services, applications: what it offers; the applications whose queues it holds.
    seconds: duration of the lease.
    """

    holder: str
    broker: Record
    services: list[Record] = field(default_factory=list)
    seconds: float = 60.0
    applications: list[Record] = field(default_factory=list)

    @property
    def offered(self) -> list[Record]:
        """What lasts as long as the lease, beside the broker's own record."""
        return [*self.services, *self.applications]

    @property
    def digest(self) -> str:
        """A digest of everything that the records are made from."""
        made = [self.broker.shown(), *(one.shown() for one in self.offered)]
        return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


@dataclass(slots=True, frozen=True)
class Granted:
    """The answer to a claim.

    static: the broker's record was registered by hand and does not end with the lease.
    refused: a line for each service or application that was not registered, because another one has its name.
    """

    lease: Lease
    static: bool
    refused: list[str]

    def shown(self, now: float) -> dict[str, Any]:
        """As JSON says it."""
        return {
            "name": self.lease.name,
            "number": self.lease.number,
            "expires_in": self.lease.expires - now,
            "static": self.static,
            "refused": self.refused,
        }


def read_claim(mesh: str, holder: str, body: object) -> Claim:
    """A claim from a JSON body; DirectoryError E_invalidValue names the key, the value and what would be right."""
    try:
        holder = str(uuid.UUID(holder))
    except ValueError:
        raise DirectoryError("E_invalidValue", f"holder = {holder[:80]!r}: a UUID") from None
    if not isinstance(body, dict):
        raise DirectoryError("E_invalidValue", "give an object")
    fields = dict(body)
    name, seconds = fields.pop("name", None), fields.pop("seconds", None)
    services = _offers(mesh, "service", fields.pop("services", []), MOST)
    applications = _offers(mesh, "application", fields.pop("applications", []), MOST_APPLICATIONS)
    if not isinstance(name, str):
        raise DirectoryError("E_invalidValue", f"name = {name!r}: the broker's name")
    if type(seconds) not in (int, float) or not SHORTEST <= seconds <= LONGEST:
        raise DirectoryError("E_invalidValue", f"seconds = {str(seconds)[:80]!r}: {SHORTEST:.0f} to {LONGEST:.0f}")
    return Claim(holder, all_records.read_body("broker", name, mesh, fields), services, float(seconds), applications)


def _offers(mesh: str, sort: str, given: object, most: int) -> list[Record]:
    """The services or the applications of a claim."""
    if not isinstance(given, list) or len(given) > most or not all(isinstance(one, dict) for one in given):
        raise DirectoryError("E_invalidValue", f"{sort}s: a list of at most {most} objects")
    made: dict[str, Record] = {}
    for one in given:
        fields = dict(one)
        name = fields.pop("name", None)
        if not isinstance(name, str) or name in made:
            raise DirectoryError("E_invalidValue", f"{sort}s: name = {name!r}: a name of its own for each")
        made[name] = all_records.read_body(sort, name, mesh, fields)
    return list(made.values())


class NotRenewed(Exception):
    """There is more to do than to renew: `claim`."""


def renew(records: Records, owner: Account, wanted: Claim, keep: float = KEEP) -> Granted:
    """Renew a lease whose claim has not changed. Raises NotRenewed, and then the transaction must not commit."""
    mesh = records.record("", "mesh", wanted.broker.mesh)
    if mesh is None or not (mesh.owner == owner.name or saving.may_publish(records, owner, mesh)):
        raise NotRenewed
    alike = records.leases_like(mesh.key, wanted.holder, wanted.broker.name)
    lease = next((one for one in alike if one.holder == wanted.holder), None)
    others = any(one.holder != wanted.holder and one.expires > records.now for one in alike)
    if lease is None or others or lease.owner != owner.name or not _unchanged(records, lease, wanted):
        raise NotRenewed
    expires = records.now + wanted.seconds
    if not records.renew(lease, expires, expires + keep, 1 + len(wanted.offered)):
        raise NotRenewed
    lease.expires, lease.kept = expires, expires + keep
    return Granted(lease, False, [])


def claim(records: Records, owner: Account, wanted: Claim, keep: float = KEEP) -> Granted:
    """Begin or renew a lease; the mesh is made if it is not there.

    keep: seconds for which the number stays reserved after the lease. Raises DirectoryError: E_valueNotAllowed when another holder has the
    name or the number, E_userMismatch when another account owns the mesh, the record or what this holder has.
    """
    mesh = _mesh(records, owner, wanted.broker)
    mine = _mine(records, owner, mesh, wanted)
    if mine is not None and _unchanged(records, mine, wanted):
        lease = _written(records, mine, wanted, keep, mine.digest)
        return Granted(lease, False, [])
    static = _static(records, owner, mesh, wanted)
    number = _number(records, owner, mesh, wanted, static)
    if mine is not None and mine.number != number:
        _end(records, mine)
        mine = None
    fresh = Lease(mesh, number, wanted.holder, wanted.broker.name, owner.name, 0.0, 0.0, "")
    lease = _written(records, mine or fresh, wanted, keep, wanted.digest)
    _drop_others(records, lease, wanted)
    if static is None:
        _put(records, owner, lease, _numbered(wanted.broker, number))
    elif static.number is None:
        all_records.put(records, owner, _numbered(static, number))
    refused = _put_offered(records, owner, lease, wanted.offered)
    if static is not None or refused:
        lease = _written(records, lease, wanted, keep, "")  # the next claim looks at all of it again
    return Granted(lease, static is not None, refused)


def hold(records: Records, owner: Account, application: Record, seconds: object) -> dict[str, Any]:
    """Register an application for a time, or renew it; the record as JSON, with `static` and `expires_in`.

    seconds: duration of the lease. A record that was registered by hand stands: it does not change and does not end (`static`). Raises
    DirectoryError: E_invalidValue, E_invalidKeyPassed without the mesh, E_userMismatch when another account owns the mesh or the record.
    """
    if type(seconds) not in (int, float) or not SHORTEST <= seconds <= LONGEST:  # type: ignore[operator]
        raise DirectoryError("E_invalidValue", f"lease = {str(seconds)[:80]!r}: {SHORTEST:.0f} to {LONGEST:.0f} seconds")
    mesh = all_records.mesh_of(records, application.mesh).key
    old = records.record(mesh, "application", application.name)
    if old is not None and not records.is_leased(old.key):
        saving.mine(records, owner, "service", old.key)
        return {**all_records.get(records, "application", application.mesh, application.name).shown(), "static": True, "expires_in": None}
    expires = records.now + float(seconds)  # type: ignore[arg-type]
    lease = Lease(mesh, WITHOUT_NUMBER, "", application.name, owner.name, expires, expires, "")
    _put(records, owner, lease, application)
    return {**application.shown(), "static": False, "expires_in": float(seconds)}  # type: ignore[arg-type]


def leave(records: Records, owner: Account, mesh: str, holder: str) -> None:
    """End a lease at once; its number stays reserved. Raises DirectoryError E_invalidKeyPassed if there is none, E_userMismatch."""
    key = all_records.mesh_of(records, mesh).key
    found = [one for one in records.leases_like(key, holder, "") if one.holder == holder and one.expires > records.now]
    if not found:
        raise DirectoryError("E_invalidKeyPassed", f"{holder!r} holds nothing in {mesh!r}")
    for lease in found:
        if lease.owner != owner.name:
            raise DirectoryError("E_userMismatch", f"the lease of {lease.name!r} has another owner")
        _end(records, lease)


def listed(records: Records, owner: Account, mesh: str) -> list[dict[str, Any]]:
    """The numbers of a mesh that are leased or reserved, for the mesh's owner."""
    key = saving.mine(records, owner, "business", all_records.mesh_of(records, mesh).key).key
    return [
        {
            "number": one.number,
            "name": one.name,
            "holder": one.holder,
            "owner": one.owner,
            "expires_in": max(0.0, one.expires - records.now),
            "kept_for": one.kept - records.now,
        }
        for one in records.leases(key)
    ]


def forget(records: Records, owner: Account, mesh: str, number: int) -> None:
    """Free a number whose lease is over; DirectoryError E_invalidKeyPassed, E_valueNotAllowed while the lease lasts."""
    key = saving.mine(records, owner, "business", all_records.mesh_of(records, mesh).key).key
    lease = next((one for one in records.leases(key) if one.number == number), None)
    if lease is None:
        raise DirectoryError("E_invalidKeyPassed", f"no number {number} is kept in {mesh!r}")
    if lease.expires > records.now:
        raise DirectoryError("E_valueNotAllowed", f"{lease.name!r} has the number {number} for another {lease.expires - records.now:.0f} s")
    records.delete_lease(lease)


def _mesh(records: Records, owner: Account, broker: Record) -> str:
    """The key of the mesh, into which the owner may put records."""
    found = records.record("", "mesh", broker.mesh)
    if found is not None:
        return saving.open_to(records, owner, "business", found.key).key
    made = all_records.read_body("mesh", broker.mesh, "", {"visibility": broker.visibility})
    return all_records.put(records, owner, made).key


def _mine(records: Records, owner: Account, mesh: str, wanted: Claim) -> Lease | None:
    """What this holder has, or had last, of the number that it asks for if it asks. Another holder of the name ends the matter."""
    alike = records.leases_like(mesh, wanted.holder, wanted.broker.name)
    for lease in alike:
        if lease.holder == wanted.holder and lease.owner != owner.name:
            raise DirectoryError("E_userMismatch", f"the lease of {lease.name!r} has another owner")
        if lease.holder != wanted.holder and lease.expires > records.now:
            left = f"if it is gone, its lease ends in {lease.expires - records.now:.0f} s"
            raise DirectoryError("E_valueNotAllowed", f"another broker has the name {lease.name!r}; {left}")
    return next((one for one in alike if one.holder == wanted.holder), None)


def _unchanged(records: Records, mine: Lease, wanted: Claim) -> bool:
    """Whether there is nothing to do but to renew: all that was made from the same claim is still there."""
    if mine.expires <= records.now or mine.digest != wanted.digest:
        return False
    return len(records.leased(mine)) == 1 + len(wanted.offered)


def _static(records: Records, owner: Account, mesh: str, wanted: Claim) -> Record | None:
    """The record of this name that stands without a lease."""
    found = records.record(mesh, "broker", wanted.broker.name)
    if found is None or records.is_leased(found.key):
        return None
    saving.mine(records, owner, "service", found.key)
    return all_records.get(records, "broker", wanted.broker.mesh, wanted.broker.name)


def _number(records: Records, owner: Account, mesh: str, wanted: Claim, static: Record | None) -> int:
    asked = wanted.broker.number
    if static is not None and static.number is not None:
        if asked not in (None, static.number):
            raise DirectoryError("E_valueNotAllowed", f"the broker {static.name!r} has the number {static.number}, not {asked}")
        asked = static.number
    if asked is not None:
        holder = next((one for one in records.leases(mesh) if one.number == asked), None)
        if holder is not None and not _passes(records, owner, holder, wanted):
            raise DirectoryError("E_valueNotAllowed", f"the number {asked} is kept for the broker {holder.name!r}")
        return asked
    had = records.leases_like(mesh, wanted.holder, wanted.broker.name)
    for lease in sorted(had, key=lambda one: one.holder != wanted.holder):
        passes = _passes(records, owner, lease, wanted)
        if passes and records.fixed(mesh, lease.number) in (None, wanted.broker.name):
            return lease.number
    taken = records.numbers(mesh)
    number = next((one for one in range(FIRST, LAST + 1) if one not in taken), None)
    if number is None:
        raise DirectoryError("E_valueNotAllowed", "every number of this mesh is taken or kept; its owner can free some")
    return number


def _passes(records: Records, owner: Account, lease: Lease, wanted: Claim) -> bool:
    """Whether a number is the claimant's: its own, or that of the same name and owner after the lease."""
    if lease.holder == wanted.holder:
        return lease.owner == owner.name
    return lease.expires <= records.now and (lease.name, lease.owner) == (wanted.broker.name, owner.name)


def _written(records: Records, lease: Lease, wanted: Claim, keep: float, digest: str) -> Lease:
    expires = records.now + wanted.seconds
    names = (wanted.holder, wanted.broker.name, lease.owner)
    lease = Lease(lease.mesh, lease.number, *names, expires, expires + keep, digest)
    records.put_lease(lease)
    return lease


def _end(records: Records, lease: Lease) -> None:
    """End a lease: its records are deleted, its number stays reserved."""
    held = records.leased(lease)
    lease.kept -= max(0.0, lease.expires - records.now)
    lease.expires, lease.digest = min(lease.expires, records.now), ""
    records.put_lease(lease)
    records.delete(held)


def _numbered(record: Record, number: int) -> Record:
    """The record with the number that it has now."""
    return replace(record, number=number)


def _put(records: Records, owner: Account, lease: Lease, record: Record) -> str:
    """Write a record that ends with the lease."""
    key = all_records.put(records, owner, record).key
    records.lease_entity(key, lease)
    return key


def _put_offered(records: Records, owner: Account, lease: Lease, offered: list[Record]) -> list[str]:
    """Write what the broker offers; what is refused is said, and tried again with the next claim: the other one may be gone then."""
    held, refused = records.leased(lease), []
    for one in offered:
        old = records.record(lease.mesh, one.sort, one.name)
        if old is not None and old.key not in held:
            refused.append(f"another {one.sort} here has the name {one.name!r}")
        else:
            _put(records, owner, lease, one)
    return refused


def _drop_others(records: Records, lease: Lease, wanted: Claim) -> None:
    """Delete the records of a lease that the claim does not name any more, before something else takes its number."""
    named = {("broker", wanted.broker.name), *((one.sort, one.name) for one in wanted.offered)}
    held = [records.get(key) for key in records.leased(lease)]
    records.delete([one.key for one in held if one is not None and (one.record, one.name) not in named])
