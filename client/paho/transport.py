"""The transport over MQTT 5: one thread, one selector, and a paho-mqtt client for each link.

Only that thread calls paho's clients. Requests of other threads go through a queue. So there is no lock around a socket, and no callback
runs inside a `publish`.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ...base.address import Address
from ..core.transport import LinkHandler, LinkSpec
from .link import PahoLink

log = logging.getLogger("mqmesh.client")

TICK = 0.5  # seconds between two checks of keep-alives


@dataclass(frozen=True, slots=True)
class Network:
    """How to reach the broker.

    keep_alive: seconds, the Keep Alive of MQTT.
    retry_first, retry_last: seconds, the first and the longest pause between attempts to connect.
    """

    address: Address
    tls: ssl.SSLContext | None = None
    keep_alive: int = 30
    retry_first: float = 0.1
    retry_last: float = 5.0


class Timer(Protocol):
    """An object that the network thread calls at given times."""

    def deadline(self) -> float | None:
        """When to call `work`, of the monotonic clock; None: not at a fixed time."""

    def work(self, now: float) -> None:
        """Called after each event, at the latest at the deadline."""


class PahoTransport:
    """See `core.transport.Transport`. The thread starts with the first link and ends with `close`."""

    declares = True

    def __init__(self, network: Network) -> None:
        self.network = network
        self._commands: deque[Callable[[], None]] = deque()
        self._links: set[PahoLink] = set()
        self.timers: set[Timer] = set()  # changed by the network thread
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._awake = False
        self._ending = self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"mqmesh-client {network.address}", daemon=True)
        self._started = threading.Lock()

    # any thread

    def open(self, spec: LinkSpec, handler: LinkHandler) -> PahoLink:
        """Open a link and start to connect it."""
        link = PahoLink(self, spec, handler)
        self.connect(link)
        return link

    def connect(self, link: PahoLink) -> None:
        """Start to connect a link."""
        if self._started.acquire(blocking=False):
            self._thread.start()
        self.call(link.start)

    def call(self, command: Callable[[], None]) -> None:
        """Have the network thread run `command`. Commands run in the order of the calls."""
        self._commands.append(command)
        if not self._awake:
            self._awake = True
            with contextlib.suppress(BlockingIOError, OSError):
                self._wake_out.send(b"\0")
        if self._ended:
            self._run_late_commands()

    def close(self) -> None:
        """End every link and the thread. Waits for the thread, unless called by it."""
        if self._started.acquire(blocking=False):
            self._release()
            return
        self.call(self._end)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # the network thread

    def watch(self, link: PahoLink, sock: Any, events: int) -> None:
        """Watch the link's socket for these events, 0 for none."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)
        if events and sock.fileno() >= 0:  # paho also reports closed sockets
            self._selector.register(sock, events, link)

    def add_link(self, link: PahoLink) -> None:
        self._links.add(link)

    def remove_link(self, link: PahoLink) -> None:
        self._links.discard(link)

    def _end(self) -> None:
        for link in list(self._links):
            link.abandon()
        self._ending = True

    def _run(self) -> None:
        tick = 0.0
        while not self._ending:
            now = time.monotonic()
            if now >= tick:
                tick = now + TICK
                for link in list(self._links):
                    link.tick()
            dues = [link.retry_at for link in self._links] + [timer.deadline() for timer in self.timers]
            due = min((at for at in dues if at is not None), default=tick)
            for key, events in self._selector.select(max(0.0, min(tick, due) - now)):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_in.recv(65536)
                    self._awake = False  # before the commands run: a later one wakes the thread again
                else:
                    key.data.ready(events)
            while self._commands:
                command = self._commands.popleft()
                try:
                    command()
                except Exception:
                    log.exception("event=command_failed")
            now = time.monotonic()
            for timer in list(self.timers):
                timer.work(now)
            for link in list(self._links):
                link.work(now)
        self._release()

    def _release(self) -> None:
        self._ended = True
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
        self._run_late_commands()

    def _run_late_commands(self) -> None:
        """Run commands that arrived during the end. The links answer that they are closed."""
        with contextlib.suppress(IndexError):
            while True:
                self._commands.popleft()()
