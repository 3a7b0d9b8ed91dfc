"""What is known about one topic: the parts of a route."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ...mqtt.packets import Subscription
from ...mqtt.properties import Property, encode_properties

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ...mqtt.publish import PublishProperties
    from ..auth.permissions import Rights
    from ..ports import Connection, Recipient
    from .shared import ShareGroup

SHARED = 10_000  # targets of topics that may share one `Recipients`
NO_SESSIONS: frozenset[Recipient] = frozenset()
NO_GROUPS: frozenset[tuple[str, str]] = frozenset()  # Python makes a new one, of 216 bytes, for each topic

# Answers requests to the broker: whether somebody got the answers; or, for each request, why it is refused (None: it is not).
Service = Callable[["Connection", "Batch", "PublishProperties | None"], "bool | list[str | None]"]
Together = Callable[["Connection", "list[bytes]", "list[PublishProperties | None]"], "list[str | None]"]


Addressed = Callable[[Any, Any, Any], Any]  # (publication, run, route) -> (run, route) as they go on; None: refused


class Entry:
    """A subscription in the tree: who holds it, how, its identifier (0 for none) and that one's encoding. target: see `target_of`."""

    __slots__ = ("identifier", "number", "session", "subscription", "target")

    def __init__(self, session: Recipient, subscription: Subscription, identifier: int) -> None:
        self.session = session
        self.subscription = subscription
        self.number = identifier
        self.target: Target | None = None
        self.identifier = encode_properties({Property.SUBSCRIPTION_IDENTIFIER: [identifier]}) if identifier else b""

    def adds_nothing_to(self, other: Entry) -> bool:
        """Whether a message is delivered alike for both and for one of them: the options are the same, and there is no identifier."""
        mine, its = self.subscription, other.subscription
        options = (mine.qos, mine.no_local, mine.retain_as_published) == (its.qos, its.no_local, its.retain_as_published)
        return options and not (self.number or other.number)


class Target:
    """One session in one route.

    qos: the highest granted. suffix: its subscription identifiers, encoded. deaf: it gets nothing of its own messages. foreign: how it gets
    these, without its No Local subscriptions; None: as those of others. others: how it gets those of others, if it has a No Local
    subscription; None: it has none.
    """

    __slots__ = ("deaf", "foreign", "others", "plain", "qos", "retain_as_published", "session", "suffix")

    def __init__(self, entries: list[Entry]) -> None:
        entry = entries[0]
        self.session = entry.session
        if len(entries) == 1:  # by far the most, and a route may have a hundred thousand
            subscription = entry.subscription
            self.qos = subscription.qos
            self.retain_as_published = subscription.retain_as_published
            self.suffix = entry.identifier
        else:
            self.qos = max([entry.subscription.qos for entry in entries])
            self.retain_as_published = any(entry.subscription.retain_as_published for entry in entries)
            self.suffix = b"".join([entry.identifier for entry in entries])
        self.deaf = False
        self.foreign: Target | None = None
        self.others: Target | None = None
        self.plain = not self.suffix


def target_of(entries: list[Entry]) -> Target:
    """The one target for all matching subscriptions of a session (MQTT-3.3.4-2 to -4). Of one subscription all routes share it."""
    if len(entries) == 1:
        known = entries[0].target
        if known is None:
            known = entries[0].target = _made_of(entries)
        return known
    return _made_of(entries)


def _made_of(entries: list[Entry]) -> Target:
    target = Target(entries)
    foreign = [entry for entry in entries if not entry.subscription.no_local]
    if len(foreign) < len(entries):
        target.deaf = not foreign
        target.foreign = Target(foreign) if foreign else None
        target.others = Target(entries)
        target.plain = False
    return target


def heard_by(targets: list[Target], publisher: Recipient | None) -> list[Target] | None:
    """Who gets the plain messages of one publisher, each without No Local; None: somebody has options that have to be respected.

    publisher: None: one that has no No Local subscription among them. Where there are very many, nobody looks.
    """
    if len(targets) > SHARED:
        return None
    found: list[Target] = []
    for target in targets:
        seen = target.others
        if seen is None:
            seen = target
        elif target.session is publisher:
            seen = target.foreign
            if seen is None:
                continue
        if not seen.plain:
            return None
        found.append(seen)
    return found


