"""The connection of a command that is an MQTT client: paho-mqtt, with errors of one line.

paho's network thread calls back. The command's thread waits in `wait`. Each way in which a connection can end becomes `failure`, one line
for the user, and wakes the waiter. paho opens a lost connection again, with back-off. It does not after a refusal, nor after a DISCONNECT
that would come again (another client has taken the identifier, a packet is too large, not authorised).
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
from ..broker.transport.tls.openssl_errors import explain
from .connection_options import NEVER, ConnectionOptions, OptionError
from .output import note
from .sockets import no_delay

UNSUPPORTED = 0x84  # protocol version
KEEP_ALIVE = 0x8D  # nothing came for that long
PATIENCE = 30.0  # seconds in which a broker has to answer
SILENCE = 3.0  # seconds after which a command says what it waits for
MAX_UNACKNOWLEDGED = 20  # what Mosquitto takes at most; with more its QoS 2 stalls
# Server shutting down, server busy, keep alive timeout, administrative action, use another server: worth another try.
TRANSIENT = frozenset({0x89, 0x8B, 0x8D, 0x98, 0x9C})


class TimeIsUp(ConnectionError):
    """The user's time is over before the broker has answered."""


def broker_address(options: ConnectionOptions) -> Address:
    """The broker's address, with the port, user name and password that the options give. Raises OptionError."""
    try:
        address = parse_address(options.host, COMMAND_LINE, options.port or (8883 if options.cafile else None))
    except AddressError as error:
        raise OptionError(f"{options.host!r}: {error}") from None
    return address._replace(
        port=options.port or address.port,
        user=options.username or address.user or None,
        password=options.password or address.password,
    )


def new_properties(packet_type: int) -> Any:
    """Empty MQTT 5 properties of a packet type (paho's `PacketTypes`)."""
    return Properties(packet_type)  # type: ignore[no-untyped-call]


def describe(reason: ReasonCode) -> str:
    """``Not authorized (0x87)``."""
    return f"{reason.getName()} (0x{reason.value:02X})"


def _silent(seconds: float) -> str:
    return f"accepted the connection, and no MQTT CONNACK came in {seconds:g} s. Is it an MQTT broker, and does it hang?"


