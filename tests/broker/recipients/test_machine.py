"""The machine of one recipient: every state with every input, against a plain reference, and over 10,000 simulated days."""

from __future__ import annotations

from collections import deque
from itertools import product
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mqmesh.broker.recipients.machine import TABLE, Action, Input, Machine, State, step
from mqmesh.broker.recipients.settings import Intervals
from support.examples import examples, how_many

DAY = 86400.0
DAYS = how_many("MQMESH_RECIPIENT_DAYS", 200)
IMPOSSIBLE = {
    (State.OPERATIONAL, Input.DEFUNCT_OVER),
    (State.FAULT, Input.FAULT_OVER),
    (State.DEFUNCT, Input.FAULT_OVER),
    (State.DEFUNCT, Input.DEFUNCT_OVER),
}


@pytest.mark.parametrize(("state", "event"), list(product(State, Input)))
def test_every_state_with_every_input(state: State, event: Input) -> None:
    if (state, event) in IMPOSSIBLE:
        with pytest.raises(ValueError, match=event.name):
            step(state, event)
        return
    after, actions = TABLE[state, event]
    if event in (Input.SUCCESS, Input.CONNECTED):
        assert after is State.OPERATIONAL  # F11: both restore at once
        assert (Action.RESTORE in actions) == (state is not State.OPERATIONAL)
    if after is state:
        assert not actions
    if after is State.DEFUNCT and state is not State.DEFUNCT:
        assert actions == (Action.CLOSE,)  # F10


def test_f3_any_success_begins_the_fault_interval_anew() -> None:
    machine = Machine(0.0, Intervals(1, 3, 10))
    machine.feed(Input.ATTEMPT, 0.0)
    machine.feed(Input.SUCCESS, 2.9, True)
    assert machine.due(5.8) is None
    assert machine.due(5.9) is Input.FAULT_OVER


def test_f3_nothing_to_deliver_is_no_fault() -> None:
    machine = Machine(0.0, Intervals(1, 3, 10))
    assert machine.due(1e9) is None
    machine.feed(Input.ATTEMPT, 0.0)
    machine.feed(Input.CLEARED, 1.0)
    assert machine.due(1e9) is None
    machine.feed(Input.ATTEMPT, 2.0)
    machine.feed(Input.FAILED, 3.0)
    machine.feed(Input.CLEARED, 3.0)  # it has failed: that nothing is left does not make it whole
    assert machine.due(5.0) is Input.FAULT_OVER


def test_f9_the_defunct_interval_begins_where_the_fault_is_found() -> None:
    machine = Machine(0.0, Intervals(1, 3, 10))
    machine.feed(Input.ATTEMPT, 0.0)
    assert machine.feed(Input.FAULT_OVER, 3.0) == (Action.FAIL_OVER,)
    assert machine.deadline == 13.0
    machine.feed(Input.DEFUNCT_OVER, 13.0)
    assert machine.deadline is None
    assert [(one.before, one.after) for one in machine.history] == [
        (State.OPERATIONAL, State.FAULT),
        (State.FAULT, State.DEFUNCT),
    ]


class Reference(RuleBasedStateMachine):
    """A recipient told in words: a list of times, looked through each time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.intervals = Intervals(1, 3, 10)
        self.machine = Machine(0.0, self.intervals)
        self.state = State.OPERATIONAL
        self.begun = 0.0
        self.told: list[tuple[float, str]] = []  # attempts, successes, failures, and moments with nothing left

    def failing(self) -> float | None:
        """Since when nothing has succeeded, told from the whole history."""
        since: float | None = None
        lost = False
        for at, what in self.told:
            if what == "success, more left":
                since, lost = at, False
            elif what == "connected":
                since, lost = None, False
            elif what == "attempt" and since is None:
                since = at
            elif what == "failed":
                lost = True
                since = at if since is None else since
            elif what == "nothing left" and not lost:
                since = None
        return since

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        event = self.machine.due(self.now)
        since = self.failing()
        expected = None
        if self.state is State.OPERATIONAL and since is not None and self.now >= since + self.intervals.fault:
            expected = Input.FAULT_OVER
        elif self.state is State.FAULT and self.now >= self.begun + self.intervals.defunct:
            expected = Input.DEFUNCT_OVER
        assert event is expected
        if event is not None:
            self.machine.feed(event, self.now)
            self.state = State.FAULT if event is Input.FAULT_OVER else State.DEFUNCT
            self.begun = self.now

    @rule()
    def attempt(self) -> None:
        self.machine.feed(Input.ATTEMPT, self.now)
        self.told.append((self.now, "attempt"))

    @rule()
    def success(self) -> None:
        self.machine.feed(Input.SUCCESS, self.now, True)
        self.told.append((self.now, "success, more left"))
        self._restored()

    @rule()
    def failed(self) -> None:
        self.machine.feed(Input.FAILED, self.now)
        self.told.append((self.now, "failed"))

    @rule()
    def cleared(self) -> None:
        self.machine.feed(Input.CLEARED, self.now)
        self.told.append((self.now, "nothing left"))

    @precondition(lambda self: self.state is not State.OPERATIONAL)
    @rule()
    def connected(self) -> None:
        self.machine.feed(Input.CONNECTED, self.now)
        self.told.append((self.now, "connected"))
        self._restored()

    @rule()
    def declared(self) -> None:
        self.machine.feed(Input.DECLARED, self.now)
        if self.state is not State.DEFUNCT:
            self.state, self.begun = State.DEFUNCT, self.now

    def _restored(self) -> None:
        if self.state is not State.OPERATIONAL:
            self.state, self.begun = State.OPERATIONAL, self.now

    @invariant()
    def they_agree(self) -> None:
        assert self.machine.state is self.state
        assert self.machine.since == self.begun
        assert self.machine.failing == self.failing()


TestReference = Reference.TestCase
TestReference.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(4))
def test_days_of_one_recipient(seed: int) -> None:
    """Each message is delivered or fails over, none is stuck for longer than its interval allows, and FAULT has its cause."""
    random = Random(seed)
    intervals = Intervals(10, 300, 3600)
    machine = Machine(0.0, intervals)
    waiting: deque[float] = deque()
    alive, now = True, 0.0
    came = delivered = failed_over = 0
    last_success = -1.0
    end = DAYS / 4 * DAY
    while now < end:
        now += random.expovariate(1 / 60)
        if random.random() < 0.002:
            alive = not alive
            if alive and machine.state is State.DEFUNCT:
                machine.feed(Input.CONNECTED, now)
        event = machine.due(now)
        while waiting and machine.state is State.OPERATIONAL and not alive and waiting[0] + intervals.message <= now:
            waiting.popleft()
            failed_over += 1
            machine.feed(Input.FAILED, now)
        if event is Input.FAULT_OVER:
            assert now - last_success >= intervals.fault
        if event is not None:
            machine.feed(event, now)
            keep = 1 if machine.state is State.FAULT else 0
            while len(waiting) > keep:
                waiting.pop()
                failed_over += 1
        if random.random() < 0.5:
            came += 1
            if machine.state is State.OPERATIONAL or (machine.state is State.FAULT and not waiting):
                machine.feed(Input.ATTEMPT, now)
                waiting.append(now)
            else:
                failed_over += 1
        if alive and machine.state is not State.DEFUNCT and waiting:
            delivered += len(waiting)
            waiting.clear()
            last_success = now
            machine.feed(Input.SUCCESS, now)
            assert machine.state is State.OPERATIONAL
        assert came == delivered + failed_over + len(waiting)
        assert machine.state is State.OPERATIONAL or len(waiting) <= 1
    assert failed_over
    assert delivered
