"""Authorities and certificates for tests, right ones and wrong ones, as files of a folder."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from mqmesh.cli.authority import Authority, write_private, write_public

LOCAL = ("localhost", "127.0.0.1", "::1")
USES = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
    "any": ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
}


class Certificates:
    """An authority in a folder, and what it signs: `NAME.crt` and `NAME.key`."""

    def __init__(self, folder: Path, name: str = "test") -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"
        self.authority = Authority(name, self.ca, folder / "ca.key", 30)

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def broker(self, name: str, *hosts: str, renew: bool = False) -> str:
        """A certificate that names the broker and this machine (or `hosts`)."""
        self.authority.issue(name, self.certificate(name), self.key(name), hosts or LOCAL, 25, True, renew)
        return name

    def client(self, name: str) -> str:
        self.authority.issue(name, self.certificate(name), self.key(name), (), 25, False, False)
        return name

    def odd(
        self,
        name: str,
        days: tuple[float, float] = (-1, 1),
        uses: tuple[str, ...] = ("server", "client"),
        names: tuple[str, ...] = (),
        authority: bool = False,
    ) -> str:
        """A certificate that is valid between two days from now, for these uses; without `names` only its common name is there.

        authority: it may certify others.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self.authority._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
        )
        if authority:
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        if uses:
            builder = builder.add_extension(x509.ExtendedKeyUsage([USES[use] for use in uses]), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in names]), critical=False)
        made = builder.sign(self.authority._key, hashes.SHA256())
        write_public(self.certificate(name), made.public_bytes(serialization.Encoding.PEM))
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        write_private(self.key(name), key.private_bytes(*form))
        return name

    def revoked(self, *names: str, days: float = 1) -> Path:
        """The authority's list of what it has revoked: these. days: until it ends."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.authority._certificate.subject)
        builder = builder.last_update(now - timedelta(days=9)).next_update(now + timedelta(days=days))
        for name in names:
            serial = x509.load_pem_x509_certificate(self.certificate(name).read_bytes()).serial_number
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - timedelta(days=1)).build()
            builder = builder.add_revoked_certificate(one)
        path = self.folder / "revoked.pem"
        path.write_bytes(builder.sign(self.authority._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def options(self, name: str, client_certificates: str = "none") -> list[str]:
        """Of `mqmesh broker`."""
        files = ["--tls-certificate", self.certificate(name), "--tls-key", self.key(name), "--tls-ca", self.ca]
        return [*map(str, files), "--client-certificates", client_certificates]

    def context(self, shows: str | None = None, checks: bool = True) -> ssl.SSLContext:
        """A client's. shows: whose certificate. checks: whether the server's has to lead to this authority."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if not checks:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if shows is not None:
            context.load_cert_chain(self.certificate(shows), self.key(shows))
        return context
