"""The audit trail notices every change: each one of a set of changes at each place, and chance ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.pipeline.audit.chain import START, Broken, Head, chained, line, verify

RECORDS = [{"time": f"2026-11-22T10:00:0{n}Z", "who": "ops", "what": "managed", "of": f"site-{n}"} for n in range(5)]
LINES = [line(record) for record in chained(RECORDS)]


def test_a_whole_chain_gives_its_head() -> None:
    head = verify(LINES)
    assert head.number == 5
    assert verify(LINES, Head.parse(str(head))) == head
    assert verify([]) == Head(0, START)


def test_a_chain_goes_on() -> None:
    first = list(chained(RECORDS[:2]))
    more = [line(record) for record in chained(RECORDS[2:], Head(2, first[-1]["hash"]))]
    assert [line(record) for record in first] + more == LINES
    assert verify(more, start=Head(2, first[-1]["hash"])) == verify(LINES)


@pytest.mark.parametrize("place", range(5))
def test_each_change_is_found(place: int) -> None:
    record = json.loads(LINES[place])
    for change in ({"who": "nobody"}, {"extra": 1}, {"before": "1" * 64}, {"hash": "1" * 64}, {"number": 9}):
        with pytest.raises(Broken):
            verify([*LINES[:place], line(record | change), *LINES[place + 1 :]])
    with pytest.raises(Broken):
        verify([*LINES[:place], line({key: value for key, value in record.items() if key != "who"}), *LINES[place + 1 :]])


@pytest.mark.parametrize("place", range(4))
def test_removing_repeating_and_moving_are_found(place: int) -> None:
    with pytest.raises(Broken, match="missing, repeated or moved"):
        verify(LINES[:place] + LINES[place + 1 :])
    with pytest.raises(Broken, match="missing, repeated or moved"):
        verify([*LINES[: place + 1], *LINES[place:]])
    with pytest.raises(Broken):
        verify([*LINES[:place], LINES[place + 1], LINES[place], *LINES[place + 2 :]])


def test_a_cut_end_is_found_by_who_noted_the_head() -> None:
    head = verify(LINES)
    assert verify(LINES[:3]).number == 3
    with pytest.raises(Broken, match="the end is cut off"):
        verify(LINES[:3], head)


def test_a_chain_that_is_made_anew_is_found_by_who_noted_a_head() -> None:
    noted = verify(LINES[:3])
    forged = [line(record) for record in chained([*RECORDS[:2], {"what": "nothing"}, *RECORDS[3:]])]
    verify(forged)
    with pytest.raises(Broken, match="record 3 is not the one that was noted"):
        verify(forged, noted)


@pytest.mark.parametrize("text", ["", "\n", "x\n", "[]\n", '{"number": true}\n'])
def test_what_is_no_record_is_named(text: str) -> None:
    with pytest.raises(Broken, match=r"^line 1 "):
        verify([text])


@pytest.mark.parametrize("text", ["5", "x:0", "5:" + "g" * 64, "-1:" + "0" * 64])
def test_a_head_has_one_form(text: str) -> None:
    with pytest.raises(ValueError, match="NUMBER:HASH"):
        Head.parse(text)


@given(st.lists(st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text()), max_size=8))
def test_any_records_can_be_chained(records: list[dict[str, object]]) -> None:
    kept = [{key: value for key, value in record.items() if key not in ("number", "before", "hash")} for record in records]
    assert verify([line(record) for record in chained(kept)]).number == len(kept)
