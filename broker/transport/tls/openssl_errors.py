"""What an error of OpenSSL means, in words for whoever has to mend it.

OpenSSL names a reason (`SSLError.reason`), and for a certificate that it does not accept a code (`verify_code`). What is
not in the tables here is told in OpenSSL's own words.
"""

from __future__ import annotations

import ssl

# What the peer did, or said, in a handshake or behind it.
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and one is required here",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate, and none was shown: give one",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of the certificate that was shown",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that the certificate that was shown has expired: renew it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the certificate that was shown",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept the certificate that was shown",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it says that the certificate that was shown is not for this use",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refuses the handshake: no version, cipher or certificate that both take",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not take this version of TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks no version of TLS that is taken here (1.2 or newer for clients, 1.3 for links)",
    "NO_SHARED_CIPHER": "there is no cipher that both take",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection in the TLS handshake",
    "HTTP_REQUEST": "it speaks HTTP, not TLS",
    "TLSV1_ALERT_ACCESS_DENIED": "it does not let this certificate in",
}
# What OpenSSL says where the bytes are not TLS at all.
_NOT_TLS = frozenset(("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "BAD_RECORD_TYPE", "PACKET_LENGTH_TOO_LONG"))
# X509_V_ERR_...: why a certificate is not accepted.
_VERIFY = {
    2: "signed by an authority that is not trusted here",
    3: "not accepted: tls.revoked has no revocation list of its authority",
    9: "not valid yet; are the clocks right?",
    10: "expired: it has to be renewed, then send SIGHUP if it is a broker's",
    11: "not accepted: the revocation list of its authority is not valid yet; are the clocks right?",
    12: "not accepted: the revocation list of its authority has expired",
    18: "self-signed, and not trusted here",
    19: "signed by an authority that is not trusted here",
    20: "signed by an authority that is not trusted here",
    21: "signed by an authority that is not trusted here",
    23: "revoked",
    24: "signed by a certificate that is no authority",
    26: "not made for this use (extended key usage)",
}
_MQTT_CONNECT = 0x10


def explain(error: BaseException, first: int | None = None) -> str:
    """One clause about the peer. first: the first byte that it sent, None when nothing came."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is {_VERIFY.get(error.verify_code, f'not accepted: {error.verify_message}')}"
    reason = getattr(error, "reason", None)
    if reason in _NOT_TLS:
        if first == _MQTT_CONNECT:
            return "it speaks MQTT without TLS: let it use mqtts:// (TLS), or a listener without"
        return "it does not speak TLS"
    if isinstance(reason, str):
        return _REASONS.get(reason, reason.lower().replace("_", " "))
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def reason_of(error: ssl.SSLError) -> str:
    """OpenSSL's reason in small words, for what is not a peer's doing."""
    if error.reason is None and "PEM lib" in str(error):
        return "the file is cut off or damaged"
    return (error.reason or error.args[-1] or "not accepted").lower().replace("_", " ")
