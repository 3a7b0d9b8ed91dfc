"""What a store keeps of one node, as plain dictionaries."""

from __future__ import annotations

from mqmesh.mesh.custody.journal import Records
from mqmesh.mesh.node.node import Node
from mqmesh.mesh.retained import DeleteValue, PutValue
from mqmesh.mesh.retained.replica import RECORDS, STATE, STATE_KEY
from mqmesh.mqtt.batch.parts import PartsBatch
from mqmesh.mqtt.batch.run import Run


class Disk:
    """entries: order -> (run, extra). values: by key. pages, bodies: of custody. rows: of retained messages, by table and key."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[Run, bytes]] = {}
        self.values: dict[bytes, bytes] = {}
        self.pages: dict[int, bytes] = {}
        self.bodies: dict[int, bytes] = {}
        self.rows: dict[tuple[str, bytes], bytes] = {}

    def copy(self) -> Disk:
        """A snapshot."""
        other = Disk()
        other.entries = {order: (copy_of(run), extra) for order, (run, extra) in self.entries.items()}
        other.values, other.rows = dict(self.values), dict(self.rows)
        other.pages, other.bodies = dict(self.pages), dict(self.bodies)
        return other

    def apply(self, records: Records) -> None:
        """Commit a batch."""
        for order, run, extra in records.entries:
            assert order not in self.entries
            self.entries[order] = (copy_of(run), extra)
        for order, extra in records.changed:
            self.entries[order] = (self.entries[order][0], extra)
        for order in records.gone:
            del self.entries[order]
        for order, description, body in records.pages:
            if description is None:
                self.pages.pop(order, None)
                self.bodies.pop(order, None)
                continue
            self.pages[order] = description
            if body is not None:
                self.bodies[order] = body
            assert order in self.bodies
        for key, value in records.values:
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value

    def apply_retained(self, changes: list[PutValue | DeleteValue]) -> None:
        """Commit what belongs to a batch of retained messages."""
        for change in changes:
            if isinstance(change, PutValue):
                self.rows[change.table, change.key] = change.value
            else:
                self.rows.pop((change.table, change.key), None)

    def restore(self, node: Node, now: float) -> None:
        """Have a new life begin with it."""
        records = [(key, row) for (table, key), row in self.rows.items() if table == RECORDS]
        node.restore_retained(self.rows.get((STATE, STATE_KEY)), records, False, now)
        self.apply_retained(node.retained_changes(now))
        entries = [(order, copy_of(run), extra) for order, (run, extra) in sorted(self.entries.items())]
        node.restore(entries, dict(self.values), now, list(self.pages.items()))


def copy_of(run: Run) -> Run:
    """As a store gives it back."""
    if isinstance(run, PartsBatch):
        return PartsBatch(list(run.names), list(run.payloads), run.qos, run.received)
    return Run(run.topic, run.qos, run.retain, list(run.payloads), run.properties, run.expiry, run.received)
