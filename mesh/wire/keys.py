"""Who may speak for which broker: key pairs, signed statements, and which key belongs to which number.

Each broker has an Ed25519 key pair (RFC 8032). What it says of itself and others pass on (its link record, its interest, its trees) is a
*statement* that it signs; whoever takes one over checks it first, so that nobody can say it in its name. Which key a number has is
learned when it is first seen, and kept (a *pin*); the configuration may say it instead.

    seal       key, whether it lasts, signature: travels with a statement
    pin        the key under which a number is known here
    lasting    the key is in a data folder, so that it is the same in the broker's next life

Rules
- a key that the configuration gives a name counts alone for that name, and for no other; where the configuration gives the name a number
  too, for that number, whatever name is said;
- a number with a pin is refused under any other key, unless that pin's key does not last and its broker is out of reach;
- this broker's own number is its own.

Nothing of this is done for a message. It does not know links, time or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

if TYPE_CHECKING:
    from ...base.settings import Section

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_CONTEXT = "mqmesh-2"


class Signer:
    """A broker's private key. lasting: its next life has it too."""

    def __init__(self, secret: bytes, lasting: bool = True) -> None:
        """secret: 32 bytes. Raises ValueError for another length."""
        self._private = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()
        self.lasting = lasting

    def sign(self, statement: bytes) -> bytes:
        """64 bytes; the same each time."""
        return self._private.sign(statement)


class Seal(NamedTuple):
    """Who signed a statement, whether that key lasts, and the signature."""

    key: bytes
    lasting: bool
    signature: bytes


class Pin(NamedTuple):
    """The key under which a number is known."""

    key: bytes
    lasting: bool


def verified(key: bytes, statement: bytes, signature: bytes) -> bool:
    """Whether the signature is that of the key's owner."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def shown(key: bytes) -> str:
    """A public key as people write it: 64 hexadecimal digits."""
    return key.hex()


class Keys:
    """One broker's view. given: public keys that the configuration says, by the broker's name. pins: by number."""

    def __init__(
        self,
        mesh: str,
        number: int,
        name: str,
        signer: Signer,
        given: Mapping[str, bytes] | None = None,
        brokers: Mapping[str, int] | None = None,
    ) -> None:
        """brokers: numbers that the configuration says, by the broker's name."""
        self.signer = signer
        self.pins: dict[int, Pin] = {}
        self.give(given or {}, brokers)
        self._mesh = mesh
        self._number = number
        self._name = name

    def give(self, given: Mapping[str, bytes], brokers: Mapping[str, int] | None = None) -> None:
        """The configuration says these keys and these numbers, by the broker's name, from now on."""
        self._given = dict(given)
        self._owners = {key: owner for owner, key in self._given.items()}
        self._named = {number: name for name, number in (brokers or {}).items() if name in self._given}

    def given_to(self, name: str) -> bytes | None:
        """The key that the configuration gives a broker."""
        return self._given.get(name)

    def belongs(self, number: int, name: str, key: bytes) -> bool:
        """Whether the configuration gives this key to the broker that has this name and number."""
        return self._given.get(name) == key and self._named.get(number, name) == name

    # ---- statements

    def seal(self, kind: str, *values: Any) -> Seal:
        """Sign what this broker says."""
        lasting = self.signer.lasting
        return Seal(self.signer.public, lasting, self.signer.sign(self._statement(kind, lasting, values)))

    def genuine(self, kind: str, seal: Seal | None, *values: Any) -> bool:
        """Whether the owner of the seal's key has said exactly this, in this mesh."""
        return seal is not None and verified(seal.key, self._statement(kind, seal.lasting, values), seal.signature)

    def _statement(self, kind: str, lasting: bool, values: tuple[Any, ...]) -> bytes:
        packed: bytes = msgpack.packb([_CONTEXT, kind, self._mesh, lasting, *values])
        return packed

    # ---- whose key it is

    def why_not(self, number: int, name: str | None, key: bytes, reachable: bool) -> str | None:
        """Why this key must not speak for a number, as one line with what would be right; None: it may. name: None where it is not said.
        reachable: whether the broker that has the number here can be reached now."""
        if number == self._number:
            if key == self.signer.public:
                return None
            return f"number {number} is {self._name}'s here; give {name or 'the other broker'} another"
        named = self._named.get(number)
        if named is not None and name is not None and named != name:
            return f"number {number} is {named}'s (mesh.brokers), and {name} says it: correct the list, or give {name} another number"
        name = name or named
        owner = self._owners.get(key)
        if owner is not None and name is not None and owner != name:
            return f"the key {shown(key)} is {owner}'s (mesh.keys), and {name} shows it: give each broker a data folder of its own"
        given = self._given.get(name) if name is not None else None
        if given is not None:
            if given == key:
                return None
            remedy = f"correct the list, or restore identity.key in {name}'s data folder"
            return f"{name} has the key {shown(key)}, and mesh.keys says {shown(given)}: {remedy}"
        pin = self.pins.get(number)
        if pin is None or pin.key == key or (not pin.lasting and not reachable):
            return None
        who = name or f"the broker that says number {number}"
        return (
            f"number {number} is known under the key {shown(pin.key)}, and {who} has the key {shown(key)}: "
            f"give it another number; if it is the same broker, restore identity.key in its data folder, or give its new key in mesh.keys"
        )

    def learn(self, number: int, seal: Seal) -> Pin | None:
        """The number is known under this key from now on; the pin if that is new, else None."""
        pin = Pin(seal.key, seal.lasting)
        if number == self._number or self.pins.get(number) == pin:
            return None
        self.pins[number] = pin
        return pin

    def forget(self, number: int) -> bool:
        """Whoever comes next may have the number. Whether it had a pin."""
        return self.pins.pop(number, None) is not None


def given_keys(section: Section) -> dict[str, str]:
    """The public keys of brokers by name, as a configuration has them: `keys = { porto = "9f86d0..." }`. Raises ConfigError."""
    keys: dict[str, str] = {}
    for name in section.table:
        digits = section.string(name).lower()
        if "/" in name or not name.isprintable():
            raise section.error(name, 'give names of brokers, as keys = { porto = "9f86d0..." }')
        if len(digits) != 2 * KEY_BYTES or not set(digits) <= set("0123456789abcdef"):
            raise section.error(name, f"give the {2 * KEY_BYTES} hexadecimal digits that the broker's identity.json has as its key")
        if digits in keys.values():
            raise section.error(name, "another broker of the list has this key: each makes its own")
        keys[name] = digits
    return keys
