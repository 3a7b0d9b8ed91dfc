"""What a management request that cannot be carried out ends in."""

from __future__ import annotations


class Refused(Exception):
    """A request that is wrong, not permitted, or cannot be carried out. Its text is one line for the one who asked."""
