"""UDDI's documents: what stands in them, and which of it the directory itself understands.

A mesh is a businessEntity, a broker, a service or an application of it is a businessService; the tModels below, used in the
category bag, say which, and carry what UDDI has no element for. An address is a bindingTemplate with an accessPoint.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from lxml import etree

from ..storage.errors import DirectoryError
from ..storage.tables import EDITOR, INTERCHANGE, LISTED, ORGANISATION, PERMISSION, PUBLIC, VISIBLE_TO, Entity, Word

NAMESPACE = "urn:uddi-org:api_v3"
DOMAIN = "uddi:mqmesh:"  # keys that only a directory makes
TRANSPORT = DOMAIN + "transport:mqtt"
RECORD = DOMAIN + "record"
NUMBER = DOMAIN + "number"
VISIBILITY = DOMAIN + "visibility"
ALTERNATIVE = DOMAIN + "alternative"
INTERVAL = DOMAIN + "interval"
PUBLISHER = DOMAIN + "publisher"
BROKER = DOMAIN + "broker"
CLIENT = DOMAIN + "client"
MESSAGE_INTERVAL, FAULT_INTERVAL, DEFUNCT_INTERVAL = (DOMAIN + f"{name}-interval" for name in ("message", "fault", "defunct"))
CONSENT = DOMAIN + "consent"
PROBE = DOMAIN + "probe"
REVISION = DOMAIN + "revision"
DELIVERY = DOMAIN + "delivery"
POSTED = DOMAIN + "transport:interchange"
OWN_TMODELS = {  # what each directory has from the start
    TRANSPORT: "MQTT transport: the accessPoint is the address of an MQTT broker, such as mqtt://host:1883",
    RECORD: "What a businessEntity or businessService is: mesh, organisation; broker, service, application, interchange",
    NUMBER: "The number of a broker in its mesh",
    VISIBILITY: "Who finds this: public, organisation for accounts of the owner's organisation alone, list for those of others too",
    VISIBLE_TO: "An organisation that finds this, where the visibility is list",
    ALTERNATIVE: "An application that takes the messages of this one when it is in fault; their order is the order of preference",
    INTERVAL: "Seconds after which an application looks for its brokers again",
    PERMISSION: "An organisation or account that gets the addresses of a service; * for all, as without any",
    PUBLISHER: "An organisation whose accounts put records of their own into this mesh",
    EDITOR: "An organisation whose accounts change and delete this, as its owner does, but for who may see, publish and change",
    BROKER: "The broker that holds an application's queue",
    CLIENT: "A client identifier whose session takes an application's messages",
    MESSAGE_INTERVAL: "Seconds that one attempt to deliver a message to an application lasts",
    FAULT_INTERVAL: "Seconds without any delivery after which an application is in fault",
    DEFUNCT_INTERVAL: "Seconds in fault after which an application is defunct",
    CONSENT: "An application whose messages this one takes as an alternative; * for all",
    REVISION: "The revision of the record of an interchange's service",
    DELIVERY: "How a service of the interchange gets messages: mqtt, poll or push",
    POSTED: "Message interchange: the accessPoint is the name of a service, organisation/name, to which messages are posted",
    PROBE: "Whether an application takes an empty message as a probe: 1 or 0",
}
IN_COLUMNS = (RECORD, VISIBILITY)  # categories that each record has; rows have them in columns
SORTS = ("broker", "service", "application")  # of businessService; a businessEntity is a mesh


@dataclass(slots=True, frozen=True)
class Kind:
    """The shape of one of UDDI's entities."""

    tag: str
    key: str
    parent: str = ""  # the kind that it is inside of
    container: str = ""  # the element that holds the entities inside it
    child: str = ""


KINDS = {
    "business": Kind("businessEntity", "businessKey", "", "businessServices", "service"),
    "service": Kind("businessService", "serviceKey", "business", "bindingTemplates", "binding"),
    "binding": Kind("bindingTemplate", "bindingKey", "service"),
    "tModel": Kind("tModel", "tModelKey"),
}
# Elements follow each other in the order of the schema: what may stand behind the container.
_BEHIND = {"identifierBag", "categoryBag"}


class _Parsers(threading.local):
    """A parser for each thread: making one takes longer than reading a document."""

    def __init__(self) -> None:
        self.parser = etree.XMLParser(resolve_entities=False, no_network=True)


_parsers = _Parsers()


@cache
def q(tag: str) -> str:
    """A tag with its namespace, as lxml writes it."""
    return f"{{{NAMESPACE}}}{tag}"


def local(element: Any) -> str:
    """A tag without its namespace."""
    return str(etree.QName(element).localname)


def make(tag: str, text: str | None = None, /, **attributes: object) -> Any:
    """A new element; attributes that are None are left out."""
    element = etree.Element(q(tag), nsmap={None: NAMESPACE})
    element.text = text
    for name, value in attributes.items():
        if value is not None:
            element.set(name, str(value))
    return element


def add(parent: Any, tag: str, text: str | None = None, /, **attributes: object) -> Any:
    """A new element at the end of `parent`."""
    element = make(tag, text, **attributes)
    parent.append(element)
    return element


