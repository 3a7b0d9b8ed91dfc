"""Keeps a broker registered in the directory: register, renew, receive a number, leave; and find the broker's neighbours.

`LeaseSchedule` decides when to ask and what to log: it has no clock, socket or log. `Registration` is the shell: one thread that asks with
`client.Client`. The thread has no part in messages: while the directory is away, the broker goes on with what is known. A file in the
data folder keeps this over restarts.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.address import parse_address
from ..base.backoff import Backoff
from ..base.process.files import replace_file
from ..broker.config import UNASSIGNED, BrokerConfig, DirectorySettings
from ..broker.mesh.identity import FILE as IDENTITY
from ..broker.settings.directory import BY_NAME, OfferedService, reachable
from ..mesh.topology.settings import PeerSettings
from .applications import Applications
from .client import Client, ClientError
from .clients import Clients

if TYPE_CHECKING:
    from ..broker.server import Broker

log = logging.getLogger("mqmesh.directory")

FILE = "directory.json"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts while the directory is away
TIMEOUT = 15.0  # seconds for one request
LEAVING = 5.0  # seconds for the last one, behind one that may be under way
FINAL = (400, 401, 403)  # statuses of refusals that waiting does not mend


class Refused(Exception):
    """The directory refuses this broker. The text is one line and says why."""


class LeaseSchedule:
    """Decides when to ask next, and whether to log: each state once, and again when it changes.

    lease: seconds.
    state: "starting", "registered", "away" (no directory answers) or "refused".
    asked, failed: claims that were granted, and that were not.
    """

    def __init__(self, lease: float, chance: float = 0.5) -> None:
        self.state = "starting"
        self.due = 0.0
        self.asked, self.failed = 0, 0  # claims that were granted, and that were not
        self._lease = lease
        self._chance = chance
        longest = min(LONGEST_PAUSE, lease / 3)
        self._backoff = Backoff(min(FIRST_PAUSE, longest), longest)
        self._said: tuple[str, str] | None = None

    def granted(self, now: float, text: str) -> bool:
        """A claim was granted: renew after a third of the lease. Returns whether `text` is to be logged."""
        self.asked += 1
        self._backoff.reset()
        self.due = now + self._lease / 3 * self._spread()
        return self._news("registered", text)

    def missed(self, now: float, text: str) -> bool:
        """No directory answered: try again soon, then less often, but several times within a lease. Returns whether to log it."""
        self.failed += 1
        self.due = now + self._backoff.next() * self._spread()
        return self._news("away", "")

    def refused(self, now: float, text: str) -> bool:
        """The directory refused: try again, as another lease may end or somebody may correct something. Returns whether to log it."""
        self.failed += 1
        self.due = now + self._backoff.longest * self._spread()
        return self._news("refused", text)

    def _spread(self) -> float:
        """A factor from 0.9 to 1.1, so that brokers that began together do not stay together."""
        return 0.9 + 0.2 * self._chance

    def _news(self, state: str, text: str) -> bool:
        self.state = state
        said, self._said = self._said, (state, text)
        return said != self._said


@dataclass(slots=True)
class RegistrationState:
    """What a broker keeps about its directory over restarts.

    holder: UUID under which it claims.
    number: in `mesh`; None before there is one.
    neighbours: name -> addresses.
    folder: data folder; None: nothing is stored.
    """

    holder: str
    mesh: str
    number: int | None = None
    neighbours: dict[str, list[str]] = field(default_factory=dict)
    folder: Path | None = None

    @classmethod
    def load(cls, folder: Path | None, mesh: str) -> RegistrationState:
        """Read the file in the data folder, or begin with an empty state. Raises OSError if it cannot be stored."""
        made = cls(str(uuid.uuid4()), mesh, folder=folder)
        if folder is None:
            return made
        try:
            found = json.loads((folder / FILE).read_text(encoding="utf-8"))
            made.holder = str(uuid.UUID(found["holder"]))
            if found["mesh"] == mesh:
                number, neighbours = found["number"], found["neighbours"]
                made.number = number if type(number) is int and 0 <= number <= 65535 else None
                made.neighbours = {str(name): [str(one) for one in addresses] for name, addresses in neighbours.items()}
        except FileNotFoundError:
            made.number = _number_before(folder, mesh)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("event=directory-memory-unreadable file=%s error=%s", folder / FILE, error)
            made.number = _number_before(folder, mesh)
        made.save()
        return made

    def save(self) -> None:
        """Store the state. Raises OSError."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            table = {"holder": self.holder, "mesh": self.mesh, "number": self.number, "neighbours": self.neighbours}
            replace_file(self.folder / FILE, json.dumps(table) + "\n")


