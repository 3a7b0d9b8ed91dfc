"""What the two ends of a link say about themselves, and how they prove it.

A *hello* is one end's identity and a fresh nonce, as a msgpack list:

    [protocol version, mesh name, broker name, number, UUID (16 bytes), epoch, nonce (32 bytes), public key (32 bytes, or none)]

The *transcript* is both hellos byte for byte as they travelled, the dialler's first, each with its length in front.
A proof is HMAC-SHA256(key, role || transcript): whoever gives it knows the key, speaks in this role, and has seen
exactly these two hellos, so that no byte of either was changed, and nothing can be replayed or mirrored. The
incarnation of the link comes from the same transcript, so that both ends have the same number without saying it.

An end with a key pair of its own (keys.py) shows that it has the private one: behind the proof stands a signature over the role,
the transcript and the proof. So it holds for this connection alone, as the proof does.

It does not know packets, states or time; it proves the ends and not what follows, for which there is TLS.
"""

from __future__ import annotations

import hashlib
import hmac
from uuid import UUID

import msgpack

from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from ..wire.identity import HIGHEST_NUMBER, Identity
from ..wire.keys import KEY_BYTES

PROTOCOL = 2
NONCE_BYTES = 32
PROOF_BYTES = 32
DIALLER = b"mqmesh-1 dialler\0"
ACCEPTOR = b"mqmesh-1 acceptor\0"
_INCARNATION = b"mqmesh-1 incarnation\0"
_LONGEST_NAME = 256
_KINDS = (int, str, str, int, bytes, int, bytes, bytes)


def encode(identity: Identity, nonce: bytes) -> bytes:
    """The hello of one end."""
    body = [PROTOCOL, identity.mesh, identity.name, identity.number, identity.uuid.bytes, identity.epoch, nonce, identity.key]
    return bytes(msgpack.packb(body))


def decode(hello: bytes, own: Identity) -> Identity:
    """The identity in a peer's hello; `own` is named in the errors.

    Raises PeerError: Unsupported Protocol Version when the peer speaks another version of the link protocol, else
    Malformed Packet.
    """
    try:
        body = msgpack.unpackb(hello)
    except (ValueError, TypeError):
        raise _malformed("is not msgpack") from None
    if not isinstance(body, list) or not body or type(body[0]) is not int:
        raise _malformed("is not a list that starts with a version")
    if body[0] != PROTOCOL:
        text = (
            f"the peer speaks version {body[0]} of the mesh protocol and {own} version {PROTOCOL}: run the same release of mqmesh at both"
        )
        raise PeerError(Reason.UNSUPPORTED_PROTOCOL_VERSION, text)
    if tuple(map(type, body)) != _KINDS:
        raise _malformed("does not hold the eight fields of version 2")
    _, mesh, name, number, uuid, epoch, nonce, key = body
    if not (0 < len(mesh) <= _LONGEST_NAME and 0 < len(name) <= _LONGEST_NAME and mesh.isprintable() and name.isprintable()):
        raise _malformed("holds a name that is empty, too long or not printable")
    if (
        not 0 <= number <= HIGHEST_NUMBER
        or not 0 <= epoch < 2**63
        or len(uuid) != 16
        or len(nonce) != NONCE_BYTES
        or len(key) not in (0, KEY_BYTES)
    ):
        raise _malformed("holds a value out of range")
    return Identity(mesh, name, number, UUID(bytes=uuid), epoch, key)


def prove(key: bytes, role: bytes, dialler: bytes, acceptor: bytes) -> bytes:
    """The proof of one end; role is DIALLER or ACCEPTOR, the hellos are as they travelled."""
    return hmac.digest(key, role + transcript(dialler, acceptor), hashlib.sha256)


def proved(proof: bytes, key: bytes, role: bytes, dialler: bytes, acceptor: bytes) -> bool:
    """Whether the proof is right, compared in constant time."""
    return hmac.compare_digest(proof, prove(key, role, dialler, acceptor))


def signed(role: bytes, dialler: bytes, acceptor: bytes, proof: bytes) -> bytes:
    """What an end with a key pair signs."""
    return b"mqmesh-2 link\0" + role + transcript(dialler, acceptor) + proof


def incarnation(key: bytes, dialler: bytes, acceptor: bytes) -> int:
    """The link's number: 1 to 2**63 - 1, the same at both ends, different for each connection."""
    digest = hmac.digest(key, _INCARNATION + transcript(dialler, acceptor), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") >> 1 or 1


def transcript(dialler: bytes, acceptor: bytes) -> bytes:
    """Both hellos, each behind its length in four bytes."""
    return b"".join((len(dialler).to_bytes(4, "big"), dialler, len(acceptor).to_bytes(4, "big"), acceptor))


def _malformed(what: str) -> PeerError:
    return PeerError(Reason.MALFORMED_PACKET, f"the peer's hello {what}")
