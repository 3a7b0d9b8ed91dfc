"""The ledger: every byte that a broker holds, charged to the one that it is held for.

    Account   of one connection, or of one session: what it holds, by kind
      -> Holder   its user (a name that it has proven) and its source address (one IPv6 network of 64 bits is one source)
      -> Ledger   the broker: all of it, against `limits.broker_bytes`

Strategy
- *What may be refused is asked first.* A holder may have `SHARE` times of what is free. So one holder alone gets four fifths of the
  broker's bytes, two that come together get four ninths each, and one that comes later finds a fifth of what its predecessor found. Nobody
  counts holders, and a question costs two comparisons.
- *What is unfinished has less.* Handshakes, logins, packets and requests that have come in part: a holder may have as much of these as is
  free, half of the broker's bytes at most. At the bound they are the first to go.
- *What is acknowledged is never taken back.* An account that is `full` is refused more; what it has stays.
- What changes with each message in flight is not charged message by message: it is read from time to time (`Account.settle`), at the latest
  when a sixteenth of the bound has been sent.

Invariants: `Ledger.total` is the sum of all accounts, and of all kinds. A holder's sums are those of its accounts. A holder without
accounts is forgotten. An account that is closed has nothing.

What it does not know: connections, sessions, what a byte is for. The weights of things stand at the end of this file.
"""

from __future__ import annotations

SHARE = 4  # a holder may have so many times what is free: 4/5 of the bound when it is the only one
LEAST = 64  # a holder may always have one part of so many unfinished
SCARCE = 16  # the bound is near while less than one part of so many is free

# Kinds. Those up to UNFINISHED go first.
HANDSHAKES = 0  # connections that have not sent CONNECT, and links that have not proved the key
LOGINS = 1  # CONNECTs that wait for an answer
RECEIVED = 2  # packets that have come in part, or wait to be taken
UNFINISHED = 2
CONNECTIONS = 3
ALIASES = 4  # topics behind the topic aliases of clients
UNSENT = 5  # bytes that transports have and sockets have not
IN_FLIGHT = 6  # messages of QoS 1 and 2 that are sent and not acknowledged
QUEUED = 7  # messages that wait in sessions
SESSIONS = 8
SUBSCRIPTIONS = 9
WILLS = 10
RETAINED = 11
DELETED = 12  # deletions of retained messages that a mesh remembers
CUSTODY = 13  # messages that the mesh holds for other brokers
LINKS = 14  # what links have not sent, and what neighbours have sent and is not taken yet
STORE = 15  # what waits for the store
QUEUES = 16  # messages of queues that are in memory, and what is known of those on the disk
ROUTES = 17  # what is remembered of topics
JOURNAL = 18  # events that wait for the journal's disk

KINDS = (
    "handshakes",
    "logins",
    "received",
    "connections",
    "aliases",
    "unsent",
    "in-flight",
    "queued",
    "sessions",
    "subscriptions",
    "wills",
    "retained",
    "deleted",
    "custody",
    "links",
    "store",
    "queues",
    "routes",
    "journal",
)


class Holder:
    """A user or a source address.

    name: for logs. total: bytes that are held for it. unfinished: of these, what goes first. accounts: how many it has.
    """

    __slots__ = ("accounts", "name", "total", "unfinished")

    def __init__(self, name: str) -> None:
        self.name = name
        self.total = 0
        self.unfinished = 0
        self.accounts = 0


