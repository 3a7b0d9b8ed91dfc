"""The report of `mqmesh status` from what a broker said, its tables and pictures: whatever comes from the network."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.cli.status.picture import LARGEST, dot, drawn, edges
from mqmesh.cli.status.report import ATTACH, CLOCK, MESH, METABROKER, report
from mqmesh.cli.status.view import view
from rich.console import Console

NOW = 1_800_000_000.0
SYS = {
    "$SYS/broker/version": "mqmesh version 1",
    "$SYS/broker/name": "porto",
    "$SYS/broker/state": "ok",
    "$SYS/broker/store/state": "ok",
    "$SYS/broker/uptime": "100 seconds",
    CLOCK: str(int(NOW) - 5),
    "$SYS/broker/clients/connected": "3",
    "$SYS/broker/load/publish/received/1min": "90.00",
    "$SYS/broker/held/bytes": "10",
    "$SYS/broker/held/bytes/limit": "1000",
}


def ends(days: float) -> str:
    """An end of a certificate."""
    return datetime.fromtimestamp(NOW + days * 86400, UTC).strftime("%Y-%m-%d %H:%M UTC")


def member(number: int, name: str, live: bool = True, **more: Any) -> dict[str, Any]:
    return {"number": number, "name": name, "live": live, "hops": 1, "cost": 1, "filters": 0, "open": 0, "since": NOW - 60, **more}


def mesh(**more: Any) -> dict[str, Any]:
    return {
        "name": "porto",
        "number": 1,
        "mesh": "m",
        "links": [{"number": 2, "name": "lyon", "address": "mqtt://a:1", "up": True, "cost": 1, "since": NOW - 60}],
        "members": [member(1, "porto"), member(2, "lyon")],
        "graph": [[1, 2, 1, True]],
        "custody": {"messages": 1, "bytes": 2, "messages_limit": 10, "bytes_limit": 20},
        **more,
    }


def said(**more: Any) -> dict[str, str]:
    return {**SYS, MESH: json.dumps(mesh(**more))}


def shown(found: dict[str, Any]) -> str:
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(view(found, True))
    return out.getvalue()


def test_all_is_well() -> None:
    found = report({**said(), "$SYS/broker/tls/certificate/ends": ends(30)}, "here", NOW)
    assert (found["ok"], found["problems"]) == (True, [])
    assert (found["broker"]["clients"], found["broker"]["publish_in"], found["broker"]["uptime"]) == (3, 1.5, 105)
    assert [one["age"] for one in found["mesh"]["members"]] == [60, 60]
    assert "not well" not in shown(found)


def test_ages_are_by_the_brokers_clock() -> None:
    """Its clock is a day behind ours."""
    values = {**said(members=[member(1, "porto", since=NOW - 86_400 - 60)]), CLOCK: str(int(NOW) - 86_400)}
    assert report(values, "here", NOW)["mesh"]["members"][0]["age"] == 60


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({**SYS, "$SYS/broker/store/state": "the disk is full"}, "the broker is not well: the disk is full"),
        ({**SYS, "$SYS/broker/tls/certificate/ends": ends(2)}, "its certificate expires on "),
        ({**SYS, "$SYS/broker/tls/certificate/ends": ends(-1)}, "its certificate expired on "),
        ({**SYS, "$SYS/broker/held/bytes": "1000"}, "the broker is full"),
        (said(links=[{"number": 2, "name": None, "address": "mqtt://a:1", "up": False, "error": "nobody"}]), "is down: nobody"),
        (said(links=[{"name": "lyon", "up": True, "full": True, "unsent": 5000}]), "the link to lyon is full: 5,000 bytes"),
        (said(members=[member(2, "lyon", live=False, open=1200)]), "lyon (number 2) cannot be reached, waiting for it: 1,200 messages"),
        (said(custody={"messages": 10, "messages_limit": 10}), "custody is full: 10 messages"),
        ({**SYS, METABROKER + "m": '{"up":false}'}, "the metabroker m is down"),
        ({**SYS, METABROKER + "m": "?"}, "the metabroker m is down"),
        ({**SYS, METABROKER + "m": '{"up":true,"remotes":[{"remote":"r","up":false,"error":"gone"}]}'}, "the remote r of the metabroker m"),
        ({**SYS, ATTACH + "plant/state": "down", ATTACH + "plant/trouble": "no answer"}, "the attached broker plant is down: no answer"),
        ({}, "there is no $SYS here"),
    ],
)
def test_what_is_not_well(values: dict[str, str], problem: str) -> None:
    found = report(values, "here", NOW)
    assert len(found["problems"]) == 1
    assert problem in found["problems"][0]
    assert not found["ok"]
    assert problem in shown(found)


def test_a_metabroker_inside_a_broker_that_is_out_of_reach() -> None:
    """What it said last stands there still, retained."""
    values = {**said(members=[member(2, "lyon", live=False)]), METABROKER + "m": '{"up":true,"inside":"lyon"}'}
    found = report(values, "here", NOW)
    assert found["metabrokers"][0]["reachable"] is False
    assert "the metabroker m cannot be reached: it is inside lyon" in found["problems"]
    assert "metabroker m inside lyon  out of reach" in shown(found)
    assert report({**said(), METABROKER + "m": '{"up":true,"inside":"lyon"}'}, "here", NOW)["ok"]


def test_attached_brokers_are_shown() -> None:
    more = {ATTACH + "plant/state": "up", ATTACH + "plant/messages/out": "1200", ATTACH + "plant/messages/into": "7"}
    found = report({**SYS, **more}, "here", NOW)
    (plant,) = found["attached"]
    assert (plant["name"], plant["state"], plant["out"], plant["into"], plant["faults"]) == ("plant", "up", 1200, 7, None)
    assert found["ok"]
    assert "1,200" in shown(found)


def test_a_lost_connection_is_the_only_problem() -> None:
    assert report({}, "here", NOW, "it is gone")["problems"] == ["it is gone"]


SMALL = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANY = st.recursive(SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8)
ROW = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(["number", "name", "up", "live", "cost", "since", "next", "open", "unsent", "error"], ANY)
)
EDGE = st.lists(st.integers(0, 5) | st.booleans(), min_size=4, max_size=4) | ANY
STATUS = st.fixed_dictionaries(
    {},
    optional={
        "name": ANY,
        "number": ANY,
        "links": st.lists(ROW | ANY, max_size=3) | ANY,
        "members": st.lists(ROW | ANY, max_size=3) | ANY,
        "graph": st.lists(EDGE, max_size=4) | ANY,
        "custody": ANY,
        "metabrokers": ANY,
        "remotes": st.lists(ROW, max_size=2) | ANY,
        "sessions": ANY,
    },
)


@given(STATUS | ANY, STATUS | ANY, st.text(max_size=8))
def test_whatever_a_broker_says_is_shown(status: Any, metabroker: Any, number: str) -> None:
    """A foreign broker may have anything under these names, and anybody may have published it."""
    values = {**dict.fromkeys(SYS, number), MESH: json.dumps(status), METABROKER + number: json.dumps(metabroker)}
    found = report(values, "here", NOW)
    json.loads(json.dumps(found, allow_nan=False))
    text = shown(found)
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    if found["mesh"] is not None:
        assert dot(found["mesh"]).endswith("}")


# Pictures


def test_each_broker_and_link_is_drawn() -> None:
    found = report(
        said(
            members=[member(1, "porto"), member(2, "lyon"), member(3, "turin", live=False)],
            graph=[[1, 2, 7, True], [2, 3, 1, False]],
            links=[{"number": 3, "name": None, "address": "mqtt://t:1", "up": False, "cost": 1, "error": "refused"}],
        ),
        "here",
        NOW,
    )["mesh"]
    picture = drawn(found)
    assert all(label in picture for label in ("[*porto 1]", "[lyon 2]", "(turin 3)", "7", "."))
    assert [tuple(edge) for edge in edges(found)] == [(1, 2, 7, True), (2, 3, 1, False), (1, 3, 1, False)]
    assert '1 -- 2 [label="7"];' in dot(found)
    assert "1 -- 3 [style=dashed, color=red];" in dot(found)


def test_a_mesh_that_is_too_large_for_characters() -> None:
    members = [member(number, f"b{number}") for number in range(LARGEST + 1)]
    found = report(said(members=members, graph=[[n, n + 1, 1, True] for n in range(LARGEST)]), "here", NOW)
    with pytest.raises(ValueError, match="too many"):
        drawn(found["mesh"])
    assert "--dot" in shown(found)
    assert dot(found["mesh"]).count(" -- ") == LARGEST


def test_names_cannot_leave_their_place_in_a_graph() -> None:
    found = report(said(members=[member(1, 'a"]; evil\n')]), "here", NOW)["mesh"]
    assert '1 [label="a\\"]; evil? 1"' in dot(found)
