"""What brokers, the client and the directory share of clients: words in CONNECT, and names of recipients."""

from __future__ import annotations

EXCLUSIVE = ("mqmesh-exclusive", "1")  # refuse me while another connection has my client identifier, instead of closing that one
MAY_BE_EXCLUSIVE = ("mqmesh-exclusive", "0")  # I may ask for that later. A broker that knows what it means has EXCLUSIVE in its CONNACK

LONGEST_NAME = 256  # characters of a recipient's name
SIGNS = "/+#,\0"  # a name is a level of topics, and one of several in a user property


def wrong_name(name: str) -> str | None:
    """What would be right for the name of a recipient; None: it is right."""
    if not name or len(name) > LONGEST_NAME or any(sign in name for sign in SIGNS) or not name.isprintable() or name.startswith("$"):
        return f"give a name of 1 to {LONGEST_NAME} characters without '/', '+', '#', ',', that does not begin with '$'"
    return None
