"""Meshes, brokers, services and applications as the REST face shows them; in the store they are UDDI's entities.

What UDDI clients registered in the same way (`documents`) is found here too, and the other way round.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from ..base.address import parse_address
from ..base.clients import wrong_name
from .storage import patterns, queries
from .storage.errors import DirectoryError
from .storage.patterns import matching, starred
from .storage.queries import above
from .storage.rows import Found, Records
from .storage.tables import EDITOR, LISTED, NAMED, ORGANISATION, PERMISSION, PUBLIC, VISIBLE_TO, Account, Entity, entities
from .uddi import saving
from .uddi.documents import (
    ALTERNATIVE,
    BROKER,
    CLIENT,
    CONSENT,
    DEFUNCT_INTERVAL,
    FAULT_INTERVAL,
    INTERVAL,
    MESSAGE_INTERVAL,
    NUMBER,
    PROBE,
    PUBLISHER,
    RECORD,
    TRANSPORT,
    VISIBILITY,
    add,
    categories,
    documents_of,
    element_of,
    make,
    plain,
    q,
)

MOST_ROWS = 1_000_000  # records that `find` finds
MOST = 64  # addresses, alternatives, permissions of one record
LONGEST = 86400 * 366.0  # seconds
_ALL = ("description", "visibility", "visible_to", "editors")
_FIELDS = {  # what a body may have, by sort of record
    "mesh": (*_ALL, "publishers"),
    "broker": (*_ALL, "addresses", "number"),
    "service": (*_ALL, "addresses", "permissions"),
    "application": (
        *_ALL,
        "alternatives",
        "interval",
        "broker",
        "clients",
        "message_interval",
        "fault_interval",
        "defunct_interval",
        "consents",
        "probe",
    ),
}
# Categories of a document: (field, tModel, keyName). Lists have a category for each value, in order.
_LISTS = (
    ("visible_to", VISIBLE_TO, "organisation"),
    ("publishers", PUBLISHER, "organisation"),
    ("editors", EDITOR, "organisation"),
    ("alternatives", ALTERNATIVE, "application"),
    ("permissions", PERMISSION, "for"),
    ("clients", CLIENT, "client"),
    ("consents", CONSENT, "application"),
)
_SECONDS = (
    ("interval", INTERVAL, "seconds"),
    ("message_interval", MESSAGE_INTERVAL, "seconds"),
    ("fault_interval", FAULT_INTERVAL, "seconds"),
    ("defunct_interval", DEFUNCT_INTERVAL, "seconds"),
)


@dataclass(slots=True)
class Record:
    """One record. The last five are of the directory.

    sort: mesh, broker, service or application.
    broker, clients, alternatives, consents, probe and the intervals (seconds): of an application, see docs/recipients.md.
    Empty or None: not said here.
    """

    sort: str
    name: str
    mesh: str = ""
    description: str = ""
    visibility: str = PUBLIC
    visible_to: list[str] = field(default_factory=list)
    editors: list[str] = field(default_factory=list)
    publishers: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    number: int | None = None
    alternatives: list[str] = field(default_factory=list)
    interval: float | None = None
    permissions: list[str] = field(default_factory=list)
    broker: str = ""
    clients: list[str] = field(default_factory=list)
    message_interval: float | None = None
    fault_interval: float | None = None
    defunct_interval: float | None = None
    consents: list[str] = field(default_factory=list)
    probe: bool = False
    key: str = ""
    owner: str = ""
    modified: float = 0.0
    owns_name: bool = False  # of a service or broker: the name belongs to its owner
    permitted: bool = True  # of a service: its addresses are for the reader

    def shown(self) -> dict[str, Any]:
        """As JSON says it: what this sort of record has."""
        of_mesh = {} if self.sort == "mesh" else {"mesh": self.mesh}
        own = {name: getattr(self, name) for name in _FIELDS[self.sort]}
        if self.sort in NAMED:
            own["owns_name"] = self.owns_name
        if self.sort == "service":
            own["permitted"] = self.permitted
        return {"sort": self.sort, "name": self.name, **of_mesh, **own, "key": self.key, "owner": self.owner, "modified": self.modified}


def read_body(sort: str, name: str, mesh: str, body: object) -> Record:
    """A record from a JSON body; DirectoryError E_invalidValue names the key, the value and what would be right."""
    if not isinstance(body, dict):
        raise _wrong("", body, "give an object")
    record = Record(sort, name, mesh)
    if not name or plain(name) != name or len(name) > 255 or not name.isprintable():
        raise _wrong("name", name, "1 to 255 printable characters without white space at its ends or twice in a row")
    for key, value in body.items():
        if key not in _FIELDS[sort]:
            raise _wrong(key, value, f"a {sort} has {', '.join(_FIELDS[sort])}")
        if key in ("addresses", *(name for name, _, _ in _LISTS)):
            setattr(record, key, _texts(key, value))
        elif key in (name for name, _, _ in _SECONDS):
            setattr(record, key, _given_seconds(key, value))
    record.description = _text("description", body.get("description", ""))
    record.visibility = body.get("visibility", PUBLIC)
    if record.visibility not in (PUBLIC, ORGANISATION, LISTED):
        raise _wrong("visibility", record.visibility, f"{PUBLIC}, {ORGANISATION} or {LISTED}")
    if record.visible_to and record.visibility != LISTED:
        raise _wrong("visible_to", record.visible_to, f"it goes with visibility = {LISTED}")
    record.number = body.get("number")
    if record.number is not None and (type(record.number) is not int or not 0 <= record.number <= 65535):
        raise _wrong("number", record.number, "a whole number, 0 to 65535")
    if sort == "broker":
        for address in record.addresses:
            try:
                parse_address(address)
            except ValueError as error:
                raise _wrong("addresses", address, str(error)) from error
    if sort == "application":
        record.broker = _text("broker", body.get("broker", ""))
        record.probe = body.get("probe", False)
        _check_application(record)
    return record


def _check_application(record: Record) -> None:
    """What an application says of its surveillance agrees with itself."""
    if type(record.probe) is not bool:
        raise _wrong("probe", record.probe, "true or false")
    for key, names in (("name", [record.name]), ("alternatives", record.alternatives)):
        for name in names:
            if (right := wrong_name(name)) is not None:
                raise _wrong(key, name, right)
    if record.name in record.alternatives:
        raise _wrong("alternatives", record.name, "an application is no alternative of its own")
    twice = next((one for at, one in enumerate(record.alternatives) if one in record.alternatives[:at]), None)
    if twice is not None:
        raise _wrong("alternatives", twice, "each application once")
    message, fault = record.message_interval, record.fault_interval
    if message is not None and fault is not None and fault < message:
        raise _wrong("fault_interval", fault, f"not less than message_interval = {message:g}")


def put(records: Records, owner: Account, record: Record) -> Record:
    """Register a record or write it over the owner's old one of the same name; its mesh must be there."""
    parent = "" if record.sort == "mesh" else mesh_of(records, record.mesh).key
    old = records.record(parent, record.sort, record.name)
    if old is None and parent:
        saving.open_to(records, owner, "business", parent)
    kind = "business" if record.sort == "mesh" else "service"
    element = _element(kind, record)
    if old is not None:
        element.set("businessKey" if kind == "business" else "serviceKey", old.key)
        if kind == "service":
            keep_bindings(records, old, element)
    saved = saving.save(records, owner, kind, element, parent=parent or None, keep=kind == "business")
    record.key, record.owner, record.modified = saved.key, saved.owner, saved.modified
    return record


