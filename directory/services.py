"""Services of the message interchange: records of organisations, which interchanges route by (us-9037726, l. 34, 44-52).

An organisation is a businessEntity, made with its first service by one of its accounts; a service is a businessService in it, so that UDDI
finds it. What an interchange needs of it stands beside the entity as a table, the *profile*: it is the table of a service in an
interchange's file, as JSON (docs/interchange.md), with the keys of OWN for the directory. Each change makes a new revision; the audit keeps
all of them, chained by hashes.

Who may see a service sees what it is and how it is called. Only its organisation, and interchanges, see all of the profile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from ..base.chain import first_broken
from .records import keep_bindings
from .storage import queries
from .storage.errors import DirectoryError
from .storage.patterns import matching, starred
from .storage.queries import above
from .storage.rows import Records
from .storage.tables import INTERCHANGE, LISTED, ORGANISATION, PUBLIC, VISIBLE_TO, Account, Entity, entities
from .uddi import saving
from .uddi.documents import DELIVERY, POSTED, RECORD, REVISION, VISIBILITY, add, make, plain

OWN = ("description", "visibility", "visible_to")  # keys of a profile that the directory itself goes by
SHOWN = ("delivery", "documentation", "arguments", "duplicates", "suspended")  # keys that everybody sees who sees the service
MOST_LISTED = 64  # organisations
LONGEST_PAGE = 8 * 1024 * 1024  # bytes of profiles in one answer

Check = Callable[[str, Mapping[str, Any]], str | None]  # why a profile cannot be; None: it can


@dataclass(slots=True)
class Service:
    """One service. profile: as it was registered. whole: whether the reader may see all of it."""

    organisation: str
    name: str
    profile: dict[str, Any] = field(default_factory=dict)
    revision: int = 0
    key: str = ""
    owner: str = ""
    modified: float = 0.0
    whole: bool = True

    def shown(self) -> dict[str, Any]:
        """As JSON says it."""
        keys = self.profile if self.whole else [key for key in (*OWN[:2], *SHOWN) if key in self.profile]
        given = {"service": f"{self.organisation}/{self.name}", "revision": self.revision, "whole": self.whole, "key": self.key}
        return {**given, "owner": self.owner, "modified": self.modified, "profile": {key: self.profile[key] for key in keys}}


def read_profile(organisation: str, name: str, body: object, check: Check) -> Service:
    """A service from a JSON body. Raises DirectoryError E_invalidValue."""
    service = f"{organisation}/{name}"
    for what in (organisation, name):
        if not what or plain(what) != what or len(what) > 127 or not what.isprintable() or "/" in what:
            raise DirectoryError("E_invalidValue", f"{service!r}: an organisation and a name have 1 to 127 printable characters without /")
    if not isinstance(body, dict):
        raise DirectoryError("E_invalidValue", "give an object")
    if body.get("visibility", PUBLIC) not in (PUBLIC, ORGANISATION, LISTED):
        raise DirectoryError("E_invalidValue", f"visibility = {body['visibility']!r}: {PUBLIC}, {ORGANISATION} or {LISTED}")
    listed = body.get("visible_to", [])
    if not isinstance(listed, list) or len(listed) > MOST_LISTED or not all(isinstance(one, str) and 0 < len(one) < 256 for one in listed):
        raise DirectoryError("E_invalidValue", f"visible_to: a list of at most {MOST_LISTED} organisations")
    description = body.get("description", "")
    if not isinstance(description, str) or len(description) > 255 or plain(description) != description:
        raise DirectoryError("E_invalidValue", "description: at most 255 characters, without white space at the ends or twice in a row")
    wrong = check(service, body)
    if wrong is not None:
        raise DirectoryError("E_invalidValue", wrong)
    return Service(organisation, name, dict(body))


def put(records: Records, owner: Account, service: Service, expected: int | None = None) -> Service:
    """Register a service of the owner's organisation, or write it over the owner's old one.

    expected: the revision that is to be written over; 0: none. DirectoryError E_valueNotAllowed where there is another one by now.
    """
    parent = _organisation(records, owner, service.organisation)
    old = records.record(parent, INTERCHANGE, service.name)
    now = records.profiles([old.key])[old.key][0] if old is not None else 0
    if expected is not None and expected != now:
        raise DirectoryError("E_valueNotAllowed", f"the revision is {now} by now, not {expected}: read it anew")
    service.revision = records.last_revision(f"{service.organisation}/{service.name}") + 1
    element = _element(service)
    if old is not None:
        element.set("serviceKey", old.key)
        keep_bindings(records, old, element)
    saved = saving.save(records, owner, "service", element, parent=parent)
    records.flush()
    records.put_profile(saved.key, service.revision, json.dumps(service.profile, ensure_ascii=False))
    service.key, service.owner, service.modified = saved.key, saved.owner, saved.modified
    return service


def delete(records: Records, owner: Account, organisation: str, name: str) -> None:
    """Delete the owner's service."""
    saving.delete(records, owner, "service", _named(records, organisation, name).key)


def get(records: Records, organisation: str, name: str) -> Service:
    """One service; DirectoryError E_invalidKeyPassed when the reader sees none of this name."""
    return _made(records, [_named(records, organisation, name)], {}, organisation)[0]


