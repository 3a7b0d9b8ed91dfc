"""The data types of MQTT: which characters a receiver may refuse."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from mqmesh.mqtt.fields import doubtful


@given(st.text(max_size=4))
@example("\x7f")
@example("\u009f")
@example("\ufdd0")
@example("\ufdef")
@example("\ufdf0")
@example("\uffff")
@example("\U0001fffe")
@example("\U0010ffff")
@example("ÿ \u00a0\ue000\U0001fffd")
def test_control_characters_and_non_characters_are_doubtful(text: str) -> None:
    numbers = [ord(one) for one in text]
    assert doubtful(text.encode()) == any(n < 0x20 or 0x7F <= n < 0xA0 or 0xFDD0 <= n <= 0xFDEF or n & 0xFFFE == 0xFFFE for n in numbers)
