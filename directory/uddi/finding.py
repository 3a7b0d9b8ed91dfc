"""Which entities a find operation of UDDI finds: most of it the database's indexes answer, the rest is compared document by document.

Each criterion becomes a condition on the rows where it can. A search whose criteria all can is *exact*: the database sorts, counts and
cuts it. Another one reads every row that meets the conditions and compares (`search`): one for a name in a language, a group of references,
a signature, references of inner entities, letters without their marks.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import sqlalchemy as sa

from ..storage import queries
from ..storage.errors import DirectoryError
from ..storage.patterns import matching
from ..storage.rows import Records
from ..storage.tables import WORD, Entity, Word, entities, words
from .documents import KINDS, RECORD, VISIBILITY, element_of, local, names, plain, q, tmodels
from .search import KEYWORDS, Qualifiers, described, parts_of, rows_of

_BAGS = {q("identifierBag"): "identifier", q("categoryBag"): "category"}  # and what their references are as words
_NOT_IN_SQL = ("combinecategorybags", "diacriticinsensitivematch", "caseinsensitivesort", "signaturepresent")


class Search:
    """One find operation."""

    def __init__(self, records: Records, kind: str, request: Any) -> None:
        self._records, self._kind, self._request = records, kind, request
        self._wanted = Qualifiers(request)
        self._one_of: set[str] | None = None  # tModels that a nested find_tModel found
        self._holder = KINDS[kind].parent
        self._exact = not any(name in self._wanted for name in _NOT_IN_SQL)
        self._conditions = [entities.c.kind == kind, ~entities.c.deleted]
        if kind == "binding":
            self._conditions.append(queries.permitted(queries.view_of(records.reader), entities.c.parent))

    @cached_property
    def _finds(self) -> bool:
        return self._read()

    def page(self) -> tuple[list[Entity], Any, bool]:
        """The part that maxRows and listHead ask for, its listDescription, and whether there is more behind it."""
        rows, head = rows_of(self._request)
        word = self._only_word()
        if word is not None or (self._finds and self._exact):
            if word is not None:
                found = self._records.with_word(self._kind, word, rows, head - 1)
            else:
                found = self._records.select(*self._conditions, order=self._order(), offset=head - 1, limit=rows)
            known = len(found) < rows and (found or head == 1)
            total = head - 1 + len(found) if known or not self._finds else self._records.count(*self._conditions)
        else:
            every = self.all()
            found, total = every[head - 1 : head - 1 + rows], len(every)
        return found, described(len(found), total, head), head - 1 + len(found) < total

    def all(self) -> list[Entity]:
        """All that is found, in order."""
        if not self._finds:
            return []
        if self._exact:
            return self._records.select(*self._conditions, order=self._order())
        found = self._with_inside(self._records.select(*self._conditions))
        return self._wanted.ordered([entity for entity, levels in found if self._meets(entity, levels)])

    def _only_word(self) -> Word | None:
        """The word that is looked for, where a request has one criterion, a reference or a name, and no qualifiers; None: it has others.

        For these, which come most, the statement is there already: to make one takes longer than the rest of the answer.
        """
        criteria = [one for one in self._request if one.tag != q("authInfo")]
        if self._kind == "binding" or len(criteria) != 1 or plain(self._request.get(KINDS[self._holder].key) if self._holder else ""):
            return None
        [criterion] = criteria
        if criterion.tag == q("name"):
            [(text, language)] = names(self._request)
            word = Word("name", "", text) if not language else None
        elif criterion.tag in _BAGS and len(criterion) == 1 and criterion[0].tag == q("keyedReference"):
            key = criterion[0].get("tModelKey").lower()
            of_rows = key not in (VISIBILITY, RECORD, KEYWORDS)
            word = Word(_BAGS[criterion.tag], key, plain(criterion[0].get("keyValue"))) if of_rows else None
        else:
            return None
        return word if word is not None and len(word.value) < WORD else None

    def _read(self) -> bool:
        """Take over the criteria; whether anything can be found: without a criterion nothing is."""
        request = self._request
        holder = self._holder
        parent = plain(request.get(KINDS[holder].key)).lower() if holder else ""
        if parent:
            known(self._records, parent, holder)
            self._conditions.append(entities.c.parent == parent)
        elif not any(element.tag not in (q("authInfo"), q("findQualifiers")) for element in request):
            return False
        related = request.find(q("find_relatedBusinesses"))
        if related is not None:
            related_to(self._records, related)
            return False  # none are related
        nested = request.find(q("find_tModel"))
        if nested is not None:
            self._one_of = {entity.key for entity in Search(self._records, "tModel", nested).all()}
            self._exact = False
        if request.find(q("discoveryURLs")) is not None:
            self._exact = False
        self._add_names()
        self._add_references("identifierBag", "identifier")
        self._add_references("categoryBag", "category")
        self._add_tmodels()
        return True

    def _add_names(self) -> None:
        asked = names(self._request)
        if not asked:
            return
        if "diacriticinsensitivematch" in self._wanted:
            return  # `_exact` is off
        self._exact = self._exact and not any(language for _, language in asked)
        self._conditions.append(self._found_by("name", sa.or_(*(self._same(name) for name, _ in asked))))

    def _add_references(self, bag: str, what: str) -> None:
        asked = self._request.find(q(bag))
        if asked is None or "combinecategorybags" in self._wanted:
            return
        if what == "category" and ("servicesubset" in self._wanted or "bindingsubset" in self._wanted):
            self._exact = False
            return
        hits = [(one.get("tModelKey").lower(), self._refers(what, one)) for one in asked]
        if "orlikekeys" in self._wanted:
            for key in {key for key, _ in hits}:
                self._add_one_of([condition for like_key, condition in hits if like_key == key])
        elif "andallkeys" in self._wanted or (what == "category" and "orallkeys" not in self._wanted):
            for _, condition in hits:
                self._add_one_of([condition])
        else:
            self._add_one_of([condition for _, condition in hits])

    def _add_one_of(self, given: list[sa.ColumnElement[bool] | None]) -> None:
        """One of several conditions is met; where rows cannot say of one of them, they say nothing."""
        conditions = [one for one in given if one is not None]
        if len(conditions) == len(given):
            self._conditions.append(sa.or_(*conditions))
        else:
            self._exact = False

    def _refers(self, what: str, asked: Any) -> sa.ColumnElement[bool] | None:
        """The condition for one reference; None where rows cannot say. A condition for a group is that its references are there."""
        if local(asked) == "keyedReferenceGroup":
            self._exact = False
            inside = [self._refers(what, one) for one in asked]
            return sa.and_(sa.true(), *(one for one in inside if one is not None))
        key, value = asked.get("tModelKey").lower(), plain(asked.get("keyValue"))
        if what == "category" and key == VISIBILITY:
            return None
        if what == "category" and key == RECORD:
            return None if "approximatematch" in self._wanted or "caseinsensitivematch" in self._wanted else entities.c.record == value
        if key == KEYWORDS:
            self._exact = False  # the name of the reference counts too
        if "diacriticinsensitivematch" in self._wanted:
            return self._found_by(what, words.c.tmodel == key)
        return self._found_by(what, sa.and_(words.c.tmodel == key, self._same(value)))

    def _add_tmodels(self) -> None:
        asked = [plain(key.text).lower() for key in self._request.iterfind(f"{q('tModelBag')}/{q('tModelKey')}")]
        hits = [self._implements(key) for key in asked]
        if "orallkeys" in self._wanted and hits:
            hits = [sa.or_(*hits)]
        self._conditions += hits

    def _implements(self, key: str) -> sa.ColumnElement[bool]:
        """Whether a binding of an entity has a tModel."""
        found = sa.select(words.c.entity).where(words.c.what == "binding/tmodel", words.c.tmodel == key)
        if self._kind == "binding":
            return entities.c.key.in_(found)
        inner = entities.alias()
        services = sa.select(inner.c.parent).where(inner.c.key.in_(found))
        if self._kind == "service":
            return entities.c.key.in_(services)
        outer = entities.alias()
        return entities.c.key.in_(sa.select(outer.c.parent).where(outer.c.key.in_(services)))

    def _found_by(self, what: str, condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        found = sa.select(words.c.entity).where(words.c.what == f"{self._kind}/{what}", condition)
        return entities.c.key.in_(found if what != "name" else found.where(words.c.tmodel == ""))

    def _same(self, text: str) -> sa.ColumnElement[bool]:
        """Whether a word is what is looked for."""
        folds = "caseinsensitivematch" in self._wanted
        text = text.casefold() if folds else text
        if len(text) >= WORD:
            self._exact = False
            return sa.true()
        column = words.c.folded if folds else words.c.value
        if "approximatematch" in self._wanted:
            return matching(column, list(parts_of(text)), self._records.postgresql)
        return column == text

    def _order(self) -> tuple[Any, ...]:
        """As `Qualifiers.ordered` does it."""
        wanted = self._wanted
        name: Any = queries.names(self._records.postgresql)
        name = name.desc() if "sortbynamedesc" in wanted else name
        date: Any = entities.c.modified.desc() if "sortbydatedesc" in wanted else entities.c.modified
        dated = "sortbydateasc" in wanted or "sortbydatedesc" in wanted
        named = "sortbynameasc" in wanted or "sortbynamedesc" in wanted
        first = ((name, date) if named else (date, name)) if dated else (name,)
        return (*first, entities.c.position, entities.c.key)

    def _with_inside(self, found: list[Entity]) -> list[tuple[Entity, list[list[Any]]]]:
        """Each entity with its own element and those inside it, level by level: [[itself], [services], [bindings]]."""
        levels: dict[str, list[list[Any]]] = {entity.key: [[element_of(entity)]] for entity in found}
        top = {entity.key: entity.key for entity in found}
        while top and self._kind != "tModel":
            inside = self._records.children(top)
            children = [child for many in inside.values() for child in many]
            for level in levels.values():
                level.append([])
            for child in children:
                levels[top[child.parent]][-1].append(element_of(child))
            top = {child.key: top[child.parent] for child in children}
        return [(entity, levels[entity.key]) for entity in found]

    def _meets(self, entity: Entity, levels: list[list[Any]]) -> bool:
        wanted, request = self._wanted, self._request
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
        if self._one_of is not None and not self._one_of & implemented:
            return False
        urls = {plain(url.text) for url in request.iterfind(f"{q('discoveryURLs')}/{q('discoveryURL')}")}
        return not urls or bool(urls & {plain(url.text) for url in element.iterfind(f"{q('discoveryURLs')}/{q('discoveryURL')}")})


def known(records: Records, key: str, kind: str | None = None) -> Entity:
    """The entity with a key; DirectoryError E_invalidKeyPassed."""
    entity = records.get(key)
    if entity is None or (kind is not None and entity.kind != kind):
        raise DirectoryError("E_invalidKeyPassed", f"there is no {kind or 'entity'} with the key {key!r}")
    return entity


def related_to(records: Records, request: Any) -> Entity:
    """The business that a find_relatedBusinesses is about."""
    Qualifiers(request)
    key = next(plain(request.findtext(q(tag))) for tag in ("businessKey", "fromKey", "toKey") if request.find(q(tag)) is not None)
    return known(records, key, "business")
