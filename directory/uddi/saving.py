"""Saving and deleting: the rules of an owner, of keys, and of what is inside what.

Its owner changes and deletes an entity and puts something into it; so does who owns what it is inside of, and the organisations that one
of these names as EDITOR. Those named as PUBLISHER put entities of their own into a business. Only an owner says who they are, who finds it,
and who gets its addresses (RIGHTS). A new entity may come without a key, then it gets one; with a key of its own it is the first one who
has it, except for keys that begin with `uddi:mqmesh:`, which only a directory makes.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any
from urllib.parse import urlsplit

from ..storage.errors import DirectoryError
from ..storage.rows import NODE, Records
from ..storage.store import Store
from ..storage.tables import EDITOR, INTERCHANGE, NAMED, ORGANISATION, PERMISSION, PUBLIC, VERSION, VISIBLE_TO, Account, Entity
from .documents import (
    DOMAIN,
    KINDS,
    OWN_TMODELS,
    PUBLISHER,
    RECORD,
    TRANSPORT,
    VISIBILITY,
    columns,
    element_of,
    make,
    plain,
    put_inside,
    q,
    text_of,
    used_tmodels,
    values,
    words,
)

RIGHTS = (VISIBILITY, VISIBLE_TO, PERMISSION, PUBLISHER, EDITOR)  # what only an owner says
WELL_KNOWN = "uddi:uddi.org:"  # tModels of the standard itself: known without being saved here


def prepare(store: Store) -> None:
    """See to it that the directory has its own tModels, and that what an earlier release wrote is found by its words."""
    with store.writing() as records:
        if records.version() < VERSION:
            services = sorted((one for one in records.everything() if one.record in NAMED), key=lambda one: one.created)
            records.begin_names([(one.name, one.owner) for one in services])
            records.index((entity, words(element_of(entity))) for entity in records.everything())
            records.set_version(VERSION)
        for key, text in OWN_TMODELS.items():
            if records.hidden(key):
                continue
            element = make("tModel")
            element.append(make("name", key))
            element.append(make("description", text))
            if key == TRANSPORT:
                bag = make("categoryBag")
                types = "uddi:uddi.org:categorization:types"
                bag.append(make("keyedReference", tModelKey=types, keyName="transport", keyValue="transport"))
                element.append(bag)
            now = records.now
            records.put(Entity(key, "tModel", "", 0, NODE, NODE, PUBLIC, None, key, None, text_of(element), now, now), words(element))


def save(
    records: Records, owner: Account, kind: str, element: Any, *, parent: str | None = None, position: int | None = None, keep: bool = False
) -> Entity:
    """Save an entity and what is inside it; entities that were inside it and are not any more go, unless `keep`.

    parent: the key of what it is put into; None to take it from the element or, for a known entity, to leave it. Raises
    DirectoryError: E_invalidKeyPassed, E_userMismatch, E_keyUnavailable, E_invalidValue, E_valueNotAllowed, E_accountLimitExceeded.
    """
    shape = KINDS[kind]
    element = copy.deepcopy(element)
    known = _known(records, owner, kind, element.attrib.pop(shape.key, "").strip().lower())
    key = known if isinstance(known, str) else known.key
    old = None if isinstance(known, str) else known
    inside = _take_inside(element, kind)
    place = _parent(records, owner, kind, element, parent, old)
    element.attrib.pop("deleted", None)
    _check_references(records, element)
    _check_point(element)
    fields = columns(kind, element)
    if old is not None:
        owner = _as_owner(owner, old, element, place)
    _check_organisation(records, owner, fields["record"], fields["name"], place)
    child = position is not None
    if position is None:
        position = old.position if old is not None and old.parent == place else _next_position(records, place)
    times = (old.created if old is not None else records.now, records.now)
    owned = (owner.name, owner.organisation)
    entity = Entity(key, kind, place, position, *owned, **fields, document=text_of(element), created=times[0], modified=times[1])
    if not keep and old is not None and shape.child:
        wanted = {one.get(KINDS[shape.child].key, "").strip().lower() for one in inside}
        records.delete(child.key for child in records.children([key])[key] if child.key not in wanted)
    if not child or old is None or not _same(old, entity):
        before = words(element_of(old)) if old is not None else []
        now = words(element)
        records.put(entity, now if now != before else None, fresh=old is None and key.startswith(DOMAIN))
    if kind == "service" and old is not None:
        records.keep_entity(key)  # what somebody writes stays, though it had a lease
    for at, one in enumerate(inside):
        if kind == "business" and one.get("businessKey", key).strip().lower() not in ("", key):
            raise DirectoryError("E_unsupported", "a service of another business (a projection) cannot be put into this one")
        save(records, owner, shape.child, one, parent=key, position=at)
    return entity


def _same(old: Entity, new: Entity) -> bool:
    """Whether there is nothing to write."""
    return (old.document, old.place, old.position, old.owner, old.organisation) == (
        new.document,
        new.place,
        new.position,
        new.owner,
        new.organisation,
    )


def delete(records: Records, owner: Account, kind: str, key: str) -> None:
    """Delete an entity with what is inside it; a tModel is hidden, not deleted: keys that refer to it stay good."""
    entity = mine(records, owner, kind, key)
    if kind == "tModel":
        entity.deleted = True
        entity.modified = records.now
        records.put(entity, None)
    else:
        records.delete([entity.key])


def mine(records: Records, owner: Account, kind: str, key: str) -> Entity:
    """The entity with this key, which the account may change; DirectoryError E_invalidKeyPassed, E_userMismatch."""
    entity = records.get(key.strip())
    if entity is None or entity.kind != kind:
        raise DirectoryError("E_invalidKeyPassed", f"there is no {kind} with the key {key!r}")
    if not may_change(records, owner, entity):
        raise DirectoryError("E_userMismatch", f"the {kind} {key!r} has another owner")
    return entity


def open_to(records: Records, owner: Account, kind: str, key: str) -> Entity:
    """The entity with this key, into which the account may put something; DirectoryError as `mine`."""
    entity = records.get(key.strip())
    if entity is not None and entity.kind == kind and may_publish(records, owner, entity):
        return entity
    return mine(records, owner, kind, key)


def may_publish(records: Records, account: Account, entity: Entity) -> bool:
    """Whether an account may put entities of its own into this one."""
    return account.organisation in _named(entity, PUBLISHER) or may_change(records, account, entity)


def may_change(records: Records, account: Account, entity: Entity) -> bool:
    """Whether an account may change an entity: it owns it or what it is inside of, or is an editor there. That an organisation was begun by
    an account gives that one nothing."""
    place: Entity | None = entity
    while place is not None:
        if place.owner == account.name and (place is entity or place.record != ORGANISATION):
            return True
        if account.organisation in _named(place, EDITOR):
            return True
        place = records.get(place.parent) if place.parent else None
    return False


def _named(entity: Entity, right: str) -> list[str]:
    """The organisations that have a right."""
    return values(element_of(entity), right) if right in entity.document.lower() else []


def whole(records: Records, found: list[Entity]) -> list[Any]:
    """The elements of entities of one kind with everything inside them."""
    elements = [element_of(entity) for entity in found]
    if not found or not KINDS[found[0].kind].child:
        return elements
    inside = records.children(entity.key for entity in found)
    every = [child for children in inside.values() for child in children]
    made = {child.key: element for child, element in zip(every, whole(records, every), strict=True)}
    for entity, element in zip(found, elements, strict=True):
        put_inside(element, entity.kind, [made[child.key] for child in inside[entity.key]])
    return elements


def _known(records: Records, owner: Account, kind: str, key: str) -> Entity | str:
    """The entity that is saved anew, or the key of a new one."""
    if not key:
        return f"{DOMAIN}{uuid.uuid4()}"
    if records.hidden(key):
        old = records.get(key)
        if old is not None and old.kind != kind:
            raise DirectoryError("E_keyUnavailable", f"the key {key!r} is the key of a {old.kind}")
        if old is None or not may_change(records, owner, old):
            raise DirectoryError("E_userMismatch", f"the {kind} {key!r} has another owner")
        return old
    if not key.startswith("uddi:") or key.startswith(DOMAIN):
        raise DirectoryError("E_invalidKeyPassed", f"there is no {kind} with the key {key!r}, and it cannot be the key of a new one")
    return key


def _take_inside(element: Any, kind: str) -> list[Any]:
    container = element.find(q(KINDS[kind].container)) if KINDS[kind].container else None
    if container is None:
        return []
    element.remove(container)
    return list(container)


def _parent(records: Records, owner: Account, kind: str, element: Any, parent: str | None, old: Entity | None) -> str:
    above = KINDS[kind].parent
    if not above:
        return ""
    named = element.attrib.pop(KINDS[above].key, "").strip().lower()
    if parent is not None:
        return parent
    if not named and old is not None:
        return old.parent
    return open_to(records, owner, above, named).key


def _as_owner(account: Account, old: Entity, element: Any, place: str) -> Account:
    """As whom an account saves an entity anew: as its owner. DirectoryError E_userMismatch where only the owner may do that."""
    if old.owner == account.name:
        return account
    before = element_of(old)
    if place != old.parent or any(values(before, right) != values(element, right) for right in RIGHTS):
        raise DirectoryError(
            "E_userMismatch", f"only its owner, {old.owner!r}, says where it is, and who may see, use, publish and change it"
        )
    return Account(old.owner, old.organisation)


def _next_position(records: Records, parent: str) -> int:
    return records.next_position(parent) if parent else 0


def _check_organisation(records: Records, owner: Account, record: str | None, name: str, place: str) -> None:
    """The services of the interchange are in organisations, and an organisation is made by one of its accounts."""
    if record == ORGANISATION and name != owner.organisation:
        raise DirectoryError("E_userMismatch", f"the organisation {name!r} is not the one of this account, {owner.organisation!r}")
    inside = records.get(place) if place and record is not None else None
    if inside is not None and (record == INTERCHANGE) != (inside.record == ORGANISATION):
        raise DirectoryError("E_invalidValue", f"{RECORD} = {record!r}: services of the interchange are in organisations, others in meshes")


def _check_point(element: Any) -> None:
    """An accessPoint that is a URL has a port that can be."""
    point = element.find(q("accessPoint"))
    text = plain(point.text) if point is not None else ""
    if "://" not in text:
        return
    try:
        wrong = urlsplit(text).port == 0
    except ValueError:
        wrong = True
    if wrong:
        raise DirectoryError("E_invalidValue", f"addresses = {text[:80]!r}: a port is 1 to 65535, and an IPv6 address stands in brackets")


def _check_references(records: Records, element: Any) -> None:
    for key in set(used_tmodels(element)) - OWN_TMODELS.keys():
        entity = None if key.startswith(WELL_KNOWN) else records.get(key)
        if not key.startswith(WELL_KNOWN) and (entity is None or entity.kind != "tModel"):
            raise DirectoryError("E_invalidKeyPassed", f"there is no tModel with the key {key!r}")
    for redirector in element.iter(q("hostingRedirector")):
        entity = records.get(redirector.get("bindingKey", ""))
        if entity is None or entity.kind != "binding":
            raise DirectoryError("E_invalidKeyPassed", f"there is no binding with the key {redirector.get('bindingKey')!r}")
