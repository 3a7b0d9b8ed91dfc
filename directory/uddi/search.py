"""What the find operations of UDDI compare: find qualifiers, names with wildcards, bags of references (UDDI 3.0.2, 5.1.4 to 5.1.8).

Without qualifiers a comparison is exact and case sensitive, categories and tModels must all be there, of identifiers one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from ..storage.errors import DirectoryError
from ..storage.tables import Entity
from .documents import add, local, make, names, plain, q, references
from .schema import SIGNATURES

KEYWORDS = "uddi:uddi.org:categorization:general_keywords"  # here the name of a reference counts too
MOST_ROWS = 1000  # entities in one answer
_PREFIXES = ("uddi:uddi.org:findqualifier:", "uddi:uddi.org:sortorder:")
_QUALIFIERS = {
    *("andallkeys", "approximatematch", "binarysort", "bindingsubset", "caseinsensitivematch", "caseinsensitivesort", "casesensitivematch"),
    *("casesensitivesort", "combinecategorybags", "diacriticinsensitivematch", "diacriticsensitivematch", "exactmatch", "orallkeys"),
    *("orlikekeys", "servicesubset", "signaturepresent", "sortbydateasc", "sortbydatedesc", "sortbynameasc", "sortbynamedesc"),
    "suppressprojectedservices",
}
_ONE_OF = [
    {"andallkeys", "orallkeys", "orlikekeys"},
    {"approximatematch", "exactmatch"},
    {"caseinsensitivematch", "casesensitivematch"},
    {"caseinsensitivematch", "exactmatch"},
    {"diacriticinsensitivematch", "diacriticsensitivematch"},
    {"diacriticinsensitivematch", "exactmatch"},
    {"caseinsensitivesort", "casesensitivesort"},
    {"sortbynameasc", "sortbynamedesc"},
    {"sortbydateasc", "sortbydatedesc"},
    {"combinecategorybags", "servicesubset"},
    {"combinecategorybags", "bindingsubset"},
]


class Qualifiers:
    """The qualifiers of one find; DirectoryError E_unsupported for unknown ones, E_invalidCombination."""

    def __init__(self, request: Any) -> None:
        self._given = {_qualifier(one.text) for one in request.iterfind(f"{q('findQualifiers')}/{q('findQualifier')}")}
        for group in _ONE_OF:
            if len(group & self._given) > 1:
                raise DirectoryError("E_invalidCombination", f"the qualifiers {', '.join(sorted(group & self._given))} exclude each other")

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def same(self, pattern: str, text: str) -> bool:
        """Whether a text is what is looked for."""
        pattern, text = self._folded(pattern), self._folded(text)
        return like(pattern, text) if "approximatematch" in self else pattern == text

    def _folded(self, text: str) -> str:
        if "diacriticinsensitivematch" in self:
            text = "".join(one for one in unicodedata.normalize("NFD", text) if not unicodedata.combining(one))
        return text.casefold() if "caseinsensitivematch" in self else text

    def named(self, request: Any, element: Any) -> bool:
        """Whether one of the names asked for is a name of the entity; no name asks for nothing."""
        asked = names(request)
        return not asked or any(
            self.same(name, own) and (not language or own_language.lower().startswith(language.lower()))
            for name, language in asked
            for own, own_language in names(element)
        )

    def holds(self, request: Any, bag: str, elements: Iterable[Any]) -> bool:
        """Whether the references asked for in a bag are in the same bags of `elements`, all or one as the qualifiers say."""
        asked = request.find(q(bag))
        if asked is None:
            return True
        elements = list(elements)
        own = [one for element in elements for one in references(element, bag)]
        groups = [one for element in elements for one in element.iterfind(f"{q(bag)}/{q('keyedReferenceGroup')}")]
        hits = [(one.get("tModelKey").lower(), self._hit(one, own, groups)) for one in asked]
        if "orlikekeys" in self:
            return all(any(hit for key, hit in hits if key == like_key) for like_key, _ in hits)
        return self.enough([hit for _, hit in hits], all_by_default=bag == "categoryBag")

    def enough(self, hits: list[bool], *, all_by_default: bool) -> bool:
        """All of several criteria, or one."""
        every = "andallkeys" in self or (all_by_default and "orallkeys" not in self)
        return all(hits) if every else any(hits)

    def _hit(self, asked: Any, own: list[Any], groups: list[Any]) -> bool:
        if local(asked) == "keyedReferenceGroup":
            alike = [group for group in groups if group.get("tModelKey").lower() == asked.get("tModelKey").lower()]
            return any(all(self._hit(one, list(group), []) for one in asked) for group in alike)
        return any(self._refers(asked, one) for one in own)

    def _refers(self, asked: Any, own: Any) -> bool:
        key = asked.get("tModelKey").lower()
        named = key != KEYWORDS or self.same(plain(asked.get("keyName")), plain(own.get("keyName")))
        return named and key == own.get("tModelKey").lower() and self.same(plain(asked.get("keyValue")), plain(own.get("keyValue")))

    def signed(self, element: Any) -> bool:
        """Whether the entity has the signature that is asked for."""
        return "signaturepresent" not in self or element.find(f"{{{SIGNATURES}}}Signature") is not None

    def ordered(self, found: list[Entity]) -> list[Entity]:
        """By name, or by the time of the last change where that is asked for; names decide first when both are."""
        by_name = "sortbynameasc" in self or "sortbynamedesc" in self
        by_date = "sortbydateasc" in self or "sortbydatedesc" in self
        fold = "caseinsensitivesort" in self
        found = sorted(found, key=lambda one: one.name.casefold() if fold else one.name, reverse="sortbynamedesc" in self)
        if by_date and not by_name:
            found.sort(key=lambda one: one.modified, reverse="sortbydatedesc" in self)
        elif by_date:
            found.sort(key=lambda one: one.modified, reverse="sortbydatedesc" in self)
            found.sort(key=lambda one: one.name.casefold() if fold else one.name, reverse="sortbynamedesc" in self)
        return found


def _qualifier(text: str | None) -> str:
    name = plain(text).lower()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if name not in _QUALIFIERS:
        raise DirectoryError("E_unsupported", f"the find qualifier {plain(text)!r} is not supported")
    return name


def like(pattern: str, text: str) -> bool:
    """SQL's LIKE: % stands for any characters, _ for one, a backslash takes the meaning off the next.

    Time grows with the product of the lengths.
    """
    parts = list(parts_of(pattern))
    at = star = 0
    here, resume = 0, -1
    while at < len(text):
        if here < len(parts) and parts[here] == "%%":
            resume, star = here, at
            here += 1
        elif here < len(parts) and parts[here] in ("__", text[at]):
            here, at = here + 1, at + 1
        elif resume >= 0:
            star += 1
            here, at = resume + 1, star
        else:
            return False
    return all(part == "%%" for part in parts[here:])


def parts_of(pattern: str) -> Iterator[str]:
    """One text for each place of a pattern: %% and __ are the wildcards."""
    escaped = False
    for one in pattern:
        if escaped or one not in "%_\\":
            yield one
            escaped = False
        elif one == "\\":
            escaped = True
        else:
            yield one * 2
    if escaped:
        yield "\\"


def rows_of(request: Any) -> tuple[int, int]:
    """How many rows a find asks for, and which one is the first, from 1. DirectoryError E_invalidValue."""
    rows, head = int(request.get("maxRows", MOST_ROWS)), int(request.get("listHead", 1))
    if rows < 0 or head < 1:
        raise DirectoryError("E_invalidValue", f"maxRows = {rows}, listHead = {head}: 0 or more, and 1 or more")
    return min(rows, MOST_ROWS), head


def described(included: int, total: int, head: int) -> Any:
    """The listDescription of an answer."""
    told = make("listDescription")
    for tag, count in (("includeCount", included), ("actualCount", total), ("listHead", head)):
        add(told, tag, str(count))
    return told
