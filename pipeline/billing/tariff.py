"""Tariffs: what is sold, who pays and how much. Read from a TOML file; money is exact, so prices are strings.

    currency = "EUR"
    decimals = 2                     # of the currency's smallest unit
    due_days = 14
    prefix = "INV"                   # invoice numbers: INV-2026-11-acme

    [seller]
    name = "Example Messages Ltd"
    address = ["1 Wharf Road", "Porto"]

    [tax]
    name = "VAT"
    percent = "23"

    [[service]]                      # the first that fits; else the service is the first level of the topic
    name = "telemetry"
    topics = ["plant/#"]

    [[service]]                      # of the interchange: messages to services with these names
    name = "credit"
    exchanges = ["bank/*"]

    [[party]]                        # whose recipients, sites and services are; else a recipient's account is that of its user
    account = "acme"
    recipients = ["acme-*"]
    sites = [3]
    services = ["shop/*"]

    [[tariff]]                       # the first whose accounts fit
    name = "standard"
    accounts = ["*"]
    flat = "10.00"                   # a month
    minimum = "25.00"                # of an invoice, before tax

    [[tariff.price]]                 # each one that fits a service is charged
    services = ["telemetry"]
    per = "message"                  # or byte, kB, MB, GB, KiB, MiB, GiB
    tiers = [{ upto = 1000, price = "0" }, { price = "0.002" }]
    pays = { originator = "0.7", recipient = "0.3" }   # or "originator", "recipient", "intermediary"

Source: US 9,037,726, billing component (rows M13, IH3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Any

from ...base.settings import ConfigError, Section, read
from ...base.wildcards import fits
from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter, matches

UNITS = {
    "message": 1,
    "byte": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
LARGEST = Decimal(10) ** 12  # of a price, and of an amount in a file


class Role(StrEnum):
    """What a party does for a message: publishes it, gets it, or passes it on between other brokers."""

    ORIGINATOR = "originator"
    RECIPIENT = "recipient"
    INTERMEDIARY = "intermediary"


@dataclass(frozen=True, slots=True)
class Tier:
    """A price for the units up to and including `upto`; None: for all that follow."""

    upto: int | None
    price: Decimal


@dataclass(frozen=True, slots=True)
class Price:
    """What a service costs. services: patterns of names. per: a key of `UNITS`. shares: what part of the price each role pays; sum 1."""

    services: tuple[str, ...]
    per: str
    tiers: tuple[Tier, ...]
    shares: tuple[tuple[Role, Decimal], ...]

    def covers(self, service: str) -> bool:
        return any(fits(pattern, service) for pattern in self.services)


@dataclass(frozen=True, slots=True)
class Tariff:
    """What the accounts that fit its patterns pay. flat, minimum: of a month, before tax."""

    name: str
    accounts: tuple[str, ...]
    flat: Decimal = Decimal(0)
    minimum: Decimal = Decimal(0)
    prices: tuple[Price, ...] = ()

    def covers(self, account: str) -> bool:
        return any(fits(pattern, account) for pattern in self.accounts)


@dataclass(frozen=True, slots=True)
class Service:
    """Something that is sold: the messages of some topics, those to some recipients, and those to some services of the interchange."""

    name: str
    topics: tuple[str, ...] = ()
    recipients: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()

    def covers(self, topic: str, recipient: str) -> bool:
        if recipient and any(fits(pattern, recipient) for pattern in self.recipients):
            return True
        return bool(topic) and any(matches(one, topic) for one in self.topics)


@dataclass(frozen=True, slots=True)
class Party:
    """An account that recipients, sites, and services of the interchange belong to."""

    account: str
    recipients: tuple[str, ...] = ()
    sites: tuple[int, ...] = ()
    services: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seller:
    """Who sends the invoices."""

    name: str = ""
    address: tuple[str, ...] = ()
    tax_number: str = ""


@dataclass(frozen=True, slots=True)
class Tariffs:
    """A whole file. tax: percent of the sum of an invoice."""

    currency: str = "EUR"
    decimals: int = 2
    due_days: int = 14
    prefix: str = "INV"
    seller: Seller = field(default_factory=Seller)
    tax_name: str = "tax"
    tax: Decimal = Decimal(0)
    services: tuple[Service, ...] = ()
    parties: tuple[Party, ...] = ()
    tariffs: tuple[Tariff, ...] = ()

    def tariff_of(self, account: str) -> Tariff | None:
        """The tariff of an account: the first that fits; None: it pays nothing."""
        return next((one for one in self.tariffs if one.covers(account)), None)

    def service_of(self, topic: str, recipient: str = "") -> str:
        """What a message is sold as: the first service that fits, else the first level of the topic."""
        for service in self.services:
            if service.covers(topic, recipient):
                return service.name
        return topic.partition("/")[0]

    def account_of_recipient(self, recipient: str, account: str = "") -> str:
        """Whose account a recipient is. account: of its user, where no party has it."""
        for party in self.parties:
            if any(fits(pattern, recipient) for pattern in party.recipients):
                return party.account
        return account

    def account_of_site(self, broker: int) -> str:
        """Whose account a site is, as one that passes messages on; "": nobody's."""
        return next((party.account for party in self.parties if broker in party.sites), "")

    def product_of(self, receiver: str) -> str:
        """What a message to a service of the interchange is sold as: the first service that fits, else the first level of its name."""
        for service in self.services:
            if any(fits(pattern, receiver) for pattern in service.exchanges):
                return service.name
        return receiver.partition("/")[0]

    def account_of_service(self, name: str) -> str:
        """Whose account a service of the interchange is; "": nobody's."""
        return next((party.account for party in self.parties if any(fits(pattern, name) for pattern in party.services)), "")