def give_up_name(records: Records, owner: Account, name: str) -> None:
    """A name is nobody's; DirectoryError E_invalidKeyPassed where it is not the owner's."""
    if not records.give_up(name, owner.name):
        raise DirectoryError("E_invalidKeyPassed", f"the name {name!r} is not yours")


def put_all(records: Records, owner: Account, wanted: list[Record]) -> None:
    """Register several records, or none: DirectoryError says which one is refused."""
    meshes = {name: records.record("", "mesh", name) for name in {one.mesh or one.name for one in wanted}}
    places = ((meshes[one.mesh], one) for one in wanted if one.sort != "mesh")
    records.expect((mesh.key, one.sort, one.name) for mesh, one in places if mesh is not None)
    for at, record in enumerate(wanted):
        try:
            put(records, owner, record)
        except DirectoryError as error:
            raise DirectoryError(error.code, f"records[{at}] ({record.sort} {record.name}): {error}", ours=error.ours) from error


def keep_bindings(records: Records, old: Entity, element: Any) -> None:
    """Addresses keep the keys of those that they replace."""
    templates = element.findall(f"{q('bindingTemplates')}/{q('bindingTemplate')}")
    for template, before in zip(templates, records.children([old.key])[old.key], strict=False):
        template.set("bindingKey", before.key)


