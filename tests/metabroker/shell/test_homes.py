"""What one metabroker kept moves into another one's home in one commit; the database moves the requests by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mqmesh.metabroker.core.records import LIFE, REQUEST, SESSION, TAKEN, numbered
from mqmesh.metabroker.shell.homes import Homes
from mqmesh.store.coalescer import Coalescer
from mqmesh.store.records import Batch
from support.peers.postgres import Server, server

pytestmark = pytest.mark.service
MANY = 2000


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as running:
        yield running


def _kept(url: str) -> tuple[int, dict[bytes, bytes]]:
    """A home of one that is gone, with requests."""
    gone = Homes(url)
    gone.store.open()
    batch = Batch()
    requests = {numbered(f"session-{at % 10}", at): b"%d" % at for at in range(MANY)}
    for key, value in requests.items():
        batch.put_value(REQUEST, key, value)
    batch.put_value(SESSION, b"session-1", b"s")
    batch.put_value(LIFE, b"metabroker", b"1")
    gone.store.commit(batch)
    gone.store.close()
    gone.close()
    return gone.number, requests


def test_requests_move_in_the_database(postgres: Server) -> None:
    url = f"{postgres.url}?schema=moved"
    number, requests = _kept(url)
    heir = Homes(url)
    heir.store.open()
    found = heir.take(number)
    assert found is not None
    assert dict(found.values(REQUEST)) == requests
    changes = Coalescer(lambda run: None)
    for key, value in found.values(REQUEST):
        changes.note_value(REQUEST, key, value)
    first, second = sorted(requests)[:2]
    changes.put_value(REQUEST, first, b"answered")  # what changes in the same commit counts
    changes.delete_value(REQUEST, second)
    changes.put_value(TAKEN, b"%08x" % number, b"")
    batch = changes.seal()
    assert batch.counts is not None
    assert batch.counts.values == MANY  # one less, and that of `taken`
    heir.store.commit(batch)
    found.lease.close()
    wanted = {**requests, first: b"answered"}
    del wanted[second]
    assert dict(heir.store.values(REQUEST)) == wanted
    assert heir.others() == set()
    batch.tried = True
    heir.store.commit(batch)  # nobody knew whether it had been committed
    assert dict(heir.store.values(REQUEST)) == wanted
    heir.store.close()
    heir.close()


def test_a_home_without_tables_is_given_up(postgres: Server) -> None:
    url = f"{postgres.url}?schema=bare"
    early, heir = Homes(url), Homes(url)
    heir.store.open()
    early.close()
    found = heir.take(early.number)
    assert found is not None
    batch = Batch()
    batch.put_value(TAKEN, b"%08x" % early.number, b"")
    heir.store.commit(batch)
    assert heir.others() == set()
    heir.store.close()
    heir.close()
