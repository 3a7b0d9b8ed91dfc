"""The demo's sixth act: a shop at one site asks two banks at two others for credit, through services that rules bring into the way.

    shop/orders  --out: map/ids-->   each bank   <--in: filter/credit--

`map/ids` turns the customer's name into the banks' number. `filter/credit` refuses what is too much, whatever the bank would say. First
both banks answer. Then an order is too large: the filter ends the request for both. Then one bank's site is cut off: the shop gets the
other bank's answer, and an error for this one when its request expires. What has expired never comes to the bank. When the links are
back, both answer again. The session of the cut is read back as a picture.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.extras import install

if TYPE_CHECKING:
    from ...client import Delivered, Service
    from ..fleet.process import Fleet

NEEDED = {"lxml": "directory", "msgspec": "interchange", "re2": "interchange"}  # library -> extra
PATIENCE = 60.0  # seconds for what has to come
EXPIRY = 3.0  # seconds of the request whose bank is cut off
MOST = 10_000  # that the filter lets pass
NUMBERS = {"ACME": "C-4711"}  # what map/ids knows
SHOP, MAP, FILTER, NEAR, FAR = "shop/orders", "map/ids", "filter/credit", "east/credit", "west/credit"
BANKS = (NEAR, FAR)
SERVICES = """
[services."{SHOP}"]
users = ["*"]
site = "{shop}"
[[services."{SHOP}".rules]]
name = "the banks have numbers of their own"
role = "out"
when = {{header = "kind", equals = "request"}}
then = [{{include = "{MAP}"}}]

[services."{MAP}"]
users = ["*"]
site = "{helpers}"
[services."{FILTER}"]
users = ["*"]
site = "{helpers}"
"""
BANK = """
[services."{name}"]
users = ["*"]
callers = ["shop/*"]
site = "{site}"
[[services."{name}".rules]]
name = "credits are looked at first"
when = {{json = "$.amount", exists = true}}
then = [{{include = "{FILTER}"}}]
"""


class InterchangeActError(Exception):
    """The act cannot continue. The message says why."""


@dataclass(slots=True)
class InterchangeActResult:
    """What the shop heard.

    answered: banks that answered while all was well. refused: recipients for which the filter ended the request that was too large.
    expired: seconds until the shop heard that the request to the bank that was cut off has expired. late: requests that this bank got
    though they had expired. returned: seconds from the mended links until both banks had answered. picture: the session of the cut.
    """

    answered: int = 0
    refused: int = 0
    expired: float | None = None
    late: int = 0
    returned: float | None = None
    picture: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What went wrong, one line each."""
        found = [f"{self.answered} of two banks answered"] * (self.answered != 2)
        found += [f"the filter stopped {self.refused} of two requests that were too large"] * (self.refused != 2)
        found += ["a request to a bank that was cut off did not expire"] * (self.expired is None)
        found += [f"{self.late} expired requests came to a bank"] * bool(self.late)
        found += ["not both banks answered after the cut"] * (self.returned is None)
        return found


def services(shop: str, helpers: str, near: str, far: str) -> str:
    """The file of services. shop, helpers, near, far: sites of the shop, of map and filter, and of the two banks."""
    named = {"SHOP": SHOP, "MAP": MAP, "FILTER": FILTER}
    banks = [BANK.format(name=name, site=site, **named) for name, site in ((NEAR, near), (FAR, far))]
    return SERVICES.format(shop=shop, helpers=helpers, **named) + "".join(banks)