def delete(records: Records, owner: Account, sort: str, mesh: str, name: str) -> None:
    """Delete the owner's record; a mesh with all that is in it."""
    parent = "" if sort == "mesh" else mesh_of(records, mesh).key
    entity = _named(records, parent, sort, name)
    saving.delete(records, owner, entity.kind, entity.key)


def get(records: Records, sort: str, mesh: str, name: str) -> Record:
    """One record; DirectoryError E_invalidKeyPassed when the reader sees none of this name."""
    parent = "" if sort == "mesh" else mesh_of(records, mesh).key
    return _shown(records, [_named(records, parent, sort, name)], {parent: mesh})[0]


def find(records: Records, sort: str, mesh: str | None = None, name: str | None = None) -> list[Record]:
    """The records of a sort in order of name and mesh. mesh: in this one only. name: `*` stands for any characters."""
    return find_page(records, sort, mesh, name, MOST_ROWS)[0]


def find_page(
    records: Records, sort: str, mesh: str | None, name: str | None, limit: int, offset: int = 0, after: tuple[str, str] | None = None
) -> tuple[list[Record], int | None]:
    """A part of what `find` finds, and how many records there are.

    limit, offset: of the part. after: name and key of the record before it; the number is then not counted, and None unless it is known.
    """
    parent = None if mesh is None or sort == "mesh" else records.record("", "mesh", mesh)
    if mesh is not None and sort != "mesh" and parent is None:
        return [], 0
    span = None if name is None else patterns.span(starred(name))
    if after is None and sort != "mesh" and (name is None or span is not None):
        listed = records.page(sort, None if parent is None else parent.key, span, limit, offset)
        found = _of_page(listed)
    else:
        wanted = _wanted(records, sort, mesh, parent, name)
        by_name = queries.names(records.postgresql)
        begun = [] if after is None else [_after(by_name, *after)]
        rows = records.select(*wanted, *begun, order=(by_name, entities.c.parent, entities.c.key), offset=offset, limit=limit)
        found = _shown(records, rows, None if parent is None else {parent.key: parent.name})
    total: int | None = offset + len(found)
    if len(found) == limit or (offset and not found):
        total = None if after is not None else records.count(*_wanted(records, sort, mesh, parent, name))
    return found, total


def _wanted(records: Records, sort: str, mesh: str | None, parent: Entity | None, name: str | None) -> list[Any]:
    """The conditions of what is to be found. parent: the mesh, where records of another sort are wanted."""
    conditions = [entities.c.record == sort, ~entities.c.deleted]
    if sort == "mesh":
        conditions += [entities.c.parent == ""] if mesh is None else [entities.c.parent == "", entities.c.name == mesh]
    else:
        conditions.append(above.c.record == "mesh" if parent is None else entities.c.parent == parent.key)
    if name is not None:
        conditions.append(matching(queries.names(records.postgresql), starred(name), records.postgresql))
    return conditions


def _after(by_name: Any, name: str, parent: str) -> Any:
    """What comes after a name in a mesh, given by its key; an index has this order."""
    return sa.and_(by_name >= name, sa.or_(by_name > name, entities.c.parent > parent))


def mesh_of(records: Records, name: str) -> Entity:
    """The business that is a mesh."""
    return _named(records, "", "mesh", name)


def _named(records: Records, parent: str, sort: str, name: str) -> Entity:
    entity = records.record(parent, sort, name)
    if entity is None:
        raise DirectoryError("E_invalidKeyPassed", f"there is no {sort} {name!r}")
    return entity


def _shown(records: Records, found: list[Entity], meshes: dict[str, str] | None = None) -> list[Record]:
    """Records as they are shown. meshes: key -> name of those that they are in; None: they are looked up."""
    services = [entity for entity in found if entity.kind == "service"]
    inside = records.children(entity.key for entity in services)
    if meshes is None:
        meshes = {key: one.name for key, one in records.by_keys(one.parent for one in services).items()}
    made = []
    for entity in found:
        bindings = [element_of(binding) for binding in inside.get(entity.key, ())]
        made.append(_record(meshes.get(entity.parent, ""), entity, element_of(entity), bindings))
    owners = records.owners_of(one.name for one in made if one.sort in NAMED)
    restricted = [one.key for one in made if one.sort == "service" and one.permissions]
    permitted = records.permitted(restricted) if restricted else set()
    for record in made:
        record.owns_name = record.sort in NAMED and owners.get(record.name) == record.owner
        record.permitted = record.key in permitted or not (record.sort == "service" and record.permissions)
    return made


