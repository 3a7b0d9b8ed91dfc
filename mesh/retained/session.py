"""One comparison of records between two neighbours, from either end.

The neighbour with the lower number asks, the other one serves. If the roots are equal, two small messages end it. If not, the asker
walks down the tree of hashes, level by level and only where they differ; of each differing bucket it lists its (identifier, key)
pairs; the server sends the records that the asker lacks, says which it wants and which are gone. Records go both ways in
flow-controlled pieces.

    asker      BEGIN ->             ASK ->           LIST ->                    (DATA ->)  FINISH ->
    server            <- STATE            <- NODES           (<- DATA) <- ANSWER                     <- FINISHED

At the end each side has what the other had at the beginning, or knows that it is gone. So each takes over the other's vector as it
was in BEGIN and STATE: what the other had heard then, it has heard too. What one side lacks though it had heard it when they began
is gone; the other side forgets it once it has taken over that vector. But a deletion counts over an older record that came after the
deletion was forgotten (of a broker that had been given up): it is given again.

Invariants
- at most `REQUESTS` of ASK and LIST are unanswered, and an answer stands behind the records that belong to it: so what a server has to
  send is bounded by what few buckets hold;
- the asker walks depth first: what it remembers does not grow with the number of differences.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable

from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from .coverage import Vector
from .record import ID_SIZE, Key, Kind, Record, unpack_key
from .replica import Replica
from .stream import Inbox, Outbox
from .tree import DEPTH, FAN_OUT
from .wire import ENTRY_SIZE, FORM, LISTED_MAX, NODES_MAX, RANGES_MAX, Message, Range, Say, State, encode, encode_indexes

REQUESTS = 4  # unanswered ASK and LIST
BACKLOG = 4 * LISTED_MAX  # topics that wait to be sent before the asker pauses

Listed = dict[bytes, tuple[bytes, Key]]  # identifier -> (topic, key)


def wrong(text: str) -> PeerError:
    """The neighbour does not keep to the order of messages."""
    return PeerError(Reason.PROTOCOL_ERROR, f"$mesh/retained: {text}")


class Session:
    """What both ends have."""

    def __init__(self, replica: Replica, number: int, send: Callable[[bytes], None]) -> None:
        """number: of the session. send: a message to the neighbour."""
        self.replica = replica
        self.number = number
        self.done = False
        self.theirs: State | None = None
        self._send = send
        self._outbox = Outbox(number, replica.give, send)
        self._inbox = Inbox()
        self._gone: list[tuple[bytes, Key]] = []

    def receive(self, message: Message, now: float) -> None:
        """A message of this session. Raises `PeerError` for one that has no place here."""
        self.replica.moment = self.replica.wall(now)
        say = message.say
        if say is Say.DATA:
            for record in self._inbox.feed(message.values[0]):
                self.replica.receive(record, now)
            self._send(encode(Say.MORE, self.number))
        elif say is Say.MORE:
            self._outbox.more()
        else:
            self._step(message, now)
        self._advance()

    def _step(self, message: Message, now: float) -> None:
        raise NotImplementedError

    def _advance(self) -> None:
        self._outbox.pump()

    def _own_state(self) -> State:
        coverage = self.replica.coverage
        return State(self.replica.tree.root, max(coverage.stable(), 0), coverage.vector.entries(), coverage.floors())

    def _learn(self, state: State, now: float) -> None:
        """What can be believed at once; then forget what the neighbour has forgotten, so that the comparison does not find it."""
        replica = self.replica
        self.theirs = state
        for entry in sorted(state.vector, reverse=True):  # the latest life first: what rises above it is above all
            if entry.number == replica.number:
                replica.hear_of_itself(entry.born, entry.time, now)
        replica.coverage.merge_floors(state.floors)
        replica.forget_up_to(state.line)

    def _reconciled(self) -> None:
        assert self.theirs is not None
        self._inbox.end()
        self.replica.reconciled(self.theirs.vector)
        self.replica.doom(self._gone)
        self._gone = []
        self.done = True


class Serving(Session):
    """The end with the higher number."""

    def __init__(self, replica: Replica, begin: Message, send: Callable[[bytes], None], now: float) -> None:
        """begin: the asker's first message."""
        super().__init__(replica, begin.session, send)
        state = State(*begin.values[1:])
        self._their_vector = Vector(state.vector)
        self._learn(state, now)
        replica.claim(now)
        own = self._own_state()
        self._own_vector = Vector(own.vector)
        send(encode(Say.STATE, self.number, *own))
        if own.root == state.root:
            self._reconciled()

    def _step(self, message: Message, now: float) -> None:
        if self.done:
            raise wrong(f"{message.say.name} after the end")
        if message.say is Say.ASK:
            level, indexes = message.values
            self._tell(level, indexes)
        elif message.say is Say.LIST:
            self._answer(message.values[0])
        elif message.say is Say.FINISH:
            self._reconciled()
            self._outbox.message(encode(Say.FINISHED, self.number))
        else:
            raise wrong(f"{message.say.name} from the neighbour that asks")

    def _tell(self, level: int, indexes: list[int]) -> None:
        if indexes and max(indexes) >= FAN_OUT**level:
            raise wrong(f"no node {max(indexes)} on level {level}")
        hashes = array("Q")
        for index in indexes:
            hashes += self.replica.tree.children(level, index)
        if sys.byteorder == "little":
            hashes.byteswap()
        self._outbox.message(encode(Say.NODES, self.number, level, encode_indexes(indexes), hashes.tobytes()))

    def _answer(self, ranges: list[Range]) -> None:
        """Compare the asker's lists with what is here."""
        wanted: list[bytes] = []
        gone: list[bytes] = []
        for bucket, after, upto, entries in ranges:
            theirs = {entries[i : i + ID_SIZE]: entries[i + ID_SIZE : i + ENTRY_SIZE] for i in range(0, len(entries), ENTRY_SIZE)}
            for identifier, record in self.replica.tree.bucket(bucket):
                if identifier > after and (not upto or identifier <= upto):
                    self._compare(identifier, record, theirs.pop(identifier, None), wanted, gone)
            for identifier, packed in theirs.items():
                (gone if self._own_vector.covers(unpack_key(packed)) else wanted).append(identifier)
        self._outbox.message(encode(Say.ANSWER, self.number, b"".join(wanted), b"".join(gone)))

    def _compare(self, identifier: bytes, record: Record, packed: bytes | None, wanted: list[bytes], gone: list[bytes]) -> None:
        """One topic that is here. packed: the asker's key of it, if it listed one."""
        own = record.key.pack()
        if packed is None or own > packed:
            again = packed is not None and record.kind is Kind.DELETED
            if self._their_vector.covers(record.key) and not again:
                self._gone.append((record.topic, record.key))
            else:
                self._outbox.record(record.topic)
        elif own < packed:
            if self._own_vector.covers(unpack_key(packed)):
                gone.append(identifier)
            wanted.append(identifier)  # also what was heard: it may be a deletion


