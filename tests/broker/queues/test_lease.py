"""The lease of a store that several brokers take in turn: who has it, until when, and that nobody else writes (`log/lease.py`)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from mqmesh.broker.queues.log.lease import lease_of
from mqmesh.broker.queues.log.places.postgresql import PostgresqlSegments
from mqmesh.store import postgresql_lease
from mqmesh.store.postgresql_lease import Lease
from support.examples import examples
from support.peers.postgres import Server, server
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.service
BROKERS = st.integers(0, 2)
SECONDS = 5.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as running:
        yield running


class Leases(RuleBasedStateMachine):
    """Three brokers, a clock that only this test moves. What is written is known by token and number."""

    postgres: Server

    @initialize()
    def begin(self) -> None:
        self.url = f"{self.postgres.url}?schema=lease_{next(_numbers)}"
        self.admin = psycopg.connect(self.postgres.url, autocommit=True)
        self.clock = f"clock_{next(_numbers)}"
        self.admin.execute(f"CREATE TABLE {self.clock} AS SELECT 0 AS now")
        self.now = self.until = 0
        self.token = 0
        self.holder: int | None = None  # who took it last
        self.alive = False  # the holder's connection
        self.brokers = [self.broker(number) for number in range(3)]
        self.known = [0, 0, 0]  # the tokens that they have
        self.logs: list[PostgresqlSegments | None] = [None, None, None]
        self.written: dict[int, int] = {}  # token -> bytes

    def broker(self, number: int) -> Lease:
        now = f"(SELECT 'epoch'::timestamptz + now * interval '1 second' FROM public.{self.clock})"
        return lease_of(self.url, f"broker{number}", SECONDS, now)

    def teardown(self) -> None:
        for one in (*self.logs, *self.brokers):
            if one is not None:
                one.close()
        self.admin.close()

    @rule(number=BROKERS)
    def take(self, number: int) -> None:
        if self.holder == number and self.known[number] == self.token:
            return
        if self.alive and self.holder is not None:
            assert not self.taken(number)
            if self.until >= self.now:
                assert not self.taken(number)
                return
            self.alive = False
            wait_until(lambda: self.taken(number), PATIENCE, "end of the silent one")
        else:
            wait_until(lambda: self.taken(number), PATIENCE, "end of the connection")
        assert self.brokers[number].token == self.token + 1
        self.token += 1
        self.holder, self.alive, self.until = number, True, self.now + int(SECONDS)
        self.known[number] = self.token
        log = self.logs[number] = PostgresqlSegments(self.url, False, self.brokers[number])
        assert [log.size(one) for one in log.open()] == list(self.written.values())

    def taken(self, number: int) -> bool:
        try:
            return self.brokers[number].take()
        except OSError:
            return False  # its connection was ended: it hears that first

    @rule(number=BROKERS)
    def renew(self, number: int) -> None:
        if not self.known[number]:
            return
        ours = self.known[number] == self.token
        try:
            assert self.brokers[number].renew() == ours
        except OSError:
            assert not ours  # its connection was ended: it hears that first
            assert not self.brokers[number].renew()
        if ours:
            self.until, self.alive = self.now + int(SECONDS), True

    @rule(number=BROKERS)
    def write(self, number: int) -> None:
        """Who does not have the lease any more cannot write, whatever it believes."""
        log, token = self.logs[number], self.known[number]
        if log is None:
            return
        size = self.written.get(token, 0)
        try:
            if not size:
                log.begin(token)
            log.append(token, size, [b"x" * 10])
            log.commit()
            written = True
        except OSError:
            log.undo(token, size)
            written = False
        assert written == (token == self.token)
        if written:
            self.written[token] = size + 10

    @rule(seconds=st.integers(1, 7))
    def time(self, seconds: int) -> None:
        self.now += seconds
        self.admin.execute(f"UPDATE {self.clock} SET now = %s", (self.now,))

    @rule(number=BROKERS)
    def lose_connections(self, number: int) -> None:
        """A broker is cut off for a moment, or killed: the server notices."""
        self.brokers[number].close()
        if self.holder == number:
            self.alive = False

    @precondition(lambda self: self.token)
    @invariant()
    def nothing_is_lost_and_nothing_is_added(self) -> None:
        schema = self.url.rpartition("=")[2]
        found = self.admin.execute(f"SELECT segment, sum(octet_length(data)) FROM {schema}.frames GROUP BY 1").fetchall()
        assert {int(one): int(size) for one, size in found} == self.written


def test_only_who_has_the_lease_writes(postgres: Server) -> None:
    Leases.postgres = postgres
    run_state_machine_as_test(Leases, settings=settings(max_examples=examples(15), stateful_step_count=25, deadline=None))


def test_a_transaction_that_does_not_end_is_ended(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a program that stands still in the middle of it: nobody could take the lease from it."""
    monkeypatch.setattr(postgresql_lease, "PATIENCE", 0.05)
    url = f"{postgres.url}?schema=lease_{next(_numbers)}"
    first, second = lease_of(url, "lyon", SECONDS), lease_of(url, "porto", SECONDS)
    assert first.take()
    log = PostgresqlSegments(url, True, first)
    log.open()
    log.begin(1)
    log.append(1, 0, [b"first"])
    first.close()
    wait_until(second.take, PATIENCE, "lease")
    with pytest.raises(OSError):
        log.commit()
    log.close()
    again = PostgresqlSegments(url, True, second)
    assert list(again.open()) == [], "what was not committed is not there"
    again.close()
    second.close()


def test_a_transaction_that_has_begun_keeps_others_from_the_lease_until_it_ends(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_lease, "PATIENCE", 1000.0)
    url = f"{postgres.url}?schema=lease_{next(_numbers)}"
    first, second = lease_of(url, "lyon", SECONDS), lease_of(url, "porto", SECONDS)
    assert first.take()
    log = PostgresqlSegments(url, True, first)
    log.open()
    log.begin(1)
    log.append(1, 0, [b"first"])
    first.close()
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE lease SET token%'"
        taken: list[bool] = []
        thread = threading.Thread(target=lambda: taken.append(second.take()))
        thread.start()
        wait_until(lambda: admin.execute(query).fetchone() == (1,), PATIENCE, "broker that waits")
        log.commit()
        thread.join()
    assert taken == [True]
    with pytest.raises(OSError, match="another broker has taken it"):
        log.append(1, 5, [b"late"])
    log.undo(1, 5)
    log.close()
    again = PostgresqlSegments(url, True, second)
    assert [again.read(one, 0, 100) for one in again.open()] == [b"first"]
    again.close()
    second.close()
