"""A certificate authority in a folder: it creates itself, then issues certificates for brokers and clients.

It is for tests and first steps, and for meshes without another authority. Keys are elliptic (P-256), readable only for their owner. The
authority's key stays in its folder. It is needed only to issue certificates.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..base.process.files import PRIVATE, READABLE, replace_file

SKEW = timedelta(hours=1)  # certificates are valid from this time before now, because clocks differ


class AuthorityError(Exception):
    """Files of an authority cannot be used. The message names them and says why."""


@dataclass(slots=True, frozen=True)
class Made:
    """A certificate. names: that it is valid for. new: it was issued now; otherwise it existed."""

    name: str
    certificate: Path
    key: Path
    names: tuple[str, ...]
    ends: datetime
    new: bool


class Authority:
    """The authority with this certificate and key. Creates both if neither exists. Raises AuthorityError and OSError."""

    def __init__(self, name: str, certificate: Path, key: Path, days: int) -> None:
        self.name = name
        self.new = not certificate.exists() and not key.exists()
        if self.new:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._certificate = self._make_own(days)
            write_private(key, _key_bytes(self._key))
            write_public(certificate, self._certificate.public_bytes(serialization.Encoding.PEM))
        else:
            self._certificate, self._key = _load(certificate), _load_key(key)
            if self._certificate.public_key() != self._key.public_key():
                raise AuthorityError(f"{key} does not belong to {certificate}: give the folder of one authority, or an empty one")
        self.made = Made(name, certificate, key, (), self._certificate.not_valid_after_utc, self.new)

    def _make_own(self, days: int) -> x509.Certificate:
        subject = _subject(f"{self.name} authority")
        builder = _builder(subject, subject, self._key.public_key(), days)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        return builder.sign(self._key, hashes.SHA256())

    def issue(self, name: str, certificate: Path, key: Path, hosts: Iterable[str], days: int, server: bool, renew: bool) -> Made:
        """Issue a certificate with a new key for `name`, also valid for `hosts`. Keeps existing ones unless `renew`.

        server: for a broker, which is a server and a client; otherwise only for a client.
        """
        if certificate.exists() and key.exists() and not renew:
            there = _load(certificate)
            return Made(name, certificate, key, _names(there), there.not_valid_after_utc, False)
        private = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(name), self._certificate.subject, private.public_key(), days, self._certificate.not_valid_after_utc)
        names = _alternatives(name, hosts)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        write_private(key, _key_bytes(private))
        write_public(certificate, made.public_bytes(serialization.Encoding.PEM))
        return Made(name, certificate, key, _names(made), made.not_valid_after_utc, True)


# Certificates


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, latest: datetime | None = None
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(signs: bool) -> x509.KeyUsage:
    """signs: the key signs certificates; otherwise it signs handshakes."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(name: str, hosts: Iterable[str]) -> list[x509.GeneralName]:
    """The name and the hosts, each once. A name that is not ASCII stands only in the common name, and then there is no other DNS name."""
    found: dict[str, x509.GeneralName] = {}
    if name.isascii():
        found[name] = x509.DNSName(name)
    for host in hosts:
        try:
            found.setdefault(host, x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if name.isascii() and host.isascii():
                found.setdefault(host, x509.DNSName(host))
    return list(found.values())


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(one.value) for one in names)


# Files


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise AuthorityError(f"{path} holds no certificate in PEM form: move it away, or give another folder") from None
    except OSError as error:
        raise AuthorityError(f"{path} cannot be read: {error.strerror}") from None


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        raise AuthorityError(f"{path} holds no private key without a password in PEM form: give the folder of another authority") from None
    except OSError as error:
        raise AuthorityError(f"{path} cannot be read: {error.strerror}; it is the authority's key, needed for new certificates") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AuthorityError(f"{path} is not an elliptic key: sign with the tools that made this authority, or give another folder")
    return key


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read. Replaces an older file in one step."""
    _write(path, data, PRIVATE)


def write_public(path: Path, data: bytes) -> None:
    """Write a file that everyone can read."""
    _write(path, data, READABLE)


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, mode)