def _number_before(folder: Path, mesh: str) -> int | None:
    """The number that the broker of this data folder had in this mesh without a directory."""
    try:
        found = json.loads((folder / IDENTITY).read_text(encoding="utf-8"))
        return int(found["number"]) if found["mesh"] == mesh else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Registration:
    """Keeps one broker registered; a `Registrar`. Raises ValueError for an invalid URL, OSError for the data folder."""

    def __init__(self, config: BrokerConfig) -> None:
        assert config.directory is not None
        self.settings: DirectorySettings = config.directory
        self._config = config
        self._clients = [Client(url, TIMEOUT) for url in self.settings.urls]
        self._logged_in: set[Client] = set()
        self.remembered = RegistrationState.load(config.data, self.settings.mesh)
        self.schedule = LeaseSchedule(self.settings.lease, random.random())
        self._addresses: list[str] = []
        self._broker: Broker | None = None
        self._ended = threading.Event()
        self._wake = threading.Event()  # something new is to be registered, or it ends
        equal = Clients(self.settings.urls, TIMEOUT, self._account if self.settings.account else None)
        self.applications = Applications(equal, self.settings.mesh, config.data, declared=self._declared)
        self._thread = threading.Thread(target=self._run, name="directory", daemon=True)

    def _account(self) -> tuple[str, str]:
        return self.settings.account, self.settings.secret()

    # What the broker asks (`Registrar`)

    def number(self) -> int:
        """This broker's number: the configured one, the remembered one, or, waiting for the directory, a new one. Raises Refused."""
        if self._config.number != UNASSIGNED:
            return self._config.number
        while self.remembered.number is None:
            self._claim()
            if self.remembered.number is None:
                self._ended.wait(max(0.0, self.schedule.due - time.monotonic()))
        return self.remembered.number

    def begin(self, broker: Broker) -> None:
        """See `Registrar`."""
        self._broker = broker
        self._addresses = self.settings.addresses or [one for one in broker.addresses if reachable(one)]
        if self.settings.neighbours:
            self._meet(sorted(self.remembered.neighbours))
        self.applications.begin(broker.context.loop)
        self._thread.start()

    def where(self, name: str) -> list[str]:
        """See `Registrar`."""
        return self.remembered.neighbours.get(name, [])

    def values(self) -> dict[str, str]:
        """See `Registrar`."""
        schedule = self.schedule
        values = {"state": schedule.state, "requests/granted": schedule.asked, "requests/failed": schedule.failed}
        return {f"directory/{name}": str(value) for name, value in values.items()}

    def end(self) -> None:
        """See `Registrar`. If the directory does not answer, the lease ends by itself."""
        self._ended.set()
        self._wake.set()
        self.applications.end()
        if self._thread.is_alive():
            self._thread.join(LEAVING)

    # The thread

    def _run(self) -> None:
        self.schedule.due = 0.0
        while not self._ended.is_set():
            try:
                self._claim()
            except Refused as refusal:
                self._refused(str(refusal))
            except Exception:
                log.exception("event=directory-failed")  # ours; the next round tries again
                self.schedule.refused(time.monotonic(), "")
            self._wake.wait(max(0.0, self.schedule.due - time.monotonic()))
            self._wake.clear()
        if self.settings.register and self.schedule.asked and self.schedule.state != "refused":
            self._leave()  # also when it was away a moment ago: a claim whose answer was lost may stand there

    def _declared(self) -> None:
        """What this broker registers has changed: claim again now, unless the directory is away."""
        if self.settings.register and self.schedule.state in ("starting", "registered"):
            self._wake.set()

    def _claim(self) -> None:
        """Ask the directories in turn until one answers. Raises Refused for a refusal that waiting does not change."""
        texts = []
        for at, client in enumerate(self._clients):
            try:
                answer = self._ask(client)
            except ClientError as error:
                if error.status == 0 or error.status >= 500:
                    texts.append(str(error))
                    continue
                text = f"{error.code}: {error}" if error.code else str(error)
                if error.code == "E_userMismatch":
                    text += f": mesh {self.settings.mesh!r} belongs to another account than {self.settings.account!r}"
                if error.status in FINAL:
                    raise Refused(text) from None
                self._refused(text)
                return
            self._clients.insert(0, self._clients.pop(at))
            self._granted(answer)
            return
        if self.schedule.missed(time.monotonic(), "; ".join(texts)):
            log.warning("event=directory-away text=%s", "; ".join(texts))

    def _refused(self, text: str) -> None:
        if self.schedule.refused(time.monotonic(), text):
            log.error("event=directory-refused mesh=%s name=%s text=%s", self.settings.mesh, self._config.name, text)

    def _ask(self, client: Client) -> dict[str, Any]:
        """Ask one directory: register or renew, then look up the neighbours."""
        settings = self.settings
        if settings.account and client not in self._logged_in:
            client.log_in(settings.account, settings.secret())
            self._logged_in.add(client)
        answer = self._register(client) if settings.register else {}
        mesh, own = self._config.mesh, self._config.name
        named = {peer.name for peer in mesh.peers if peer.address.startswith(BY_NAME)} if mesh is not None else set()
        if settings.neighbours or named:
            found = [one for one in client.find("broker", settings.mesh) if one["name"] != own]
            wanted = [one for one in found if settings.neighbours or one["name"] in named]
            answer["neighbours"] = {one["name"]: _usable(one["addresses"]) for one in wanted}
        return answer

    def _register(self, client: Client) -> dict[str, Any]:
        settings, config = self.settings, self._config
        offered = self.applications.offered()
        asked = config.number if config.mesh is not None and config.number != UNASSIGNED else self.remembered.number
        return client.claim(
            settings.mesh,
            self.remembered.holder,
            config.name,
            settings.lease,
            number=asked,
            addresses=self._addresses,
            services=[self._offered(one) for one in settings.services] if self._broker is not None else [],
            applications=[{**one, "broker": config.name, "visibility": settings.visibility} for one in offered] or None,
            visibility=settings.visibility,
            description=settings.description,
        )

    def _offered(self, service: OfferedService) -> dict[str, Any]:
        return {
            "name": service.name,
            "addresses": service.addresses or self._addresses,
            "permissions": service.permissions,
            "description": service.description,
            "visibility": self.settings.visibility,
        }

    def _granted(self, answer: dict[str, Any]) -> None:
        number, neighbours = answer.get("number"), answer.get("neighbours")
        text = f"number={number} static={str(answer.get('static')).lower()} refused={'; '.join(answer.get('refused', ())) or '-'}"
        if self.schedule.granted(time.monotonic(), text):
            log.info("event=directory-registered mesh=%s lease=%g %s", self.settings.mesh, self.settings.lease, text)
        changed = number is not None and number != self.remembered.number
        if changed:
            self.remembered.number = number
        if neighbours is not None:
            changed = self._note(neighbours) or changed
        if changed:
            try:
                self.remembered.save()
            except OSError as error:
                log.error("event=directory-memory-failed error=%s", error)

    def _note(self, found: dict[str, list[str]]) -> bool:
        """Take over the addresses of neighbours. A neighbour that the directory does not name now may be back soon: it stays known."""
        known = self.remembered.neighbours
        fresh = sorted(name for name in found if name not in known)
        changed = any(known.get(name) != addresses for name, addresses in found.items())
        if changed:
            self.remembered.neighbours = {**known, **found}
        if fresh and self.settings.neighbours and self._broker is not None:
            self._broker.context.loop.call_soon_threadsafe(self._meet, fresh)
        return changed

    def _meet(self, names: list[str]) -> None:
        """Dial neighbours. Runs in the broker's thread."""
        assert self._broker is not None
        mesh = self._broker.site.mesh
        if mesh is None:
            return
        configured = {peer.name for peer in mesh.settings.peers}
        for name in names:
            if name not in configured:
                mesh.add_peer(PeerSettings(f"{BY_NAME}{name}", name=name))

    def _leave(self) -> None:
        try:
            self._clients[0].leave(self.settings.mesh, self.remembered.holder)
            log.info("event=directory-left mesh=%s", self.settings.mesh)
        except ClientError as error:
            log.warning("event=directory-not-left text=%s", error)


def _usable(addresses: list[str]) -> list[str]:
    """The addresses that a link can dial."""
    usable = []
    for address in addresses:
        try:
            parsed = parse_address(address)
        except ValueError:
            continue
        if parsed.scheme in ("mqtt", "mqtts") and parsed.port:
            usable.append(address)
    return usable
