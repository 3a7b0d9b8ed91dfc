"""What the two ends of a link say about themselves, and how they prove it.

A *hello* is one end's identity and a fresh nonce, as a msgpack list. There are two forms; the first value says which one it is:

    3  [3, lowest, highest, capabilities [text, ...], veiled mesh name, broker name, number, UUID (16 bytes), epoch,
        life (16 bytes, or none), nonce (32 bytes), public key (32 bytes, or none), ...]
    2  [2, mesh name, broker name, number, UUID, epoch, nonce, public key]         the previous release

*Version range*: the versions of the mesh protocol that an end speaks. A link runs in the highest one that both speak (`agree`). Form 3
stays the form of all later versions; values that are appended to it are skipped by those who do not know them. An acceptor answers in the
form of the dialler's hello. The previous release refuses form 3 with Unsupported Protocol Version; the dialler dials again with form 2.

*Capabilities* say what an end understands beyond its version (`wire/identity.py`). *Life* is random at each start of a broker.

*Veil*: the mesh's name is encrypted under the mesh's key, so that strangers do not learn it. Who has the key reads it at once, and who
cannot read it has another key; the link ends there, before anything is proved to a stranger. Form 2 says the name in the clear.

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
from typing import Any, NamedTuple
from uuid import UUID

import msgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from ..wire.identity import HIGHEST_NUMBER, LIFE_BYTES, OLDEST, PROTOCOL, Identity
from ..wire.keys import KEY_BYTES

NONCE_BYTES = 32
PROOF_BYTES = 32
DIALLER = b"mqmesh-1 dialler\0"
ACCEPTOR = b"mqmesh-1 acceptor\0"
_INCARNATION = b"mqmesh-1 incarnation\0"
_VEIL = b"mqmesh-3 mesh\0"
_VEIL_STEP = 64  # bytes: the length of a veiled name tells its length in such steps only
_LONGEST_NAME = 256  # characters
_LONGEST_VEILED = 2048  # bytes
_CAPABILITIES = 64, 32  # how many, and characters of one
_FORM = 3
_KINDS_2 = (int, str, str, int, bytes, int, bytes, bytes)
_KINDS_3 = (int, int, int, list, bytes, str, int, bytes, int, bytes, bytes, bytes)


class Hello(NamedTuple):
    """A peer's hello. form: 2 or 3. lowest, highest: versions that it speaks. peer: its identity; in form 3 the mesh's name is missing
    ("") until it is unveiled. veiled, nonce: for `unveil`."""

    form: int
    lowest: int
    highest: int
    peer: Identity
    veiled: bytes
    nonce: bytes


def encode(identity: Identity, nonce: bytes, key: bytes, form: int = PROTOCOL, lowest: int = OLDEST) -> bytes:
    """The hello of one end. key: with which the mesh's name is veiled in form 3. lowest: version that this end still speaks."""
    body: list[Any]
    if form == OLDEST:
        body = [OLDEST, identity.mesh, identity.name, identity.number, identity.uuid.bytes, identity.epoch, nonce, identity.key]
    else:
        body = [_FORM, lowest, PROTOCOL, sorted(identity.capabilities), veil(identity.mesh, key, nonce), identity.name, identity.number]
        body += [identity.uuid.bytes, identity.epoch, identity.life, nonce, identity.key]
    return bytes(msgpack.packb(body))


