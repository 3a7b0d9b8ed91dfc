"""The table `[recipients]`: what is read, and the one line that each mistake gives."""

from __future__ import annotations

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import parse
from mqmesh.broker.recipients.settings import DEFAULT, Application, Intervals, seconds_of

APPLICATION = {
    "name": "orders",
    "client": "orders-client",
    "topics": ["shop/orders/#"],
    "alternatives": ["orders-lyon"],
    "message_interval": "2s",
    "probe": True,
}


def test_f2_f20_a_whole_table() -> None:
    """F20: intervals for each recipient, with defaults for all."""
    table = {"fault_interval": "10m", "application": [APPLICATION, {"name": "stock", "broker": "lyon"}]}
    settings = parse({"recipients": table}).recipients
    assert settings is not None
    assert (settings.prefix, settings.dead_letters) == ("app", "dead/{site}")
    first, second = settings.applications
    assert first == Application(
        "orders", ["orders-client"], ["shop/orders/#"], ["orders-lyon"], Intervals(2.0, 600.0, 3600.0), True, ["*"], None
    )
    assert second == Application("stock", ["stock"], intervals=Intervals(10.0, 600.0, 3600.0), broker="lyon")


def test_without_the_table_nothing_is_reserved() -> None:
    assert parse({}).recipients is None
    assert parse({"recipients": {}}).recipients is not None


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("10s", 10.0), ("5m", 300.0), ("1.5 h", 5400.0), (3, 3.0), (0.5, 0.5)])
def test_intervals_are_seconds_or_text(text: object, seconds: float) -> None:
    assert seconds_of(text) == seconds


MISTAKES = [
    ({"fault_interval": 5}, "recipients.fault_interval = 5: give at least the message interval, 10 s"),
    ({"message_interval": "soon"}, 'recipients.message_interval = "soon": give seconds, or a text'),
    ({"prefix": "a/#"}, "recipients.prefix"),
    ({"dead_letters": "dead/+"}, 'recipients.dead_letters = "dead/+": give a topic'),
    ({"application": [{"name": "a/b"}]}, "recipients.application[1].name"),
    ({"application": [{"name": "a,b"}]}, "recipients.application[1].name"),  # names travel in lists with commas
    ({"application": [{"name": "a", "alternatives": ["a"]}]}, "an application is no alternative to itself"),
    ({"application": [{"name": "a", "alternatives": ["b", "b"]}]}, "an alternative stands twice"),
    ({"application": [{"name": "a", "alternatives": [f"b{i}" for i in range(10_000)]}]}, "give at most 64 alternatives"),
    ({"application": [{"name": "a"}, {"name": "a"}]}, "recipients.application[2].name"),
    ({"application": [{"name": "a", "client": "b", "clients": ["c"]}]}, "give client or clients, not both"),
    ({"application": [{"name": "a", "fault_interval": "1s"}]}, "recipients.application[1].fault_interval"),
    ({"application": [{"name": "a", "topics": ["a#"]}]}, "is no topic filter"),
    ({"application": [{"name": "a", "alternative": ["b"]}]}, "alternatives"),
]


@pytest.mark.parametrize(("table", "text"), MISTAKES)
def test_f2_a_mistake_gives_one_line(table: dict[str, object], text: str) -> None:
    """F2: a fault interval below the message interval is refused; so is everything else that cannot be meant."""
    with pytest.raises(ConfigError) as caught:
        parse({"recipients": table})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_defaults() -> None:
    assert DEFAULT == (10.0, 300.0, 3600.0)
