"""Rating is exact: compared with fractions, by hand-made cases and by properties."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.pipeline.billing.rating import Invoice, Period, Usage, invoice, invoices, rounded
from mqmesh.pipeline.billing.tariff import UNITS, Price, Role, Tariff, Tariffs, Tier

NOVEMBER = Period(2026, 11)
DAY = date(2026, 11, 3)


def tariffs(*prices: Price, **values: object) -> Tariffs:
    own = {key: values.pop(key) for key in ("flat", "minimum", "accounts") if key in values}
    return Tariffs(tariffs=(Tariff("standard", **({"accounts": ("*",)} | own), prices=prices),), **values)  # type: ignore[arg-type]


def price(*tiers: tuple[int | None, str], per: str = "message", services: tuple[str, ...] = ("*",), **shares: str) -> Price:
    paid = tuple((Role(role), Decimal(share)) for role, share in (shares or {"originator": "1"}).items())
    return Price(services, per, tuple(Tier(upto, Decimal(cost)) for upto, cost in tiers), paid)


def used(messages: int, size: int = 0, role: Role = Role.ORIGINATOR, service: str = "plant", day: date = DAY) -> Usage:
    return Usage("acme", service, day, role, messages, size)


def of(table: Tariffs, *usage: Usage) -> Invoice:
    made = invoice(table, "acme", usage, NOVEMBER)
    assert made is not None
    return made


def test_each_tier_is_a_line() -> None:
    made = of(tariffs(price((1000, "0"), (5000, "0.01"), (None, "0.005"))), used(4000), used(2000, day=DAY + timedelta(1)))
    assert [(line.quantity, line.amount) for line in made.lines] == [(1000, 0), (4000, 40), (1000, 5)]
    assert made.net == made.total == 45
    assert (made.lines[0].first, made.lines[0].last, made.lines[0].messages) == (DAY, DAY + timedelta(1), 6000)
    assert made.number == "INV-2026-11-acme"
    assert (made.issued, made.due) == (date(2026, 12, 1), date(2026, 12, 15))


def test_bytes_are_charged_by_their_unit() -> None:
    made = of(tariffs(price((None, "0.10"), per="MiB")), used(3, 5 * 2**20 + 2**19))
    assert made.lines[0].quantity == Decimal("5.5")
    assert made.net == Decimal("0.55")


def test_each_role_pays_its_share() -> None:
    table = tariffs(price((None, "0.10"), originator="0.7", recipient="0.3"))
    made = of(table, used(10), used(100, role=Role.RECIPIENT), used(1000, role=Role.INTERMEDIARY))
    assert [(line.role, line.amount) for line in made.lines] == [(Role.ORIGINATOR, Decimal("0.70")), (Role.RECIPIENT, 3)]


def test_flat_fee_minimum_and_tax() -> None:
    table = tariffs(price((None, "0.01")), flat=Decimal("10"), minimum=Decimal("25"), tax=Decimal("23"))
    made = of(table, used(100))
    assert [line.amount for line in made.lines] == [10, 1, 14]
    assert (made.net, made.tax, made.total) == (25, Decimal("5.75"), Decimal("30.75"))


def test_who_is_named_pays_the_flat_fee_without_usage_and_others_get_no_invoice() -> None:
    named = tariffs(flat=Decimal(10), accounts=("acme", "b*"))
    assert [one.account for one in invoices(named, [], NOVEMBER)] == ["acme"]
    assert [one.account for one in invoices(named, [Usage("bee", "x", DAY, Role.ORIGINATOR, 1, 1)], NOVEMBER)] == ["acme", "bee"]
    assert invoices(named, [Usage("cat", "x", DAY, Role.ORIGINATOR, 1, 1)], NOVEMBER)[0].account == "acme"


def test_other_months_are_left_out() -> None:
    table = tariffs(price((None, "1")))
    made = invoices(table, [used(1), used(10, day=date(2026, 10, 31)), used(100, day=date(2026, 12, 1))], NOVEMBER)
    assert made[0].net == 1


def test_half_a_cent_goes_up() -> None:
    assert rounded(Decimal("0.005"), 2) == Decimal("0.01")
    assert rounded(Decimal("0.00499999999999999999999999999999999999999"), 2) == 0
    assert rounded(Decimal("2.5"), 0) == 3


@pytest.mark.parametrize("text", ["2026", "2026-13", "26-11", "2026-11-01", "x"])
def test_a_month_has_one_form(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 2026-11"):
        Period.parse(text)


def test_a_month_is_read() -> None:
    assert (Period.parse("2028-02").last, str(Period.parse("2028-02"))) == (date(2028, 2, 29), "2028-02")


costs = st.decimals(0, 1000, places=6)
tiers_of = st.lists(st.integers(1, 10**6), max_size=4, unique=True).flatmap(
    lambda bounds: st.tuples(*(costs for _ in range(len(bounds) + 1))).map(
        lambda some: tuple(Tier(bound, cost) for bound, cost in zip([*sorted(bounds), None], some, strict=True))
    )
)
parts = st.integers(0, 1000).map(lambda part: (Decimal(part) / 1000, 1 - Decimal(part) / 1000))
usages = st.lists(
    st.builds(
        Usage,
        st.just("acme"),
        st.sampled_from(["plant", "shop"]),
        st.integers(0, 29).map(lambda days: NOVEMBER.first + timedelta(days)),
        st.sampled_from([Role.ORIGINATOR, Role.RECIPIENT]),
        st.integers(0, 10**9),
        st.integers(0, 10**13),
    ),
    min_size=1,
    max_size=8,
)


def tier_cost(tiers: tuple[Tier, ...], amount: int, unit: int) -> Fraction:
    """The price of an amount, unit by unit of each tier, in fractions."""
    total, below = Fraction(0), 0
    for tier in tiers:
        bound = amount if tier.upto is None else min(amount, tier.upto * unit)
        total += Fraction(max(0, bound - below), unit) * Fraction(tier.price)
        below = max(below, bound)
    return total


@settings(deadline=None)
@given(tiers_of, parts, usages, st.sampled_from(sorted(UNITS)))
def test_lines_are_exact_and_add_up(tiers: tuple[Tier, ...], shares: tuple[Decimal, Decimal], usage: list[Usage], per: str) -> None:
    table = tariffs(Price(("*",), per, tiers, tuple(zip((Role.ORIGINATOR, Role.RECIPIENT), shares, strict=True))), tax=Decimal("23"))
    made = invoice(table, "acme", usage, NOVEMBER)
    lines = made.lines if made is not None else ()
    assert sum((line.amount for line in lines), Decimal(0)) == (made.net if made is not None else 0)
    for line in lines:
        assert line.amount == rounded(line.exact, 2)
        assert abs(line.amount - line.exact) <= Decimal("0.005")
    if made is None:  # nothing to pay after rounding
        return
    assert made.total == made.net + made.tax
    for role, share in zip((Role.ORIGINATOR, Role.RECIPIENT), shares, strict=True):
        for service in {one.service for one in usage if one.role == role}:
            some = [one for one in usage if (one.role, one.service) == (role, service)]
            amount = sum(one.messages if per == "message" else one.bytes for one in some)
            exact = sum((Fraction(line.exact) for line in lines if (line.role, line.service) == (role, service)), Fraction(0))
            assert exact == tier_cost(tiers, amount, UNITS[per]) * Fraction(share)


@settings(deadline=None)
@given(tiers_of, usages, st.randoms())
def test_order_and_division_of_usage_do_not_matter(tiers: tuple[Tier, ...], usage: list[Usage], chance: object) -> None:
    table = tariffs(Price(("*",), "message", tiers, ((Role.ORIGINATOR, Decimal(1)),)))
    shuffled = list(usage)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    halves = [
        Usage(one.account, one.service, one.day, one.role, part, size)
        for one in shuffled
        for part, size in ((one.messages // 2, one.bytes), (one.messages - one.messages // 2, 0))
    ]
    assert invoice(table, "acme", usage, NOVEMBER) == invoice(table, "acme", halves, NOVEMBER)
