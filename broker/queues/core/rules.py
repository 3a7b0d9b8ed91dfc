"""What a queue is set to: its plan, bounds, times, dead letters. See docs/queues.md for the file's keys.

What it does not know: messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from .plan import POOL, LoadRule, Plan

REFUSE, DROP_OLDEST, DEAD_LETTER = "refuse", "drop-oldest", "dead-letter"
WHEN_FULL = (REFUSE, DROP_OLDEST, DEAD_LETTER)


@dataclass(slots=True)
class Rules:
    """Of one queue; times in seconds.

    plan: of messages without one of their own. load: switches it. messages, bytes: how much may wait; 0: no bound. age: how long a message
    may wait; 0: for ever. when_full: what happens to a message that finds no room. dead_letters: name of the queue for those that nobody
    can use; "": none. deliveries: how often a message is given to members before it is dead; 0: no limit. backoff: until it is given
    again, doubled each time up to `backoff_most`. delay: until it is given for the first time. retention: how long it stays when
    it is journalled.
    prefetch: messages that a member has at most. reveal: at once. single: only one member is active at a time. explicit: a message is
    journalled for a subscriber when that says so, not with its outcome. requests: an acknowledgement is FETCHED only; a member
    says DONE and the like by requests. store: its kind, or its URL. topics: filters of topics whose messages are put as well.
    archive: how often what the retention lets go is archived; "": never. homes: brokers of which one is home of the queue at a time; none:
    the one that declares it. publish: it holds delayed messages to topics, and the broker publishes each when it is due. early: members get
    messages that stand in the broker's store before the log has them, and the log takes its time.
    """

    plan: Plan = POOL
    load: LoadRule | None = None
    messages: int = 0
    bytes: int = 0
    age: float = 0.0
    when_full: str = REFUSE
    dead_letters: str = ""
    deliveries: int = 0
    backoff: float = 0.0
    backoff_most: float = 60.0
    delay: float = 0.0
    retention: float = 0.0
    prefetch: int = 1000
    reveal: bool = True
    single: bool = False
    explicit: bool = False
    requests: bool = False
    store: str = "log"
    topics: tuple[str, ...] = ()
    archive: str = ""
    homes: tuple[str, ...] = ()
    publish: bool = False
    early: bool = False

    def backoff_of(self, tries: int) -> int:
        """Milliseconds until a message that was given so often is given again."""
        return int(1000 * min(self.backoff_most, self.backoff * 2.0 ** min(tries - 1, 30))) if self.backoff else 0

    def plan_for(self, waiting: int) -> Plan:
        """The plan of a message that is put while so many wait."""
        return self.load.plan(waiting) if self.load is not None else self.plan