def plain(text: str | None) -> str:
    """White space as the schema's `collapse` leaves it."""
    return " ".join((text or "").split())


def names(element: Any) -> list[tuple[str, str]]:
    """The names of an entity with their languages ("" for none)."""
    return [(plain(name.text), name.get("{http://www.w3.org/XML/1998/namespace}lang", "")) for name in element.findall(q("name"))]


def references(element: Any, bag: str = "categoryBag") -> list[Any]:
    """The keyedReference elements of a bag, those in groups too."""
    found = element.find(q(bag))
    return [] if found is None else list(found.iter(q("keyedReference")))


def values(element: Any, tmodel: str) -> list[str]:
    """The values of one category, in order."""
    return [str(one.get("keyValue")) for one in references(element) if one.get("tModelKey", "").lower() == tmodel]


def categories(element: Any) -> dict[str, list[str]]:
    """The values of all categories, those of each in order."""
    found: dict[str, list[str]] = {}
    for one in references(element):
        found.setdefault(one.get("tModelKey", "").lower(), []).append(str(one.get("keyValue")))
    return found


def tmodels(element: Any) -> list[str]:
    """The tModels that a bindingTemplate implements."""
    return [info.get("tModelKey", "").lower() for info in element.iter(q("tModelInstanceInfo"))]


def used_tmodels(element: Any) -> Iterator[str]:
    """Every tModel that a document refers to."""
    for one in element.iter(q("keyedReference"), q("keyedReferenceGroup"), q("tModelInstanceInfo"), q("address")):
        if one.get("tModelKey"):
            yield one.get("tModelKey").lower()


def words(element: Any) -> list[Word]:
    """By what an entity is found; what the row has in columns is not among it."""
    found = [Word("name", "", name) for name, _ in names(element)]
    for bag, what in (("categoryBag", "category"), ("identifierBag", "identifier")):
        for one in references(element, bag):
            key = one.get("tModelKey", "").lower()
            if key not in IN_COLUMNS:
                found.append(Word(what, key, plain(one.get("keyValue"))))
    found += [Word("tmodel", key, "") for key in tmodels(element)]
    return list(dict.fromkeys(found))


def columns(kind: str, element: Any) -> dict[str, Any]:
    """What the row says beside the document; DirectoryError E_invalidValue for values of our categories that cannot be."""
    name = next((name for name, _ in names(element)), "")
    record, number = _single(element, RECORD), _single(element, NUMBER)
    visibility = _single(element, VISIBILITY) or PUBLIC
    allowed = {"business": ("mesh", ORGANISATION), "service": (*SORTS, INTERCHANGE)}.get(kind, ())
    if record is not None and record not in allowed:
        raise DirectoryError("E_invalidValue", f"{RECORD} = {record!r}: for a {kind} it may be {', '.join(allowed) or 'nothing'}")
    if record is not None and not name:
        raise DirectoryError("E_invalidValue", f"a {record} needs a name")
    if visibility not in (PUBLIC, ORGANISATION, LISTED):
        raise DirectoryError("E_invalidValue", f"{VISIBILITY} = {visibility!r}: it may be {PUBLIC}, {ORGANISATION} or {LISTED}")
    if number is not None:
        if record != "broker":
            raise DirectoryError("E_invalidValue", f"{NUMBER}: only a broker has a number")
        if not number.isascii() or not number.isdigit() or not int(number[:6]) <= 65535:
            raise DirectoryError("E_invalidValue", f"{NUMBER} = {number!r}: it may be 0 to 65535")
    return {"name": name, "record": record, "number": int(number[:6]) if number else None, "visibility": visibility}


def _single(element: Any, tmodel: str) -> str | None:
    found = values(element, tmodel)
    if len(found) > 1:
        raise DirectoryError("E_invalidValue", f"{tmodel} stands more than once")
    return found[0] if found else None


def text_of(element: Any) -> str:
    """A document as it is stored."""
    return str(etree.tostring(element, encoding="unicode"))


def documents_of(texts: list[str]) -> Any:
    """Stored documents as the elements inside one, parsed together: without their keys."""
    return etree.fromstring(f"<documents>{''.join(texts)}</documents>", parser=_parsers.parser)


def element_of(entity: Entity) -> Any:
    """A stored document as an element, with its keys."""
    kind = KINDS[entity.kind]
    element = etree.fromstring(entity.document, parser=_parsers.parser)
    element.set(kind.key, entity.key)
    if kind.parent:
        element.set(KINDS[kind.parent].key, entity.parent)
    if entity.deleted:
        element.set("deleted", "true")
    return element


def put_inside(element: Any, kind: str, children: list[Any]) -> Any:
    """Put the entities inside into the element of an entity, where the schema wants them."""
    if children:
        container = make(KINDS[kind].container)
        container.extend(children)
        place = next((at for at, one in enumerate(element) if local(one) in _BEHIND or local(one) == "Signature"), len(element))
        element.insert(place, container)
    return element
