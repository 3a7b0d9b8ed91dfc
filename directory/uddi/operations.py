"""UDDI's operations: each takes a validated request and returns the answer's element, None for an empty body.

Inquiry, publication and security of UDDI 3.0.2, chapter 5. Publisher assertions are not kept, so no two businesses are related.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from ..storage.accounts import discard_token, draw_token, identify
from ..storage.errors import DirectoryError
from ..storage.store import Account, Entity, Records, Store
from . import saving
from .documents import KINDS, add, element_of, make, plain, q, tmodels
from .schema import OPERATIONS
from .search import MOST_ROWS, Qualifiers, page

NODE_ID = "uddi:mqmesh:node"
ANSWERS = {"business": "businessDetail", "service": "serviceDetail", "binding": "bindingDetail", "tModel": "tModelDetail"}


def perform(store: Store, request: Any, source: str = "") -> Any:
    """Do what a request asks; DirectoryError when it is refused. source: the address that asks."""
    name = request.tag.removeprefix(q(""))
    if name == "get_authToken":
        return _detail("authToken", [make("authInfo", draw_token(store, request.get("userID"), request.get("cred"), source))])
    token = plain(request.findtext(q("authInfo")))
    if name == "discard_authToken":
        discard_token(store, token)
        return None
    publishes = name in OPERATIONS["Publication"]
    with store.writing() if publishes and name != "get_registeredInfo" else store.reading() as records:
        records.reader = identify(records, token)
        if publishes:
            if records.reader is None:
                raise DirectoryError("E_authTokenRequired", f"{name} takes the authInfo of get_authToken")
            if name.startswith("save_"):
                store.check_paid(records.reader)
            return _publish(records, records.reader, name, request)
        return _inquire(records, name, request)


def _publish(records: Records, owner: Account, name: str, request: Any) -> Any:
    if name == "get_registeredInfo":
        return _registered(records, owner, request.get("infoSelection"))
    verb, kind = name.split("_")
    shape = KINDS[kind]
    if verb == "delete":
        for key in request.findall(q(shape.key)):
            saving.delete(records, owner, kind, plain(key.text))
        return None
    saved = [saving.save(records, owner, kind, element) for element in request.findall(q(shape.tag))]
    return _detail(ANSWERS[kind], saving.whole(records, saved))


def _inquire(records: Records, name: str, request: Any) -> Any:
    if name == "get_operationalInfo":
        return _detail(
            "operationalInfos", [_operational(records, _known(records, plain(key.text))) for key in request.findall("{*}entityKey")]
        )
    if name == "find_relatedBusinesses":
        return _related(records, request)
    kind = name.removeprefix("get_").removesuffix("Detail").removeprefix("find_")
    if name.startswith("get_"):
        found = [_known(records, plain(key.text), kind) for key in request.findall(q(KINDS[kind].key))]
        return _detail(ANSWERS[kind], saving.whole(records, found))
    return _LISTS[kind](records, request)


def _list_binding(records: Records, request: Any) -> Any:
    part, told, more = page(request, _find(records, "binding", request))
    return _cut(_detail("bindingDetail", [told, *saving.whole(records, part)]), more)


def _list_tmodel(records: Records, request: Any) -> Any:
    part, told, more = page(request, _find(records, "tModel", request))
    return _cut(_detail("tModelList", [told, *_infos("tModelInfos", map(_tmodel_info, part))]), more)


def _list_service(records: Records, request: Any) -> Any:
    part, told, more = page(request, _find(records, "service", request))
    return _cut(_detail("serviceList", [told, *_infos("serviceInfos", map(_service_info, part))]), more)


def _list_business(records: Records, request: Any) -> Any:
    part, told, more = page(request, _find(records, "business", request))
    return _cut(_detail("businessList", [told, *_infos("businessInfos", _business_infos(records, part))]), more)


_LISTS: dict[str, Callable[[Records, Any], Any]] = {
    "binding": _list_binding,
    "tModel": _list_tmodel,
    "service": _list_service,
    "business": _list_business,
}


def _find(records: Records, kind: str, request: Any) -> list[Entity]:
    """The entities of a kind that meet every criterion; none where no criterion is given."""
    wanted = Qualifiers(request)
    above = KINDS[kind].parent
    parent = plain(request.get(KINDS[above].key)).lower() if above else ""
    if parent:
        _known(records, parent, above)
    elif not any(element.tag not in (q("authInfo"), q("findQualifiers")) for element in request):
        return []
    if request.find(q("find_relatedBusinesses")) is not None:
        _related(records, request.find(q("find_relatedBusinesses")))
        return []  # none are related
    nested = request.find(q("find_tModel"))
    one_of = {entity.key for entity in _find(records, "tModel", nested)} if nested is not None else None
    found = [entity for entity in records.of_kind(kind) if not parent or entity.parent == parent]
    return wanted.ordered([entity for entity, inside in _with_inside(records, found) if _meets(wanted, request, entity, inside, one_of)])


def _with_inside(records: Records, found: list[Entity]) -> list[tuple[Entity, list[list[Any]]]]:
    """Each entity with its own element and those inside it, level by level: [[itself], [services], [bindings]]."""
    levels: dict[str, list[list[Any]]] = {entity.key: [[element_of(entity)]] for entity in found}
    top = {entity.key: entity.key for entity in found}
    while top and found[0].kind != "tModel":
        inside = records.children(top)
        children = [child for many in inside.values() for child in many]
        for level in levels.values():
            level.append([])
        for child in children:
            levels[top[child.parent]][-1].append(element_of(child))
        top = {child.key: top[child.parent] for child in children}
    return [(entity, levels[entity.key]) for entity in found]


def _meets(wanted: Qualifiers, request: Any, entity: Entity, levels: list[list[Any]], one_of: set[str] | None) -> bool:
    [[element], *inside] = levels
    if not wanted.signed(element) or not wanted.named(request, element) or not wanted.holds(request, "identifierBag", [element]):
        return False
    bags = [element]
    if "combinecategorybags" in wanted:
        bags = [one for level in levels for one in level]
    elif ("servicesubset" in wanted and entity.kind == "business") or ("bindingsubset" in wanted and entity.kind == "service"):
        bags = inside[0] if inside else []
    if not wanted.holds(request, "categoryBag", bags):
        return False
    implemented = {key for level in levels for one in level for key in tmodels(one)}
    asked = [plain(key.text).lower() for key in request.iterfind(f"{q('tModelBag')}/{q('tModelKey')}")]
    if asked and not wanted.enough([key in implemented for key in asked], all_by_default=True):
        return False
    if one_of is not None and not one_of & implemented:
        return False
    urls = {plain(url.text) for url in request.iterfind(f"{q('discoveryURLs')}/{q('discoveryURL')}")}
    return not urls or bool(urls & {plain(url.text) for url in element.iterfind(f"{q('discoveryURLs')}/{q('discoveryURL')}")})


def _known(records: Records, key: str, kind: str | None = None) -> Entity:
    entity = records.get(key)
    if entity is None or (kind is not None and entity.kind != kind):
        raise DirectoryError("E_invalidKeyPassed", f"there is no {kind or 'entity'} with the key {key!r}")
    return entity


def _related(records: Records, request: Any) -> Any:
    Qualifiers(request)
    key = next(plain(request.findtext(q(tag))) for tag in ("businessKey", "fromKey", "toKey") if request.find(q(tag)) is not None)
    entity = _known(records, key, "business")
    return _detail("relatedBusinessesList", [page(request, [])[1], make("businessKey", entity.key)])


def _registered(records: Records, owner: Account, selection: str) -> Any:
    businesses = [] if selection == "hidden" else records.owned(owner.name, "business")
    hidden = {"all": (True, False), "hidden": (True,), "visible": (False,)}[selection]
    own = [entity for entity in records.owned(owner.name, "tModel") if entity.deleted in hidden]
    infos = _infos("businessInfos", _business_infos(records, businesses[:MOST_ROWS])) + _infos(
        "tModelInfos", map(_tmodel_info, own[:MOST_ROWS])
    )
    return _cut(_detail("registeredInfo", infos), max(len(businesses), len(own)) > MOST_ROWS)


def _operational(records: Records, entity: Entity) -> Any:
    below, newest = [entity.key], entity.modified
    while below:
        children = [child for many in records.children(below).values() for child in many]
        newest = max([newest, *(child.modified for child in children)])
        below = [child.key for child in children]
    info = make("operationalInfo", entityKey=entity.key)
    for tag, seconds in (("created", entity.created), ("modified", entity.modified), ("modifiedIncludingChildren", newest)):
        add(info, tag, datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds"))
    add(info, "nodeID", NODE_ID)
    add(info, "authorizedName", entity.owner)
    return info


def _business_infos(records: Records, found: list[Entity]) -> list[Any]:
    inside = records.children(entity.key for entity in found)
    infos = []
    for entity in found:
        info = make("businessInfo", businessKey=entity.key)
        _copy(element_of(entity), info, "name", "description")
        info.extend(_infos("serviceInfos", map(_service_info, inside[entity.key])))
        infos.append(info)
    return infos


def _service_info(entity: Entity) -> Any:
    return _copy(element_of(entity), make("serviceInfo", serviceKey=entity.key, businessKey=entity.parent), "name")


def _tmodel_info(entity: Entity) -> Any:
    return _copy(element_of(entity), make("tModelInfo", tModelKey=entity.key), "name", "description")


def _copy(source: Any, target: Any, *tags: str) -> Any:
    for tag in tags:
        target.extend(source.findall(q(tag)))
    return target


def _infos(tag: str, infos: Iterable[Any]) -> list[Any]:
    """The infos in their container; the schema has no empty ones."""
    container = make(tag)
    container.extend(list(infos))
    return [container] if len(container) else []


def _detail(tag: str, inside: list[Any]) -> Any:
    element = make(tag)
    element.extend(inside)
    return element


def _cut(element: Any, more: bool) -> Any:
    if more:
        element.set("truncated", "true")
    return element
