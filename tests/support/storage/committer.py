"""A child process that commits until it is killed: `python committer.py ADDRESS FIRST`.

Commit n puts run n with three deliveries, deletes what commit n - 5 put, and sets the value "last" to n; n is printed when
`commit` has returned.
"""

from __future__ import annotations

import sys

from mqmesh.store import Batch
from mqmesh.store.locations import store_at

from support.stores import delivery, run

RECIPIENTS = ("porto", "lyon", "ghent")
KEPT = 5


def commit_number(number: int) -> Batch:
    batch = Batch(number)
    batch.put_run(run(number, count=20, payload=b"%08d" % number * 10))
    for recipient in RECIPIENTS:
        batch.put_delivery(delivery(recipient, number, number, count=20))
        if number > KEPT:
            batch.delete_delivery(recipient, number - KEPT)
    if number > KEPT:
        batch.delete_run(number - KEPT)
    batch.put_value("sessions", b"last", b"%d" % number)
    return batch


def main() -> None:
    address, first = sys.argv[1], int(sys.argv[2])
    store = store_at(address)
    store.open()
    number = first
    while True:
        store.commit(commit_number(number))
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main()
