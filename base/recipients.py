"""Names of recipients, which brokers and the directory share."""

from __future__ import annotations

LONGEST_NAME = 256  # characters
SIGNS = "/+#,\0"  # a name is a level of topics, and one of several in a user property


def wrong_name(name: str) -> str | None:
    """What would be right for the name of a recipient; None: it is right."""
    if not name or len(name) > LONGEST_NAME or any(sign in name for sign in SIGNS) or not name.isprintable() or name.startswith("$"):
        return f"give a name of 1 to {LONGEST_NAME} characters without '/', '+', '#', ',', that does not begin with '$'"
    return None
