"""One MQTT client's connection for a command: paho-mqtt underneath, one-line errors on top.

paho's network thread calls back; the command's own thread waits in `wait`. Each way in which a connection can end is
turned into `failure`, one line for the user, and wakes the waiter. A lost connection is opened again by paho with
back-off; a refusal is not, and neither is a DISCONNECT that would come again (another client took our identifier, a
packet too large, not authorised).
"""

from __future__ import annotations

import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, WebsocketConnectionError
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from ..base.address import COMMAND_LINE, Address, AddressError, parse_address
from ..broker.transport.tls.words import explain
from .output import note
from .sockets import no_delay

NEVER = 0xFFFFFFFF
UNSUPPORTED = 0x84  # protocol version
# Server shutting down, server busy, keep alive timeout, administrative action, use another server: worth another try.
TRANSIENT = frozenset({0x89, 0x8B, 0x8D, 0x98, 0x9C})


class OptionError(ValueError):
    """Options that do not go together; the message says what would be right."""


@dataclass(slots=True)
class Will:
    """The message that the broker publishes if the connection ends without DISCONNECT. `delay` in seconds."""

    topic: str
    payload: str
    qos: int
    retain: bool
    delay: int


@dataclass(slots=True)
class Options:
    """Where to connect and as whom; `session_expiry` in seconds, None for the protocol's default."""

    address: Address
    version: int = 5
    keep_alive: int = 60
    client_id: str | None = None
    persistent: bool = False
    session_expiry: int | None = None
    receive_maximum: int | None = None
    will: Will | None = None
    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    insecure: bool = False
    debug: bool = False
    max_unacknowledged: int = 20  # what Mosquitto takes at most; more makes its QoS 2 stall

    @property
    def tls(self) -> bool:
        return self.address.tls or self.ca_file is not None


# What commands that only ask a broker something do not let people choose.
UNASKED: dict[str, Any] = {"keepalive": 60, "persistent": False, "session_expiry": None, "receive_maximum": None} | {
    "will_topic": None,
    "will_payload": "",
    "will_qos": 0,
    "will_retain": False,
    "will_delay": 0,
}


def build_options(values: dict[str, Any]) -> Options:
    """Options from the parameters of a command (their names as in `pub` and `sub`). Raises OptionError."""
    try:
        address = parse_address(values["host"], COMMAND_LINE, values["port"] or (8883 if values["cafile"] else None))
    except AddressError as error:
        raise OptionError(f"{values['host']!r}: {error}") from None
    address = address._replace(
        port=values["port"] or address.port,
        user=values["username"] or address.user or None,
        password=values["password"] or address.password,
    )
    version = {"5": 5, "mqttv5": 5, "4": 4, "311": 4, "3.1.1": 4, "mqttv311": 4}.get(values["protocol"].lower())
    if version is None:
        raise OptionError(f"-V {values['protocol']}: the MQTT version is 5, or 4 for MQTT 3.1.1")
    if (values["cert"] or values["key"]) and not (address.tls or values["cafile"]):
        raise OptionError("--cert and --key need TLS: give --cafile, or an mqtts:// address")
    if values["key"] and not values["cert"]:
        raise OptionError("--key goes with --cert")
    if values["persistent"] and not values["client_id"]:
        raise OptionError("-c keeps a session under a Client Identifier: give one with -i")
    will = None
    if values["will_topic"]:
        will = Will(values["will_topic"], values["will_payload"], values["will_qos"], values["will_retain"], values["will_delay"])
    elif values["will_payload"] or values["will_retain"] or values["will_qos"] or values["will_delay"]:
        raise OptionError("a will needs --will-topic")
    if version == 4:
        for name in ("session_expiry", "receive_maximum", "will_delay"):
            if values.get(name):
                raise OptionError(f"--{name.replace('_', '-')} needs MQTT 5: leave -V 4 out")
    return Options(
        address=address,
        version=version,
        keep_alive=values["keepalive"],
        client_id=values["client_id"],
        persistent=values["persistent"],
        session_expiry=values["session_expiry"],
        receive_maximum=values["receive_maximum"],
        will=will,
        ca_file=values["cafile"],
        certificate=values["cert"],
        key=values["key"],
        insecure=values["insecure"],
        debug=values["debug"],
    )


