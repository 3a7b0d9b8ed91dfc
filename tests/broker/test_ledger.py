"""The ledger: sums that agree, and who is refused what."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from mqmesh.broker.ledger import CONNECTIONS, KINDS, QUEUED, RECEIVED, RETAINED, SHARE, UNFINISHED, Account, Ledger
from support.examples import examples

MIB = 2**20
addresses = st.sampled_from([None, "10.0.0.1", "10.0.0.2", "2001:db8::/64"])
users = st.sampled_from([None, "ann", "bob"])
kinds = st.integers(0, len(KINDS) - 1)


class Books(RuleBasedStateMachine):
    """Accounts come, hold, move and go in any order; a list of entries beside them says what the sums have to be."""

    accounts = Bundle("accounts")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(MIB)
        self.model: dict[int, tuple[Account, str | None, str | None, dict[int, int]]] = {}

    def _enter(self, account: Account, address: str | None, user: str | None) -> Account:
        self.model[id(account)] = (account, address, user, {})
        return account

    @rule(target=accounts, address=addresses, user=users)
    def come(self, address: str | None, user: str | None) -> Account:
        return self._enter(self.ledger.account(address, user), address, user)

    @rule(account=accounts, kind=kinds, size=st.integers(0, 10_000))
    def charge(self, account: Account, kind: int, size: int) -> None:
        entries = self.model[id(account)][3]
        account.charge(kind, size)
        entries[kind] = entries.get(kind, 0) + size

    @rule(account=accounts, kind=kinds, size=st.integers(0, 10_000))
    def settle(self, account: Account, kind: int, size: int) -> None:
        account.settle(kind, size)
        self.model[id(account)][3][kind] = size

    @rule(account=accounts, address=addresses, user=users)
    def move(self, account: Account, address: str | None, user: str | None) -> None:
        account.move(address, user)
        self.model[id(account)] = (account, address, user, self.model[id(account)][3])

    @rule(account=consumes(accounts))
    def go(self, account: Account) -> None:
        account.close()
        assert account.total == 0
        del self.model[id(account)]

    @rule(account=accounts, size=st.integers(1, 10_000))
    def leave_something(self, account: Account, size: int) -> None:
        estate = self.ledger.estate(account)
        estate.charge(RETAINED, size)
        assert (estate.address, estate.user) == (account.address, account.user)
        estate.charge(RETAINED, -size)
        self.ledger.leave_estate(estate)

    @invariant()
    def sums_agree(self) -> None:
        ledger = self.ledger
        entries = [(address, user, kind, size) for _, address, user, held in self.model.values() for kind, size in held.items()]
        assert ledger.total == sum(entry[3] for entry in entries) == sum(ledger.held)
        for kind in range(len(KINDS)):
            assert ledger.held[kind] == sum(entry[3] for entry in entries if entry[2] == kind)
        assert ledger.unfinished == sum(entry[3] for entry in entries if entry[2] <= UNFINISHED)
        wanted = {("address", one[1]) for one in self.model.values() if one[1]} | {
            ("user", one[2]) for one in self.model.values() if one[2]
        }
        assert len(ledger) == len(wanted)
        for what, name, total, unfinished in ledger.largest(100):
            own = [entry for entry in entries if entry[what == "user"] == name]
            assert (what, name) in wanted
            assert total == sum(entry[3] for entry in own)
            assert unfinished == sum(entry[3] for entry in own if entry[2] <= UNFINISHED)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def fill(ledger: Ledger, address: str, kind: int = QUEUED, user: str | None = None) -> Account:
    """Take kilobytes until there are no more."""
    account = ledger.account(address, user)
    while not (account.overdrawn if kind <= UNFINISHED else account.full):
        account.charge(kind, 1000)
    return account


def test_one_address_leaves_room_for_others() -> None:
    ledger = Ledger(10 * MIB)
    greedy = fill(ledger, "10.0.0.1")
    assert abs(greedy.total - 8 * MIB) < 2000
    other = ledger.account("10.0.0.2")
    other.charge(QUEUED, MIB)
    assert not other.full
    assert greedy.full
    assert "10 MiB" not in greedy.why
    assert "this address holds" in greedy.why


def test_each_greedy_address_leaves_a_fifth_of_what_it_found() -> None:
    ledger = Ledger(10 * MIB)
    for n in range(5):
        free = ledger.free
        fill(ledger, f"10.0.0.{n}")
        assert free // 5 - 2000 < ledger.free <= free // 5 + 2000
        assert not ledger.account("10.1.0.1").full


def test_greedy_addresses_that_come_together_have_the_same() -> None:
    ledger = Ledger(10 * MIB)
    accounts = [ledger.account("10.0.0.1"), ledger.account("10.0.0.2")]
    while not all(account.full for account in accounts):
        for account in accounts:
            if not account.full:
                account.charge(QUEUED, 1000)
    assert all(abs(account.total - 10 * MIB * 4 // 9) < 3000 for account in accounts)


def test_a_user_of_many_addresses_is_one_holder() -> None:
    ledger = Ledger(10 * MIB)
    for n in range(50):
        fill(ledger, f"10.0.0.{n}", user="bot")
    assert ledger.total < 8 * MIB + 60_000
    assert not ledger.account("10.1.0.1", "ann").full


def test_what_is_unfinished_has_half_and_never_refuses_what_is_finished() -> None:
    ledger = Ledger(10 * MIB)
    halves = fill(ledger, "10.0.0.1", RECEIVED)
    assert abs(halves.total - 5 * MIB) < 2000
    assert ledger.overdrawn("10.0.0.1")
    assert not ledger.overdrawn("10.0.0.2")
    assert not halves.full


def test_clients_can_come_for_what_waits_when_nothing_is_free() -> None:
    ledger = Ledger(10 * MIB)
    ledger.own.charge(RETAINED, 10 * MIB)
    assert ledger.free == 0
    assert not ledger.overdrawn("10.0.0.1")
    late = ledger.account("10.0.0.1")
    late.charge(CONNECTIONS, 1000)
    assert late.full
    assert not late.overdrawn
    assert SHARE > 1
