"""Who asks over HTTP: the Authorization header (RFC 7617, RFC 6750)."""

from __future__ import annotations

import base64
import binascii

LONGEST = 65_535  # bytes of a user, a password or a token: what CONNECT of MQTT holds


def credentials(header: str) -> tuple[str | None, bytes | None]:
    """(user, password or token) of an Authorization header, "": there is none; a token has no user. Raises ValueError, one line."""
    scheme, _, rest = header.partition(" ")
    if not header:
        return None, None
    user: str | None = None
    try:
        if scheme.lower() == "bearer":
            secret = rest.strip().encode()
        elif scheme.lower() == "basic":
            user, colon, password = base64.b64decode(rest, validate=True).decode().partition(":")
            if not colon:
                raise ValueError
            secret = password.encode()
        else:
            raise ValueError
    except (ValueError, binascii.Error):
        raise ValueError("give Authorization: Basic, or Bearer with a token") from None
    if user is not None and ("\0" in user or len(user.encode()) > LONGEST):
        raise ValueError(f"a user has at most {LONGEST:,} bytes and no U+0000")
    if len(secret) > LONGEST:
        raise ValueError(f"a password or token has at most {LONGEST:,} bytes")
    return user, secret
