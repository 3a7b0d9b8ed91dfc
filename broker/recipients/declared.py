"""What a client declares of itself in CONNECT (MQTT 5): user properties that begin with mqmesh- (rows F18, F20).

A client declares its own client identifier, or names that a file or the directory lets it serve. A mistake is one line, which CONNACK says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...base.clients import wrong_name
from .settings import EVERYBODY, MOST_ALTERNATIVES, Application, Intervals, seconds_of, wrong_alternatives

NAME, ALTERNATIVES, CONSENTS, PROBE = "mqmesh-recipient", "mqmesh-alternatives", "mqmesh-consents", "mqmesh-probe"
INTERVALS = {name: f"mqmesh-{name}-interval" for name in Intervals._fields}


class Contradiction(Exception):
    """What a client declares cannot be. Its text says what would be right."""


def declared(client_id: str, found: dict[str, list[str]], default: Intervals, may: Callable[[str], bool]) -> list[Application]:
    """The applications that a client declares; none if it declares nothing. Raises Contradiction.

    found: user properties of CONNECT by name. may: whether a client may serve another name than its own.
    """
    if not any(name in found for name in (NAME, ALTERNATIVES, CONSENTS, PROBE, *INTERVALS.values())):
        return []
    names = found.get(NAME) or [client_id]
    intervals = _intervals(found, default)
    alternatives = _names(found, ALTERNATIVES)
    consents = _names(found, CONSENTS)
    if len(consents) > MOST_ALTERNATIVES:
        raise Contradiction(f"{CONSENTS}: give at most {MOST_ALTERNATIVES} names, or {EVERYBODY!r}")
    text = next((text for name in consents if name != EVERYBODY and (text := wrong_name(name)) is not None), None)
    if text is not None:
        raise Contradiction(f"{CONSENTS}: {text}")
    applications = []
    for name in names:
        text = wrong_name(name)
        if text is not None:
            raise Contradiction(f"{NAME} = {name[:80]!r}: {text}")
        if name != client_id and not may(name):
            raise Contradiction(
                f"{NAME} = {name!r}: a client declares its own client identifier, or a name that lists it among its clients"
            )
        text = wrong_alternatives(name, alternatives)
        if text is not None:
            raise Contradiction(f"{ALTERNATIVES} of {name}: {text}")
        applications.append(Application(name, [client_id], [], alternatives, intervals, found.get(PROBE, ["0"])[-1] == "1", consents))
    return applications


def of_subscription(client_id: str, found: dict[str, list[str]], filters: list[str], known: Application | None) -> Application | None:
    """The application that a client is, as one of its SUBSCRIBE declares it; None: that declares nothing. Raises Contradiction.

    found: user properties of SUBSCRIBE by name. filters: its topic filters, which fail over. known: what the client is already.
    """
    alternatives = _names(found, ALTERNATIVES)
    if not alternatives:
        return None
    text = wrong_name(client_id) or wrong_alternatives(client_id, alternatives)
    if text is not None:
        raise Contradiction(f"{ALTERNATIVES} of {client_id[:80]}: {text}")
    if known is None:
        return Application(client_id, [client_id], filters, alternatives, consents=[])
    if known.alternatives and known.alternatives != alternatives:
        raise Contradiction(f"{ALTERNATIVES} of {client_id}: a client has one list, and said {','.join(known.alternatives)!r} before")
    if not (known.alternatives and not known.topics):  # else all its subscriptions fail over
        filters = list(dict.fromkeys([*known.topics, *filters]))
    else:
        filters = []
    return replace(known, alternatives=alternatives, topics=filters)


def _names(found: dict[str, list[str]], key: str) -> list[str]:
    return [name.strip() for text in found.get(key, ()) for name in text.split(",") if name.strip()]


def _intervals(found: dict[str, list[str]], default: Intervals) -> Intervals:
    given = {}
    for name, key in INTERVALS.items():
        if key in found:
            text = found[key][-1]
            try:
                given[name] = float(text) if text.replace(".", "", 1).isdecimal() else seconds_of(text)
            except ValueError as error:
                raise Contradiction(f"{key} = {text[:80]!r}: {error}") from None
    intervals = default._replace(**given)
    wrong = intervals.wrong()
    if wrong is not None:
        raise Contradiction(f"{INTERVALS[wrong[0]]}: {wrong[1]}")
    return intervals
