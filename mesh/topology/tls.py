"""What a broker is told about TLS: the table `[tls]` of its file or of a topology, and whether it fits the rest.

    [tls]
    certificate = "tls/porto.crt"       # PEM: this broker's certificate, with the intermediate ones behind it
    key = "tls/porto.key"               # PEM: its private key
    key_password_file = "tls/password"  # optional: when the key is encrypted
    ca = "tls/ca.crt"                   # PEM: the authorities whose certificates clients and peers may show
    client_certificates = "required"    # or "optional", "none": what listeners ask of clients

Paths are relative to the file; `{name}` in them stands for the broker's name, so that one table serves a whole topology.
Only the words are checked here. What is in the files is looked at when a broker starts (`broker/transport/tls/contexts.py`), with
the same kind of error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ...base.settings import ConfigError, Section
from .settings import MeshSettings

CLIENT_CERTIFICATES = ("none", "optional", "required")
ENCRYPTED = ("mqtts://", "wss://")
FILES = ("certificate", "key", "key_password_file", "ca", "revoked")


@dataclass(slots=True)
class TlsSettings:
    """The files and rules of one broker's TLS.

    client_certificates: whether listeners ask clients for a certificate, and whether they insist. file, where: the
    configuration's file and the table's place in it, for errors about the files' contents. revoked: lists of certificates that their
    authorities have revoked, one of each authority in `ca` that signs peers' certificates.
    """

    certificate: Path | None = None
    key: Path | None = None
    key_password_file: Path | None = None
    ca: Path | None = None
    client_certificates: str = "none"
    revoked: Path | None = None
    file: str = field(default="", compare=False)
    where: str = field(default="tls", compare=False)

    def error(self, key: str, text: str) -> ConfigError:
        """The error to raise about the file under `key`."""
        return ConfigError(self.file, f"{self.where}.{key}", getattr(self, key), text)

    @classmethod
    def of(cls, section: Section, name: str, folder: Path | None = None) -> TlsSettings:
        """The settings in a table. name: of the broker, for `{name}` in paths. folder: what paths are relative to. Raises ConfigError."""
        settings = cls(client_certificates=section.choice("client_certificates", CLIENT_CERTIFICATES, "none"))
        settings.file, settings.where = section.file, section.path
        for key in FILES:
            if section.has(key):
                path = section.path_of(key, folder, "give the path of a PEM file")
                setattr(settings, key, Path(str(path).replace("{name}", name)))
        section.done()
        if settings.certificate is not None and settings.key is None:
            raise section.error("key", "give the PEM file of the certificate's private key")
        if settings.certificate is None:
            for key in ("key", "key_password_file"):
                if section.has(key):
                    raise section.error("certificate", f"give the PEM file of the certificate that {key} is for")
        if settings.revoked is not None and settings.ca is None:
            raise section.error("ca", "give the PEM file of the authorities whose revocation lists are given")
        if settings.client_certificates != "none" and settings.ca is None:
            raise section.error("ca", "give the PEM file of the authorities that sign clients' certificates")
        return settings


def encrypted(address: str) -> bool:
    """Whether a listener of this address speaks TLS."""
    return address.startswith(ENCRYPTED)


def check(
    file: str,
    tls: TlsSettings | None,
    listen: tuple[str, Iterable[str]],
    mesh: MeshSettings | None = None,
    peers: Iterable[tuple[str, str]] = (),
) -> None:
    """Whether listeners, links and the mesh's `auth` have the certificates that they need. Raises ConfigError.

    listen: the key in the file and its addresses. peers: (key in the file, address that is dialled).
    """
    tls = tls or TlsSettings(file=file)
    certified = mesh is not None and mesh.certified
    key, addresses = listen
    listeners = [address for address in addresses if encrypted(address)]
    if listeners and tls.certificate is None:
        raise ConfigError(file, key, listeners[0], "a TLS listener needs certificate and key in [tls]")
    for where, address in peers:
        if address.startswith("mqtts://"):
            if tls.ca is None:
                raise ConfigError(file, where, address, "a TLS link needs ca in [tls]: the authority that signed the peer's certificate")
        elif certified:
            assert mesh is not None
            raise ConfigError(file, where, address, f'auth = "{mesh.auth}" needs TLS: write mqtts://HOST:PORT')
    if mesh is None or not certified:
        return
    for missing in ("certificate", "ca"):
        if getattr(tls, missing) is None:
            raise ConfigError(file, "mesh.auth", mesh.auth, f"give {missing} in [tls]: links prove by certificates who they are")
    if any(address.startswith("mqtts://") for address in listeners) and tls.client_certificates == "none":
        text = f'auth = "{mesh.auth}" asks links for certificates: give "optional" or "required"'
        raise ConfigError(file, f"{tls.where}.client_certificates", tls.client_certificates, text)
