"""Message selectors (Jakarta Messaging 3.1, 3.8): the subset of SQL-92 conditions over headers and properties.

`Selector(text)` parses once; `matches(lookup)` evaluates with three-valued logic (True, False, and None for unknown) and selects a message
only for True. Where SQL dialects differ:

- A comparison or arithmetic with a missing value is unknown. Values of different types compare as false. Strings and booleans have only
  = and <>.
- There is no conversion: the property '3' is not the number 3. Arithmetic with a value that is no number is unknown.
- Whole numbers divide as in Java, towards zero; division by zero is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from . import terms
from .terms import ARITHMETIC, COMPARISONS, Term, Value

HEADERS = {"JMSDeliveryMode", "JMSPriority", "JMSMessageID", "JMSTimestamp", "JMSCorrelationID", "JMSType"}
KEYWORDS = {"NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE", "NULL", "TRUE", "FALSE"}
DEEPEST = 50  # parentheses and signs inside each other
LONGEST = 1000  # words and signs, without strings and commas: terms call each other, and Python's stack is finite

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?|\d+[eE][+-]?\d+[fFdD]?|\d+[fFdD])(?![\w$])
    | (?P<int>0[xX][0-9a-fA-F]+|\d+)[lL]?(?![\w$.])
    | (?P<string>'(?:[^']|'')*')
    | (?P<name>[^\W\d][\w$]*|\$[\w$]*)
    | (?P<sign><>|<=|>=|[-+*/=<>(),])
    )""",
    re.VERBOSE,
)


class SelectorError(ValueError):
    """A text that is no selector: what was expected, and where."""


class Selector:
    """A parsed selector. Raises `SelectorError`."""

    def __init__(self, text: str) -> None:
        self.text = text
        parser = _Parser(text)
        self._term = parser.whole()
        self.names = frozenset(parser.names)

    def matches(self, lookup: Callable[[str], Value]) -> bool:
        """Whether the selector is true. lookup: the value of a header or property, None when there is none."""
        return self._term.evaluate(lookup) is True

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


