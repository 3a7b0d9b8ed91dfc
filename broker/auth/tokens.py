"""JSON Web Tokens (RFC 7519) in the place of a password: signed by a key that the broker knows, with an end, naming a user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jwt

if TYPE_CHECKING:
    from .settings import TokenSettings

SHORTEST = 32  # bytes of a shared secret (RFC 7518, 3.2)
PUBLIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
SHARED = ("HS256", "HS384", "HS512")


class TokenKeyError(ValueError):
    """The key cannot be used; one line."""


class Holder(NamedTuple):
    """Whom a token names, and until when (seconds since 1970)."""

    user: str
    ends: float


@dataclass(slots=True)
class Tokens:
    """Judges tokens. key: a public key in PEM, or a shared secret."""

    key: Any
    algorithms: list[str]
    settings: TokenSettings

    @classmethod
    def of(cls, settings: TokenSettings) -> Tokens:
        """Read the key. TokenKeyError for one that is of no use, OSError for none."""
        data = Path(settings.key).read_bytes()
        if b"PRIVATE KEY" in data:
            raise TokenKeyError("that is a private key: the broker needs the public one alone")
        if data.lstrip().startswith(b"-----BEGIN"):
            algorithms = list(PUBLIC)
            key: Any = data
            if not any(_usable(name, data) for name in algorithms):
                raise TokenKeyError("that is no public key in PEM of RSA, an elliptic curve or Ed25519")
            algorithms = [name for name in algorithms if _usable(name, data)]
        else:
            key, algorithms = data.strip(), list(SHARED)
            if len(key) < SHORTEST:
                raise TokenKeyError(f"a shared secret has at least {SHORTEST} bytes")
        return cls(key, algorithms, settings)

    @property
    def judges(self) -> object:
        """What decides which tokens are good: equal for the same key and claims."""
        return self.key, tuple(self.algorithms), self.settings.issuer, self.settings.audience, self.settings.user

    def holder(self, token: bytes) -> Holder | str:
        """Whom a token names; else why it is worth nothing."""
        settings = self.settings
        try:
            claims = jwt.decode(
                token,
                self.key,
                algorithms=self.algorithms,
                issuer=settings.issuer,
                audience=settings.audience,
                options={"require": ["exp", settings.user], "verify_aud": settings.audience is not None},
            )
        except jwt.ExpiredSignatureError:
            return "the token has expired"
        except jwt.ImmatureSignatureError:
            return "the token is not valid yet: are the clocks right?"
        except jwt.PyJWTError as error:
            return f"the token is not valid: {error}"
        user = claims[settings.user]
        if not isinstance(user, str) or not user:
            return f"the token's claim {settings.user!r} is no text"
        return Holder(user, float(claims["exp"]))


def _usable(algorithm: str, key: bytes) -> bool:
    try:
        jwt.get_algorithm_by_name(algorithm).prepare_key(key)
    except (jwt.PyJWTError, ValueError, TypeError, NotImplementedError):
        return False
    return True
