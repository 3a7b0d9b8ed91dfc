"""What stands in a certificate, found with nothing but the standard library: by handshakes with oneself in memory.

The standard library shows the fields of a certificate only once a handshake has verified it. So two ends are made, one
shows the certificate and the other trusts exactly this one, whatever its dates; first as a server's, then as a client's.
"""

from __future__ import annotations

import base64
import contextlib
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, cast

_ANY_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: dates are read here and judged by the caller
_THIS_ONE = 0x80000  # X509_V_FLAG_PARTIAL_CHAIN: the certificate itself is trusted, whoever signed it
_EXTENSIONS = 0xA3  # tag of a certificate's extensions
_KEY_USAGES = bytes.fromhex("551d25")  # 2.5.29.37, extended key usage
_SERVERS = (bytes.fromhex("2b06010505070301"), bytes.fromhex("551d2500"))  # server authentication, any use
_UTC_TIME, _GENERALIZED_TIME, _SEQUENCE = 0x17, 0x18, 0x30  # tags
_LIST = re.compile("-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)
_ROUNDS = 10  # of messages; a handshake takes three


class Certificate(NamedTuple):
    """names: DNS names, or the common name where there are none, and addresses. begins, ends: seconds since 1970.
    server, client: what it may be shown as."""

    names: frozenset[str]
    begins: float
    ends: float
    server: bool
    client: bool


def read(load: Callable[[ssl.SSLContext], None], file: Path) -> Certificate:
    """The certificate in `file`, which `load` puts into a context with its key. Raises ssl.SSLError when it can be neither's."""
    showing = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(showing)
    as_server, problem = _shown(_trusting(ssl.PROTOCOL_TLS_CLIENT, file), showing, server=True)
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    other.check_hostname = False
    other.verify_mode = ssl.CERT_NONE
    load(other)
    judge = _trusting(ssl.PROTOCOL_TLS_SERVER, file)
    load(judge)
    as_client, _ = _shown(other, judge, server=False)
    fields = as_server or as_client
    if fields is None:
        assert problem is not None
        raise problem
    begins, ends = (ssl.cert_time_to_seconds(str(fields[key])) for key in ("notBefore", "notAfter"))
    return Certificate(names(fields), begins, ends, as_server is not None, as_client is not None)


def names(fields: dict[str, Any] | None) -> frozenset[str]:
    """The names in what `getpeercert` gives: DNS names, without any the common name (RFC 6125, 6.4.4), and IP addresses."""
    if not fields:
        return frozenset()
    alternatives = fields.get("subjectAltName", ())
    found = {value for kind, value in alternatives if kind == "DNS"}
    if not found:
        found = {value for part in fields.get("subject", ()) for key, value in part if key == "commonName"}
    return frozenset(found | {_address(value) for kind, value in alternatives if kind == "IP Address"})


def for_servers(der: bytes) -> bool:
    """Whether a certificate names server authentication, or any use, among its extended key usages (RFC 5280, 4.2.1.12).

    der: one that OpenSSL has read and verified, so that its form is right; the standard library does not tell its extensions.
    """
    if not der:
        return False
    (_, certificate), *_ = _parts(der)
    (_, body), *_ = _parts(certificate)
    for tag, part in _parts(body):
        if tag == _EXTENSIONS:
            ((_, extensions),) = _parts(part)
            for _, extension in _parts(extensions):
                (_, identifier), *_, (_, value) = _parts(extension)
                if identifier == _KEY_USAGES:
                    ((_, uses),) = _parts(value)
                    return any(use in _SERVERS for _, use in _parts(uses))
    return False


def lists_end(pem: str) -> float | None:
    """When the first of the revocation lists in a PEM text ends (RFC 5280, 5.1.2.5), seconds since 1970; None: none of them says.

    pem: one that OpenSSL has read.
    """
    found = []
    for block in _LIST.findall(pem):
        with contextlib.suppress(ValueError, IndexError):  # a form that OpenSSL reads and this does not: it says nothing then
            (_, whole), *_ = _parts(base64.b64decode(block))
            (_, body), *_ = _parts(whole)
            times = [_time(tag, value) for tag, value in _parts(body) if tag in (_UTC_TIME, _GENERALIZED_TIME)]
            found += times[1:2]  # this update, the next one
    return min(found, default=None)


def without_list(context: ssl.SSLContext, pem: str) -> list[str]:
    """Names of trusted authorities that no revocation list in a PEM text is of, but for those whose part here is to certify another one.

    context: trusts the authorities. pem: revocation lists that OpenSSL has read.
    """
    listed, subjects = [], []
    with contextlib.suppress(ValueError, IndexError):  # as above; what is after that is not judged
        for block in _LIST.findall(pem):
            listed.append(_name(_sequences(base64.b64decode(block))[1]))  # the algorithm, the issuer (RFC 5280, 5.1)
        for der in context.get_ca_certs(binary_form=True):
            _, issuer, _, subject, *_ = _sequences(der)  # the algorithm, the issuer, its time, the subject (RFC 5280, 4.1)
            subjects.append((_name(issuer), _name(subject)))
    over_others = [issuer for issuer, subject in subjects if issuer != subject]
    found = []
    for (_, name), fields in zip(subjects, context.get_ca_certs(), strict=False):
        if name not in listed and name not in over_others:
            named = {key: value for part in cast("Any", fields)["subject"] for key, value in part}
            found.append(named.get("commonName") or ", ".join(named.values()))
    return found


def _sequences(der: bytes) -> list[bytes]:
    """The parts of what a certificate or revocation list has signed that are made of parts themselves."""
    (_, whole), *_ = _parts(der)
    (_, body), *_ = _parts(whole)
    return [value for tag, value in _parts(body) if tag == _SEQUENCE]


def _name(der: bytes) -> list[list[tuple[bytes, bytes]]]:
    """A distinguished name as it is compared: whatever kind of text its values are, and without regard to case (RFC 5280, 7.1)."""
    pairs = [[_parts(pair) for _, pair in _parts(part)] for _, part in _parts(der)]
    return [sorted((identifier, b" ".join(value.lower().split())) for (_, identifier), (_, value) in part) for part in pairs]


def _time(tag: int, value: bytes) -> float:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """The tags and contents of the DER values that stand behind each other (X.690, 8.1)."""
    found, position = [], 0
    while position < len(der):
        tag, size, position = der[position], der[position + 1], position + 2
        if size & 0x80:
            more = size & 0x7F
            size, position = int.from_bytes(der[position : position + more], "big"), position + more
        found.append((tag, der[position : position + size]))
        position += size
    return found


def covers(given: frozenset[str], host: str) -> bool:
    """Whether one of a certificate's names is this host; `*.` stands for one label (RFC 6125, 6.4.3)."""
    wanted = _address(host.casefold().rstrip("."))
    parent = wanted.partition(".")[2]
    return any(name.casefold() in (wanted, f"*.{parent}" if parent else wanted) for name in given)


def _address(text: str) -> str:
    """An address in its usual form; anything else as it is."""
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        return text


def _trusting(protocol: ssl._SSLMethod, file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= _ANY_TIME | _THIS_ONE
    context.load_verify_locations(file)
    return context


def _shown(
    client_context: ssl.SSLContext, server_context: ssl.SSLContext, server: bool
) -> tuple[dict[str, Any] | None, ssl.SSLError | None]:
    """The fields of the certificate that the server (else the client) showed, or why it could not."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(down, up)
    other = server_context.wrap_bio(up, down, server_side=True)
    try:
        for _ in range(_ROUNDS):
            done = [_step(end) for end in (client, other)]  # each has its turn
            if all(done):
                break
    except ssl.SSLError as error:
        return None, error
    return (client if server else other).getpeercert(), None


def _step(end: ssl.SSLObject) -> bool:
    """Whether this end has done its handshake."""
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