def new_properties(packet_type: int) -> Any:
    """Empty MQTT 5 properties of paho's `PacketTypes`; paho gives them no types."""
    return Properties(packet_type)  # type: ignore[no-untyped-call]


def describe(reason: ReasonCode) -> str:
    """``Not authorized (0x87)``."""
    return f"{reason.getName()} (0x{reason.value:02X})"


def _explain(error: OSError, address: Address) -> str:
    """What an error on opening means and what to do about it."""
    match error:
        case WebsocketConnectionError():
            return "the server opens no WebSocket there. Are path, scheme and port right?"
        case ConnectionRefusedError():
            return "connection refused. Does a broker listen there?"
        case FileNotFoundError():
            return f"no such file: {error.filename or address.path}"
        case socket.gaierror():
            return f"the host name {address.host!r} is not known ({error.strerror})"
        case TimeoutError():
            return "no answer. Is the address right, and does a firewall let it pass?"
        case ssl.SSLCertVerificationError():
            why = explain(error)
            if "ostname" in error.verify_message or "IP address" in error.verify_message:
                return f"{why} (--insecure does not ask)"
            return f"{why} (--cafile names a file of those that are)" if "authority that is not trusted" in why else why
        case ssl.SSLError():
            return f"TLS: {explain(error)}. Is this a port for TLS?"
    return error.strerror or str(error)


