"""What becomes of each option of mosquitto.conf that is not simply a key here: why there is none, or why none is needed."""

from __future__ import annotations

PSK = (
    "TLS with pre-shared keys is not served: Python's ssl module has it only since 3.13. Give the listener a certificate"
    " (mqmesh cert makes some), and the clients a name with a password or a certificate each"
)
PLUGIN = "Mosquitto's plugins do not run here. [access] has users, tokens, certificates and rules"

LOST = {
    "auth_plugin": PLUGIN,
    "plugin": PLUGIN,
    "auth_plugin_deny_special_chars": PLUGIN,
    "psk_file": PSK,
    "auto_id_prefix": "the broker makes the identifiers that it gives; access.client_ids says what they look like",
    "bind_interface": "a listener has an address: write that of the interface in its place",
    "capath": "tls.ca is one file: cat FOLDER/*.pem > ca.pem",
    "ciphers": "OpenSSL's defaults for TLS 1.2 decide",
    "ciphers_tls1.3": "OpenSSL's defaults for TLS 1.3 decide",
    "http_dir": "a broker serves no files: let a web server do it",
    "max_inflight_bytes": "limits.in_flight bounds how many messages are in flight, and limits.session_memory_bytes their bytes",
    "mount_point": "a listener has no prefix of its own. A broker of its own behind a link with a map has: docs/policy.md",
    "queue_qos0_messages": "messages of QoS 0 do not wait for clients that are away: publish with QoS 1",
    "tls_engine": "keys are in files",
    "tls_engine_kpass_sha1": "keys are in files",
    "upgrade_outgoing_qos": "a message comes at the lower QoS of the message and of the subscription, as MQTT says",
    "use_subject_as_username": "the common name of a certificate can be the user (access.certificates), not its whole subject",
    "use_username_as_clientid": 'clients keep the identifier that they give. access.client_ids = ["%u", "%u-*"] gives each user its own',
}
NOTES = {
    "log_dest": "the log goes to stderr; systemd, or 2>> FILE, says where it is kept",
    "log_type": "mqmesh broker --log-level says how much",
    "log_facility": "the log goes to stderr",
    "pid_file": "systemd knows the process",
    "user": "the unit of systemd says who runs the broker: it must be able to read the files above and to write its data folder",
    "check_retain_source": "a retained message stays when its publisher loses the right to it",
    "allow_duplicate_messages": "a message that fits several subscriptions of a client comes once, at the highest QoS",
}
# Nothing to do: it is so anyway, or there is nothing like it to set.
_NEEDLESS_WORDS = """
autosave_interval autosave_on_changes persistence_file persistence_location log_timestamp log_timestamp_format
connection_messages set_tcp_nodelay websockets_log_level websockets_headers_size per_listener_settings retry_interval
store_clean_interval dhparamfile
"""
NEEDLESS = frozenset(_NEEDLESS_WORDS.split())
BRIDGE_PSK = "a link has no pre-shared key of TLS, so nothing is encrypted: give the other end a listener mqtts:// and a certificate"
BRIDGE_LOST = {
    "bridge_identity": BRIDGE_PSK,
    "bridge_psk": BRIDGE_PSK,
    "bridge_insecure": "a link always checks that the certificate names the host or the broker",
    "bridge_capath": "tls.ca is one file: cat FOLDER/*.pem > ca.pem",
    "bridge_bind_address": "the system chooses the address that a link is dialled from",
    "bridge_alpn": "links use no ALPN",
    "bridge_require_ocsp": "links do not ask for OCSP; tls.revoked names revocation lists",
    "bridge_outgoing_retain": "retained messages stay retained over a link",
    "bridge_max_packet_size": "a link carries messages of any size",
}
_CLIENT = "a client always checks that the certificate names the host"
ATTACH_LOST = {
    **{name: text for name, text in BRIDGE_LOST.items() if name != "bridge_outgoing_retain"},
    "bridge_insecure": _CLIENT,
    "bridge_alpn": "a client that attaches uses no ALPN",
    "bridge_require_ocsp": "a client that attaches does not ask for OCSP",
    "bridge_bind_address": "the system chooses the address that a broker is dialled from",
    "bridge_outgoing_retain": "retained messages stay retained",
    "bridge_max_packet_size": "a message is as large as the other broker takes",
}
ATTACH_NOTED = {
    "start_type": "an attached broker is dialled all the time",
    "notification_topic": "$SYS/broker/attach/NAME/state says whether it is there",
}