def _explain(error: OSError, address: Address) -> str:
    """What an error on opening means, and what the user can do."""
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
    """Let SIGTERM do what Ctrl-C does: the command sends DISCONNECT, so that its will is not published."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@dataclass(slots=True)
class Connection:
    """A client and the state of its connection. A context manager: entering connects, leaving sends DISCONNECT."""

    options: ConnectionOptions
    within: float | None = None  # seconds from its beginning that the user gives for the whole command
    on_ready: Callable[[Client, bool], None] | None = None  # called in paho's thread after each CONNACK, with Session Present
    failure: str | None = None  # why the connection ended for good
    address: Address = field(init=False)
    tls: bool = field(init=False)
    client: Client = field(init=False)
    max_unacknowledged: int = MAX_UNACKNOWLEDGED  # messages that may be sent before the broker acknowledges one
    changed: threading.Condition = field(default_factory=threading.Condition)
    connected: bool = False
    _begun: float = 0.0
    _accepted: bool = False  # at least once
    _ended: bool = False

    def __post_init__(self) -> None:
        options = self.options
        self.address = address = broker_address(options)
        self.tls = address.tls or options.cafile is not None
        options.check(self.tls)
        self.client = client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id or "",
            clean_session=None if options.version == 5 else not options.persistent,
            protocol=MQTTProtocolVersion.MQTTv5 if options.version == 5 else MQTTProtocolVersion.MQTTv311,
            transport="unix" if address.scheme == "unix" else "websockets" if address.websocket else "tcp",
        )
        if address.websocket:
            client.ws_set_options(address.path)
        client.on_socket_open = no_delay
        client.on_connect = self.guarded(self._connected)
        client.on_disconnect = self.guarded(self._disconnected)
        client.max_inflight_messages_set(self.max_unacknowledged)
        client.reconnect_delay_set(1, 30)
        if address.user is not None:
            client.username_pw_set(address.user, address.password)
        if options.debug:
            client.on_log = lambda _client, _userdata, _level, text: note(text)
        if options.will_topic:
            self._set_will(options.will_topic)

    def _set_will(self, topic: str) -> None:
        options, properties = self.options, None
        if options.version == 5:
            properties = new_properties(PacketTypes.WILLMESSAGE)
            if options.will_delay:
                properties.WillDelayInterval = options.will_delay
        try:
            self.client.will_set(topic, options.will_payload, options.will_qos, options.will_retain, properties)
        except ValueError as error:
            raise OptionError(f"--will-topic {topic}: {error}") from None

    def __enter__(self) -> Connection:
        """Connect. Returns once the broker accepts.

        Raises ConnectionError with one line that says what to do, TimeIsUp at the end of `within`.
        """
        self._begun = time.monotonic()
        try:
            if self.tls:
                self._set_tls()
            if self.within is not None:
                self.client.connect_timeout = max(0.1, min(self.client.connect_timeout, self.within))
            self._open()
        except (OSError, ssl.SSLError) as error:
            if isinstance(error, TimeoutError) and self.left() == 0.0:
                raise TimeIsUp(f"{self.address.endpoint} has not answered in {self.within:g} s") from None
            raise ConnectionError(f"cannot connect to {self.address.endpoint}: {_explain(error, self.address)}") from None
        try:
            self.client.loop_start()
            left = self.left()
            accepted = self.wait(lambda: self.connected, PATIENCE if left is None else min(left, PATIENCE), "CONNACK")
        except KeyboardInterrupt:  # the broker may have accepted: without DISCONNECT it would publish the will
            self._stop()
            raise
        if not accepted and self.failure is None:
            if self.left() == 0.0:
                self._stop()
                raise TimeIsUp(f"{self.address.endpoint} accepted the connection, and no MQTT CONNACK came in {self.within:g} s")
            self.failure = f"{self.address.endpoint} {_silent(PATIENCE)}"
        if self.failure is not None:
            self._stop()
            raise ConnectionError(self.failure)
        return self

    def _set_tls(self) -> None:
        options = self.options
        files = {"--cafile": options.cafile, "--cert": options.cert, "--key": options.key}
        for option, file in files.items():
            if file is not None and not Path(file).is_file():
                raise OptionError(f"{option} {file}: no such file")
        given = " ".join(f"{option} {file}" for option, file in files.items() if file is not None)
        try:
            self.client.tls_set(ca_certs=options.cafile, certfile=options.cert, keyfile=options.key)
        except (OSError, ValueError) as error:
            raise OptionError(f"{given}: {explain(error)}; PEM files are right, and the key that the certificate was made with") from None
        self.client.tls_insecure_set(options.insecure)

    def _open(self) -> None:
        options, address = self.options, self.address
        host = address.path if address.scheme == "unix" else address.host
        port = address.port or 1  # paho wants one for a Unix socket too
        if options.version == 4:
            self.client.connect(host, port, options.keepalive)
            return
        properties = new_properties(PacketTypes.CONNECT)
        expiry = options.session_expiry
        if expiry is None and options.persistent:
            expiry = NEVER
        if expiry:
            properties.SessionExpiryInterval = expiry
        if options.receive_maximum:
            properties.ReceiveMaximum = options.receive_maximum
        self.client.connect(host, port, options.keepalive, clean_start=not options.persistent, properties=properties)

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._ended = True
        self.client.disconnect()
        self.client.loop_stop()

    def left(self) -> float | None:
        """How much of `within` is left, in seconds. None: the user gives any time."""
        return None if self.within is None else max(0.0, self._begun + self.within - time.monotonic())

    def wait(self, condition: Callable[[], bool], timeout: float | None = None, answer: str = "") -> bool:
        """Wait for `condition`. False: the connection failed for good, or `timeout` seconds passed.

        answer: what the broker has to send for that. A line says so if it has not come after `SILENCE`, when people begin to wonder.
        """
        begun = time.monotonic()
        end = None if timeout is None else begun + timeout
        silent = answer != ""
        with self.changed:
            while not condition():
                # A bounded wait lets the main thread see a signal on every platform.
                left = 1.0 if end is None else min(1.0, end - time.monotonic())
                if self.failure is not None or left <= 0:
                    return False
                self.changed.wait(left)
                if silent and time.monotonic() - begun >= SILENCE and not condition():
                    silent = False
                    note(f"waiting for {answer} from {self.address.endpoint}")
        return True

    def wake(self) -> None:
        """Have `wait` check its condition again. Any thread may call it."""
        with self.changed:
            self.changed.notify_all()

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """A callback for paho that fails the connection if it raises. Otherwise paho's thread would end and the waiter wait for ever."""

        def call(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except OSError as error:  # of a file, as stdout on a full disk
                self.fail(error.strerror or str(error))
            except Exception as error:
                self.fail(f"internal error: {error!r}")
                raise

        return call

    def fail(self, text: str) -> None:
        """End the connection for good. text: the line for the user."""
        if self.failure is None:
            self.failure = text
        self._ended = True
        self.client.disconnect()
        self.wake()

    def _connected(self, client: Client, _userdata: object, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None) -> None:
        if reason.is_failure:
            text = getattr(properties, "ReasonString", None)
            hint = ". -V 4 speaks MQTT 3.1.1" if reason.value == UNSUPPORTED and self.options.version == 5 else ""
            self.fail(f"{self.address.endpoint} refuses the connection: {describe(reason)}" + (f": {text}" if text else hint))
            return
        granted = getattr(properties, "ReceiveMaximum", None)
        if granted is not None:  # [MQTT-3.3.4-7]: paho does not look at it
            self.max_unacknowledged = min(granted, self.max_unacknowledged)
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
            line = f"{self.address.endpoint} ended the connection: {describe(reason)}" + (f": {text}" if text else "")
            if reason.value not in TRANSIENT:
                self.fail(line)
                return
            note(f"{line}; connecting again")
        elif not self._accepted and reason.value == KEEP_ALIVE:  # paho waits no longer for CONNACK
            self.fail(f"{self.address.endpoint} {_silent(self.options.keepalive)}")
            return
        elif not self._accepted:
            text = "closed the connection before CONNACK. Is it an MQTT broker, and does it speak this version (-V)?"
            if self.tls:
                text += " Does it ask for a certificate (--cert, --key) of an authority that it knows?"
            else:
                text += " Is it a port for TLS (mqtts://)?"
            self.fail(f"{self.address.endpoint} {text}")
            return
        elif was_connected:
            note(f"{self.address.endpoint}: connection lost; connecting again")
        self.wake()
