"""The generator on one core and the brokers on the others.

Where the scheduler decides, it puts both on one core in some runs and on two in others, as each wakes the other for every message. Waking
an idle core costs more than the broker's own work, so that the figures of one broker have two values.
"""

from __future__ import annotations

import contextlib
import os

import psutil


def separate_cores(pids: list[int]) -> None:
    """Give one core to this process and the others to all threads of the brokers, where there are several and the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return
    own, *others = sorted(os.sched_getaffinity(0))
    if not others or not pids:
        return
    os.sched_setaffinity(0, {own})
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
                os.sched_setaffinity(thread.id, others)