def find(
    records: Records, organisation: str | None, name: str | None, limit: int, after: tuple[str, str] | None = None
) -> tuple[list[Service], tuple[str, str] | None]:
    """Services in order of name, and the place to go on from; None: that was all. name: `*` stands for any characters."""
    by_name = queries.names(records.postgresql)
    wanted = [entities.c.record == INTERCHANGE, above.c.record == ORGANISATION, above.c.name == above.c.organisation]
    if organisation is not None:
        wanted.append(above.c.name == organisation)
    if name is not None:
        wanted.append(matching(by_name, starred(name), records.postgresql))
    if after is not None:
        wanted.append(sa.or_(by_name > after[0], sa.and_(by_name == after[0], entities.c.key > after[1])))
    found = records.select(*wanted, order=(by_name, entities.c.key), limit=limit)
    rows = records.profiles(one.key for one in found)
    size = 0
    for at, one in enumerate(found):
        size += len(rows.get(one.key, (0, ""))[1])
        if size > LONGEST_PAGE and at:
            found = found[:at]
            break
    more = bool(found) and (len(found) == limit or size > LONGEST_PAGE)
    return _made(records, found, rows), (found[-1].name, found[-1].key) if more else None


def history(records: Records, organisation: str, name: str) -> list[dict[str, Any]]:
    """Every revision of a service, for its organisation. Raises DirectoryError E_userMismatch."""
    if not _sees_all(records, organisation):
        raise DirectoryError("E_userMismatch", f"the history of a service is for accounts of {organisation!r}")
    rows, after = [], 0
    while part := records.audited(after, f"{organisation}/{name}"):
        rows += part
        after = part[-1]["number"]
    return [
        {key: one[key] for key in ("number", "at", "account", "revision", "digest")} | {"profile": json.loads(one["profile"] or "null")}
        for one in rows
    ]


def verify_audit(records: Records) -> tuple[int, int | None]:
    """How many rows the audit has, and the first that is not as it was written; None: all are whole."""
    number, digest = 0, ""
    while part := records.audited(number):
        rows = [(one["number"], tuple(one[key] for key in _AUDITED), one["digest"]) for one in part]
        broken = first_broken(rows, number, digest)
        if broken is not None:
            return number, broken
        number, digest = part[-1]["number"], part[-1]["digest"]
    return number, None


_AUDITED = ("number", "at", "account", "service", "revision", "profile")


def _organisation(records: Records, owner: Account, name: str) -> str:
    """The key of the owner's organisation, which is made if it is not there."""
    if name != owner.organisation:
        raise DirectoryError("E_userMismatch", f"this account is one of {owner.organisation!r}, not of {name!r}")
    found = records.record("", ORGANISATION, name)
    if found is None:
        element = make("businessEntity")
        add(element, "name", name)
        add(add(element, "categoryBag"), "keyedReference", tModelKey=RECORD, keyName="record", keyValue=ORGANISATION)
        found = saving.save(records, owner, "business", element)
        records.flush()
    return found.key


def _named(records: Records, organisation: str, name: str) -> Entity:
    parent = records.record("", ORGANISATION, organisation)
    found = records.record(parent.key, INTERCHANGE, name) if parent is not None else None
    if found is None:
        raise DirectoryError("E_invalidKeyPassed", f"there is no service {f'{organisation}/{name}'!r}")
    return found


def _made(records: Records, found: list[Entity], rows: dict[str, tuple[int, str]], organisation: str = "") -> list[Service]:
    rows = rows or records.profiles(one.key for one in found)
    parents = {} if organisation else {key: one.name for key, one in records.by_keys(one.parent for one in found).items()}
    made = []
    for one in found:
        revision, text = rows.get(one.key, (0, "{}"))  # one that a UDDI client has saved has no profile yet
        of = organisation or parents[one.parent]
        made.append(Service(of, one.name, json.loads(text), revision, one.key, one.owner, one.modified, _sees_all(records, of)))
    return made


def _sees_all(records: Records, organisation: str) -> bool:
    reader = records.reader
    return reader is not None and (reader.interchange or reader.organisation == organisation)


def _element(service: Service) -> Any:
    """The businessService that UDDI clients see."""
    profile = service.profile
    element = make("businessService")
    add(element, "name", service.name)
    if profile.get("description"):
        add(element, "description", profile["description"])
    binding = add(add(element, "bindingTemplates"), "bindingTemplate")
    add(binding, "accessPoint", f"{service.organisation}/{service.name}", useType="endPoint")
    info = add(add(binding, "tModelInstanceDetails"), "tModelInstanceInfo", tModelKey=POSTED)
    if isinstance(profile.get("documentation"), str):
        document = add(add(info, "instanceDetails"), "overviewDoc")
        add(document, "description", "what it is, and its arguments")
        add(document, "overviewURL", profile["documentation"])
    bag = add(element, "categoryBag")
    visibility = profile.get("visibility", PUBLIC)
    said = [(RECORD, "record", INTERCHANGE), (VISIBILITY, "visibility", visibility), (REVISION, "revision", service.revision)]
    said.append((DELIVERY, "delivery", profile.get("delivery", "mqtt")))
    said += [(VISIBLE_TO, "organisation", one) for one in profile.get("visible_to", ()) if visibility == LISTED]
    for tmodel, meaning, value in said:
        add(bag, "keyedReference", tModelKey=tmodel, keyName=meaning, keyValue=str(value))
    return element
