"""The two tables: every state with every input (rows Q1 to Q5), plans and the rule that switches by load (Q7 to Q10)."""

from __future__ import annotations

from itertools import product

import pytest
from mqmesh.broker.queues.core.plan import ALL, POOL, LoadRule, plan_of
from mqmesh.broker.queues.core.states import (
    PUBLISHER,
    SUBSCRIBER,
    Act,
    IllegalMove,
    Publisher,
    Step,
    Subscriber,
    act,
    name_of,
    step,
)


@pytest.mark.parametrize(("state", "what"), list(product(Publisher, Act)))
def test_every_publisher_state_with_every_input(state: Publisher, what: Act) -> None:
    if (state, what) in PUBLISHER:
        assert act(state, what) is PUBLISHER[state, what]
    else:
        with pytest.raises(IllegalMove, match=what.name):
            act(state, what)


@pytest.mark.parametrize(("state", "what"), list(product(Subscriber, Step)))
def test_every_subscriber_state_with_every_input(state: Subscriber, what: Step) -> None:
    if (state, what) in SUBSCRIBER:
        assert step(state, what) is SUBSCRIBER[state, what]
    else:
        with pytest.raises(IllegalMove, match=what.name):
            step(state, what)


def test_q2_what_is_done_comes_again_only_if_it_is_revealed_again() -> None:
    leads = {(before, after) for (before, _), after in SUBSCRIBER.items() if before not in (Subscriber.CLEAN, Subscriber.EXPIRED)}
    ended = {Subscriber.UNUSABLE, Subscriber.DONE, Subscriber.JOURNALLED, Subscriber.JOURNALLED_IMPLIED}
    assert {before for before, after in leads if after is Subscriber.CLEAN and before in ended} == ended - {Subscriber.DONE}
    assert all(what is Step.REVEAL_AGAIN for (before, what), after in SUBSCRIBER.items() if before in ended and after is Subscriber.CLEAN)


def test_states_have_the_names_of_the_source_and_no_value_twice() -> None:
    assert name_of(Subscriber.IN_PROCESS) == "IN PROCESS"
    assert name_of(Subscriber.JOURNALLED_IMPLIED) == "JOURNALLED (IMPLIED)"
    assert not {int(one) for one in Publisher} & {int(one) for one in Subscriber}


@pytest.mark.parametrize("text", ["all", "pool", "a | b, c", "a > b | c > d", "a"])
def test_plans_are_read_and_written(text: str) -> None:
    assert str(plan_of(text)) == text


@pytest.mark.parametrize("text", ["", "a,,b", "a | a", "a, a", "a, b > c", "|"])
def test_a_wrong_plan_is_told_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"give|name"):
        plan_of(text)


def test_q10_the_plan_switches_by_load_and_back() -> None:
    rule = LoadRule(ALL, POOL, 10, 5)
    assert [rule.plan(waiting) for waiting in (0, 9, 10, 7, 5, 9)] == [ALL, ALL, POOL, POOL, ALL, ALL]