class InterchangeAct:
    """Plays the act beside a running mesh. sites: as `services` has them. neighbours: sites that the last one of them is linked to.

    phase: called with each event, in words.
    """

    def __init__(self, fleet: Fleet, sites: tuple[str, str, str, str], neighbours: tuple[str, ...], phase: Callable[[str], None]) -> None:
        self.fleet, self.sites, self.neighbours, self.phase = fleet, sites, neighbours, phase
        self.result = InterchangeActResult()
        self._orders: list[str] = []  # that the far bank has worked
        self._stack = contextlib.ExitStack()

    def run(self) -> InterchangeActResult:
        """Play the act, and end everything that it started. Raises InterchangeActError, FleetError, OSError."""
        from ...client import JMSError

        try:
            with self._stack:
                self._play()
        except JMSError as error:
            raise InterchangeActError(str(error)) from None
        return self.result

    def _play(self) -> None:
        shop_site, helpers, near, far = self.sites
        self._service(MAP, helpers).serve(_mapped)
        self._service(FILTER, helpers).serve(_filtered)
        self._service(NEAR, near).serve(_credit)
        self._service(FAR, far).serve(self._far_credit)
        shop = self._service(SHOP, shop_site)
        self.phase(f"the shop at {shop_site} asks banks at {near} and {far}; {MAP} and {FILTER} at {helpers} are in the way")
        self.result.answered = len(_answers(self._ask(shop, "first", 300)))
        ends = self._ask(shop, "large", 50_000)
        self.result.refused = sum(getattr(one, "error_code", "") == "too-much" for one in ends)
        self.phase(f"{self.result.answered} banks answered; a request of 50,000 was refused by {FILTER} for {self.result.refused} banks")
        self._cut_off(shop)
        self._come_back(shop)

    def _cut_off(self, shop: Service) -> None:
        """One bank's site is cut off: its request expires."""
        from ...client import ServiceError

        far = self.sites[3]
        for neighbour in self.neighbours:
            self.fleet.cut(far, neighbour)
        self.phase(f"{far} is cut off; the shop asks one bank, then the other one for {EXPIRY:g} s, in one session")
        for answer in _answers(self._ask(shop, "cut", 400, [NEAR])):
            begin = time.monotonic()
            (end,) = self._ask(shop, "cut", 400, [FAR], EXPIRY, session=answer.session)
            if isinstance(end, ServiceError) and end.error_code == "expired":
                self.result.expired = time.monotonic() - begin
            self.result.picture = self._picture(answer.session)

    def _come_back(self, shop: Service) -> None:
        far = self.sites[3]
        for neighbour in self.neighbours:
            self.fleet.mend(far, neighbour)
        mended = time.monotonic()
        if len(_answers(self._ask(shop, "back", 500))) == 2:
            self.result.returned = time.monotonic() - mended
            self.phase(f"{far} is back: both banks answered after {self.result.returned:.1f} s")
        self.result.late = self._orders.count("cut")

    # The services

    def _service(self, name: str, site: str) -> Service:
        from ...client import ConnectionFactory, Service

        factory = ConnectionFactory(str(self.fleet.members[site].address), retry_last=0.5)
        return self._stack.enter_context(Service(name, factory))

    def _ask(
        self, shop: Service, order: str, amount: int, banks: Sequence[str] = BANKS, expiry: float = PATIENCE, **header: str
    ) -> list[Any]:
        """What came of a request to banks."""
        body = {"order": order, "customer": "ACME", "amount": amount}
        return list(shop.ask([*banks], body, expiry, topic="credit", **header).responses(PATIENCE + 10))

    def _far_credit(self, request: Delivered) -> dict[str, Any]:
        self._orders.append(request.json()["order"])
        return _credit(request)

    def _picture(self, session: str) -> list[str]:
        """The session, as `mqmesh interchange session` has it."""
        address = str(self.fleet.members[self.sites[0]].address)
        command = [sys.executable, "-m", "mqmesh.cli.main", "interchange", "session", session, "-h", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise InterchangeActError(f"mqmesh interchange session: {done.stderr.strip()}")
        return done.stdout.splitlines()


def _answers(ends: list[Any]) -> list[Delivered]:
    return [one for one in ends if not isinstance(one, Exception)]


def _mapped(request: Delivered) -> dict[str, Any]:
    """`map/ids`: the customer by the number that banks know."""
    order: dict[str, Any] = request.json()
    return order | {"customer": NUMBERS[order["customer"]]}


def _filtered(request: Delivered) -> dict[str, Any]:
    """`filter/credit`: nothing that is too much."""
    from ...client import ServiceError

    order: dict[str, Any] = request.json()
    if order["amount"] > MOST:
        raise ServiceError(f"{order['amount']:,} is more than {MOST:,}", "too-much")
    return order


def _credit(request: Delivered) -> dict[str, Any]:
    """A bank."""
    order = request.json()
    return {"order": order["order"], "customer": order["customer"], "granted": order["amount"]}


def written(folder: Path, sites: tuple[str, str, str, str]) -> Path:
    """The file of services, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "services.toml"
    path.write_text(services(*sites), encoding="utf-8")
    return path


def missing() -> str:
    """Why the act cannot be played; "": it can."""
    for library, extra in NEEDED.items():
        if find_spec(library) is None:
            return f"{library} is not installed: {install(extra)}"
    return ""
