"""What a rule does when its condition holds. The source leaves most of them to its parent (l. 148); these are ours.

As JSON an action is an object with one of these keys, and what belongs to it:
`{"include": "map/ids", "where": "before", "arguments": {...}, "visible": ["body"]}`, `{"redirect": "bank/credit", "arguments": {...}}`,
`{"exclude": true}`, `{"set": {...}}`, `{"return": {...}}`, `{"topic": "..."}`, `{"expires": seconds}`, `{"reject": "reason"}`,
`{"end": true}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..reading import only_keys, read_names, read_text, read_texts, read_true, service_name, wrong

IN, OUT = "in", "out"  # roles: the message comes to the service, or the service posts it (l. 132, 150)
MOST_ACTIONS = 32  # of one rule
LONGEST_REASON = 512  # bytes
LATEST = 366 * 86400  # seconds after the post


@dataclass(frozen=True, slots=True)
class Include:
    """Put a service into the route, before or after oneself.

    visible: the parts that it may see, of those that the includer may; None: all of these.
    """

    service: str
    before: bool
    arguments: Mapping[str, str] = field(default_factory=dict)
    visible: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Exclude:
    """Be in the route logically only: no physical delivery to oneself (l. 174)."""


@dataclass(frozen=True, slots=True)
class SetContext:
    """Variables for the services that this one includes. on_return: for the one that included it (l. 178)."""

    variables: Mapping[str, str]
    on_return: bool = False


@dataclass(frozen=True, slots=True)
class SetTopic:
    topic: str


@dataclass(frozen=True, slots=True)
class SetExpiry:
    """Routing ends this many seconds after the post, if that is earlier than it would end."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Redirect:
    """Another service takes the place of this one, in responses too (l. 50). No later rule of this one holds."""

    service: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reject:
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """No later rule of this service holds."""


Action = Include | Exclude | SetContext | SetTopic | SetExpiry | Redirect | Reject | End
ENDING = (Redirect, Reject, End)  # no action and no rule follows these
NAMES = ("include", "exclude", "set", "return", "topic", "expires", "redirect", "reject", "end")
_BESIDE = {"include": ("where", "arguments", "visible"), "redirect": ("arguments",)}


def read_actions(value: object, role: str, where: str) -> tuple[Action, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_ACTIONS:
        raise wrong(where, value, f"give a list of 1 to {MOST_ACTIONS} actions")
    made = tuple(_action(one, role, f"{where}[{at}]") for at, one in enumerate(value))
    for at, action in enumerate(made[:-1]):
        if isinstance(action, ENDING):
            raise wrong(f"{where}[{at + 1}]", NAMES[0], "redirect, reject and end are the last action of a rule")
    return made


def _action(value: object, role: str, where: str) -> Action:
    given = [name for name in NAMES if isinstance(value, Mapping) and name in value]
    if len(given) != 1 or not isinstance(value, Mapping):
        raise wrong(where, value, f"give one of {', '.join(NAMES)}")
    name = given[0]
    only_keys(value, frozenset((name, *_BESIDE.get(name, ()))), where)
    operand, at = value[name], f"{where}.{name}"
    if role == OUT and name in ("exclude", "redirect"):
        raise wrong(where, name, "the sender of a message is not delivered to: this is for the role in")
    match name:
        case "include":
            return _include(value, role, where)
        case "redirect":
            return Redirect(service_name(operand, at), read_texts(value.get("arguments", {}), f"{where}.arguments"))
        case "set" | "return":
            return SetContext(read_texts(operand, at), name == "return")
        case "topic":
            return SetTopic(read_text(operand, at))
        case "reject":
            return Reject(read_text(operand, at, LONGEST_REASON))
        case "expires":
            if isinstance(operand, bool) or not isinstance(operand, int | float) or not 0 <= operand <= LATEST:
                raise wrong(at, operand, f"give seconds after the post, at most {LATEST}")
            return SetExpiry(operand)
    read_true(operand, at)
    return End() if name == "end" else Exclude()


def _include(value: Mapping[str, object], role: str, where: str) -> Include:
    place = value.get("where", "after" if role == OUT else "before")
    if place not in ("before", "after"):
        raise wrong(f"{where}.where", place, "give before or after")
    if role == OUT and place == "before":
        raise wrong(f"{where}.where", place, "nothing comes before the sender: give after")
    visible = value.get("visible")
    return Include(
        service_name(value["include"], f"{where}.include"),
        place == "before",
        read_texts(value.get("arguments", {}), f"{where}.arguments"),
        None if visible is None else read_names(visible, f"{where}.visible", "parts"),
    )
