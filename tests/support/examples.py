"""How many examples property tests try: as many as they name, or MQMESH_EXAMPLES times as many, as `make nightly` does."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("MQMESH_EXAMPLES", "1"))


def examples(count: int) -> int:
    """For `settings(max_examples=...)` of a test for which `count` examples are enough every time."""
    return count * FACTOR
