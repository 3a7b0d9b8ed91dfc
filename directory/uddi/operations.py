"""UDDI's operations: each takes a validated request and returns the answer's element, None for an empty body.

Inquiry, publication and security of UDDI 3.0.2, chapter 5. Publisher assertions are not kept, so no two businesses are related.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from ..storage.accounts import discard_token, draw_token, identify
from ..storage.errors import DirectoryError
from ..storage.rows import Records
from ..storage.store import Store
from ..storage.tables import Account, Entity
from . import saving
from .documents import KINDS, add, documents_of, element_of, make, plain, q
from .finding import Search, known, related_to
from .schema import OPERATIONS
from .search import MOST_ROWS, described, rows_of

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
        records.reader = identify(store, records, token)
        if publishes:
            if records.reader is None:
                raise DirectoryError("E_authTokenRequired", f"{name} takes the authInfo of get_authToken")
            if name.startswith("save_"):
                store.admit(records.reader)
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
            "operationalInfos", [_operational(records, known(records, plain(key.text))) for key in request.findall("{*}entityKey")]
        )
    if name == "find_relatedBusinesses":
        return _related(records, request)
    kind = name.removeprefix("get_").removesuffix("Detail").removeprefix("find_")
    if name.startswith("get_"):
        found = [known(records, plain(key.text), kind) for key in request.findall(q(KINDS[kind].key))]
        return _detail(ANSWERS[kind], saving.whole(records, found))
    return _LISTS[kind](records, request)


def _list_binding(records: Records, request: Any) -> Any:
    part, told, more = Search(records, "binding", request).page()
    return _cut(_detail("bindingDetail", [told, *saving.whole(records, part)]), more)


def _list_tmodel(records: Records, request: Any) -> Any:
    part, told, more = Search(records, "tModel", request).page()
    return _cut(_detail("tModelList", [told, *_infos("tModelInfos", map(_tmodel_info, part))]), more)


def _list_service(records: Records, request: Any) -> Any:
    part, told, more = Search(records, "service", request).page()
    return _cut(_detail("serviceList", [told, *_infos("serviceInfos", _service_infos(part))]), more)


def _list_business(records: Records, request: Any) -> Any:
    part, told, more = Search(records, "business", request).page()
    return _cut(_detail("businessList", [told, *_infos("businessInfos", _business_infos(records, part))]), more)


_LISTS: dict[str, Callable[[Records, Any], Any]] = {
    "binding": _list_binding,
    "tModel": _list_tmodel,
    "service": _list_service,
    "business": _list_business,
}


def _related(records: Records, request: Any) -> Any:
    entity = related_to(records, request)
    return _detail("relatedBusinessesList", [described(0, 0, rows_of(request)[1]), make("businessKey", entity.key)])


def _registered(records: Records, owner: Account, selection: str) -> Any:
    businesses = [] if selection == "hidden" else records.owned(owner.name, "business")
    hidden = {"all": (True, False), "hidden": (True,), "visible": (False,)}[selection]
    own = [entity for entity in records.owned(owner.name, "tModel") if entity.deleted in hidden]
    infos = _infos("businessInfos", _business_infos(records, businesses[:MOST_ROWS])) + _infos(
        "tModelInfos", map(_tmodel_info, own[:MOST_ROWS])
    )
    return _cut(_detail("registeredInfo", infos), max(len(businesses), len(own)) > MOST_ROWS)


def _operational(records: Records, entity: Entity) -> Any:
    newest = max(entity.modified, records.newest_inside(entity.key))
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
        info.extend(_infos("serviceInfos", _service_infos(inside[entity.key])))
        infos.append(info)
    return infos


def _service_infos(found: list[Entity]) -> Iterator[Any]:
    for entity, element in zip(found, documents_of([one.document for one in found]), strict=True):
        yield _copy(element, make("serviceInfo", serviceKey=entity.key, businessKey=entity.parent), "name")


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