def read_tariffs(path: str | Path) -> Tariffs:
    """Read a file of tariffs. Raises ConfigError."""
    return tariffs_of(read(path))


def tariffs_of(section: Section) -> Tariffs:
    """Read the table of a whole file. Raises ConfigError."""
    currency = section.string("currency", right='give a currency, as "EUR"')
    if not (len(currency) == 3 and currency.isascii() and currency.isupper()):
        raise section.error("currency", 'give the three letters of a currency, as "EUR"')
    seller = section.section("seller")
    tax = section.section("tax")
    decimals = section.whole("decimals", 0, 6, 2)
    made = Tariffs(
        currency=currency,
        decimals=decimals,
        due_days=section.whole("due_days", 0, 3650, 14),
        prefix=section.name("prefix", "INV"),
        seller=Seller(_text(seller, "name"), tuple(seller.strings("address", [])), _text(seller, "tax_number")),
        tax_name=tax.string("name", "tax"),
        tax=_decimal(tax, "percent", Decimal(0), Decimal(100)),
        services=tuple(_service(one) for one in section.sections("service")),
        parties=tuple(_party(one) for one in section.sections("party")),
        tariffs=tuple(_tariff(one) for one in section.sections("tariff")),
    )
    if not made.tariffs:
        raise section.error("tariff", "give at least one [[tariff]]")
    for one in (seller, tax, section):
        one.done()
    return made


def _text(section: Section, key: str) -> str:
    """A string that may be left out."""
    return section.string(key) if section.has(key) else ""


def _decimal(section: Section, key: str, default: Decimal | None = None, high: Decimal = LARGEST) -> Decimal:
    """An amount that is not negative, as a string or a whole number; a TOML float is not exact and is refused."""
    right = f'give a number from 0 to {high:f} as a string, as "0.002", so that it is exact'
    if not section.has(key):
        if default is None:
            raise section.error(key, right)
        return default
    value: Any = section.table[key]
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise section.error(key, right)
    try:
        found = Decimal(value)
    except InvalidOperation:
        raise section.error(key, right) from None
    if not found.is_finite() or not 0 <= found <= high:
        raise section.error(key, right)
    if -int(found.as_tuple().exponent) > 12:
        raise section.error(key, "give at most 12 decimals")
    return found


