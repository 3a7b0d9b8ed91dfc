"""The sessions of a metabroker as a list of management."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mqmesh.broker.auth.roles import ALL
from mqmesh.broker.management.asked import asked
from mqmesh.broker.management.gathering import Gathering
from mqmesh.broker.management.site_work import SiteWork
from mqmesh.metabroker.core.sessions import Durable, Session
from mqmesh.metabroker.shell.listing import NAME, sessions_listing

REMOTE: Any = SimpleNamespace(credentials=SimpleNamespace(remote="mqtt://far", username="u"), up=True, sessions={"a", "b"}, reason="")


def test_sessions_without_their_identifiers() -> None:
    sessions = {name: Session(name, f"client-{name}", REMOTE, SimpleNamespace(), 0.0, 0.0) for name in ("secret-1", "secret-2", "secret-3")}  # type: ignore[arg-type]
    sessions["secret-2"].durable = Durable(60, kept={1: 5}, bytes=5)
    work = SiteWork("porto")
    work.lists.add(sessions_listing(lambda: sessions))
    request = asked({"list": NAME, "limit": 2})
    walk = work.walk(request, ALL)
    try:
        while True:
            next(walk)
    except StopIteration as stop:
        part = stop.value
    gathering = Gathering(request, {1: "porto"}, {}, 0.0)
    gathering.part(1, part)
    answer = gathering.answer()
    assert [(row["client"], row["remote"], row["durable"], row["kept"], row["sharers"]) for row in answer["rows"]] == [
        ("client-secret-1", "mqtt://far", False, None, 2),
        ("client-secret-2", "mqtt://far", True, 1, 2),
    ]
    assert answer["cursor"] is not None
    assert not any(value in sessions for row in answer["rows"] for value in row.values())
    assert b"secret-2" not in part["rows"][1][1]
