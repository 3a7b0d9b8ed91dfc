"""Clients that know nothing of surveillance, as recipient, alternative and originator, by the brokers' files alone.

Each kind plays all three parts: a message is delivered; the recipient hangs and its alternative, at another broker, gets the next one; both
hang and the message comes back to its originator; all wake, and the recipient is served again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from mqmesh.broker.config import BrokerConfig
from mqmesh.broker.recipients.settings import Application, Intervals, RecipientSettings
from mqmesh.cli.fleet.process import Fleet
from support.peers.talking_client import KINDS, TalkingClient, originator
from support.scenes import mesh
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.slow
SETTLE = 90.0
INTERVALS = Intervals(0.5, 1.0, 2.0)  # a message that has become the probe moves on once its recipient is defunct


class _Fleet(Fleet):
    def configuration(self, name: str) -> BrokerConfig:
        applications = []
        for kind in KINDS:
            backup = f"backup-{kind}"
            applications.append(Application(f"orders-{kind}", [f"taker-{kind}"], [], [backup], INTERVALS, broker="porto"))
            applications.append(Application(backup, [backup], intervals=INTERVALS, broker="lyon"))
        return replace(super().configuration(name), recipients=RecipientSettings(intervals=INTERVALS, applications=applications))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with _Fleet(mesh([("porto", "lyon")]), tmp_path_factory.mktemp("fleet")) as running:
        running.wait_settled(SETTLE)
        yield running


@pytest.mark.parametrize("kind", KINDS)
def test_recipient_alternative_and_originator(fleet: Fleet, kind: str) -> None:
    porto, lyon = (fleet.members[site].address.port for site in ("porto", "lyon"))
    name, backup, sender = f"orders-{kind}", f"backup-{kind}", f"sender-{kind}"
    returned = f"app/{originator(kind, sender)}/returned"
    with (
        TalkingClient(kind, porto, f"taker-{kind}", f"app/{name}/#") as taker,
        TalkingClient(kind, lyon, backup, f"app/{backup}/#") as stand_in,
        TalkingClient(kind, lyon, sender, returned) as origin,
    ):
        fleet.wait_settled(SETTLE)
        topic = f"app/{name}/new"
        origin.publish(topic, "one")
        taker.expect("one", topic)
        taker.hang()
        origin.publish(topic, "two")
        stand_in.expect("two", topic)
        stand_in.hang()
        origin.publish(topic, "three")
        origin.expect("three", returned)
        taker.wake()
        stand_in.wake()
        for number in range(1000):  # until its client has connected again
            body = f"again-{number}"
            origin.publish(topic, body)
            wait_until(partial(arrived, body, taker, stand_in, origin), PATIENCE, f"{body} anywhere")
            if has(taker, body):
                break
        assert has(taker, body)


def arrived(body: str, *clients: TalkingClient) -> bool:
    return any(has(one, body) for one in clients)


def has(client: TalkingClient, body: str) -> bool:
    return any(one[1] == body for one in client.got)
