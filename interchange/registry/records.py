"""A service as the registry knows it, and the services of one interchange's view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...base.wildcards import fits
from ..message import NEW, Header, Message
from ..refusals import Code, Refusal
from ..rules.paths import Path
from ..rules.routing import NO_RULES, Routing
from ..rules.view import Content

ANYBODY = "*"
MOST_KNOWN = 10_000  # answers that are known
MQTT, POLL, PUSH = "mqtt", "poll", "push"  # how a service gets its messages


@dataclass(frozen=True, slots=True)
class Push:
    """How messages are pushed to a service (l. 200-202).

    tries: attempts before a message stays in the inbox, to be polled. interval: seconds between the first two; later ones wait longer.
    windows: minutes of the day, from and before, in which messages are pushed; none: always. zone: name of their time zone.
    user, password: for HTTP's basic authentication. secret: with which messages are signed as Standard Webhooks are; empty: they are not.
    """

    url: str
    tries: int = 10
    interval: float = 60.0
    windows: tuple[tuple[int, int], ...] = ()
    zone: str = "UTC"
    user: str = ""
    password: str = ""
    secret: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """One service.

    name: organisation/name.
    users: patterns of user names that post as it and take from its inbox; `*` alone: everybody, also where nobody is asked for a name.
    site: name of the broker where its inbox is.
    callers: patterns of services that may send to it.
    refuses_duplicates: a second post of one handle is refused.
    as_json: what is delivered is one JSON object, as clients of MQTT 3.1.1 need it.
    suspended: it neither sends nor gets anything new.
    routing: its rules, and what they may do.
    virtual: another service gets what is sent to it, and answers under its name (l. 50); empty: it is one itself.
    delivery: mqtt, poll or push. push: how, if that.
    identifiers: its own identifiers for messages: names, and the place of each in a message (l. 254).
    limit: messages that it posts in a month, at each site; None: any number.
    revision: of its record in the directory; 0: it stands in a file.
    follows: what it posts while it works on a message is of the session of that message.
    responses: how many it gives to a request (l. 222, 224).
    owner: whom its use is charged to: the account that has registered it; in a file, its organisation.
    """

    name: str
    users: tuple[str, ...] = ()
    site: str = ""
    callers: tuple[str, ...] = (ANYBODY,)
    refuses_duplicates: bool = True
    as_json: bool = False
    suspended: bool = False
    routing: Routing = NO_RULES
    virtual: str = ""
    delivery: str = MQTT
    push: Push | None = None
    identifiers: Mapping[str, Path] = field(default_factory=dict)
    limit: int | None = None
    revision: int = 0
    follows: bool = False
    owner: str = ""
    responses: int = 1

    @property
    def organisation(self) -> str:
        return self.name.partition("/")[0]

    def has_inbox_at(self, site: str) -> bool:
        """Whether its inbox is at a site."""
        return self.site == site and not self.virtual

    def is_spoken_for_by(self, user: str | None) -> bool:
        """Whether a user acts as this service. user: a proven name; None: nobody is asked for one."""
        return ANYBODY in self.users or (user is not None and any(fits(one, user) for one in self.users))


class Registry:
    """The services that an interchange knows. It is replaced as a whole."""

    def __init__(self, services: Iterable[Service] = ()) -> None:
        self.services: Mapping[str, Service] = {one.name: one for one in services}
        self._identify = frozenset(one.name for one in self.services.values() if one.identifiers)
        self._of: dict[str | None, tuple[str, ...]] = {}  # user -> services, as far as they were asked for
        self._reached: dict[tuple[str, str], Service | None] = {}  # sender and service; None: there is none for this sender

    def of(self, user: str | None) -> tuple[str, ...]:
        """The services that a user acts as."""
        found = self._of.get(user)
        if found is None:
            if len(self._of) >= MOST_KNOWN:
                self._of.clear()
            found = self._of[user] = tuple(one.name for one in self.services.values() if one.is_spoken_for_by(user))
        return found

    def sender(self, user: str | None, said: object) -> str:
        """The service as which a user posts. said: what the header says; None: nothing. Raises Refusal not-the-sender."""
        mine = self.of(user)
        if said is None and len(mine) == 1:
            return mine[0]
        if isinstance(said, str) and said in mine:
            return said
        if said is None and mine:
            raise Refusal(Code.NOT_THE_SENDER, "sender is missing", f"say which one posts: {', '.join(mine[:10])}")
        raise Refusal(Code.NOT_THE_SENDER, f"sender: {str(said)[:200]!r} is not a service of this user", "post as a service of yours")

    def identified(self, message: Message) -> tuple[tuple[str, str, str], ...]:
        """What its sender and its recipients call a message by: service, name and value of each (l. 254)."""
        header = message.header
        if not self._identify:
            return ()
        known = (self.services.get(name) for name in dict.fromkeys((header.sender, *(one.service for one in header.recipients))))
        wanted = [one for one in known if one is not None and one.identifiers]
        if not wanted:
            return ()
        content = Content(message)
        found = [(one.name, name, content.text(place)) for one in wanted for name, place in one.identifiers.items()]
        return tuple((service, name, value) for service, name, value in found if value)

    def owner(self, service: str) -> str:
        """Whom the use of a service is charged to."""
        known = self.services.get(service)
        return (known.owner if known is not None else "") or service.partition("/")[0]

    def limit(self, header: Header) -> int | None:
        """How many messages the sender of a new call may post in a month; None: any number."""
        sender = self.services.get(header.sender)
        return sender.limit if sender is not None and header.kind in NEW else None

    def routing(self, service: str) -> Routing:
        """The rules of a service. A sender that is gone since has none."""
        known = self.services.get(service)
        return NO_RULES if known is None else known.routing

    def check_sends(self, sender: str) -> None:
        """Raise Refusal if a service may not post anything new."""
        service = self.services.get(sender)
        if service is None:  # it is gone since it posted
            raise Refusal(Code.NOT_THE_SENDER, f"there is no service {sender!r}")
        if service.suspended:
            raise Refusal(Code.SUSPENDED, f"{sender} is suspended")

    def _reached_by(self, sender: str, to: str) -> Service | None:
        """A service, if it is there for a sender. Once asked, what is not there and what is closed take the same time."""
        try:
            return self._reached[sender, to]
        except KeyError:
            service = self.services.get(to)
            if len(self._reached) >= MOST_KNOWN:
                self._reached.clear()
            open_to = service is not None and any(fits(one, sender) for one in service.callers)
            found = self._reached[sender, to] = service if open_to else None
            return found

    def check_reaches(self, sender: str, to: str) -> None:
        """Raise Refusal if a service gets nothing of another one. What it may not call does not exist for it."""
        service = self._reached_by(sender, to)
        if service is None:
            raise Refusal(Code.UNKNOWN_SERVICE, f"there is no service {to!r}", "name one that you may call")
        if service.suspended:
            raise Refusal(Code.SUSPENDED, f"{to} is suspended")