def _service(section: Section) -> Service:
    topics = section.strings("topics", [], 'give a list of topic filters, as ["plant/#"]')
    for topic in topics:
        try:
            check_filter(topic)
        except MqttError as error:
            raise section.error("topics", f"{topic!r}: {getattr(error, 'text', error)}") from None
        if topic.startswith("$share/"):
            raise section.error("topics", f"{topic!r}: leave $share/NAME/ out")
    others = (tuple(section.strings(key, [])) for key in ("recipients", "exchanges"))
    made = Service(section.string("name"), tuple(topics), *others)
    if not made.topics and not made.recipients and not made.exchanges:
        raise section.error("topics", 'give topics, recipients or exchanges, as ["plant/#"]')
    section.done()
    return made


def _party(section: Section) -> Party:
    sites = section.table.get("sites", [])
    right = "give a list of broker numbers, as [3]"
    section.has("sites")
    if not isinstance(sites, list) or not all(isinstance(site, int) and not isinstance(site, bool) and site >= 0 for site in sites):
        raise section.error("sites", right)
    recipients, services = (tuple(section.strings(key, [])) for key in ("recipients", "services"))
    made = Party(section.string("account"), recipients, tuple(sites), services)
    section.done()
    return made


def _tariff(section: Section) -> Tariff:
    made = Tariff(
        name=section.string("name"),
        accounts=tuple(section.strings("accounts", ["*"])),
        flat=_decimal(section, "flat", Decimal(0)),
        minimum=_decimal(section, "minimum", Decimal(0)),
        prices=tuple(_price(one) for one in section.sections("price")),
    )
    section.done()
    return made


def _price(section: Section) -> Price:
    made = Price(
        services=tuple(section.strings("services", ["*"])),
        per=section.choice("per", tuple(UNITS), "message"),
        tiers=_tiers(section),
        shares=_shares(section),
    )
    section.done()
    return made


def _tiers(section: Section) -> tuple[Tier, ...]:
    if section.has("price") == section.has("tiers"):
        raise section.error("price", 'give price = "0.002", or tiers = [{ upto = 1000, price = "0.01" }, { price = "0.002" }]')
    if section.has("price"):
        return (Tier(None, _decimal(section, "price")),)
    tiers = []
    for one in section.sections("tiers"):
        tiers.append(Tier(one.whole("upto", 1, 10**15) if one.has("upto") else None, _decimal(one, "price")))
        one.done()
    bounds = [tier.upto for tier in tiers]
    if not tiers or bounds[-1] is not None or None in bounds[:-1] or bounds[:-1] != sorted(set(bounds[:-1]), key=int):  # type: ignore[arg-type]
        raise section.error("tiers", "give rising `upto`, and none in the last tier")
    return tuple(tiers)


def _shares(section: Section) -> tuple[tuple[Role, Decimal], ...]:
    right = 'give "originator", "recipient" or "intermediary", or shares that add up to 1, as { originator = "0.7", recipient = "0.3" }'
    if not section.has("pays"):
        return ((Role.ORIGINATOR, Decimal(1)),)
    value = section.table["pays"]
    if isinstance(value, str) and value in [role.value for role in Role]:
        return ((Role(value), Decimal(1)),)
    if not isinstance(value, dict):
        raise section.error("pays", right)
    table = section.section("pays")
    shares = tuple((role, _decimal(table, role.value, high=Decimal(1))) for role in Role if table.has(role.value))
    table.done()
    if sum((share for _, share in shares), Decimal(0)) != 1:
        raise section.error("pays", right)
    return shares


__all__ = ["UNITS", "ConfigError", "Party", "Price", "Role", "Seller", "Service", "Tariff", "Tariffs", "Tier", "read_tariffs", "tariffs_of"]
