"""How many bytes of memory an event holds while it waits for the writer, and how many rows it becomes.

What notes of the same messages share (`Source`) counts with the first of them that waits: that is what `Recorder` remembers of a source.
The weights are measured (`tests/broker/journal/test_waiting.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...ledger import weight_of_text

if TYPE_CHECKING:
    from ....mesh.node.core import Passage
    from ..mark import Source
    from .notes import Note
    from .queue_states import Queued

NOTE = 448  # with its mark, which stands for consecutive messages
SOURCE = 448
SPAN = 208
FACT = 512
PASSED = 448
QUEUED = 576
ROW = 256  # a put or a timed range of a queue
ONE = 64  # an object or the place of one, beside its content
MESSAGE = 96  # of messages with topics of their own: a topic without its bytes, a size


def weight_of_source(source: Source) -> int:
    """Bytes of what all notes of the same messages share."""
    topics = source.topics
    size = SOURCE + SPAN * len(source.spans) + len(source.properties) + weight_of_text(source.client) + weight_of_text(source.user)
    if isinstance(topics, bytes):
        return size + len(topics) + (0 if isinstance(source.sizes, int) else ONE * len(source.sizes))
    return size + MESSAGE * len(topics) + sum(map(len, topics))


def weight_of_note(note: Note) -> int:
    """Bytes of a note, without its source."""
    indexes = note.mark.indexes
    size = NOTE + weight_of_text(note.client) + weight_of_text(note.user) + weight_of_text(note.recipient) + weight_of_text(note.reason)
    if not isinstance(indexes, range):
        size += ONE * len(indexes)
    return size if note.detail is None else size + len(note.detail)


def weight_of_passage(passage: Passage) -> int:
    """Bytes of messages that are given to a link."""
    names = passage.names
    return PASSED + len(passage.topic) if names is None else PASSED + MESSAGE * len(names) + sum(map(len, names))


def weight_of_queued(queued: Queued) -> int:
    """Bytes of a commit of the queues."""
    size = QUEUED + ROW * (len(queued.puts) + len(queued.moves) + len(queued.known) + len(queued.members))
    return size + sum([len(put.properties) + weight_of_text(put.publisher) + len(put.detail or "") for put in queued.puts])


def weight_of(value: Any) -> int:
    """Bytes of a value that an event has; of a function, of what it is given."""
    if isinstance(value, str):
        return ONE + weight_of_text(value)
    if isinstance(value, bytes):
        return ONE + len(value)
    if isinstance(value, dict):
        return ONE + sum([ONE + weight_of(key) + weight_of(one) for key, one in value.items()])
    if isinstance(value, list | tuple):
        return ONE + sum(map(weight_of, value))
    return weight_of(value.args) if isinstance(value, partial) else ONE // 2


def rows_of(one: Any) -> int:
    """Rows that an event becomes at most, or a few more where it is sampled."""
    mark = getattr(one, "mark", None)
    if mark is not None:
        source = mark.source
        return 1 if isinstance(source.topics, bytes) and isinstance(source.sizes, int) and source.batch is None else len(mark.indexes)
    passage = getattr(one, "passage", None)
    if passage is not None:
        return 1 if passage.names is None else int(passage.messages)
    return int(getattr(one, "ranges", 1))
