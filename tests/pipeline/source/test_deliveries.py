"""Numbers of messages over lost connections and restarts: a model of a durable session, broken at random."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.pipeline.source.deliveries import Deliveries, Offset, checksum, split


class Session:
    """A broker's session as MQTT 5 has it: packet identifiers, in flight until they are acknowledged, sent again with DUP in order."""

    def __init__(self, most: int) -> None:
        self.waiting: list[str] = []
        self.flight: list[tuple[int, str]] = []
        self._most, self._next, self._seen = most, 0, set()

    def send(self, again: bool) -> list[tuple[int, str, bool]]:
        """What goes over the connection now. again: it is a new one."""
        sent = [(number, text, number in self._seen) for number, text in self.flight] if again else []
        while self.waiting and len(self.flight) < self._most:
            used = {number for number, _ in self.flight}
            self._next = next(n for n in ((self._next + i) % self._most + 1 for i in range(self._most + 1)) if n not in used)
            message = (self._next, self.waiting.pop(0))
            self.flight.append(message)
            sent.append((*message, False))
        self._seen |= {number for number, _, _ in sent}
        return sent

    def acknowledge(self, number: int) -> None:
        self.flight = [one for one in self.flight if one[0] != number]
        self._seen.discard(number)


class Query:
    """Spark: plans a batch, runs it, commits; may be killed between any two steps. done: what the batches held."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.deliveries = Deliveries()
        self.start, self.planned = Offset(), None
        self.done: list[str] = []
        self._take(True, True)

    def _take(self, again: bool, present: bool = True) -> None:
        if again:
            self.deliveries.connected(present)
        for number, text, dup in self.session.send(again):
            if self.deliveries.came((number, checksum("t", text.encode())), dup, text):
                self.session.acknowledge(number)

    def reconnect(self) -> None:
        self._take(True)

    def restart(self) -> None:
        """The process is killed: what is left is the checkpoint."""
        self.deliveries = Deliveries()
        self.deliveries.restore(self.start, self.planned)
        self._take(True)

    def plan(self, most: int) -> None:
        self._take(False)
        count = min(self.start.count + most, self.deliveries.latest)
        if self.planned is None and count > self.start.count:
            self.planned = Offset.of(self.deliveries.offset(self.start, count).json())

    def run(self, acknowledged: int) -> None:
        """Run the planned batch and commit it. acknowledged: so many of its acknowledgements reach the broker."""
        if self.planned is None:
            return
        assert self.deliveries.whole(self.start.count, self.planned.count)
        self.done += self.deliveries.rows(self.start.count, self.planned.count)
        self.start, self.planned = self.planned, None
        for number, _ in self.deliveries.commit(self.start.count)[:acknowledged]:
            self.session.acknowledge(number)
        if acknowledged < self.start.last:
            self.restart()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(1, 6)),
        st.tuples(st.just("plan"), st.integers(1, 5)),
        st.tuples(st.just("run"), st.integers(0, 12)),
        st.tuples(st.just("reconnect"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(2, 9))
def test_each_message_is_in_one_batch_in_order(steps, most):
    session = Session(most)
    query, sent = Query(session), 0
    for step, amount in steps:
        if step == "come":
            session.waiting += [f"message {number}" for number in range(sent, sent + amount)]
            sent += amount
        elif step == "plan":
            query.plan(amount)
        elif step == "run":
            query.run(amount)
        elif step == "reconnect":
            query.reconnect()
        else:
            query.restart()
    for _ in range(2 * sent + 2):
        query.plan(3)
        query.run(12)
    assert query.done == [f"message {number}" for number in range(sent)]
    assert not session.flight


def test_a_lost_session_acknowledges_nothing_of_the_old_one():
    deliveries = Deliveries()
    deliveries.connected(False)
    deliveries.came((1, 10), False, "a")
    deliveries.connected(False)
    deliveries.came((1, 20), False, "b")
    assert deliveries.rows(0, 2) == ["a", "b"]
    assert deliveries.commit(2) == [(1, 20)]


def test_parts_are_even():
    assert list(split(list(range(7)), 3)) == [[0, 1, 2], [3, 4], [5, 6]]
    assert list(split([1], 5)) == [[1]]
