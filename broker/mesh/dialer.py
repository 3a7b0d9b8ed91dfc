"""Dialling neighbours: one task a neighbour, for as long as the broker lives, with back-off.

A neighbour has an address, or a name whose addresses the broker's directory knows (`registrar.Registrar.where`); these are tried in turn.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from ...base.address import parse_address
from ...base.backoff import Backoff
from ...base.process.happy_eyeballs import connect
from ...mesh.link.link import Link
from ...mesh.topology.settings import PeerSettings
from ...mesh.wire.identity import OLDEST, PROTOCOL
from ..settings.directory import BY_NAME
from ..transport.tls.service import TlsError
from ..transport.tls.transport import TlsTransport
from .link import LinkProtocol

if TYPE_CHECKING:
    from .shell import MeshShell

log = logging.getLogger("mqmesh.mesh")

UNREACHED = 1.0  # seconds at most until a neighbour that was not reached is dialled again: it costs little, and a mended way is used soon

# The longest pause, for so many seconds after the only way to a broker broke: it carries something between two breaks.
ONLY_PAUSE, ONLY_FOR = 0.5, 10.0
STEADY = 1.0  # seconds that a link has to live for the next attempt to come soon: one that breaks at once must not stir the mesh


class Dialler:
    """The neighbours that one broker dials. `errors` and `met` of the shell say how it goes, by address as it is configured."""

    def __init__(self, shell: MeshShell) -> None:
        self._shell = shell
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by address as it is configured

    def dial(self, peer: PeerSettings) -> None:
        """Begin."""
        self._shell.errors[peer.address] = "not tried yet"
        self._shell.down_since[peer.address] = self._shell.context.wall()
        self._tasks[peer.address] = self._shell.context.loop.create_task(self._keep(peer), name=f"dial {peer.address}")

    def end(self, peer: PeerSettings) -> None:
        """Dial this neighbour no more."""
        task = self._tasks.pop(peer.address, None)
        if task is not None:
            task.cancel()

    def stop(self) -> None:
        """Dial nobody any more."""
        for task in self._tasks.values():
            task.cancel()

    async def _keep(self, peer: PeerSettings) -> None:
        """One peer, for as long as the broker lives."""
        shell, settings = self._shell, self._shell.settings
        backoff, dials = (Backoff(settings.retry_first, last, spread=(0.8, 1.2)) for last in self._longest())
        form = PROTOCOL  # each attempt begins with the newest hello, so that a peer that was updated is found out
        soon = 0.0  # until then the pauses are short
        while True:
            other = self.standing(peer)
            if other is not None:
                await other.closed.wait()
            begun = shell.now()
            link, error = await self._dial(peer, form)
            form, reached = PROTOCOL, False
            if link is not None:
                await link.closed.wait()
                reached = link.machine.answered
                error = link.error
                if link.machine.outdated:
                    form = OLDEST
                    continue
                if link.peer is not None and link.machine.incarnation:
                    self._shell.met[peer.address] = link.peer
                if link.up and shell.now() - begun > STEADY:
                    backoff.reset()
                if link.broke and link.peer is not None and not shell.node.live() >> link.peer.number & 1:
                    soon = shell.now() + ONLY_FOR
                if self.standing(peer) is not None:
                    continue
            self._shell.down_since.setdefault(peer.address, self._shell.context.wall())
            if self._shell.errors.get(peer.address) != error:
                if link is None or not link.machine.incarnation:  # else link-closed has said it
                    level = logging.WARNING if self._shell.config.worker is None else logging.INFO  # another worker may just start
                    log.log(level, "event=link-down address=%s text=%s", peer.address, error)
                self._shell.errors[peer.address] = error
                self._shell.status_soon()
            for pauses, last in zip((backoff, dials), self._longest(), strict=True):
                pauses.bound(settings.retry_first, last)
            if reached:
                dials.reset()
            pause = (backoff if reached else dials).next()
            await asyncio.sleep(min(pause, max(ONLY_PAUSE, settings.retry_first)) if shell.now() < soon else pause)

    def _longest(self) -> tuple[float, float]:
        """The longest pauses: after a link, and after a dial that has reached nobody."""
        settings = self._shell.settings
        return settings.retry_last, max(settings.retry_first, min(settings.retry_last, UNREACHED))

    def standing(self, peer: PeerSettings) -> LinkProtocol | None:
        """The link to the broker at this address or of this name, whichever side dialled it."""
        met = self._shell.met.get(peer.address)
        number = peer.number if met is None else met.number
        if number is None and peer.name is not None:
            linked = (link for link in self._shell.by_number.values() if link.peer is not None and link.peer.name == peer.name)
            return next(linked, None)
        link = self._shell.by_number.get(number) if number is not None else None
        return link if link is not None and (met is None or link.peer is None or link.peer.uuid == met.uuid) else None

    async def _dial(self, peer: PeerSettings, form: int) -> tuple[LinkProtocol | None, str]:
        if not peer.address.startswith(BY_NAME):
            return await self._dial_at(peer, peer.address, form)
        link, error = None, "the directory names no address of it that can be used here"
        for where in self._by_directory(peer.address.removeprefix(BY_NAME)):
            link, error = await self._dial_at(peer, where, form)
            if link is not None:
                break
        return link, error

    def _by_directory(self, name: str) -> list[str]:
        """Where a neighbour is, TLS first; only TLS where certificates prove who the brokers are, and without authorities none."""
        addresses = self._shell.registrar.where(name) if self._shell.registrar is not None else []
        secure = [one for one in addresses if one.startswith("mqtts://")] if self._shell.config.tls and self._shell.config.tls.ca else []
        return secure + ([] if self._shell.settings.certified else [one for one in addresses if one.startswith("mqtt://")])

    async def _dial_at(self, peer: PeerSettings, where: str, form: int) -> tuple[LinkProtocol | None, str]:
        address = parse_address(where)
        shell, loop = self._shell, self._shell.context.loop

        def made(tls: TlsTransport | None = None) -> LinkProtocol:
            config = shell.link_config(peer, where, shell.channel(tls, address.host), form)
            holders, signer, why_not = shell.node.holders(), shell.signer, shell.node.why_not
            machine = Link.dial(shell.identity, shell.key, config, loop.time(), holders, signer=signer, why_not=why_not)
            return shell.make_link(machine, peer.cost, peer.address)

        try:
            async with asyncio.timeout(shell.config.limits.connect_timeout):
                if address.scheme == "unix":
                    _, link = await loop.create_unix_connection(made, address.path)
                elif address.scheme == "mqtts":
                    assert shell.tls is not None
                    transport = await shell.tls.dial(address.host, address.port)
                    link = made(transport)
                    transport.begin(link)
                else:
                    _, link = await connect(made, address.host, address.port)
        except TimeoutError:
            return None, f"{where} does not answer; is the host up and the port open?"
        except TlsError as error:
            return None, f"no TLS with {where}: {error}"
        except socket.gaierror as error:
            return None, f"{where} cannot be reached: the host name {address.host!r} is not known ({error.strerror})"
        except OSError as error:
            return None, f"{where} cannot be reached: {error.strerror or error}; is a broker listening there?"
        return link, ""
