"""Lists: what rows of a kind a broker has, their columns, and by which of them rows are chosen and sorted.

A `Listing` says how to walk over its rows (`scan`) and what each column is. Rows are objects of the broker as they are; a row of an answer
is made only for the few that go into it. Whatever has rows registers a listing (`Registry.add`).

Sans-IO: no list knows who asks, or from where.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...base.wildcards import fits
from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter, has_wildcard, matches
from .errors import Refused

Where = Mapping[str, Any]  # column -> condition, as it was asked
Test = Callable[[Any], bool]
Scan = Callable[[Where], Iterator[Sequence[Any]]]

COMPARISONS = ((">=", operator.ge), ("<=", operator.le), (">", operator.gt), ("<", operator.lt))
LONGEST_CONDITION = 1000  # characters
FLAGS: dict[bool | str, bool] = {True: True, False: False, "true": True, "false": False, "yes": True, "no": False}


class Kind(Enum):
    """What a column holds: it decides how it is sorted and which conditions it takes."""

    TEXT = "text"  # condition: a pattern, `*` any characters, `?` one
    NUMBER = "number"  # condition: 5, ">5", ">=5", "<5", "<=5"
    FLAG = "flag"  # condition: true or false, also as text
    TOPIC = "topic"  # condition: a topic filter, or a pattern where it has no `+` or `#`
    OTHER = "other"  # no condition, no order


EMPTY: dict[Kind, Any] = {Kind.TEXT: "", Kind.TOPIC: "", Kind.NUMBER: -1, Kind.FLAG: False}  # what no value is sorted as


@dataclass(frozen=True, slots=True)
class Field:
    """A column. get: its value in a row; None: there is none. order: what rows are sorted by instead, never None."""

    name: str
    kind: Kind
    get: Callable[[Any], Any]
    order: Callable[[Any], Any] | None = None

    def sorter(self) -> Callable[[Any], Any]:
        """What rows are sorted by: comparable values."""
        if self.order is not None:
            return self.order
        get, empty = self.get, EMPTY[self.kind]

        def value(row: Any) -> Any:
            found = get(row)
            return empty if found is None else found

        return value


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of a kind.

    fields: columns, the first is what they are sorted by unless it is said.
    key: what no two rows have in common; comparable, of text, bytes, numbers, or tuples of these.
    scan: all rows, in pieces of some hundreds or thousands, as the broker has them; rows that come and go meanwhile may be left out. It
    may use what it is given of `where` to look at fewer rows. Raises Refused.
    needs: columns without a condition on which nothing can be listed. extra: conditions beside columns, which `scan` alone looks at.
    topic, queue: what a row is about, for roles that are for some topics or queues. payload: of a row.
    """

    name: str
    help: str
    fields: tuple[Field, ...]
    key: Callable[[Any], Any]
    scan: Scan
    needs: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    topic: Callable[[Any], str] | None = None
    queue: Callable[[Any], str] | None = None
    payload: Callable[[Any], bytes] | None = None

    def field(self, name: str) -> Field:
        """A column by its name. Raises Refused."""
        found = next((one for one in self.fields if one.name == name), None)
        if found is None:
            raise Refused(f"{self.name} have no column {name[:80]!r}: one of {', '.join(one.name for one in self.fields)}")
        return found

    def sorted_by(self, name: str) -> Field:
        """The column that rows are sorted by. Raises Refused."""
        found = self.field(name)
        if found.kind is Kind.OTHER:
            right = [one.name for one in self.fields if one.kind is not Kind.OTHER]
            raise Refused(f"{self.name} are not sorted by {name!r}: one of {', '.join(right)}")
        return found

    def tests(self, where: Where) -> list[Test]:
        """What a row has to pass. Raises Refused."""
        for name in self.needs:
            if not where.get(name):
                raise Refused(f'{self.name} need "where": {{"{name}": ...}}')
        return [self._test(name, condition) for name, condition in where.items() if name not in self.extra]

    def _test(self, name: str, condition: Any) -> Test:
        field = self.field(name)
        get = field.get
        if field.kind is Kind.FLAG and isinstance(condition, bool | str) and condition in FLAGS:
            wanted = FLAGS[condition]
            return lambda row: bool(get(row)) is wanted
        if field.kind is Kind.NUMBER:
            compare, bound = _comparison(name, condition)
            return lambda row: (found := get(row)) is not None and bool(compare(found, bound))
        if field.kind in (Kind.TEXT, Kind.TOPIC) and isinstance(condition, str) and len(condition) <= LONGEST_CONDITION:
            return _text_test(field, condition)
        raise Refused(f"{name}: {str(condition)[:80]!r} is no condition for a {field.kind.value}")

    def row(self, found: Any) -> dict[str, Any]:
        """A row as an answer has it."""
        return {one.name: one.get(found) for one in self.fields}

    def described(self) -> dict[str, Any]:
        """What an answer says of the list itself."""
        about = {"needs": list(self.needs)} if self.needs else {}
        return {"list": self.name, "text": self.help, "columns": {one.name: one.kind.value for one in self.fields}, **about}


def _text_test(field: Field, condition: str) -> Test:
    get = field.get
    if field.kind is Kind.TOPIC and has_wildcard(condition):
        try:
            check_filter(condition)
        except MqttError as error:
            raise Refused(f"{field.name}: {condition[:80]!r}: {getattr(error, 'text', error)}") from None
        return lambda row: matches(condition, get(row))
    if "*" not in condition and "?" not in condition:
        return lambda row: get(row) == condition
    return lambda row: (found := get(row)) is not None and fits(condition, found)


def _comparison(name: str, condition: Any) -> tuple[Callable[[Any, Any], Any], float]:
    compare: Callable[[Any, Any], Any] = operator.eq
    text = condition
    if isinstance(condition, str):
        for sign, function in COMPARISONS:
            if condition.startswith(sign):
                compare, text = function, condition.removeprefix(sign)
                break
    try:
        if isinstance(text, bool) or len(str(text)) > 40:
            raise ValueError
        return compare, float(text)
    except (TypeError, ValueError, OverflowError):
        raise Refused(f'{name}: {str(condition)[:80]!r} is no condition for a number: give 5, ">5", ">=5", "<5" or "<=5"') from None


class Registry:
    """The lists of one broker, by name."""

    def __init__(self) -> None:
        self._lists: dict[str, Listing] = {}

    def add(self, listing: Listing) -> None:
        """From now on it can be asked for; a later one of the same name takes its place."""
        self._lists[listing.name] = listing

    def get(self, name: str) -> Listing:
        """A list by its name. Raises Refused."""
        found = self._lists.get(name)
        if found is None:
            raise Refused(f"there is no list {name[:80]!r}: one of {', '.join(sorted(self._lists))}")
        return found

    def all(self) -> list[Listing]:
        """By name."""
        return [self._lists[name] for name in sorted(self._lists)]
