"""A flood of refusals is no flood of lines, and no growth."""

from __future__ import annotations

import logging

import pytest
from mqmesh.base.refusals import REFUSALS, REST, SAY_AGAIN, Refusals, Warnings, source_of

log = logging.getLogger("mqmesh.test")


def test_the_same_once_a_minute_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    warnings = Warnings(log)
    for second in (0, 1, 59.9):
        warnings.say("refused", second, f"10.0.0.1:{int(second) + 1000}", f"no {second}", " client=c", "0x86")
    warnings.say("refused", 2, "10.0.0.2:1", "no", " client=d", "0x86")
    warnings.say("refused", 60, "10.0.0.1:7", "again", " client=c", "0x86")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "event=refused address=10.0.0.1:1000 client=c more=0 text=no 0",
        "event=refused address=10.0.0.2:1 client=d more=0 text=no",
        "event=refused address=10.0.0.1:7 client=c more=2 text=again",
    ]


def test_different_ones_without_an_end_are_few_lines_too() -> None:
    refusals = Refusals(log)
    said = [refusals.due(0.0, (str(number), "x")) for number in range(10 * REFUSALS)]
    assert sum(one is not None for one in said) == REFUSALS + 1
    assert refusals.due(1.0, ("0", "x")) is None
    assert refusals.due(SAY_AGAIN, REST) == 9 * REFUSALS - 1
    assert refusals.due(SAY_AGAIN, ("new", "x")) == 0


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.0.0.1:1883", "10.0.0.1"),
        ("2001:db8:0:1:2:3:4:5:1883", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::77:1883", "2001:db8:0:1::/64"),
        ("fe80::1%eth0:1883", "fe80::/64"),
        ("::ffff:10.0.0.1:1883", "10.0.0.1"),
        ("unix", "unix"),
        ("?", "?"),
    ],
)
def test_of_ipv6_the_first_64_bits_are_one_peer(address: str, source: str) -> None:
    assert source_of(address) == source
