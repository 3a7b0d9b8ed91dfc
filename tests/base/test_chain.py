"""The digests of a chain: what they are made of stays as it is, or no chain that was written before is whole any more."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.chain import digest_of

VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False) | st.lists(st.text())


@given(st.text(), st.lists(VALUES))
def test_a_digest_is_of_the_row_as_json_after_the_digest_before(before: str, row: list[Any]) -> None:
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    assert digest_of(before, tuple(row)) == hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()
