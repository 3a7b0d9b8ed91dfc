"""Tariff files: what is read, and what is refused with file, key, value and what would be right."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.pipeline.billing.tariff import Role, Tier, read_tariffs

GOOD = """
currency = "EUR"
[seller]
name = "Example Messages Ltd"
address = ["1 Wharf Road", "Porto"]
[tax]
name = "VAT"
percent = "23"
[[service]]
name = "telemetry"
topics = ["plant/#"]
[[service]]
name = "billing"
recipients = ["billing-*"]
[[service]]
name = "credit"
exchanges = ["bank/*"]
[[party]]
account = "acme"
recipients = ["acme-*"]
sites = [3]
services = ["shop/*"]
[[tariff]]
name = "large"
accounts = ["acme"]
flat = "10.00"
minimum = "25"
[[tariff.price]]
services = ["telemetry"]
tiers = [{ upto = 1000, price = "0" }, { price = "0.002" }]
pays = { originator = "0.7", recipient = "0.3" }
[[tariff]]
name = "standard"
[[tariff.price]]
per = "MiB"
price = "0.10"
pays = "recipient"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "tariffs.toml"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    tariffs = read_tariffs(written(tmp_path, GOOD))
    large = tariffs.tariff_of("acme")
    assert large is not None
    assert large.flat == 10
    assert large.prices[0].tiers == (Tier(1000, Decimal(0)), Tier(None, Decimal("0.002")))
    assert large.prices[0].shares == ((Role.ORIGINATOR, Decimal("0.7")), (Role.RECIPIENT, Decimal("0.3")))
    standard = tariffs.tariff_of("anyone")
    assert standard is not None
    assert standard.prices[0].shares == ((Role.RECIPIENT, Decimal(1)),)
    assert tariffs.tax == 23


def test_services_and_parties_are_found(tmp_path: Path) -> None:
    tariffs = read_tariffs(written(tmp_path, GOOD))
    assert tariffs.service_of("plant/3/temperature") == "telemetry"
    assert tariffs.service_of("app/billing-1/x", "billing-1") == "billing"
    assert tariffs.service_of("shop/1/sold") == "shop"
    assert tariffs.service_of("app/stock", "stock") == "app"
    assert tariffs.account_of_recipient("acme-7") == "acme"
    assert tariffs.account_of_recipient("other", "bee") == "bee"
    assert tariffs.account_of_site(3) == "acme"
    assert tariffs.account_of_site(4) == ""
    assert [tariffs.product_of(name) for name in ("bank/loans", "map/ids")] == ["credit", "map"]
    assert [tariffs.account_of_service(name) for name in ("shop/orders", "bank/loans")] == ["acme", ""]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('currency = "EUR"', 'currency = "euro"', 'currency = "euro": give the three letters'),
        ('price = "0.10"', "price = 0.10", 'tariff[2].price[1].price = 0.1: give a number from 0 to 1000000000000 as a string, as "0.002"'),
        ('price = "0.10"', 'price = "-1"', 'tariff[2].price[1].price = "-1"'),
        ('price = "0.10"', 'price = "nan"', 'tariff[2].price[1].price = "nan"'),
        ('price = "0.10"', "", "tariff[2].price[1].price is missing"),
        ("upto = 1000", 'upto = "many"', 'tariff[1].price[1].tiers[1].upto = "many"'),
        ('{ upto = 1000, price = "0" }, ', '{ price = "0" }, ', "give rising `upto`, and none in the last tier"),
        ('recipient = "0.3"', 'recipient = "0.2"', "shares that add up to 1"),
        ('pays = "recipient"', 'pays = "nobody"', 'tariff[2].price[1].pays = "nobody": give "originator", "recipient"'),
        ('topics = ["plant/#"]', 'topics = ["plant/#/x"]', "service[1].topics"),
        ('per = "MiB"', 'per = "mib"', 'tariff[2].price[1].per = "mib"'),
        ("sites = [3]", "sites = [-3]", "party[1].sites"),
        ('minimum = "25"', 'minimun = "25"', "tariff[1].minimun"),
        ('percent = "23"', 'percent = "123"', "tax.percent"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_tariffs(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_without_tariffs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tariff is missing"):
        read_tariffs(written(tmp_path, 'currency = "EUR"'))
