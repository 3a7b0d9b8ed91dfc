"""Keeps Python's garbage collector from holding an event loop.

Python frees most objects by counting references. Its collector looks for cycles of objects that nobody else holds. A full collection
visits every object there is, at once: with 100,000 retained messages it takes 0.14 s. Python begins one by itself whenever enough new
objects have become old.

Here the collector works on new objects only. When some four thousand have become old, by a collection of the middle generation, they
are visited once, in a call of the loop of a millisecond or two. What is still there then is set apart (`gc.freeze`) and not visited
again. So the time of a collection does not depend on how much a program holds.

A program has many objects made by its imports, and none of them is garbage before its end. To look for garbage among them took a quarter of
the processor time of a broker that starts and ends (`spare_start_and_end`).

A plain dict or tuple that holds only what cannot be part of a cycle is taken out of the collector's sight, and a dict comes back, as
new, with the next key that is in sight: with 400,000 topic filters, two thirds of the processor time went into visiting one dict again
and again. `LargeDict` stays in sight, and is set apart once.

The price of setting apart: a cycle that becomes garbage after it was set apart stays in memory. What comes and goes with clients must
therefore hold no cycles at its end; a test watches sessions.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable
from typing import Literal, TypeVar

YOUNG, MIDDLE, NEVER = 700, 10, 1_000_000_000  # thresholds: Python's own, and that of full collections
EARLY = 5  # that of the middle generation while a loop runs: half of Python's own, and a collection takes half as long
STARTING = 20_000  # new objects after which those of a program are visited: one pass takes about a millisecond

K = TypeVar("K")
V = TypeVar("V")


class LargeDict(dict[K, V]):
    """A dict that may have very many entries whose keys are tuples, or values are, of texts and numbers only."""

    __slots__ = ()


def spare_start_and_end() -> None:
    """In a process of our own: look for garbage less often while it starts, and not at its end, when the system takes back everything."""
    gc.set_threshold(STARTING, MIDDLE, MIDDLE)
    atexit.register(gc.freeze)


class Collector:
    """The collector of this process, while one event loop runs."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        """soon: calls a function in a turn of the loop of its own, as `call_soon` does."""
        self._soon = soon
        self._due = self._ended = False
        self._before = gc.get_threshold()

    def begin(self) -> None:
        """Set apart all that the program holds after its start, and collect what is new only."""
        self._collect()
        gc.set_threshold(YOUNG, EARLY, NEVER)
        gc.callbacks.append(self._heard)

    def end(self) -> None:
        """Leave the collector as Python has it; a turn that was asked for does nothing."""
        self._ended = True
        gc.callbacks.remove(self._heard)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _heard(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 1 and not self._due:
            self._due = True
            self._soon(self._collect)

    def _collect(self) -> None:
        if self._ended:
            return
        self._due = False
        gc.collect()
        gc.freeze()
