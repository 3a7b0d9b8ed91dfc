"""Single messages that are acknowledged by receipts, without a commit: neither end loses one when it is killed right after that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.broker.mesh.custody_store import RECIPIENT
from mqmesh.broker.persistence.codec import run_of
from mqmesh.mqtt.packets import Connack, Connect, Pingreq, Pingresp, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.store.sqlite import SqliteStore
from support import command
from support.raw_client import RawClient
from support.sites_with_data import Site

pytestmark = pytest.mark.slow

MESH = 'number = {}\n[mesh]\nname = "m"\nkey = "a key of sixteen bytes"\n'
PATIENT = """
from mqmesh.broker.mesh import hold_back
from mqmesh.cli.main import program
hold_back.HOLD, hold_back.PAUSE = 300.0, 0.0  # a slow machine holds back too
program()
"""
KILLS = 3
MOST = 30  # something else to be written ends a hold, so that not each kill is of a broker which has not written the message


class Chain:
    """Three brokers in a row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sites: list[Site] = []
        for number in (1, 2, 3):
            (folder / str(number)).mkdir()
            peer = f'[[mesh.peer]]\naddress = "{self.sites[-1].url}"\n' if self.sites else ""
            self.sites.append(Site(folder / str(number), f'name = "site{number}"\n' + MESH.format(number) + peer))
        self.sent = 0

    def listen(self, expiry: bool = False) -> RawClient:
        """A subscriber at the third broker. expiry: of a durable session."""
        if expiry:
            client = self.sites[2].client("listener")
        else:
            client = self._dial(2, "listener")
        client.send(Subscribe(1, [Subscription("t", 1)], {}))
        client.expect(Suback)
        return client

    def speak(self) -> RawClient:
        """A publisher at the first broker."""
        return self._dial(0, f"publisher-{self.sent}")

    def _dial(self, site: int, name: str) -> RawClient:
        client = RawClient(self.sites[site].port)
        client.send(Connect(name, 5, True, 0, None, None, None, {}))
        client.expect(Connack)
        return client

    def publish(self, client: RawClient) -> bytes:
        """One message, acknowledged."""
        self.sent += 1
        payload = b"%d" % self.sent
        client.send(Publish("t", payload, 1, packet_id=self.sent))
        assert client.expect(Puback).reason < 0x80
        return payload

    def warm(self, publisher: RawClient, listener: RawClient) -> None:
        """The mesh has formed, and messages take the direct lane."""
        self.publish(publisher)
        while not _came(listener):
            self.publish(publisher)
        for _ in range(3):
            payload = self.publish(publisher)
            _until(listener, payload)

    def kept(self) -> set[bytes]:
        """The messages for other brokers in the store of the first one, which is down."""
        store = SqliteStore(self.folder / "1" / "data" / "store.db")
        store.attach()
        try:
            runs = store.runs({row.run for row in store.deliveries(RECIPIENT)})
            return {payload for run in runs.values() for payload in run_of(run, 0.0).payloads}
        finally:
            store.close()


def _came(listener: RawClient) -> list[bytes]:
    """What has come so far."""
    listener.send(Pingreq())
    found = [packet for packet in listener.until(Pingresp) if isinstance(packet, Publish)]
    for packet in found:
        listener.send(Puback(packet.packet_id))
    return [packet.payload for packet in found]


def _until(listener: RawClient, payload: bytes, acknowledge: bool = True) -> None:
    """Take messages up to this one."""
    while True:
        packet = listener.expect(Publish)
        if acknowledge:
            listener.send(Puback(packet.packet_id))
        if packet.payload == payload:
            return


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chain]:
    monkeypatch.setattr(command, "MQMESH", [sys.executable, "-c", PATIENT])
    made = Chain(tmp_path)
    yield made
    for site in made.sites:
        site.kill()


def test_the_origin_is_killed_right_after_the_acknowledgement(chain: Chain) -> None:
    listener = chain.listen()
    unwritten = 0
    for _ in range(MOST):
        publisher = chain.speak()
        chain.warm(publisher, listener)
        payload = chain.publish(publisher)
        chain.sites[0].kill()
        _until(listener, payload)
        unwritten += payload not in chain.kept()
        chain.sites[0].begin()
        if unwritten == KILLS:
            return
    pytest.fail(f"of {MOST} messages {MOST - unwritten} were written")


def test_the_destination_is_killed_right_after_its_receipt(chain: Chain) -> None:
    """Its listener has the message. One that was written may be acknowledged before: that listener's clean session dies without it."""
    unwritten = 0
    for _ in range(MOST):
        listener, publisher = chain.listen(), chain.speak()
        chain.warm(publisher, listener)
        payload = chain.publish(publisher)
        chain.sites[2].kill()
        chain.sites[0].kill()
        if payload not in chain.kept():
            _until(listener, payload, acknowledge=False)
            unwritten += 1
        chain.sites[2].begin()
        chain.sites[0].begin()
        if unwritten == KILLS:
            return
    pytest.fail(f"of {MOST} messages {MOST - unwritten} were written")


def test_a_stored_session_has_what_was_acknowledged_when_all_are_killed(chain: Chain) -> None:
    """Its broker commits before the receipt; so no message is lost that the publisher's broker never wrote."""
    listener = chain.listen(expiry=True)
    publisher = chain.speak()
    chain.warm(publisher, listener)
    payloads = [chain.publish(publisher) for _ in range(20)]
    for site in chain.sites:
        site.kill()
    assert not chain.kept().issuperset(payloads), "all were written"
    for site in chain.sites:
        site.begin()
    again = chain.sites[2].client("listener")
    left = set(payloads)
    while left:
        packet = again.expect(Publish)
        again.send(Puback(packet.packet_id))
        left.discard(packet.payload)