class Asking(Session):
    """The end with the lower number."""

    def __init__(self, replica: Replica, number: int, send: Callable[[bytes], None], now: float) -> None:
        """number: of the session, another one than that of the last on this link."""
        super().__init__(replica, number, send)
        replica.claim(now)
        own = self._own_state()
        self._root = own.root
        self._unanswered = 0
        self._finishing = False
        self._nodes: list[tuple[int, list[int]]] = []  # (level, indexes) to ask for
        self._leaves: deque[int] = deque()  # differing buckets
        self._ranges: deque[tuple[Range, Listed]] = deque()  # of them, ready to be listed
        self._listed: deque[Listed] = deque()  # of each LIST under way
        send(encode(Say.BEGIN, number, FORM, *own))

    def _step(self, message: Message, now: float) -> None:
        if message.say is Say.STATE:
            self._compare_roots(State(*message.values), now)
        elif self.theirs is None:
            raise wrong(f"{message.say.name} before STATE")
        elif message.say is Say.NODES and self._unanswered:
            self._unanswered -= 1
            self._compare_nodes(*message.values)
        elif message.say is Say.ANSWER and self._listed:
            self._unanswered -= 1
            self._give(*message.values)
        elif message.say is Say.FINISHED and self._finishing:
            self._reconciled()
        else:
            raise wrong(f"{message.say.name} from the neighbour that is asked")

    def _compare_roots(self, state: State, now: float) -> None:
        if self.theirs is not None:
            raise wrong("STATE twice")
        self._learn(state, now)
        if state.root == self._root:
            self._reconciled()  # so the server has ended it too
        elif state.root != self.replica.tree.root:
            self._nodes.append((0, [0]))

    def _compare_nodes(self, level: int, indexes: list[int], hashes: list[int]) -> None:
        differing: list[int] = []
        for place, index in enumerate(indexes):
            if index >= FAN_OUT**level:
                raise wrong(f"no node {index} on level {level}")
            own = self.replica.tree.children(level, index)
            for child in range(FAN_OUT):
                if own[child] != hashes[place * FAN_OUT + child]:
                    differing.append(index * FAN_OUT + child)
        # Several neighbours that bring one site up to date begin at different places.
        cut = len(differing) * (self.replica.number % FAN_OUT) // FAN_OUT
        differing = differing[cut:] + differing[:cut]
        if level + 1 == DEPTH:
            self._leaves.extend(differing)
        else:
            self._nodes.extend((level + 1, differing[i : i + NODES_MAX]) for i in range(0, len(differing), NODES_MAX))

    def _give(self, wanted: list[bytes], gone: list[bytes]) -> None:
        """The answer to the oldest LIST."""
        listed = self._listed.popleft()
        for identifier in wanted:
            if identifier not in listed:
                raise wrong("ANSWER names what was not listed")
            self._outbox.record(listed[identifier][0])
        given = set(wanted)
        for identifier in gone:
            if identifier not in listed:
                raise wrong("ANSWER names what was not listed")
            topic, key = listed[identifier]
            record = self.replica.tree.get(topic)
            if identifier not in given or record is None or record.kind is not Kind.DELETED:
                self._gone.append((topic, key))

    def _advance(self) -> None:
        """Ask further, as far as the windows allow; finish when nothing is left."""
        if self.theirs is None or self.done:
            return
        while self._unanswered < REQUESTS and self._outbox.waiting < BACKLOG and self._ask():
            self._unanswered += 1
        self._outbox.pump()
        if not (self._unanswered or self._outbox.waiting or self._finishing or self._nodes):
            self._finishing = True
            self._send(encode(Say.FINISH, self.number))

    def _ask(self) -> bool:
        """Send one request; False when there is none."""
        if self._leaves or self._ranges:
            self._list()
        elif self._nodes:
            level, indexes = self._nodes.pop()
            self._send(encode(Say.ASK, self.number, level, encode_indexes(indexes)))
        else:
            return False
        return True

    def _list(self) -> None:
        """List as many differing buckets as fit into one message."""
        ranges: list[Range] = []
        listed: Listed = {}
        while len(ranges) < RANGES_MAX:
            if not self._ranges:
                if not self._leaves:
                    break
                self._ranges.extend(self._ranges_of(self._leaves.popleft()))
            range_, content = self._ranges[0]
            if ranges and len(listed) + len(content) > LISTED_MAX:
                break
            self._ranges.popleft()
            ranges.append(range_)
            listed.update(content)
        self._listed.append(listed)
        self._send(encode(Say.LIST, self.number, ranges))

    def _ranges_of(self, bucket: int) -> list[tuple[Range, Listed]]:
        """A bucket in ranges of at most `LISTED_MAX` entries; one even if it is empty here."""
        records = sorted(self.replica.tree.bucket(bucket), key=lambda pair: pair[0])
        found = []
        after = b""
        for start in range(0, max(len(records), 1), LISTED_MAX):
            part = records[start : start + LISTED_MAX]
            upto = part[-1][0] if start + LISTED_MAX < len(records) else b""
            entries = b"".join([identifier + record.key.pack() for identifier, record in part])
            listed = {identifier: (record.topic, record.key) for identifier, record in part}
            found.append((Range(bucket, after, upto, entries), listed))
            after = upto
        return found