def end_on_sigterm() -> None:
    """Let SIGTERM do what Ctrl-C does: a command that is stopped takes leave of the broker, so that its will is not published."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@dataclass(slots=True)
class Connection:
    """A client and what became of its connection. Use as a context manager; leaving sends DISCONNECT."""

    options: Options
    on_ready: Callable[[Client, bool], None] | None = None  # after each CONNACK, with Session Present; in paho's thread
    failure: str | None = None
    client: Client = field(init=False)
    changed: threading.Condition = field(default_factory=threading.Condition)
    connected: bool = False
    _accepted: bool = False  # at least once
    _ended: bool = False

    def __post_init__(self) -> None:
        options = self.options
        self.client = client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id or "",
            clean_session=None if options.version == 5 else not options.persistent,
            protocol=MQTTProtocolVersion.MQTTv5 if options.version == 5 else MQTTProtocolVersion.MQTTv311,
            transport="unix" if options.address.scheme == "unix" else "websockets" if options.address.websocket else "tcp",
        )
        if options.address.websocket:
            client.ws_set_options(options.address.path)
        client.on_socket_open = no_delay
        client.on_connect = self.guarded(self._connected)
        client.on_disconnect = self.guarded(self._disconnected)
        client.max_inflight_messages_set(options.max_unacknowledged)
        client.reconnect_delay_set(1, 30)
        if options.address.user is not None:
            client.username_pw_set(options.address.user, options.address.password)
        if options.debug:
            client.on_log = lambda _client, _userdata, _level, text: note(text)
        if options.will is not None:
            self._set_will(options.will)

    def _set_will(self, will: Will) -> None:
        properties = None
        if self.options.version == 5:
            properties = new_properties(PacketTypes.WILLMESSAGE)
            if will.delay:
                properties.WillDelayInterval = will.delay
        try:
            self.client.will_set(will.topic, will.payload, will.qos, will.retain, properties)
        except ValueError as error:
            raise OptionError(f"--will-topic {will.topic}: {error}") from None

    def __enter__(self) -> Connection:
        """Connect; returns once the broker accepted. Raises ConnectionError with one line that says what to do."""
        options = self.options
        try:
            if options.tls:
                self._set_tls()
            self._open()
        except (OSError, ssl.SSLError) as error:
            raise ConnectionError(f"cannot connect to {options.address.endpoint}: {_explain(error, options.address)}") from None
        try:
            self.client.loop_start()
            accepted = self.wait(lambda: self.connected, 30.0)
        except KeyboardInterrupt:  # accepted perhaps, with a will: the broker must not think that this client died
            self._stop()
            raise
        if not accepted and self.failure is None:
            self.failure = f"{options.address.endpoint} accepted the connection but no MQTT CONNACK came. Is it an MQTT broker?"
        if self.failure is not None:
            self._stop()
            raise ConnectionError(self.failure)
        return self

    def _set_tls(self) -> None:
        options = self.options
        files = {"--cafile": options.ca_file, "--cert": options.certificate, "--key": options.key}
        for option, file in files.items():
            if file is not None and not Path(file).is_file():
                raise OptionError(f"{option} {file}: no such file")
        given = " ".join(f"{option} {file}" for option, file in files.items() if file is not None)
        try:
            self.client.tls_set(ca_certs=options.ca_file, certfile=options.certificate, keyfile=options.key)
        except (OSError, ValueError) as error:
            raise OptionError(f"{given}: {explain(error)}; PEM files are right, and the key that the certificate was made with") from None
        self.client.tls_insecure_set(options.insecure)

    def _open(self) -> None:
        options = self.options
        address = options.address
        host = address.path if address.scheme == "unix" else address.host
        port = address.port or 1  # paho wants one for a Unix socket too
        if options.version == 4:
            self.client.connect(host, port, options.keep_alive)
            return
        properties = new_properties(PacketTypes.CONNECT)
        expiry = options.session_expiry
        if expiry is None and options.persistent:
            expiry = NEVER
        if expiry:
            properties.SessionExpiryInterval = expiry
        if options.receive_maximum:
            properties.ReceiveMaximum = options.receive_maximum
        self.client.connect(host, port, options.keep_alive, clean_start=not options.persistent, properties=properties)

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._ended = True
        self.client.disconnect()
        self.client.loop_stop()

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `condition` holds (True), or the connection failed for good or `timeout` seconds passed (False)."""
        end = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while not condition():
                # A bounded wait lets the main thread see a signal on every platform.
                left = 1.0 if end is None else min(1.0, end - time.monotonic())
                if self.failure is not None or left <= 0:
                    return False
                self.changed.wait(left)
        return True

    def wake(self) -> None:
        """Let `wait` look at its condition again; from any thread."""
        with self.changed:
            self.changed.notify_all()

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """A callback for paho that ends the connection when it raises: paho's thread would end and the waiter wait for ever."""

        def call(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception as error:
                self.fail(f"internal error: {error!r}")
                raise

        return call

    def fail(self, text: str) -> None:
        """End the connection for good with this line."""
        if self.failure is None:
            self.failure = text
        self._ended = True
        self.client.disconnect()
        self.wake()

    def _connected(self, client: Client, _userdata: object, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None) -> None:
        if reason.is_failure:
            text = getattr(properties, "ReasonString", None)
            hint = ". -V 4 speaks MQTT 3.1.1" if reason.value == UNSUPPORTED and self.options.version == 5 else ""
            self.fail(f"{self.options.address.endpoint} refuses the connection: {describe(reason)}" + (f": {text}" if text else hint))
            return
        granted = getattr(properties, "ReceiveMaximum", None)
        if granted is not None:  # [MQTT-3.3.4-7]: paho does not look at it
            self.options.max_unacknowledged = min(granted, self.options.max_unacknowledged)
        self.connected = self._accepted = True
        if self.on_ready is not None:
            self.on_ready(client, flags.session_present)
        self.wake()

    def _disconnected(
        self, _client: Client, _userdata: object, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        was_connected, self.connected = self.connected, False
        if self._ended:
            return
        if flags.is_disconnect_packet_from_server:
            text = getattr(properties, "ReasonString", None)
            line = f"{self.options.address.endpoint} ended the connection: {describe(reason)}" + (f": {text}" if text else "")
            if reason.value not in TRANSIENT:
                self.fail(line)
                return
            note(f"{line}; connecting again")
        elif not self._accepted:
            text = "closed the connection before CONNACK. Is it an MQTT broker, and does it speak this version (-V)?"
            if self.options.tls:
                text += " Does it ask for a certificate (--cert, --key) of an authority that it knows?"
            else:
                text += " Is it a port for TLS (mqtts://)?"
            self.fail(f"{self.options.address.endpoint} {text}")
            return
        elif was_connected:
            note(f"{self.options.address.endpoint}: connection lost; connecting again")
        self.wake()
