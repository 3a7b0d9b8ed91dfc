"""Windows let each position in once, whatever comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.custody.windows import CustodyWindow, Pending, SlidingWindow

runs = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), max_size=40)


@given(runs, st.integers(64, 512))
def test_a_sliding_window_lets_each_sequence_in_once(given_runs: list[tuple[int, int]], size: int) -> None:
    window = SlidingWindow(size)
    taken: set[int] = set()
    top = 0
    for first, count in given_runs:
        last = first + count - 1
        parts = window.take(first, last)
        top = max(top, last)
        new = {s for low, high in parts for s in range(low, high + 1)}
        assert len(new) == sum(high - low + 1 for low, high in parts)
        assert not new & taken
        assert new == {s for s in range(first, last + 1) if s not in taken and s > top - size}
        assert parts == sorted(parts)
        taken |= new


def test_a_sliding_window_jumps_far() -> None:
    window = SlidingWindow(8)
    assert window.take(1, 3) == [(1, 3)]
    assert window.take(2**60, 2**60) == [(2**60, 2**60)]
    assert window.take(2**60 - 20, 2**60 - 10) == []
    assert window.take(2**60 - 9, 2**60 + 1) == [(2**60 - 6, 2**60 - 1), (2**60 + 1, 2**60 + 1)]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_commits_in_any_order_move_the_position_in_order(counts: list[int], chance: object) -> None:
    window = CustodyWindow()
    pending = []
    at = 0
    for count in counts:
        pending.append(window.take(5, at + 1, at + count))
        at += count
    assert window.seen == (5, at)
    done: set[int] = set()
    order = list(range(len(pending)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    for index in order:
        before = window.committed
        moved = window.commit(pending[index])
        done.add(index)
        row = 0
        while row in done:
            row += 1
        assert window.committed == ((5, pending[row - 1].last) if row else (0, 0))
        assert moved == (window.committed != before)


def test_refusals_stay_until_they_are_noted() -> None:
    window = CustodyWindow()
    first, second = window.take(5, 1, 4), window.take(5, 5, 6)
    first.refusals.append(("g", "f"))
    second.refusals.append(("h", "f"))
    window.commit(second)
    assert not window.refusals
    window.commit(first)
    assert [(r.first, r.last, r.share[0]) for r in window.refusals] == [(1, 4, "g"), (5, 6, "h")]
    window.noted((5, 4))
    assert [r.share[0] for r in window.refusals] == ["h"]
    window.noted((6, 0))
    assert not window.refusals


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.booleans()), max_size=30), st.data())
def test_what_goes_ahead_is_carried_out_once(sent: list[tuple[bool, int, bool]], data: st.DataObject) -> None:
    """sent: whether it goes ahead, how many sequences, whether they are for somebody else. In each life some of it is carried out."""
    stream, sequence = [], 0
    for ahead, count, elsewhere in sent:
        if not elsewhere:
            stream.append((ahead, range(sequence + 1, sequence + count + 1)))
        sequence += count
    done: list[int] = []
    window = CustodyWindow()
    for life in range(3):
        last = life == 2
        comes = [one for one in stream if (5, one[1][0]) > window.seen][: None if last else data.draw(st.integers(0, len(stream)))]
        held = []
        for ahead, numbers in comes:
            pending = window.take(5, numbers[0], numbers[-1])
            if ahead and held:
                done += [number for number in numbers if not window.came_early(5, number)]
                window.hand_over_early(pending)
            else:
                held.append((pending, numbers))
                if not ahead and data.draw(st.booleans()):
                    continue
                carry_out(window, held, done)
        if last or data.draw(st.booleans()):
            carry_out(window, held, done)
        window = CustodyWindow(window.handed, early=list(window.early))
    assert sorted(done) == [number for _, numbers in stream for number in numbers]


def carry_out(window: CustodyWindow, held: list[tuple[Pending, range]], done: list[int]) -> None:
    """All that waits, in order."""
    for pending, numbers in held:
        done += [number for number in numbers if not window.came_early(5, number)]
        window.hand_over(pending)
    held.clear()
