"""Turns EMQX's `acl.conf` into rules of access. It is a list of Erlang terms, of which the first that fits decides:

    {allow, {username, "alice"}, publish, ["a/${clientid}", {eq, "a/+"}]}.
    {deny, {'or', [{clientid, {re, "^x.*$"}}, {user, "bob"}]}, all, ["#"]}.
    {allow, all}.

What is left out is reported, and a rule that is left out denies nothing.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter
from .mosquitto_conf import MigrateError
from .remarks import Option, Remarks

_TOKEN = re.compile(
    r"""(?P<space>\s+|%[^\n]*)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<binary><<"(?:[^"\\]|\\.)*"(?:/utf8)?>>)|(?P<atom>'[^']*'|[a-z][\w@]*)"""
    r"""|(?P<number>\d+)|(?P<sign>[{}\[\],.])"""
)
_ACTIONS = {"publish": ["publish"], "subscribe": ["subscribe"], "all": ["publish", "subscribe"], "pubsub": ["publish", "subscribe"]}
_PLACES = {"${username}": "%u", "${clientid}": "%c"}
_EVERYTHING = ["#", "$SYS/#"]


class Atom(str):
    """A word of Erlang; `str` itself is a text."""


class _Who(NamedTuple):
    """Whom a rule concerns; None: everybody."""

    users: list[str] | None = None
    clients: list[str] | None = None


class _Unknown(Exception):
    """What has no equivalent; the reason."""


def rules_of(text: str, file: str, remarks: Remarks) -> list[dict[str, Any]]:
    """The tables `[[access.rule]]`. Raises MigrateError for what is no Erlang term."""
    found: list[dict[str, Any]] = []
    for line, term in _terms(text, file):
        remarks.lines += 1
        option = Option(str(term[0]) if isinstance(term, tuple) and term else "rule", "", file, line)
        try:
            found += _rules(term, option, remarks)
        except _Unknown as error:
            denies = option.name == "deny"
            remarks.lost(option, f"{error}; the rule is left out" + (", so what it denied depends on the others" if denies else ""))
    if not found or found[-1].get("topics") != _EVERYTHING or set(found[-1]) & {"users", "clients"}:
        place = Option("no_match", "", file, text.count("\n") + 1)
        remarks.note(
            place, "what no rule fits is denied here. EMQX allows it unless authorization.no_match says otherwise: {allow, all} at the end"
        )
    return found


def _rules(term: Any, option: Option, remarks: Remarks) -> list[dict[str, Any]]:
    if not isinstance(term, tuple) or len(term) not in (2, 3, 4) or term[0] not in ("allow", "deny"):
        raise _Unknown("a rule is {allow, WHO, ACTION, TOPICS}")
    who = _who(term[1])
    actions = _actions(term[2] if len(term) > 2 else Atom("all"))
    given = term[3] if len(term) > 3 else list(_EVERYTHING)
    if not isinstance(given, list):
        raise _Unknown("topics are a list")
    topics = [topic for one in given if (topic := _topic(one, option, remarks)) is not None]
    if not topics:
        return []
    made = []
    for one in who:
        names = {key: value for key, value in (("users", one.users), ("clients", one.clients)) if value is not None}
        made.append({**names, str(term[0]): actions, "topics": topics})
    return made


def _who(term: Any) -> list[_Who]:
    """Each gives a rule of its own."""
    if isinstance(term, Atom) and term == "all":
        return [_Who()]
    if isinstance(term, tuple) and len(term) == 2:
        kind, value = term
        if kind in ("user", "username"):
            return [_Who(users=[_name(value)])]
        if kind in ("client", "clientid"):
            return [_Who(clients=[_name(value)])]
        if kind == "or" and isinstance(value, list):
            return [one for part in value for one in _who(part)]
        if kind == "and" and isinstance(value, list):
            return [_both([one for part in value for one in _who(part)])]
        if kind in ("ipaddr", "ipaddrs"):
            raise _Unknown("rules know users and client identifiers, no addresses")
    raise _Unknown("rules know users and client identifiers")


def _both(parts: list[_Who]) -> _Who:
    users, clients = [one.users for one in parts if one.users], [one.clients for one in parts if one.clients]
    if len(users) > 1 or len(clients) > 1:
        raise _Unknown("a rule has one condition for the user and one for the client identifier")
    return _Who(users[0] if users else None, clients[0] if clients else None)


