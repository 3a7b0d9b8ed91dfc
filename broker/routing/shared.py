"""Shared subscriptions: one group of members, each message to one of them (MQTT 5: 4.8.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...mqtt.batch.batch import Batch
from ...mqtt.session import Delivery
from .member_lag import BEHIND, READY, MemberLag

if TYPE_CHECKING:
    from ..journal.recorder import Recorder
    from ..ports import Recipient
    from .publication import Publication
    from .router import Entry


class ShareGroup:
    """The members of `$share/name/filter` at this broker, taking turns.

    A member that would send at once goes before one whose queue is not empty, that before one that is away; among those that would send at
    once one that keeps up goes before one that lags (`member_lag.py`); among equals they take turns. A message that finds no member with
    room is refused. When a member comes, it gets what waits at members that are away.

    weight: as other brokers were told. stirred: where groups stand that are to be looked at.
    """

    __slots__ = ("_behind", "_lags", "filter", "journal", "members", "name", "stirred", "turn", "weight")

    def __init__(self, name: str, topic_filter: str, stirred: set[ShareGroup]) -> None:
        self.name = name
        self.filter = topic_filter
        self.members: list[Entry] = []
        self.turn = 0
        self.weight = 0
        self.stirred = stirred
        self._lags: dict[Recipient, MemberLag] = {}
        self._behind = False
        self.journal: Recorder | None = None

    @property
    def keeps(self) -> bool:
        """Whether what another site has published is kept here for it, though no member of it is chosen."""
        return False

    @property
    def no_room(self) -> str:
        """Why a message was not taken."""
        return f"no member of $share/{self.name} has room"

    def join(self, entry: Entry) -> None:
        """Add a member, or replace its options."""
        for index, member in enumerate(self.members):
            if member.session is entry.session:
                self.members[index] = entry
                return
        self.members.append(entry)
        self._lags[entry.session] = MemberLag(entry.session.main)

    def leave(self, session: Recipient) -> None:
        """Remove a member."""
        self.members = [member for member in self.members if member.session is not session]
        self._lags.pop(session, None)

    def weigh(self) -> int:
        """What the group weighs beside those of other brokers: at least 1."""
        return max(1, sum([lag.level for lag in self._lags.values()]))

    def look(self) -> int:
        """See how the members keep up: the group's weight now. To be called every now and then as long as it is among `stirred`."""
        for session, lag in self._lags.items():
            lag.look(session.main)
        self._behind = any(lag.level == BEHIND for lag in self._lags.values())
        if all(lag.settled for lag in self._lags.values()):
            self.stirred.discard(self)
        return self.weigh()

    def able(self, qos: int) -> list[Entry]:
        """The members to choose from for messages of this QoS, in turn; empty when nobody can take one."""
        members = self.members
        if len(members) > 1:
            turn = self.turn % len(members)
            members = members[turn:] + members[:turn]
        idle = [member for member in members if member.session.idle]
        if idle:
            if self._behind and len(idle) > 1:
                return [member for member in idle if self._lags[member.session].level == READY] or idle
            return idle
        if not qos:
            connected = [member for member in members if member.session.connection is not None]
            return [member for member in connected if not member.session.connection.congested]  # type: ignore[union-attr]
        connected = [member for member in members if member.session.connection is not None and not member.session.full]
        return connected or [member for member in members if member.subscription.qos and not member.session.full]

    def take(self, batch: Batch, publication: Publication) -> int:
        """Its copy of what is published: how many messages found no room."""
        return self.deliver(batch, publication.commit)

    def come(self, batch: Batch, origin: int) -> int:
        """Its copy of what another site has published: how many messages found no room. That site has chosen the member, see `deliver`."""
        return 0

    def deliver(self, run: Batch, commit: int = 0) -> int:
        """Spread the messages, each to one member (MQTT-4.8.2-4): how many found no room.

        commit: the ticket that deliveries of QoS 2 wait for; 0: none.
        """
        members = self.able(run.qos)
        self.turn += run.count
        self.stirred.add(self)
        if not members:
            return run.count
        count = len(members)
        if count == 1 or run.count == 1:
            return self._rest(run, members[0], self._give(members[0], run, commit), commit)
        refused = 0
        for index in range(min(count, run.count)):
            part = run.every(index, count)  # so that order within a member is the publisher's
            refused += self._rest(part, members[index], self._give(members[index], part, commit), commit)
        return refused

    def _give(self, entry: Entry, run: Batch, commit: int) -> int:
        """One member's messages: how many it took."""
        session = entry.session
        qos = min(run.qos, entry.subscription.qos)
        retain = run.retain and entry.subscription.retain_as_published
        if qos:
            taken = session.deliver(Delivery(run, qos, retain, entry.identifier, self, ticket=commit if qos == 2 else 0))
        elif session.connection is None:
            return 0
        else:
            taken = run.count
            if not session.connection.send_qos0(run, retain, entry.identifier):
                return taken
        if taken and self.journal is not None:
            self.journal.given(session, run if taken == run.count else run.part(0, taken))
        return taken

    def _rest(self, run: Batch, tried: Entry, taken: int, commit: int) -> int:
        """Offer what a member had no room for to the others: how many nobody took."""
        if taken == run.count:
            return 0
        for member in self.able(run.qos):
            if member is not tried:
                run = run.part(taken, run.count)
                taken = self._give(member, run, commit)
                if taken == run.count:
                    return 0
        return run.count - taken

    def give_away(self, deliveries: Iterable[Delivery], commit: int = 0) -> int:
        """Messages that a member gave back, to the others: how many nobody took. commit: see `deliver`."""
        refused = 0
        for delivery in deliveries:
            run = delivery.run
            if delivery.count < run.count:
                run = run.part(delivery.start, delivery.start + delivery.count)
            refused += self.deliver(run, commit)
        return refused

    def gather(self, session: Recipient, commit: int = 0) -> None:
        """A member came: messages that wait at members that are away are spread anew. commit: see `deliver`."""
        for member in list(self.members):
            other = member.session
            if other is not session and other.connection is None and other.queued:
                self.give_away(other.withdraw(self, queued_only=True), commit)
