"""The files of `[tls]` made into OpenSSL's contexts, each mistake in them found before a client would find it.

Contexts are made anew from the files when the broker starts and when it is told to look again (SIGHUP); a connection keeps
the ones that it began with. TLS 1.2 is the oldest version for clients and 1.3 for links; ciphers are left as they come.
No session tickets are given: with TLS 1.3 each connection shows its certificates anew, so that one that has expired or is no
longer trusted does not come in by an old ticket. What TLS 1.2 resumes by its identifiers (Python has no switch for it) ends
with the context.
"""

from __future__ import annotations

import os
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

from ....base.settings import ConfigError
from ....mesh.topology.tls import TlsSettings
from .certificate import Certificate, lists_end, read, without_list
from .openssl_errors import reason_of

SOON = 14 * 86400.0  # seconds before its end when a certificate is worth a warning
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_KEY = "PRIVATE KEY-----"
_REVOKED = "-----BEGIN X509 CRL-----"
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Contexts:
    """What connections begin with. server: for listeners, None without a certificate. client: for links, None without `ca`.

    own: this broker's certificate, None without. lists_end: when the first revocation list ends, None without. warnings: one line each, for
    the log. listens: it is shown to clients. broker: the name that it has to give because links ask for it, None where they do not. Raises
    ConfigError.
    """

    def __init__(self, settings: TlsSettings, listens: bool, broker: str | None = None, now: float | None = None) -> None:
        self.settings = settings
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        self.own: Certificate | None = None
        self.lists_end: float | None = None
        self.warnings: list[str] = []
        self._password = b""
        if settings.certificate is not None:
            self._read_own(time.time() if now is None else now, listens)
            if broker is not None:
                self._fits_links(broker)
            self.server = self._server()
        if settings.ca is not None:
            self._text("ca", _CERTIFICATE, "the certificates of authorities")
            self.client = self._client()
        if self.server is not None and settings.client_certificates != "none":
            self._trust(self.server)
            self.server.verify_mode = _VERIFY[settings.client_certificates]
        if self.lists_end is not None and self.lists_end <= (time.time() if now is None else now):
            self.warnings.append(self.lists_ended())
        if settings.revoked is not None and (trusting := self.client or self.server) is not None:
            self.warnings += [
                f'{settings.revoked} has no revocation list of the authority "{name}": all certificates that it has signed are refused; '
                "put its list there, then send SIGHUP"
                for name in without_list(trusting, _read(settings, "revoked"))
            ]

    def _server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        self._load(context)
        return context

    def _client(self) -> ssl.SSLContext:
        """For links: the peer's names are compared by the caller, who knows which count."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._trust(context)
        if self.settings.certificate is not None:
            self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        """The certificate and its key into a context."""
        settings = self.settings
        assert settings.certificate is not None
        try:
            context.load_cert_chain(settings.certificate, settings.key, lambda: self._password)  # never ask at the terminal
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise settings.error("key", f"does not belong to {settings.certificate}: give the key that this was made with") from None
            if self._password:
                text = f"does not open {settings.key}: give the file with its password"
                raise settings.error("key_password_file", text) from None
            raise settings.error("certificate", f"cannot be used with {settings.key}: {reason_of(error)}") from None

    def _trust(self, context: ssl.SSLContext) -> None:
        settings = self.settings
        try:
            context.load_verify_locations(settings.ca)
        except ssl.SSLError as error:
            raise settings.error("ca", f"cannot be used: {reason_of(error)}; give the PEM file of the authorities") from None
        if settings.revoked is not None:
            lists = self._text("revoked", _REVOKED, "a revocation list")
            try:
                context.load_verify_locations(settings.revoked)
            except ssl.SSLError as error:
                raise settings.error("revoked", f"cannot be used: {reason_of(error)}; give the PEM file of revocation lists") from None
            self.lists_end = lists_end(lists)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF

    def lists_ended(self) -> str:
        """What is to be done about a revocation list that is out of its time."""
        assert self.lists_end is not None
        text = f"{self.settings.revoked} has a revocation list that expired on {day(self.lists_end)}: all certificates of its authority are"
        return f"{text} refused; put its new list there, then send SIGHUP"

    def _read_own(self, now: float, listens: bool) -> None:
        """The own certificate: it has to be one, of now, with its key, and for what it is used for."""
        settings = self.settings
        assert settings.certificate is not None
        assert settings.key is not None
        self._text("certificate", _CERTIFICATE, "a certificate")
        self._read_key(self._text("key", _KEY, "a private key"))
        try:
            own = self.own = read(self._load, settings.certificate)
        except ssl.SSLError as error:
            raise settings.error("certificate", f"cannot be used: {reason_of(error)}") from None
        if own.ends <= now:
            raise settings.error("certificate", f"expired on {day(own.ends)}: renew it")
        if own.begins > now:
            raise settings.error("certificate", f"is valid from {day(own.begins)} only: is this machine's clock right?")
        if listens and not own.server:
            raise settings.error("certificate", "is not made for servers (extended key usage), and this broker has a TLS listener")
        if own.ends < now + SOON:
            self.warnings.append(f"{settings.certificate} expires on {day(own.ends)}: renew it, then send SIGHUP")

    def _fits_links(self, broker: str) -> None:
        """Neighbours would refuse any other certificate."""
        own, settings = self.own, self.settings
        assert own is not None
        if broker not in own.names:
            text = f"names {', '.join(sorted(own.names)) or 'nobody'}: links need one that names this broker, {broker} (DNS name)"
            raise settings.error("certificate", text)
        if not (own.server and own.client):
            missing = "clients" if own.server else "servers"
            raise settings.error("certificate", f"is not made for {missing} (extended key usage): links need one for servers and clients")

    def _read_key(self, text: str) -> None:
        settings = self.settings
        assert settings.key is not None
        mode = os.stat(settings.key).st_mode & 0o777
        if mode & 0o077:
            self.warnings.append(f"{settings.key} has mode {mode:04o}: others can reach the private key; chmod 600 {settings.key}")
        encrypted = "ENCRYPTED" in text
        if encrypted and settings.key_password_file is None:
            raise settings.error("key", "is encrypted: give key_password_file, a file with its password in the first line")
        if settings.key_password_file is not None and encrypted:
            lines = _read(settings, "key_password_file").splitlines()
            if not lines or not lines[0]:
                raise settings.error("key_password_file", "has no password in its first line")
            self._password = lines[0].encode()

    def _text(self, key: str, wanted: str, what: str) -> str:
        text = _read(self.settings, key)
        if wanted not in text:
            path: Path = getattr(self.settings, key)
            form = " (DER: openssl x509 -inform der converts it)" if key != "key" and text.startswith("0") else ""
            raise self.settings.error(key, f"holds no {what.removeprefix('a ')} in PEM form{form}: {_looks_like(path, text)}")
        return text


def _read(settings: TlsSettings, key: str) -> str:
    path: Path = getattr(settings, key)
    try:
        return path.read_text(encoding="latin-1")  # PEM is ASCII; what is not is told apart later
    except OSError as error:
        raise settings.error(key, f"cannot be read: {error.strerror or error}") from None


def _looks_like(path: Path, text: str) -> str:
    """What the file seems to be, for who named the wrong one."""
    if not text.strip():
        return "it is empty"
    if _CERTIFICATE in text:
        return "it is a certificate"
    if _KEY in text:
        return "it is a private key"
    return 'give a file with "-----BEGIN ..." lines'


def day(seconds: float) -> str:
    """A time of a certificate, for people."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


__all__ = ["SOON", "ConfigError", "Contexts", "day"]