def _name(term: Any) -> str:
    """A name, or a pattern with * and ?."""
    if isinstance(term, tuple) and len(term) == 2 and term[0] == "re" and isinstance(term[1], str):
        return _of_expression(term[1])
    if isinstance(term, str) and not isinstance(term, Atom) and not set(term) & set("*?"):
        return term
    raise _Unknown("a name is a text without * and ?")


def _of_expression(text: str) -> str:
    """A regular expression of plain characters, `.` and `.*` as a pattern; without ^ and $ it may begin and end anyhow."""
    body = text.removeprefix("^").removesuffix("$")
    plain = re.sub(r"\.\*|\.|\\([-.@_])", lambda found: {".*": "*", ".": "?"}.get(found[0], found[1]), body)
    if re.search(r"[\\^$|()\[\]{}+]", plain) or "?" in body or "*" in body.replace(".*", ""):
        raise _Unknown("of regular expressions only plain characters, . and .* are known here")
    made = ("" if text.startswith("^") else "*") + plain + ("" if text.endswith("$") else "*")
    return re.sub(r"\*+", "*", made)


def _actions(term: Any) -> list[str]:
    if isinstance(term, tuple):
        raise _Unknown("rules do not look at the QoS or the retain flag")
    if term not in _ACTIONS:
        raise _Unknown("an action is publish, subscribe or all")
    return _ACTIONS[term]


def _topic(term: Any, option: Option, remarks: Remarks) -> str | None:
    exact = isinstance(term, tuple) and len(term) == 2 and term[0] == "eq"
    text = term[1] if exact else term
    if not isinstance(text, str):
        remarks.lost(option, "a topic is a text, or {eq, TEXT}")
        return None
    if exact and set(text) & set("+#"):
        remarks.lost(option, f"{{eq, {text}}}: a rule is for topics; it does not look at how a filter is written")
        return None
    for place, ours in _PLACES.items():
        text = text.replace(place, ours)
    try:
        check_filter(text.replace("%u", "x").replace("%c", "x"))
    except MqttError:
        remarks.lost(option, f"{text}: this is no topic filter")
        return None
    if "${" in text:
        remarks.lost(option, f"{text}: of a client's values rules know ${{username}} and ${{clientid}}")
        return None
    return text


# Erlang terms


def _terms(text: str, file: str) -> list[tuple[int, Any]]:
    """The terms of a text, each with its line: tuples, lists, texts, atoms and numbers."""
    tokens: list[tuple[int, str, str]] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        line = text.count("\n", 0, at) + 1
        if found is None or found.lastgroup is None:
            raise MigrateError(f"{file}:{line}: this is no Erlang term")
        if found.lastgroup != "space":
            tokens.append((line, found.lastgroup, found[0]))
        at = found.end()
    terms = []
    place = 0
    while place < len(tokens):
        line = tokens[place][0]
        try:
            term, place = _term(tokens, place, 0)
            if tokens[place][2] != ".":
                raise IndexError
        except IndexError:
            raise MigrateError(f"{file}:{line}: this is no Erlang term, or its end, a full stop, is missing") from None
        terms.append((line, term))
        place += 1
    return terms


def _term(tokens: list[tuple[int, str, str]], place: int, depth: int) -> tuple[Any, int]:
    """The term at a place, and the place after it. Raises IndexError for what is none."""
    _, kind, text = tokens[place]
    if kind in ("text", "binary"):
        return re.sub(r"\\(.)", r"\1", text[text.index('"') + 1 : text.rindex('"')]), place + 1
    if kind == "atom":
        return Atom(text.strip("'")), place + 1
    if kind == "number":
        return int(text), place + 1
    if text not in "{[" or depth > 20:
        raise IndexError
    end, items = "}" if text == "{" else "]", []
    place += 1
    while tokens[place][2] != end:
        item, place = _term(tokens, place, depth + 1)
        items.append(item)
        if tokens[place][2] == ",":
            place += 1
        elif tokens[place][2] != end:
            raise IndexError
    return (tuple(items) if end == "}" else items), place + 1