class Ledger:
    """All accounts of one broker.

    limit: bytes that it may hold. total: bytes that it holds. held: the same by kind. own: the account of what is held for nobody in
    particular, such as retained messages that were read back.
    """

    __slots__ = ("_addresses", "_estates", "_users", "held", "limit", "own", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self.held = [0] * len(KINDS)
        self._addresses: dict[str, Holder] = {}
        self._users: dict[str, Holder] = {}
        self._estates: dict[tuple[Holder | None, Holder | None], Account] = {}
        self.own = Account(self)

    def account(self, address: str | None = None, user: str | None = None) -> Account:
        """A new account. address: its source, as `source_of` names it. user: a proven name. None: of no such holder."""
        account = Account(self)
        account.move(address, user)
        return account

    def overdrawn(self, source: str) -> bool:
        """Whether an address may have no more that is unfinished, a new connection included."""
        holder = self._addresses.get(source)
        return holder is not None and holder.unfinished > self.unfinished_most

    @property
    def unfinished_most(self) -> int:
        """Bytes that a holder may have unfinished: what is free, and a little where nothing is, so that clients can come for what waits."""
        return max(self.limit - self.total, self.limit // LEAST)

    def estate(self, account: Account) -> Account:
        """The account that pays for the retained messages of an account's user and address; it stays when the connection is gone."""
        key = (account.address, account.user)
        if key == (None, None):
            return self.own
        found = self._estates.get(key)
        if found is None:
            found = self._estates[key] = self.account(*(None if holder is None else holder.name for holder in key))
        return found

    def leave_estate(self, estate: Account) -> None:
        """Forget an estate if nothing is left of it."""
        if estate is not self.own and not estate.total:
            self._estates.pop((estate.address, estate.user), None)
            estate.close()

    @property
    def free(self) -> int:
        """Bytes up to the limit; negative beyond it."""
        return self.limit - self.total

    @property
    def scarce(self) -> bool:
        """The bound is near: what is unfinished has to go."""
        return self.total > self.limit - self.limit // SCARCE

    @property
    def unfinished(self) -> int:
        """Bytes that go first."""
        return sum(self.held[: UNFINISHED + 1])

    def largest(self, count: int) -> list[tuple[str, str, int, int]]:
        """The holders that have most: ("address" or "user", name, bytes, unfinished bytes of these)."""
        found = [("address", one) for one in self._addresses.values()] + [("user", one) for one in self._users.values()]
        found.sort(key=lambda one: (-one[1].total, one[0], one[1].name))
        return [(what, one.name, one.total, one.unfinished) for what, one in found[:count]]

    def __len__(self) -> int:
        """How many holders there are."""
        return len(self._addresses) + len(self._users)

    def _join(self, table: dict[str, Holder], name: str | None) -> Holder | None:
        if name is None:
            return None
        holder = table.get(name)
        if holder is None:
            holder = table[name] = Holder(name)
        holder.accounts += 1
        return holder

    def _leave(self, table: dict[str, Holder], holder: Holder | None) -> None:
        if holder is not None:
            holder.accounts -= 1
            if not holder.accounts:
                del table[holder.name]


class Account:
    """What is held for one connection or one session.

    held: bytes by kind. address, user: its holders; None: it has no such holder.
    """

    __slots__ = ("address", "held", "ledger", "user")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.held = [0] * len(KINDS)
        self.address: Holder | None = None
        self.user: Holder | None = None

    @property
    def total(self) -> int:
        """Bytes of all kinds."""
        return sum(self.held)

    def charge(self, kind: int, size: int) -> None:
        """Hold more bytes of a kind, or (a negative size) fewer."""
        ledger = self.ledger
        self.held[kind] += size
        ledger.held[kind] += size
        ledger.total += size
        address, user = self.address, self.user
        if address is not None:
            address.total += size
            if kind <= UNFINISHED:
                address.unfinished += size
        if user is not None:
            user.total += size
            if kind <= UNFINISHED:
                user.unfinished += size

    def settle(self, kind: int, size: int) -> None:
        """Hold so many bytes of a kind from now on."""
        change = size - self.held[kind]
        if change:
            self.charge(kind, change)

    def move(self, address: str | None, user: str | None) -> None:
        """Have other holders from now on; what is held goes with it."""
        ledger = self.ledger
        held, self.held = self.held, [0] * len(KINDS)
        old_address, old_user = self.address, self.user
        for holder in (old_address, old_user):
            if holder is not None:
                holder.total -= sum(held)
                holder.unfinished -= sum(held[: UNFINISHED + 1])
        self.address, self.user = ledger._join(ledger._addresses, address), ledger._join(ledger._users, user)
        ledger._leave(ledger._addresses, old_address)
        ledger._leave(ledger._users, old_user)
        for holder in (self.address, self.user):
            if holder is not None:
                holder.total += sum(held)
                holder.unfinished += sum(held[: UNFINISHED + 1])
        self.held = held

    def close(self) -> None:
        """Nothing is held any more, and its holders may be forgotten. It may be used again, without holders."""
        for kind, size in enumerate(self.held):
            if size:
                self.charge(kind, -size)
        self.move(None, None)

    # What it may have

    @property
    def full(self) -> bool:
        """Whether nothing more may be kept for it: the broker, its address or its user has all that it may."""
        ledger = self.ledger
        free = SHARE * (ledger.limit - ledger.total)
        if free <= 0:
            return True
        address, user = self.address, self.user
        return (address is not None and address.total > free) or (user is not None and user.total > free)

    @property
    def tight(self) -> bool:
        """Whether half of what the broker, its address or its user may have is used."""
        ledger = self.ledger
        if 2 * ledger.total >= ledger.limit:
            return True
        free = SHARE * (ledger.limit - ledger.total)
        address, user = self.address, self.user
        return (address is not None and 2 * address.total > free) or (user is not None and 2 * user.total > free)

    @property
    def overdrawn(self) -> bool:
        """Whether it may have no more that is unfinished."""
        most = self.ledger.unfinished_most
        return any(one is not None and one.unfinished > most for one in (self.address, self.user))

    @property
    def why(self) -> str:
        """Why it is full or overdrawn, for logs and reason strings."""
        ledger = self.ledger
        free = ledger.limit - ledger.total
        if free > 0:
            for what, holder in (("address", self.address), ("user", self.user)):
                if holder is None:
                    continue
                if holder.total > SHARE * free:
                    return f"this {what} holds {holder.total} bytes of {ledger.limit} (limits.broker_bytes)"
                if holder.unfinished > ledger.unfinished_most:
                    return f"this {what} holds {holder.unfinished} unfinished bytes of {ledger.limit} (limits.broker_bytes)"
        return f"the broker holds {ledger.total} bytes of {ledger.limit} (limits.broker_bytes)"


# Weights, measured: how much the resident memory of a process grows for each.

CONNECTION = 3 * 1024  # a connection: socket, transport, protocol
TLS = 64 * 1024  # what OpenSSL may keep for a connection: 20 KiB at rest, and records that are not whole or not written
WEBSOCKET = 1024
STRANGER = 1024  # more, until CONNECT is here
SESSION = 1536
SUBSCRIPTION = 512  # without its levels
SHARED = 448  # more, for a shared subscription that nobody else is a member of
WIDE = 4  # bytes of a character at most
LEVEL = 16  # a level of a topic filter: the tree keeps levels together where nothing branches
WILL = 512
ALIAS = 128
PIECE = 64  # a piece of bytes as it came from the socket, beside the bytes
STEP = 16 * 1024  # bytes of a packet in part that its connection's weight covers
IDENTIFIER = 128  # a packet identifier that is remembered
HELD = 640  # a batch of messages that is in memory for other brokers
ROUTE = 700  # a topic that is remembered, without its name
TARGET = 24  # a session that gets its messages


def weight_of_text(text: str) -> int:
    """Bytes of a text without its object. One character beyond ASCII may make all of them take four bytes."""
    return len(text) if text.isascii() else WIDE * len(text)


def weight_of_filter(topic_filter: str) -> int:
    """Bytes that a subscription stands for."""
    size = weight_of_text(topic_filter)
    if topic_filter.startswith("$share/"):
        size = SHARED + 2 * size  # its group and its filter are there, too
    return SUBSCRIPTION + size + LEVEL * (1 + topic_filter.count("/"))


def weight_of_route(topic: bytes, targets: int) -> int:
    """Bytes that stand for what is remembered of a topic.

    Its name is there as bytes and as text, here and in the mesh. targets: how many sessions get its messages.
    """
    return ROUTE + (3 if topic.isascii() else 2 + WIDE) * len(topic) + TARGET * targets


def weight_of_connection(tls: bool, websocket: bool) -> int:
    """Bytes that a connection stands for, with its layers."""
    return CONNECTION + TLS * tls + WEBSOCKET * websocket