def decode(hello: bytes, own: Identity) -> Hello:
    """A peer's hello; `own` is named in the errors.

    Raises PeerError: Unsupported Protocol Version for a form that is not known, else Malformed Packet.
    """
    try:
        body = msgpack.unpackb(hello)
    except (ValueError, TypeError):
        raise _malformed("is not msgpack") from None
    if not isinstance(body, list) or not body or type(body[0]) is not int:
        raise _malformed("is not a list that starts with a version")
    if body[0] == OLDEST:
        if tuple(map(type, body)) != _KINDS_2:
            raise _malformed("does not hold the eight fields of version 2")
        _, mesh, name, number, uuid, epoch, nonce, key = body
        _check_names(mesh, name)
        return Hello(OLDEST, OLDEST, OLDEST, _identity(mesh, name, number, uuid, epoch, nonce, key), b"", nonce)
    if body[0] != _FORM:
        raise unsupported(body[0], body[0], own, OLDEST)
    if tuple(map(type, body[: len(_KINDS_3)])) != _KINDS_3:
        raise _malformed(f"does not begin with the {len(_KINDS_3)} fields of version 3")
    _, lowest, highest, capabilities, veiled, name, number, uuid, epoch, life, nonce, key = body[: len(_KINDS_3)]
    most, longest = _CAPABILITIES
    if len(capabilities) > most or any(type(one) is not str or len(one) > longest or not one.isprintable() for one in capabilities):
        raise _malformed(f"names more than {most} capabilities, or one that is no short text")
    if not 0 < lowest <= highest or len(life) not in (0, LIFE_BYTES) or len(veiled) > _LONGEST_VEILED:
        raise _malformed("holds a value out of range")
    _check_names(name)
    peer = _identity("", name, number, uuid, epoch, nonce, key)
    return Hello(_FORM, lowest, highest, peer._replace(life=life, capabilities=frozenset(capabilities)), veiled, nonce)


def agree(peer: Hello, own: Identity, lowest: int) -> int:
    """The version in which a link runs. Raises PeerError: Unsupported Protocol Version when there is none that both ends speak."""
    version = min(peer.highest, PROTOCOL)
    if version < max(peer.lowest, lowest):
        raise unsupported(peer.lowest, peer.highest, own, lowest)
    return version


def unsupported(peer_lowest: int, peer_highest: int, own: Identity, lowest: int) -> PeerError:
    """The refusal of a peer with which there is no common version."""
    spoken, understood = _range(peer_lowest, peer_highest), _range(lowest, PROTOCOL)
    if peer_highest < lowest <= PROTOCOL and peer_highest >= OLDEST:
        remedy = f"update the peer, or set mesh.lowest_protocol = {peer_highest} at {own.name}"
    else:
        remedy = "update the older one, one release at a time"
    text = f"the peer speaks {spoken} of the mesh protocol and {own} {understood}: {remedy}"
    return PeerError(Reason.UNSUPPORTED_PROTOCOL_VERSION, text)


def _range(lowest: int, highest: int) -> str:
    return f"version {lowest}" if lowest == highest else f"versions {lowest} to {highest}"


def _check_names(*names: str) -> None:
    if not all(0 < len(name) <= _LONGEST_NAME and name.isprintable() for name in names):
        raise _malformed("holds a name that is empty, too long or not printable")


def _identity(mesh: str, name: str, number: int, uuid: bytes, epoch: int, nonce: bytes, key: bytes) -> Identity:
    if (
        not 0 <= number <= HIGHEST_NUMBER
        or not 0 <= epoch < 2**63
        or len(uuid) != 16
        or len(nonce) != NONCE_BYTES
        or len(key) not in (0, KEY_BYTES)
    ):
        raise _malformed("holds a value out of range")
    return Identity(mesh, name, number, UUID(bytes=uuid), epoch, key)


# The veil over the mesh's name


def veil(mesh: str, key: bytes, nonce: bytes) -> bytes:
    """The mesh's name for those who have the key. nonce: of the hello, never used before."""
    name = mesh.encode()
    return _cipher(key, nonce).encrypt(bytes(12), name + bytes(-len(name) % _VEIL_STEP), None)


def unveil(veiled: bytes, key: bytes, nonce: bytes) -> str | None:
    """The mesh's name, None under another key. Raises PeerError for what is no name."""
    try:
        name = _cipher(key, nonce).decrypt(bytes(12), veiled, None).rstrip(b"\0").decode()
    except InvalidTag:
        return None
    except UnicodeDecodeError:
        raise _malformed("holds a mesh name that is not UTF-8") from None
    _check_names(name)
    return name


def _cipher(key: bytes, nonce: bytes) -> ChaCha20Poly1305:
    """Each hello has a key of its own, so that the cipher's nonce is a constant."""
    return ChaCha20Poly1305(hmac.digest(key, _VEIL + nonce, hashlib.sha256))


# Proofs


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
