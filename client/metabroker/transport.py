"""The transport through a metabroker: each link is a session of the metabroker, over a link to the community broker.

`remote_session.py` decides. This module carries out its actions, on the thread of the transport below.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from ..core.transport import Done, Incoming, LinkHandler, LinkSpec, Outcome, Publication
from ..paho.link import PahoLink
from ..paho.transport import Network, PahoTransport
from . import actions
from .actions import Action
from .bodies import RemoteLogin, community_name
from .remote_session import CLOSED, RemoteSession

log = logging.getLogger("mqmesh.client")
KEEP = 300  # seconds that the community broker keeps its part of a durable session; the metabroker keeps the rest


class MetabrokerTransport:
    """See `transport.Transport`.

    community: how to reach the community broker.
    probe: seconds, see `RemoteSession`.
    durable_sends: messages are sent through a durable session.
    user: our name at the community broker, where rules go by users.
    """

    declares = False

    def __init__(self, community: Network, login: RemoteLogin, probe: float, durable_sends: bool = False, user: str | None = None) -> None:
        self.login, self.probe, self.durable_sends, self.user = login, probe, durable_sends, user
        self.community = PahoTransport(community)
        self._links: set[RemoteLink] = set()

    def open(self, spec: LinkSpec, handler: LinkHandler) -> RemoteLink:
        """Begin to connect."""
        link = RemoteLink(self, spec, handler)
        self.community.call(lambda: self._join(link))
        self.community.connect(link.inner)
        return link

    def call(self, command: Callable[[], None]) -> None:
        """See `core.transport.Transport`."""
        self.community.call(command)

    def close(self) -> None:
        """End every link and the thread; waits for it, unless it is the caller."""
        self.community.call(self._end)
        self.community.close()

    def _join(self, link: RemoteLink) -> None:
        self._links.add(link)
        self.community.timers.add(link)

    def left(self, link: RemoteLink) -> None:
        """On the network thread: a link has ended."""
        self._links.discard(link)
        self.community.timers.discard(link)

    def _end(self) -> None:
        for link in list(self._links):
            link.abandon()


class RemoteLink:
    """A `transport.Link`, and the `transport.LinkHandler` of the link to the community broker."""

    has_delays = False  # what it may hold it would have to say itself
    has_queues = False  # a metabroker has no way to give a message back

    def __init__(self, transport: MetabrokerTransport, spec: LinkSpec, handler: LinkHandler) -> None:
        self._transport, self._handler = transport, handler
        network = transport.community.network
        client = community_name(spec.client_id)
        user = transport.user
        self._machine = RemoteSession(
            client if user is None else f"{user}/{client}",
            transport.login,
            secrets.randbits(60),
            transport.probe,
            (network.retry_first, network.retry_last),
            max(spec.expiry, 1) if spec.resume or (spec.sends and transport.durable_sends) else 0,
            spec.expiry,
        )
        self._closing: tuple[bool, Done] | None = None
        self.inner = PahoLink(
            transport.community,
            LinkSpec(client, min(spec.expiry, KEEP) if spec.resume else spec.expiry, False, spec.prefetch, exclusive=spec.exclusive),
            self,
        )

    # any thread

    def publish(self, publication: Publication, done: Done) -> None:
        self._call(lambda now: self._machine.publish(publication, done, now))

    def subscribe(self, filter_: str, qos: int, identifier: int, done: Done, said: tuple[tuple[str, str], ...] = ()) -> None:
        self._call(lambda now: self._machine.subscribe(filter_, qos, done, now))

    def unsubscribe(self, filter_: str, done: Done) -> None:
        self._call(lambda now: self._machine.unsubscribe(filter_, done, now))

    def acknowledge(self, token: object, reason: int = 0) -> None:
        self._call(lambda now: self._machine.acknowledge(token))

    def close(self, forget: bool, done: Done) -> None:
        self._call(lambda now: self._close(forget, done, now))

    def _call(self, step: Callable[[float], None]) -> None:
        def command() -> None:
            step(time.monotonic())
            self._carry_out()

        self._transport.community.call(command)

    # on the network thread

    def _close(self, forget: bool, done: Done, now: float) -> None:
        if self._closing is not None:
            self.inner.close(forget, done)
            return
        self._closing = (forget, done)
        self._machine.close(forget, now)

    def abandon(self) -> None:
        """The transport closes."""
        self._machine.end(CLOSED)
        self._carry_out()

    def deadline(self) -> float | None:
        """See `paho.transport.Timer`."""
        return self._machine.deadline()

    def work(self, now: float) -> None:
        """See `paho.transport.Timer`."""
        self._machine.tick(now)
        self._carry_out()

    def received(self, incoming: Incoming) -> None:
        self._machine.received(incoming, time.monotonic())
        self._carry_out()

    def connected(self, resumed: bool) -> None:
        self._machine.connected(resumed, time.monotonic())
        self._carry_out()

    def disconnected(self, text: str, word: str = "") -> None:
        self._machine.disconnected(text, word)
        self._carry_out()

    def notified(self, text: str, word: str) -> None:
        """Never called by the community broker's link."""

    def failed(self, outcome: Outcome) -> None:
        self._machine.failed(outcome)
        self._carry_out()

    def _carry_out(self) -> None:
        while taken := self._machine.take_actions():
            for action in taken:
                self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Incoming():
                self._handler.received(action)
            case actions.Acknowledge(token):
                self.inner.acknowledge(token)
            case actions.Complete(done, outcome):
                done(outcome)
            case actions.Publish(topic, body, qos, session, done):
                self.inner.publish(Publication(topic, body, qos), lambda outcome: self._request_published(session, outcome, done))
            case actions.Subscribe(filter_, qos):
                self.inner.subscribe(filter_, qos, 0, lambda outcome: self._subscribed(filter_, outcome))
            case actions.Unsubscribe(filter_):
                self.inner.unsubscribe(filter_, lambda outcome: None)
            case actions.Connected(resumed):
                self._handler.connected(resumed)
            case actions.Disconnected(text, word):
                self._handler.disconnected(text, word)
            case actions.Notified(text, word):
                self._handler.notified(text, word)
            case actions.Failed(outcome):
                self._handler.failed(outcome)
            case actions.CloseLink():
                self._close_link()

    def _close_link(self) -> None:
        self._transport.left(self)
        forget, done = self._closing or (True, lambda outcome: None)
        self._closing = (forget, done)
        self.inner.close(forget, done)

    def _request_published(self, session: str, outcome: Outcome, done: Done | None) -> None:
        if done is not None:
            done(outcome)
        self._machine.request_published(session, outcome, time.monotonic())
        self._carry_out()

    def _subscribed(self, filter_: str, outcome: Outcome) -> None:
        self._machine.subscribed(filter_, outcome, time.monotonic())
        self._carry_out()