def _of_page(found: list[Found]) -> list[Record]:
    """The same of a page."""
    made = []
    elements = iter(documents_of([text for one in found for text in ("<one>", one.entity.document, one.documents, "</one>")]))
    for one, (element, *bindings) in zip(found, elements, strict=True):
        record = _record(one.inside, one.entity, element, bindings)
        record.owns_name = record.sort in NAMED and one.owner == record.owner
        record.permitted = one.permitted
        made.append(record)
    return made


def _record(mesh: str, entity: Entity, element: Any, bindings: list[Any]) -> Record:
    """One record. element, bindings: its document, and those of its addresses."""
    points = [binding.find(q("accessPoint")) for binding in bindings]
    made = Record(
        entity.record or "", entity.name, mesh, plain(element.findtext(q("description"))), entity.visibility, number=entity.number
    )
    made.addresses = [plain(point.text) for point in points if point is not None]
    said = categories(element)
    for name, tmodel, _ in _LISTS:
        if tmodel in said:
            setattr(made, name, said[tmodel])
    for name, tmodel, _ in _SECONDS:
        if tmodel in said:
            setattr(made, name, _seconds(said[tmodel][0]))
    made.broker = said.get(BROKER, [""])[0]
    made.probe = said.get(PROBE) == ["1"]
    made.key, made.owner, made.modified = entity.key, entity.owner, entity.modified
    return made


def _seconds(text: str | None) -> float | None:
    """What a UDDI client gave as interval, if it is a number of seconds."""
    return float(text) if text is not None and re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text) else None


def _element(kind: str, record: Record) -> Any:
    element = make("businessEntity" if kind == "business" else "businessService")
    add(element, "name", record.name)
    if record.description:
        add(element, "description", record.description)
    if record.addresses:
        templates = add(element, "bindingTemplates")
        for address in record.addresses:
            binding = add(templates, "bindingTemplate")
            add(binding, "accessPoint", address, useType="endPoint")
            if address.startswith(("mqtt://", "mqtts://", "ws://", "wss://", "unix://")):
                add(add(binding, "tModelInstanceDetails"), "tModelInstanceInfo", tModelKey=TRANSPORT)
    bag = add(element, "categoryBag")
    add(bag, "keyedReference", tModelKey=RECORD, keyName="record", keyValue=record.sort)
    add(bag, "keyedReference", tModelKey=VISIBILITY, keyName="visibility", keyValue=record.visibility)
    if record.number is not None:
        add(bag, "keyedReference", tModelKey=NUMBER, keyName="number", keyValue=record.number)
    for name, tmodel, meaning in _LISTS:
        for value in getattr(record, name):
            add(bag, "keyedReference", tModelKey=tmodel, keyName=meaning, keyValue=value)
    for name, tmodel, meaning in _SECONDS:
        seconds = getattr(record, name)
        if seconds is not None:
            add(bag, "keyedReference", tModelKey=tmodel, keyName=meaning, keyValue=f"{seconds:.6f}".rstrip("0").rstrip("."))
    if record.broker:
        add(bag, "keyedReference", tModelKey=BROKER, keyName="broker", keyValue=record.broker)
    if record.probe:
        add(bag, "keyedReference", tModelKey=PROBE, keyName="probe", keyValue="1")
    return element


def _texts(key: str, value: object) -> list[str]:
    if not isinstance(value, list) or len(value) > MOST:
        raise _wrong(key, value, f"a list of at most {MOST} texts")
    texts = [_text(key, one) for one in value]
    if "" in texts:
        raise _wrong(key, "", "1 to 255 characters")
    return texts


def _given_seconds(key: str, value: object) -> float | None:
    if value is not None and (type(value) not in (int, float) or not 0 < float(value) <= LONGEST):  # type: ignore[arg-type]
        raise _wrong(key, value, "seconds, more than 0")
    return value  # type: ignore[return-value]


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > 255 or plain(value) != value or (value and not value.isprintable()):
        raise _wrong(key, value, "at most 255 printable characters without white space at the ends or twice in a row")
    return value


def _wrong(key: str, value: object, right: str) -> DirectoryError:
    return DirectoryError("E_invalidValue", f"{key} = {str(value)[:80]!r}: {right}" if key else right)
