"""The thread that keeps a lease says when it cannot ask for it, and when it can again."""

from __future__ import annotations

import logging

import pytest
from mqmesh.store.lease_keeper import Keeper
from support.services import PATIENCE, wait_until


class Lease:
    """answers: what the database says, one question after the other; an error is raised. The last one stays."""

    token, seconds, offset = 1, 0.01, None

    def __init__(self, *answers: bool | OSError) -> None:
        self.answers = list(answers)

    def take(self) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    renew = take

    def close(self) -> None:
        pass


def test_a_lease_that_can_be_asked_for_again_is_said(caplog: pytest.LogCaptureFixture) -> None:
    lease, away = Lease(True, OSError(5, "no server"), OSError(5, "no server"), True), "event=queues-lease text=no server"
    with caplog.at_level(logging.INFO):
        keeper = Keeper(lease, lambda call, *words: call(*words), lambda token: None, lambda: None, lambda: None)
        wait_until(lambda: len(lease.answers) == 1 and len(caplog.messages) > 1, PATIENCE, "word of the end")
        keeper.close()
    assert caplog.messages == [away, "event=queues-lease-back text=it can be asked for again"]
