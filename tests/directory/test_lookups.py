"""Lookups against a directory that is killed and comes back; time is the test's own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.directory import lookups
from mqmesh.directory.client import Client, ClientError
from mqmesh.directory.lookups import Lookups
from support.directories import Directory
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Directory]:
    """A directory that a test may kill, with a mesh of one broker."""
    made = Directory(f"sqlite:///{tmp_path / 'd.db'}", tmp_path / "log")
    made.accounts()
    alice = made.client("alice")
    alice.put("mesh", "ring")
    alice.put("broker", "porto", "ring", number=1)
    yield made
    made.kill()


def test_answers_are_kept_go_stale_and_come_back(own: Directory) -> None:
    now = [0.0]
    looked = Lookups(Client(own.url, PATIENCE), fresh=10, stale=100, clock=lambda: now[0])

    def numbers() -> tuple[list[int], float, bool]:
        found = looked.find("broker", "ring")
        return [one["number"] for one in found.records], found.age, found.stale

    assert numbers() == ([1], 0, False)
    own.client("alice").put("broker", "porto", "ring", number=2)
    now[0] = 10
    assert numbers() == ([1], 10, False), "kept"
    now[0] = 11
    assert numbers() == ([2], 0, False), "asked again"
    listen = own.url.removeprefix("http://")
    own.kill()
    now[0] = 50
    assert numbers() == ([2], 39, True)
    with pytest.raises(ClientError, match="does not answer"):
        looked.find("service")
    now[0] = 112
    with pytest.raises(ClientError, match="does not answer"):
        numbers()
    own.start(listen)
    assert numbers() == ([2], 0, False)


def test_while_it_is_away_nobody_waits_for_it_each_time(own: Directory) -> None:
    now, asked = [0.0], []

    class Counting(Client):
        def _request(self, method: str, path: str, body: object) -> dict[str, object]:
            asked.append(path)
            return super()._request(method, path, body)

    looked = Lookups(Counting(own.url, PATIENCE), fresh=1, stale=100, clock=lambda: now[0])
    looked.find()
    own.kill()
    now[0] = 2
    for _ in range(5):
        assert looked.find().stale
    assert len(asked) == 2
    now[0] = 2 + lookups.PAUSE
    assert looked.find().stale
    assert len(asked) == 3


def test_it_asks_again_by_itself(own: Directory) -> None:
    with Lookups(Client(own.url, PATIENCE), fresh=0.05, stale=100) as looked:
        looked.find("broker", "ring")
        own.client("alice").put("broker", "porto", "ring", number=9)
        wait_until(lambda: next(iter(looked._answers.values()))[1][0]["number"] == 9, PATIENCE, "new answer without a question")


def test_it_keeps_the_last_questions_only(own: Directory) -> None:
    looked = Lookups(Client(own.url, PATIENCE), most=2)
    for name in ("a", "b", "c"):
        looked.find("broker", "ring", name)
    assert [question[2] for question in looked._answers] == ["b", "c"]
    looked.find("broker", "ring").records.clear()
    assert len(looked.find("broker", "ring").records) == 1, "an answer is the caller's own"


def test_a_token_that_is_over_is_drawn_anew(own: Directory) -> None:
    alice = own.client("alice")
    own.client("alice")
    alice._call("DELETE", "/v1/tokens/current")
    alice.put("broker", "lyon", "ring", number=2)
    assert alice.get("broker", "lyon", "ring")["owner"] == "alice"


def test_while_it_is_away_one_question_waits_for_it_and_keeps_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """A directory that is stopped takes connections and does not answer: each question waits until its time is over."""
    now, asked, answers = [0.0], threading.Event(), queue.Queue[Any]()

    class Stopped:
        def find(self, sort: str = "", mesh: str | None = None, name: str | None = None) -> list[dict[str, Any]]:
            if name == "held":
                asked.set()
            answer = answers.get(timeout=PATIENCE)
            if isinstance(answer, Exception):
                raise answer
            return list(answer)

    away = ClientError(0, "", "it does not answer")
    looked = Lookups(Stopped(), fresh=1, stale=1000, clock=lambda: now[0])
    answers.put([{"name": "known"}])
    looked.find(name="known")
    now[0] = 100.0
    answers.put(away)
    assert looked.find(name="known").stale
    now[0] = 200.0
    held = threading.Thread(target=lambda: looked.find(name="held"))
    held.start()
    assert asked.wait(PATIENCE)
    assert looked.find(name="known").stale
    with pytest.raises(ClientError, match="does not answer"):
        looked.find(name="unknown")
    answers.put([])
    held.join()
    answers.put([])
    assert looked.find(name="unknown").records == []
    assert caplog.messages == ["event=directory-lookups-away text=it does not answer", "event=directory-lookups-back"]
