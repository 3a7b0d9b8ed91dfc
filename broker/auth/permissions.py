"""What clients may do: decided when they come, when they subscribe, and once for each topic; never for a message.

There is one rule, for the topics of a metabroker (docs/metabroker-security.md), whose requests carry passwords and whose answers carry
sessions:

    metabroker/request/CLIENT/...       only the client of that identifier publishes; only the metabroker subscribes
    metabroker/request/connect          anyone may publish; the broker says who did
    metabroker/response/CLIENT/...      only the metabroker publishes; only the client of that identifier subscribes
    metabroker/peer/...                 only metabrokers publish and subscribe
    metabroker/status/...               only the metabroker publishes; anyone subscribes

The metabroker is the client with the identifier in the configuration, and its CONNECT has to show the password. As with topics that
begin with `$` (MQTT-4.7.2-1), a filter that begins with a wildcard matches none of these topics, whoever has it: it is granted, so that
`#` still means all the rest. A filter that names them and is not for this client is refused.

`Access` is asked by `handshake` (`login`, `will`), by `handlers` (`subscribe`) and by the router, which keeps in a route what it says of
the topic (`Rights`) and leaves out subscriptions that may not see it (`sees`). Users, roles and rules of their own belong here too.
"""

from __future__ import annotations

import hmac
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from ...base.interchange import INBOX as INBOX_NAME
from ...base.metabroker import CONNECT, IDENTITY, PEER, REQUEST, RESPONSE, SITE, STATUS
from ...base.queues import PREFIX
from ...base.quoting import quoted
from ...base.refusals import Refusals, host_of
from ...mqtt.properties import Property, encode_properties
from ...mqtt.publish import strip
from ...mqtt.reasons import Reason
from ...mqtt.topics import split_share
from .identifiers import identifier_of
from .metabroker_secret import SecretError

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ...mqtt.publish import PublishProperties
    from ..counters import Counters
    from ..ports import Connection
    from .metabroker_secret import MetabrokerSettings

log = logging.getLogger("mqmesh.broker")

ROOT = "metabroker"
INBOX = PREFIX + INBOX_NAME
RESERVED = (REQUEST, RESPONSE, PEER)


class Rights(NamedTuple):
    """What is special about publishing to a topic.

    owners: the only clients that may; None: anyone. retained: whether messages there may be retained. identified: messages carry who sent
    them, in a user property that only the broker writes. text: for those who are refused.
    """

    owners: frozenset[str] | None
    retained: bool
    identified: bool
    text: str

    def refuses(self, client_id: str, retain: bool) -> bool:
        """Whether this client may not publish there."""
        return (retain and not self.retained) or (self.owners is not None and client_id not in self.owners)


_WRITERS = "only the metabroker publishes below metabroker/response/"
_REQUESTERS = "below metabroker/request/ publish to your own client identifier, or to metabroker/request/connect"
_SPEAKERS = "only the metabroker publishes below metabroker/status/"
_PEERS = "only metabrokers publish and subscribe below metabroker/peer/"
_KEPT = "messages to the metabroker are not retained"
_INBOX = "only the interchange puts messages into the inboxes of services: post them to interchange/post"
_READERS = "only the metabroker subscribes below metabroker/request/"
_OWN = "below metabroker/response/ subscribe to your own client identifier, without a wildcard in its place"


