"""What lies under a link: nothing that proves anything, or a TLS connection.

A TLS connection gives a link two things. Its *binding* is a string of bytes that exactly the two ends of this one
connection know: the client's Finished message, a hash over the whole TLS handshake, both certificates included. The keys
with which a link's proofs are made are bound to it (`bind`), so that a proof is worth nothing on any other connection: one
who ends TLS in the middle and passes the proofs on has two connections with two bindings. The *names* are those in the
peer's certificate, once its chain has been verified.

It does not know TLS itself; `broker/tls/` does.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

_BOUND = b"mqmesh-1 channel\0"


class Channel(NamedTuple):
    """binding: see above, b"" without TLS. names: one of them has to be the peer's broker name; empty: it showed no certificate;
    None: names are not looked at. flaw: why its certificate is no broker's, "" when it may be one's."""

    binding: bytes = b""
    names: frozenset[str] | None = None
    flaw: str = ""

    def bind(self, key: bytes) -> bytes:
        """The key for proofs on this channel. With b"" it is known to the channel's two ends alone."""
        return hmac.digest(key, _BOUND + self.binding, hashlib.sha256) if self.binding else key


PLAIN = Channel()  # without TLS, where nobody asks for it
