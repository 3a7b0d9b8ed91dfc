"""What a directory says of applications, as the broker's recipients see it: records, lookups, and what this broker registers there.

`directory/applications.py` keeps the promise; a test has its own. See docs/recipients.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True)
class Application:
    """One application as the directory has it.

    broker: the name of the broker that holds its queue, "" where the record does not say.
    clients: identifiers of the sessions that take its messages; empty: its name is the identifier.
    alternatives: names, the preferred first.
    message_interval, fault_interval, defunct_interval: seconds, None where the record does not say.
    consents: names of applications whose messages it takes as an alternative, "*" for all.
    probe: it takes an empty message.
    """

    name: str
    broker: str = ""
    clients: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    message_interval: float | None = None
    fault_interval: float | None = None
    defunct_interval: float | None = None
    consents: tuple[str, ...] = ()
    probe: bool = False


@dataclass(slots=True, frozen=True)
class Lookup:
    """The answer for one name.

    record: None if there is none, or if that is not known. away: one line that says why nobody could be asked; "" if the answer is sure,
    so that no record means that the name is not registered.
    """

    record: Application | None
    away: str = ""


class ApplicationDirectory(Protocol):
    """Finds and registers applications. Called in the broker's loop; nothing blocks."""

    def find(self, name: str, answer: Callable[[Lookup], None]) -> None:
        """Look a name up and call `answer` once: at once if the answer is cached, later in the loop otherwise."""

    def known(self) -> dict[str, Application]:
        """All applications of this mesh as of the last listing, by name. It outlives the directory's absence and a restart."""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` in the loop when a listing differs from the last one, and when the directory answers again after it was away."""

    def declare(self, application: Application) -> None:
        """This broker holds the application's queue: register it with the broker's lease, until `withdraw`."""

    def withdraw(self, name: str) -> None:
        """This broker does not hold its queue any more."""