class Access:
    """Decisions of one broker. settings: of the metabroker's rule; None: there is none. attached: clients of this process that stand for
    brokers outside ([[attach]]), and the interchange.
    """

    def __init__(
        self, settings: MetabrokerSettings | None = None, counters: Counters | None = None, attached: frozenset[str] = frozenset()
    ) -> None:
        self.attached = attached
        self._settings = settings
        self._counters = counters
        self._unread = False  # the metabroker's password
        self._publishes = Refusals(log, "publish-refused")
        self._subscribes = Refusals(log, "subscribe-refused")
        self.client = settings.client if settings is not None else None  # the metabroker
        self.reserved = RESERVED if settings is not None else ()  # how topics and filters under the rule begin
        self._inbox = Rights(frozenset(), False, False, _INBOX)
        if settings is not None:
            self._response = Rights(frozenset((settings.client,)), False, False, _WRITERS)
            self._status = Rights(frozenset((settings.client,)), True, False, _SPEAKERS)
            self._peer = Rights(frozenset((settings.client,)), True, False, _PEERS)
            self._connect = Rights(None, False, True, _KEPT)

    # When a client comes

    def login(self, client_id: str, password: bytes | None, inside: bool = False) -> tuple[Reason, str] | None:
        """Why a client may not come in under this name; None: it may. inside: it runs in the broker's process."""
        if inside or (client_id != self.client and client_id not in self.attached):
            return None
        if client_id in self.attached:
            refusal = Reason.NOT_AUTHORIZED, "this client identifier is that of a client inside this broker"
        elif self._settings is None:
            return None
        elif self._settings.inside is not None:
            refusal = Reason.NOT_AUTHORIZED, "this client identifier is that of the metabroker inside this broker"
        elif password is None:
            refusal = Reason.NOT_AUTHORIZED, "this client identifier is the metabroker's: give its password"
        else:
            try:
                secret = self._settings.secret()
                if self._unread:
                    self._unread = False
                    log.warning("event=metabroker-password-back text=it can be read again")
                if hmac.compare_digest(password, secret):
                    return None
                refusal = Reason.BAD_USER_NAME_OR_PASSWORD, "the password is not the metabroker's"
            except SecretError as error:
                if not self._unread:
                    self._unread = True
                    log.warning("event=no-metabroker text=%s", error)
                refusal = Reason.BAD_USER_NAME_OR_PASSWORD, "this broker has no password for a metabroker"
        if self._counters is not None:
            self._counters.denied_connects += 1
        return refusal

    def will(self, client_id: str, rights: Rights | None, retain: bool) -> str | None:
        """Why a client's will may not go to a topic with these rights; None: it may."""
        if rights is None or client_id == self.client:
            return None
        return rights.text if rights.identified or rights.refuses(client_id, retain) else None

    # When it subscribes

    def subscribe(self, client_id: str, full: str) -> str | None:
        """Why a client may not have a subscription (a well-formed filter, perhaps shared); None: it may."""
        if self._settings is None or client_id == self.client:
            return None
        share = split_share(full)
        levels = (full if share is None else share[1]).split("/")
        if levels[0] != ROOT or len(levels) == 1:
            return None
        if levels[1] == "request":
            return _READERS
        if levels[1] == "peer":
            return _PEERS
        if levels[1] in ("+", "#"):
            return _OWN
        if levels[1] != "response":
            return None
        name = levels[2] if len(levels) > 2 else "#"
        return _OWN if share is not None or name != client_id else None

    def denied(self, client_id: str, user: str | None, full: str, text: str) -> None:
        """A subscription was refused: count and log it."""
        if self._counters is not None:
            self._counters.denied_subscriptions += 1
        more = self._subscribes.due(time.monotonic(), (client_id, full))
        level = logging.DEBUG if more is None else logging.WARNING
        shown = quoted(client_id), quoted(user), quoted(full)
        log.log(level, "event=subscribe-refused client=%s user=%s filter=%s more=%d text=%s", *shown, more or 0, text)

    def dropped(self, connection: Connection, run: Batch, text: str) -> None:
        """A client's messages were refused: count them, and log the first, the tenth, the hundredth... of a connection."""
        counters = connection.context.counters
        counters.dropped += run.count
        counters.denied_messages += run.count
        before = connection.denied
        connection.denied += run.count
        if len(str(connection.denied)) > len(str(before)) or not before:
            topic = quoted(run.topic.decode()[:200])
            more = self._publishes.due(time.monotonic(), (host_of(connection.address), text))
            log.log(
                logging.DEBUG if more is None else logging.WARNING,
                "event=publish-refused client=%s user=%s address=%s topic=%s refused=%d more=%d text=%s",
                *(quoted(connection.client_id), quoted(connection.user), connection.address, topic, connection.denied, more or 0, text),
            )

    # For a topic

    def rights(self, topic: str) -> Rights | None:
        """What is special about publishing to a topic; None: nothing."""
        if not topic.startswith(self.reserved):
            if topic.startswith(INBOX):
                return self._inbox
            return self._status if self._settings is not None and topic.startswith(STATUS) else None
        if topic.startswith(RESPONSE):
            return self._response
        if topic.startswith(PEER):
            return self._peer
        if topic == CONNECT:
            return self._connect
        name, _, verb = topic[len(REQUEST) :].partition("/")
        return Rights(frozenset((name,)), False, verb == "connect", _REQUESTERS)

    def sees(self, topic: str, topic_filter: str, client_id: str | None) -> bool:
        """Whether a subscription that matches a topic with `rights` gets its messages. client_id: None for a shared one.

        Its filter has to spell the topic's place out; that it may was decided by `subscribe`. An answer is for the client in its topic.
        """
        if not topic.startswith(self.reserved):
            return True
        if not topic_filter.startswith(self.reserved):
            return False
        if not topic.startswith(RESPONSE) or client_id == self.client:
            return True
        return client_id is not None and identifier_of(client_id) == topic[len(RESPONSE) :].partition("/")[0]


def identified(properties: PublishProperties | None, client_id: str, site: str = "") -> bytes:
    """A block of PUBLISH properties, without the expiry, that says who sent the message; the client's own word on that is left out.

    site: the broker of a mesh that the client is connected to; empty: there is no mesh.
    """
    pairs = [] if properties is None else [pair for pair in properties.user_properties if pair[0] not in (IDENTITY, SITE)]
    rest = b"" if properties is None else strip(properties.without_expiry, Property.USER_PROPERTY)
    return rest + encode_properties({Property.USER_PROPERTY: [*pairs, *([(SITE, site)] if site else []), (IDENTITY, client_id)]})
