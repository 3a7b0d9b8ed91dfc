"""A store with something of everything, and what is found in it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqmesh.store.locations import store_at
from mqmesh.store.writer import Writer

from support.stores import content, delivery, run

RUNS = 400


def written(address: str, payloads: Mapping[int, bytes] = {}) -> Any:
    """Fill a store; its content. payloads: of the runs that are to have others than most."""
    writer = Writer(store_at(address), lambda call: None, lambda ticket: None, lambda error: None)
    writer.start()
    for number in range(1, RUNS + 1):
        writer.put_run(run(number, payload=payloads.get(number, b"message %d." % number)))
        writer.put_delivery(delivery("porto", number, number))
        writer.put_delivery(delivery("lyon", number, number))
    for number in range(50):
        writer.put_value("sessions", b"client %d" % number, b"state %d." % number)
    assert writer.close(60)
    return read(address)


def read(address: str) -> Any:
    """A store's content, as a broker finds it: with its counts compared."""
    store = store_at(address)
    writer = Writer(store, lambda call: None, lambda ticket: None, lambda error: None)
    try:
        writer.start()
        return content(store)
    finally:
        writer.close(60)