class Recipients:
    """Who gets plain messages of one or more topics. Topics with the same recipients share one object.

    targets: the sessions here, each with the QoS granted to it. None has options that a plain message would have to respect.
    mask: the brokers elsewhere, bit n for broker n.
    receipts: whether messages are acknowledged after receipts, unless their publisher says otherwise.
    local: the same without the brokers elsewhere, for messages that the mesh brings; None: this one.
    sole: the only recipient, a session that does not move, when no journal or other broker has to know of a message; else None. See
    `broker/publish/direct.py`.
    far: only other brokers want a message, and no journal has to know of it.
    queue: the queue that they are put into; None: into none.
    noted: the journal has events of these messages. dimension: what its counters call them. tally: see `journal/tally.py`.
    """

    __slots__ = ("__weakref__", "dimension", "far", "local", "mask", "noted", "queue", "receipts", "sole", "tally", "targets")

    plain = True
    as_published = False
    shares = ()
    mesh: Any = None

    def __init__(
        self,
        targets: list[Target],
        mask: int,
        local: Recipients | None,
        receipts: bool = False,
        noted: bool = False,
        dimension: str = "",
    ) -> None:
        self.targets = targets
        self.mask = mask
        self.receipts = receipts
        self.noted = noted
        self.dimension = dimension
        self.tally = 0
        self.local = local
        self.sole = None if mask or noted or len(targets) != 1 or targets[0].session.main is not targets[0].session else targets[0]
        self.queue: str | None = None
        self.far = mask > 0 and not (targets or receipts or noted)

    @property
    def elsewhere(self) -> bool:
        """Whether other brokers want these messages."""
        return self.mask > 0

    @property
    def empty(self) -> bool:
        """Whether nobody wants these messages."""
        return not (self.targets or self.mask)


class PartOfTargets:
    """Some of the targets of a route or of `Recipients`, for a delivery in turns (`publish/fan_out.py`)."""

    __slots__ = ("as_published", "dimension", "plain", "shares", "tally", "targets")

    def __init__(self, to: Route | Recipients, targets: list[Target]) -> None:
        self.targets = targets
        self.shares: list[ShareGroup] = []
        self.plain = to.plain or all(target.plain for target in targets)
        self.as_published = to.as_published
        self.dimension = to.dimension
        self.tally = 0


def queue_recipients(name: str) -> Recipients:
    """What stands for a queue among recipients. Messages with properties go into it as runs."""
    recipients = Recipients([], 0, None, noted=True)
    recipients.queue = name
    return recipients


class KnownRecipients:
    """Finds the `Recipients` for a list of targets and brokers elsewhere, as long as a route uses them."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[int, bool, bool, str, frozenset[int]], Recipients] = WeakValueDictionary()

    def of(self, targets: list[Target], mask: int, receipts: bool = False, noted: bool = False, dimension: str = "") -> Recipients:
        """targets: plain ones only. Where there are very many, they are not compared with those of other topics, which takes time."""
        if len(targets) > SHARED:
            local = Recipients(targets, 0, None, False, noted, dimension) if mask else None
            return Recipients(targets, mask, local, receipts, noted, dimension)
        key = mask, receipts, noted, dimension, frozenset([id(target.session) << 2 | target.qos for target in targets])
        recipients = self._known.get(key)
        if recipients is None:
            # it holds on to its sessions, so that their ids stay theirs
            local = self.of(targets, 0, False, noted, dimension) if mask else None
            recipients = self._known[key] = Recipients(targets, mask, local, receipts, noted, dimension)
        return recipients


class Route:
    """What is known about one topic.

    targets: sessions here with matching subscriptions. shares: shared subscriptions that match. mesh: who wants it elsewhere.
    plain: all targets take messages that are not retained as they come, and no shared subscription wants them.
    as_published: some target wants to see the retain flag.
    recipients: of plain messages, when these may be moved together with messages of other topics; else None. They are those of
    publishers that are not in `choosy`.
    choosy: the sessions that have a No Local subscription.
    receipts: its messages are acknowledged after receipts, unless their publisher says otherwise.
    service: what answers requests on it, when it is not writable.
    queue: the queue that its messages are put into, when it is not writable; "": one that does not exist; None: into none.
    rights: what is special about who may publish, if anything.
    addressed: has messages for a recipient enter (`broker/recipients/shell.py`); None: the topic addresses none.
    noted, dimension, tally: as those of `Recipients`.
    """

    __slots__ = (
        "addressed",
        "as_published",
        "choosy",
        "dimension",
        "local_groups",
        "mesh",
        "noted",
        "plain",
        "queue",
        "receipts",
        "recipients",
        "rights",
        "service",
        "shares",
        "tally",
        "targets",
        "topic",
        "writable",
    )

    def __init__(self, topic: str, targets: list[Target], shares: list[ShareGroup], mesh: Any, writable: bool) -> None:
        self.topic = topic
        self.targets = targets
        self.shares = shares
        self.local_groups = frozenset((group.name, group.filter) for group in shares) if shares else NO_GROUPS
        self.mesh = mesh
        self.writable = writable
        self.receipts = False
        self.recipients: Recipients | None = None
        self.service: Service | None = None
        self.queue: str | None = None
        self.rights: Rights | None = None
        self.addressed: Addressed | None = None
        self.noted = False
        self.dimension = ""
        self.tally = 0
        self.plain = not shares and all(target.plain for target in targets)
        self.choosy = NO_SESSIONS if self.plain else frozenset([target.session for target in targets if target.others is not None])
        self.as_published = any(target.retain_as_published for target in targets)

    @property
    def elsewhere(self) -> bool:
        """Whether other brokers want messages of this topic."""
        return self.mesh is not None

    @property
    def empty(self) -> bool:
        """Whether nobody wants messages of this topic."""
        return not (self.targets or self.shares or self.mesh)