class _Parser:
    """Recursive descent: one method for each level of precedence, the lowest first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.names: set[str] = set()
        self._tokens = list(self._scan())
        self._next = self._depth = 0

    def _scan(self) -> list[tuple[str, str, int]]:
        tokens, position, end = [], 0, len(self._text.rstrip())
        while position < end:
            match = _TOKEN.match(self._text, position)
            if match is None:
                raise self._error(position + len(self._text[position:]) - len(self._text[position:].lstrip()), "this cannot stand here")
            kind = str(match.lastgroup)
            word, start = match[kind], match.start(kind)
            if kind == "name" and word.upper() in KEYWORDS:
                kind, word = "word", word.upper()
            tokens.append((kind, word, start))
            position = match.end()
        counted = [start for kind, word, start in tokens if kind != "string" and word != ","]
        if len(counted) > LONGEST:
            raise self._error(counted[LONGEST], f"longer than {LONGEST} words")
        return [*tokens, ("end", "", end)]

    def _error(self, position: int, text: str) -> SelectorError:
        return SelectorError(f"selector, at character {position + 1}: {text}: {self._text[:position]} >>> {self._text[position:]}")

    # tokens

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._next]

    def _accept(self, *words: str) -> str | None:
        kind, word, _ = self._peek()
        if kind in ("word", "sign") and word in words:
            self._next += 1
            return word
        return None

    def _expect(self, word: str) -> None:
        if self._accept(word) is None:
            raise self._error(self._peek()[2], f"expected {word}")

    def _string(self, what: str) -> str:
        kind, word, position = self._peek()
        if kind != "string":
            raise self._error(position, f"expected {what}, a string in quotes")
        self._next += 1
        return word[1:-1].replace("''", "'")

    # levels

    def whole(self) -> Term:
        term = self._condition(self._or(), 0)
        if self._peek()[0] != "end":
            raise self._error(self._peek()[2], "expected the end, AND or OR")
        return term

    def _condition(self, term: Term, position: int) -> Term:
        if term.kind in ("condition", "boolean", "any"):
            return terms.condition_of(term)
        raise self._error(position, f"expected a condition, this is a {term.kind}")

    def _or(self) -> Term:
        start = self._peek()[2]
        term = self._and()
        while self._accept("OR"):
            middle = self._peek()[2]
            term = terms.either(self._condition(term, start), self._condition(self._and(), middle))
        return term

    def _and(self) -> Term:
        start = self._peek()[2]
        term = self._not()
        while self._accept("AND"):
            middle = self._peek()[2]
            term = terms.both(self._condition(term, start), self._condition(self._not(), middle))
        return term

    def _not(self) -> Term:
        if self._accept("NOT"):
            self._deeper()
            start = self._peek()[2]
            term = terms.negate(self._condition(self._not(), start))
            self._depth -= 1
            return term
        return self._predicate()

    def _predicate(self) -> Term:
        start = self._peek()[2]
        left = self._sum()
        position = self._peek()[2]
        sign = self._accept(*COMPARISONS)
        if sign:
            return self._compare(sign, left, start, self._sum(), position)
        if self._accept("IS"):
            negated = self._accept("NOT") is not None
            self._expect("NULL")
            term = terms.is_null(self._identifier(left, start, "IS NULL"))
            return terms.negate(term) if negated else term
        negated = self._accept("NOT") is not None
        word = self._accept("BETWEEN", "IN", "LIKE")
        if word is None:
            if negated:
                raise self._error(self._peek()[2], "expected BETWEEN, IN or LIKE")
            return left
        term = {"BETWEEN": self._between, "IN": self._in, "LIKE": self._like}[word](left, start)
        return terms.negate(term) if negated else term

    def _compare(self, sign: str, left: Term, start: int, right: Term, position: int) -> Term:
        for term, place in ((left, start), (right, position)):
            if term.kind == "condition":
                raise self._error(place, "a condition cannot be compared")
            if sign not in ("=", "<>") and term.kind in ("string", "boolean"):
                raise self._error(place, f"a {term.kind} can be compared with = and <> only")
        if left.kind != right.kind and "any" not in (left.kind, right.kind):
            raise self._error(position, f"a {left.kind} cannot be compared with a {right.kind}")
        return terms.comparison(sign, left, right)

    def _between(self, left: Term, start: int) -> Term:
        self._number(left, start)
        middle = self._peek()[2]
        low = self._number(self._sum(), middle)
        self._expect("AND")
        last = self._peek()[2]
        return terms.between(left, low, self._number(self._sum(), last))

    def _in(self, left: Term, start: int) -> Term:
        self._identifier(left, start, "IN")
        self._expect("(")
        words = {self._string("a value of the list")}
        while self._accept(","):
            words.add(self._string("a value of the list"))
        self._expect(")")
        return terms.one_of(left, frozenset(words))

    def _like(self, left: Term, start: int) -> Term:
        self._identifier(left, start, "LIKE")
        pattern, escape = self._string("a pattern"), None
        position = self._peek()[2]
        if self._accept("ESCAPE"):
            escape = self._string("the escape character")
            if len(escape) != 1:
                raise self._error(position, "the escape character is one character")
            if re.search(rf"{re.escape(escape)}(?![%_{re.escape(escape)}])", pattern.replace(escape * 2, "")):
                raise self._error(position, "the escape character must stand before %, _ or itself")
        return terms.like(left, pattern, escape)

    def _identifier(self, term: Term, position: int, word: str) -> Term:
        if not term.identifier:
            raise self._error(position, f"{word} needs an identifier before it")
        return term

    def _number(self, term: Term, position: int) -> Term:
        if term.kind not in ("number", "any"):
            raise self._error(position, f"expected a number, this is a {term.kind}")
        return term

    def _sum(self) -> Term:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Term:
        return self._chain(self._unary, "*", "/")

    def _chain(self, level: Callable[[], Term], *signs: str) -> Term:
        start = self._peek()[2]
        term = level()
        while sign := self._accept(*signs):
            middle = self._peek()[2]
            right = level()
            term = terms.arithmetic(ARITHMETIC[sign], self._number(term, start), self._number(right, middle))
        return term

    def _unary(self) -> Term:
        sign = self._accept("-", "+")
        if sign is None:
            return self._primary()
        self._deeper()
        start = self._peek()[2]
        term = self._number(self._unary(), start)
        self._depth -= 1
        return terms.opposite(term) if sign == "-" else terms.arithmetic(ARITHMETIC["+"], terms.literal(0, "number"), term)

    def _primary(self) -> Term:
        kind, word, position = self._peek()
        if kind == "string":
            return terms.literal(self._string("a string"), "string")
        self._next += 1
        if kind == "int":
            return terms.literal(self._whole_number(word, position), "number")
        if kind == "float":
            return terms.literal(float(word.rstrip("fFdD")), "number")
        if kind == "word" and word in ("TRUE", "FALSE"):
            return terms.literal(word == "TRUE", "boolean")
        if kind == "name":
            return self._name(word, position)
        if (kind, word) == ("sign", "("):
            self._deeper()
            term = self._or()
            self._expect(")")
            self._depth -= 1
            return Term(term.evaluate, term.kind)
        self._next -= 1
        raise self._error(position, "expected a value, an identifier or (")

    def _whole_number(self, word: str, position: int) -> int:
        octal = len(word) > 1 and word[0] == "0" and word.isdigit()
        try:
            value = int(word, 8) if octal else int(word, 0)
        except ValueError as error:
            raise self._error(position, "not a whole number") from error
        if value > 1 << 63:
            raise self._error(position, "a whole number has 64 bits at most")
        return value

    def _name(self, word: str, position: int) -> Term:
        if word.startswith("JMS") and word not in HEADERS and not word.startswith(("JMSX", "JMS_")):
            raise self._error(position, f"{word} cannot be selected by; of the headers, {', '.join(sorted(HEADERS))} can")
        self.names.add(word)
        return terms.identifier(word)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._error(self._peek()[2], f"nested deeper than {DEEPEST}")
