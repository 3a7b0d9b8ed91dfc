"""What each compared system has to offer: a start, a sender, and a recipient that runs in a process of its own.

A message is its number, in text, filled up to `SIZE` bytes. Every system is set so that a confirmed message is one that it promises
to keep, as far as it can promise that. Every recipient notes a message before it acknowledges it, as an application does that has
done the work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import Deployment

SIZE = 64
WHO = ("first", "second")  # the recipient that hangs, and the one that could take its place

Record = Callable[[bytes, bool], None]
"""Called with the payload, and whether the message says that somebody may have it already."""


def payload(number: int) -> bytes:
    """The message with this number."""
    return b"%d" % number + b" " * (SIZE - len(str(number)))


def number_of(data: bytes) -> int:
    """The number of a message."""
    return int(data.split(None, 1)[0])


@dataclass
class Sent:
    """What the sender knows: confirmed[number], the time of the confirmation; told[number], when it heard that nobody has it."""

    at: dict[int, float] = field(default_factory=dict)
    confirmed: dict[int, float] = field(default_factory=dict)
    told: dict[int, float] = field(default_factory=dict)


class Sender(ABC):
    """The application that publishes."""

    def __init__(self, sent: Sent) -> None:
        self.sent = sent

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    def send(self, number: int) -> None:
        """Publish this message, and note in `sent` when the broker has confirmed it."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


class System(ABC):
    """A broker, or several, with one way to give an application's messages to a second one when the first one hangs.

    name: as in the table. settings: what it is set to, in words. tuned: set for a hang to be noticed in about three seconds.
    """

    name = ""

    def __init__(self, tuned: bool) -> None:
        self.tuned = tuned

    @property
    @abstractmethod
    def settings(self) -> str:
        """What decides how soon a hang is noticed."""

    @abstractmethod
    def version(self) -> str:
        """The installed version. PeerError if there is none."""

    @abstractmethod
    def deploy(self, folder: Path) -> Deployment:
        """Start it; `ports` of the result are what `sender` and `receive` get. PeerError if it does not start."""

    async def prepare(self, ports: list[int]) -> None:
        """Make queues and streams; there are none by default."""
        return

    @abstractmethod
    def sender(self, ports: list[int], sent: Sent) -> Sender:
        """The sender's side."""

    @abstractmethod
    async def receive(self, ports: list[int], who: str, record: Record, ready: Callable[[], None]) -> None:
        """Be the recipient `who` until the process ends; call `ready` once messages can come."""
