"""One link of the mesh: the handshake and the keep-alive of a connection between two brokers, both ends, sans-IO.

Strategy. A link is dialled to the peer's ordinary MQTT listener and looks like an MQTT 5 client there until its CONNECT
names the Authentication Method `mqmesh-1`:

    dialler                                        acceptor
    CONNECT  client id mqmesh/<name>, hello   ->               [hello: identity and nonce, see mesh/link/hello.py]
                                              <-   AUTH 0x18   hello, proof of the key
    AUTH 0x18  proof of the key               ->
                                              <-   CONNACK 0   the link is up at both ends
    PUBLISH ... PINGREQ ... DISCONNECT        <->

The hellos agree on a version of the mesh protocol. A dialler that is refused for its version says so (`outdated`): its shell dials again
with the earlier form of the hello (`LinkConfig.form`).

Either end refuses with a reason code and a Reason String that names both brokers: the acceptor by CONNACK, the dialler by
DISCONNECT. What is accepted in which state stands in one table, `_TABLE`.

Afterwards the machine hands on the PUBLISH packets as they come, cut at packet boundaries only (mesh/link/splitter.py), and
keeps PINGREQ, PINGRESP and DISCONNECT to itself. Unlike an MQTT server the acceptor pings as well: each end sends a
PINGREQ five times per `silence`, whatever else it sends, and takes the link for broken when not one byte has come for
`silence` seconds. So a peer with nothing to send may stand still for four fifths of it. A timer that is handled late by more than a
ping's interval means that this process was held up, not the peer: the peer then gets two more intervals.

Invariants
- LinkUp comes only after the peer's proof over both hellos, and at most once; LinkData only between LinkUp and LinkClosed;
- LinkClosed comes at most once and nothing after it; what is to be written before the connection ends is in `take()`.

It does not know sockets, what PUBLISH packets mean, the mesh beyond the live brokers' numbers, or what happens to a
link that closed. It authenticates the ends, not each packet: across a network that others can write to, use TLS. On TLS
(`mesh/link/channel.py`) the proofs hold for that one connection only, and where certificates count the peer's has to name the
broker that its hello names; with a key the proof shows the key too, without one the channel alone.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ...mqtt import codec, packets
from ...mqtt.errors import MalformedPacket, PeerError
from ...mqtt.length import read_length
from ...mqtt.properties import Properties, Property
from ...mqtt.reasons import Reason
from ..wire.identity import OLDEST, PROTOCOL, Identity
from ..wire.keys import Signer, verified
from . import hello
from .settings import (
    LONGEST_TEXT,
    Event,
    LinkClosed,
    LinkConfig,
    LinkData,
    LinkUp,
    State,
    for_connack,
    for_disconnect,
    reason_string,
    words,
)
from .splitter import Control, Splitter

__all__ = ["METHOD", "Event", "Link", "LinkClosed", "LinkConfig", "LinkData", "LinkUp", "State"]

METHOD = "mqmesh-1"
_VERSION = 5
_PINGREQ, _PINGRESP = b"\xc0\0", b"\xd0\0"
_TLS_ALERT = b"\x15\3"  # how an answer begins where TLS is spoken
_NO_BROKER = "; is it an mqmesh broker with a mesh?"
_PINGS = 5  # in each `silence`
_NAMES_SHOWN = 5  # of a certificate, in texts
_SMOOTH = 8  # one part of so many of the round trip is the last ping's
_LARGEST_HANDSHAKE = 8192  # bytes of one handshake packet: some hundred are usual


class Link:
    """One end of one link. Make it with `dial` or `accept`; then feed `receive` and `handle_timer`, and write `take()`."""

    __slots__ = (
        "_buffer",
        "_config",
        "_events",
        "_from",
        "_heard",
        "_hello",
        "_holders",
        "_key",
        "_nonce",
        "_out",
        "_peer_hello",
        "_pings",
        "_secret",
        "_signer",
        "_splitter",
        "_tick",
        "_why_not",
        "answered",
        "dialled",
        "identity",
        "incarnation",
        "outdated",
        "peer",
        "round_trip",
        "state",
        "version",
    )

    def __init__(
        self,
        identity: Identity,
        key: bytes,
        dialled: bool,
        now: float,
        config: LinkConfig,
        holders: Mapping[int, Identity],
        nonce: bytes | None,
        signer: Signer | None,
        why_not: Callable[[Identity], str | None] | None,
    ) -> None:
        self.identity = identity
        self.dialled = dialled
        self.peer: Identity | None = None  # who the peer says it is; proved once the state is UP
        self.incarnation = 0
        self.version = 0  # of the mesh protocol in which the link runs, 0 before it is agreed
        self.answered = False  # something has come
        self.outdated = False  # the dialled peer knows an earlier hello only
        self.round_trip: float | None = None  # seconds from a ping to its answer, smoothed; None before the first answer
        self.state = State.CHALLENGE if dialled else State.PROOF
        self._config = config
        self._secret = key
        self._signer = signer
        self._why_not = why_not
        self._key = config.channel.bind(key)
        self._holders = holders
        self._nonce = nonce or secrets.token_bytes(hello.NONCE_BYTES)
        self._hello = b""
        self._peer_hello = b""
        self._buffer = b""  # of the handshake
        self._splitter = Splitter(config.largest)
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self._heard = now
        self._pings: deque[float] = deque()  # when those were sent that have no answer yet
        self._tick = now + config.handshake  # when the timer has something to do

    @classmethod
    def dial(
        cls,
        identity: Identity,
        key: bytes,
        config: LinkConfig,
        now: float,
        holders: Mapping[int, Identity] | None = None,
        nonce: bytes | None = None,
        signer: Signer | None = None,
        why_not: Callable[[Identity], str | None] | None = None,
    ) -> Link:
        """The end that made the connection; `take()` holds its CONNECT.

        key: the mesh's secret, b"" where certificates alone count. holders: the live brokers of the mesh by number, for refusing a
        second holder of one; a view that the caller keeps up to date. nonce: 32 fresh bytes, drawn when left out. signer: of the key
        in `identity`; with one the peer has to show its own. why_not: why a peer's key must not speak for its number, None: it may.
        """
        link = cls(identity, key, True, now, config, holders or {}, nonce, signer, why_not)
        link._hello = hello.encode(identity, link._nonce, link._key, config.form, config.lowest)
        properties: Properties = {Property.AUTHENTICATION_METHOD: METHOD, Property.AUTHENTICATION_DATA: link._hello}
        connect = packets.Connect(client_id=f"mqmesh/{identity.name}", clean_start=True, keep_alive=0, properties=properties)
        link._send(connect)
        return link

    @classmethod
    def accept(
        cls,
        identity: Identity,
        key: bytes,
        config: LinkConfig,
        connect: packets.Connect,
        remaining: bytes,
        now: float,
        holders: Mapping[int, Identity] | None = None,
        nonce: bytes | None = None,
        signer: Signer | None = None,
        why_not: Callable[[Identity], str | None] | None = None,
    ) -> Link:
        """The end that was dialled, made from the CONNECT that named the method and the bytes received behind it.

        A peer that is refused at once has its LinkClosed among the next events, `next_deadline()` then being in the past:
        call `receive(b"", now)` to have it at once.
        """
        link = cls(identity, key, False, now, config, holders or {}, nonce, signer, why_not)
        try:
            link._greet(connect)
        except PeerError as error:
            link._refuse(error.reason, error.text)
        link._handshake(remaining)
        return link

    # what the shell calls

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take received bytes, b"" for none; returns what happened."""
        if data:
            self._heard = now
        if self.state is State.UP:
            self._stream(data)
        elif self.state is not State.CLOSED:
            self._handshake(data)
        return self._taken_events()

    def bypass(self, now: float) -> bool:
        """Whether whole PUBLISH packets that came now may bypass the machine: the link is up, and no packet is incomplete."""
        if self.state is not State.UP or self._splitter.partial or self._events:
            return False
        self._heard = now
        return True

    def is_one(self, data: bytes, now: float) -> bool:
        """Whether bytes that came now are one whole PUBLISH, and may bypass the machine."""
        return self._splitter.is_one(data) and self.bypass(now)

    def send(self, data: bytes) -> None:
        """Queue whole packets for `take()`. A shell may as well write them itself: the machine keeps no count of them."""
        self._out.append(data)

    def take(self) -> bytes:
        """The bytes to write, in order; they are forgotten here."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def next_deadline(self) -> float | None:
        """When `handle_timer` wants to be called; None when the link is over."""
        if self._events:
            return self._heard
        if self.state is State.CLOSED:
            return None
        return min(self._tick, self._heard + self._config.silence) if self.state is State.UP else self._tick

    def handle_timer(self, now: float) -> list[Event]:
        """Ping, or find out that the peer is silent; harmless when called too early."""
        if self.state is State.UP:
            self._keep_alive(now)
        elif self.state is not State.CLOSED and now >= self._tick:
            text = f"{self._peer_text()} did not finish the handshake with {self.identity} within {self._config.handshake:g} s"
            hint = _NO_BROKER if self.state is State.CHALLENGE else ""
            self._refuse(Reason.NOT_AUTHORIZED, f"{text} (waited for {self.state.value}){hint}")
        return self._taken_events()

    def goodbye(self, reason: Reason, text: str = "") -> None:
        """End the link from here: `take()` then ends with a DISCONNECT (in the handshake an acceptor's CONNACK). No event."""
        if self.state is not State.CLOSED:
            self._refuse(reason, text)
            self._events.clear()

    def connection_lost(self, text: str = "") -> list[Event]:
        """The connection is gone (end of stream or an error, `text`); nothing can be written any more."""
        self._out.clear()
        if self.state is State.UP:
            self._close(Reason.UNSPECIFIED_ERROR, f"the link between {self.identity} and {self.peer} broke{': ' * bool(text)}{text}")
        elif self.state is not State.CLOSED:
            why = f"{self._peer_text()} closed the connection in the handshake with {self.identity}{': ' * bool(text)}{text}"
            hint = _NO_BROKER if self.state is State.CHALLENGE else ""
            self._close(Reason.UNSPECIFIED_ERROR, why + hint)
        return self._taken_events()

    # the handshake

    def _handshake(self, data: bytes) -> None:
        self.answered = True
        self._buffer += data
        try:
            while self.state not in (State.UP, State.CLOSED) and (packet := self._next_packet()) is not None:
                handler = _TABLE.get((self.state, type(packet)))
                if handler is None:
                    text = f"{self._peer_text()} sent {type(packet).__name__.upper()} where {self.identity} waits for {self.state.value}"
                    raise PeerError(Reason.PROTOCOL_ERROR, text)
                handler(self, packet)
        except PeerError as error:
            self._refuse(error.reason, error.text)
        if self.state is State.UP and self._buffer:
            rest, self._buffer = self._buffer, b""
            self._stream(rest)

    def _next_packet(self) -> packets.Packet | None:
        """The next whole packet of the handshake, decoded; None when there is none yet."""
        buffer = self._buffer
        try:
            length, start = read_length(buffer, 1, len(buffer))
        except MalformedPacket:
            length = start = _LARGEST_HANDSHAKE + 1
        if length < 0:
            return None
        if length > _LARGEST_HANDSHAKE:
            text = f"{self._peer_text()} does not speak the mesh's handshake: a packet of more than {_LARGEST_HANDSHAKE} bytes"
            raise PeerError(Reason.PACKET_TOO_LARGE, text)
        if len(buffer) < start + length:
            return None
        self._buffer = buffer[start + length :]
        if buffer[:2] == _TLS_ALERT and self.state is State.CHALLENGE:
            text = f"{self._peer_text()} speaks TLS, and {self.identity} does not: write mqtts:// and its port with TLS"
            raise PeerError(Reason.PROTOCOL_ERROR, text)
        try:
            return codec.decode(buffer[0], buffer[start : start + length], _VERSION)
        except PeerError as error:
            hint = " (it seems to be no MQTT 5 broker)" if self.state is State.CHALLENGE else ""
            raise PeerError(
                error.reason, f"{self._peer_text()} sent a bad packet in the handshake with {self.identity}: {error.text}{hint}"
            ) from None

    def _greet(self, connect: packets.Connect) -> None:
        """Acceptor: the CONNECT has come."""
        properties = connect.properties
        if properties.get(Property.AUTHENTICATION_METHOD) != METHOD:
            raise PeerError(Reason.BAD_AUTHENTICATION_METHOD, f"the authentication method of a link is {METHOD}")
        self._meet(properties.get(Property.AUTHENTICATION_DATA, b""))
        assert self.peer is not None
        if connect.client_id != f"mqmesh/{self.peer.name}":
            raise PeerError(
                Reason.CLIENT_IDENTIFIER_NOT_VALID, f"the client identifier of a link from {self.peer} is mqmesh/{self.peer.name}"
            )
        form = OLDEST if self.version == OLDEST else PROTOCOL
        self._hello = hello.encode(self.identity, self._nonce, self._key, form, self._config.lowest)
        ends = self._peer_hello, self._hello
        proof = hello.prove(self._key, hello.ACCEPTOR, *ends)
        self._authenticate(len(self._hello).to_bytes(2, "big") + self._hello + proof + self._signature(hello.ACCEPTOR, *ends, proof))

    def _challenged(self, auth: packets.Auth) -> None:
        """Dialler: the acceptor's hello and proof have come."""
        data = self._auth_data(auth)
        end = 2 + int.from_bytes(data[:2], "big")
        self._meet(data[2:end])
        self._check_proof(data[end:], hello.ACCEPTOR, self._hello, self._peer_hello)
        self._check_number()
        self.state = State.VERDICT
        proof = hello.prove(self._key, hello.DIALLER, self._hello, self._peer_hello)
        self._authenticate(proof + self._signature(hello.DIALLER, self._hello, self._peer_hello, proof))

    def _answered(self, auth: packets.Auth) -> None:
        """Acceptor: the dialler's proof has come."""
        self._check_proof(self._auth_data(auth), hello.DIALLER, self._peer_hello, self._hello)
        self._check_number()
        properties: Properties = {Property.AUTHENTICATION_METHOD: METHOD}
        self._send(packets.Connack(session_present=False, reason=Reason.SUCCESS, properties=properties))
        self._up()

    def _verdict(self, connack: packets.Connack) -> None:
        """Dialler: CONNACK has come, welcome or not."""
        if connack.reason != Reason.SUCCESS:
            hint = "" if self.peer or reason_string(connack.properties) else _NO_BROKER
            if connack.reason == Reason.BAD_USER_NAME_OR_PASSWORD and self._config.channel.binding:
                hint = "; where they have the same key, something between them ends TLS: let it pass TLS through"
            if connack.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION and self.state is State.CHALLENGE:
                self.outdated = self._config.form > max(OLDEST, self._config.lowest)
                if self._config.lowest > OLDEST:
                    hint = f"; if it runs the previous release, update it, or set mesh.lowest_protocol = {OLDEST} at {self.identity.name}"
            said = reason_string(connack.properties) or words(connack.reason)
            self._close(Reason(connack.reason), f"{self._peer_text()} refused the link from {self.identity}: {said}{hint}")
        elif self.state is State.VERDICT:
            self._up()
        else:
            text = f"{self._peer_text()} let {self.identity} in without proving the mesh's key; is it an mqmesh broker with a mesh?"
            raise PeerError(Reason.PROTOCOL_ERROR, text)

    def _disconnected(self, disconnect: packets.Disconnect) -> None:
        said = reason_string(disconnect.properties) or words(disconnect.reason)
        self._close(Reason(disconnect.reason), f"{self._peer_text()} ended the link with {self.identity}: {said}")

    def _up(self) -> None:
        assert self.peer is not None
        self.state = State.UP
        ends = (self._hello, self._peer_hello) if self.dialled else (self._peer_hello, self._hello)
        self.incarnation = hello.incarnation(self._key, *ends)
        self._tick = self._heard + self._config.silence / _PINGS
        self._events.append(LinkUp(self.peer, self.incarnation))

    # the checks of a handshake

    def _meet(self, peer_hello: bytes) -> None:
        """Take the peer's hello, unproved as yet; refuse another version, another key and another mesh."""
        own, form = self.identity, self._config.form
        try:
            said = hello.decode(peer_hello, own)
            if self.dialled and (said.form == OLDEST) != (form == OLDEST):
                raise PeerError(Reason.PROTOCOL_ERROR, f"the peer answers a hello of version {form} with one of version {said.form}")
            self.peer = peer = said.peer
            self.version = hello.agree(said, own, self._config.lowest)
        except PeerError as error:
            raise PeerError(error.reason, f"{self._config.where}: {error.text}") from None
        self._peer_hello = peer_hello
        self._check_certificate()
        if said.form == OLDEST:
            if peer.mesh != own.mesh:  # the name here is not told to strangers
                text = f'{peer} belongs to mesh "{peer.mesh}" and {own} to another: give both the same mesh name, or remove the link'
                raise PeerError(Reason.NOT_AUTHORIZED, text)
            return
        mesh = hello.unveil(said.veiled, self._key, said.nonce)
        if mesh is None:
            wrong = self._wrong_key(lambda key: hello.unveil(said.veiled, key, said.nonce) is not None)
            raise wrong if self.dialled else PeerError(Reason.BAD_USER_NAME_OR_PASSWORD, wrong.text)
        self.peer = peer = peer._replace(mesh=mesh)
        if mesh != own.mesh:
            text = f'{own} belongs to mesh "{own.mesh}" and {peer} to mesh "{mesh}": give both the same mesh name, or remove the link'
            raise PeerError(Reason.NOT_AUTHORIZED, text)

    def _check_certificate(self) -> None:
        """Refuse a name that the peer's certificate does not give, and a channel on which there is nothing to prove."""
        own, peer, names = self.identity, self.peer, self._config.channel.names
        assert peer is not None
        if names is None and self._key:
            return
        if not names:
            text = f"{own} asks links for certificates (mesh.auth), and {peer} shows none: give it [tls] certificate, and mqtts:// to dial"
            raise PeerError(Reason.NOT_AUTHORIZED, text)
        if self._config.channel.flaw:
            raise PeerError(Reason.NOT_AUTHORIZED, f"{peer} shows a certificate that {self._config.channel.flaw}")
        if peer.name not in names:
            shown = ", ".join(sorted(names)[:_NAMES_SHOWN])
            text = f"{peer} shows a certificate for {shown}: give it one that names {peer.name}"
            raise PeerError(Reason.NOT_AUTHORIZED, text)

    def _check_member(self) -> None:
        """Where the brokers of the mesh are listed, refuse any other, and one under another's number."""
        own, peer, brokers = self.identity, self.peer, self._config.brokers
        assert peer is not None
        if brokers is None or brokers.get(peer.name) == peer.number:
            return
        number = brokers.get(peer.name)
        what = f"none of the brokers that {own} lets in" if number is None else f"not number {number}, as {own} has it"
        raise PeerError(Reason.NOT_AUTHORIZED, f"{peer} is {what} (mesh.brokers): correct the list, or the broker")

    def _check_number(self) -> None:
        """After the proof: refuse ourselves, a number that is held by another, and a broker that we did not mean."""
        self._check_member()
        own, peer, expected = self.identity, self.peer, self._config.number
        assert peer is not None
        refused = Reason.CLIENT_IDENTIFIER_NOT_VALID if not self.dialled else Reason.IMPLEMENTATION_SPECIFIC_ERROR
        if peer.twin_of(own):
            if self._signer is not None and peer.key != own.key:
                text = f"{peer} says that it is {own}, and has another key than this one: give it a data folder of its own"
                raise PeerError(refused, f"{text} (mqmesh identity new), or identity.key of this one")
            return  # a copy of the data folder: the two say to each other who yields
        if peer.uuid == own.uuid:
            if peer.name == own.name:
                raise PeerError(refused, f"{self._config.where} leads {own} back to itself: remove the link")
            raise PeerError(refused, f"{peer} runs on a copy of the data folder of {own}: give it a data folder of its own")
        holder = own if peer.number == own.number else self._holders.get(peer.number)
        if holder is not None and holder.uuid != peer.uuid:
            where = "here" if holder is own else "in this mesh"
            raise PeerError(refused, f"number {peer.number} is {holder.name}'s {where}; give {peer.name} another")
        if self._why_not is not None and (why := self._why_not(peer)) is not None:
            raise PeerError(refused, why)
        if expected is not None and peer.number != expected:
            text = f"{self._config.where} is {peer}, where {own} expects number {expected}: correct the address or the number"
            raise PeerError(refused, text)
        if self._config.name is not None and peer.name != self._config.name:
            text = f"{self._config.where} is {peer}, where {own} expects {self._config.name}: correct the address or the name"
            raise PeerError(refused, text)

    def _signature(self, role: bytes, dialler: bytes, acceptor: bytes, proof: bytes) -> bytes:
        return b"" if self._signer is None else self._signer.sign(hello.signed(role, dialler, acceptor, proof))

    def _check_proof(self, data: bytes, role: bytes, dialler: bytes, acceptor: bytes) -> None:
        """Refuse a peer that proves another secret than the mesh's, or that has not the key pair of which it shows the public half."""
        proof, signature = data[: hello.PROOF_BYTES], data[hello.PROOF_BYTES :]
        if not hello.proved(proof, self._key, role, dialler, acceptor):
            raise self._wrong_key(lambda key: hello.proved(proof, key, role, dialler, acceptor))
        peer = self.peer
        assert peer is not None
        if self._signer is None:
            return
        if not peer.key or not verified(peer.key, hello.signed(role, dialler, acceptor, proof), signature):
            text = f"{peer} does not show that it has the key that it names: is it the broker that it says?"
            raise PeerError(Reason.NOT_AUTHORIZED if not self.dialled else Reason.IMPLEMENTATION_SPECIFIC_ERROR, text)

    def _auth_data(self, auth: packets.Auth) -> bytes:
        properties = auth.properties
        if auth.reason != Reason.CONTINUE_AUTHENTICATION or properties.get(Property.AUTHENTICATION_METHOD) != METHOD:
            raise PeerError(Reason.PROTOCOL_ERROR, f"{self._peer_text()} sent an AUTH that does not continue {METHOD} [MQTT-4.12.0-5]")
        return bytes(properties.get(Property.AUTHENTICATION_DATA, b""))

    def _wrong_key(self, shows: Callable[[bytes], bool]) -> PeerError:
        """What a peer's proof or veil tells that does not fit the key. shows: whether it fits another one. The mesh's name stays unsaid."""
        own, peer, channel = self.identity, self.peer, self._config.channel
        if channel.binding and self._secret and shows(self._secret):
            text = f"{own} and {peer} are not the two ends of one TLS connection: something between them ends TLS; let it pass TLS through"
        elif self._secret and channel.binding and shows(channel.bind(b"")):
            text = f"{peer} proves no key, and {own} asks for one: give both the same mesh.auth, and the key"
        elif not self._secret:
            text = f"{own} has no key, and {peer} seems to prove one, or something between them ends TLS: give both the same mesh.auth"
        else:
            perhaps = ", or something between them ends TLS" if channel.binding else ""
            text = f"{own} and {peer} have different keys for their mesh{perhaps}: give both the same key"
        return PeerError(Reason.NOT_AUTHORIZED if not self.dialled else Reason.IMPLEMENTATION_SPECIFIC_ERROR, text)

    def _peer_text(self) -> str:
        return str(self.peer) if self.peer else self._config.where

    # the stream

    def _stream(self, data: bytes) -> None:
        for piece in self._splitter.feed(data):
            if not isinstance(piece, Control):
                self._events.append(LinkData(piece))
            elif not self._control(piece):
                return
        if (error := self._splitter.error) is not None:
            self._refuse(error.reason, f"{self._peer_text()} sent {self.identity} {error.text}")

    def _control(self, packet: Control) -> bool:
        """Handle what is not PUBLISH; False when the link is over."""
        if packet.first == 0xD0 and not packet.body:
            self._answered_ping()
            return True
        if packet.first == 0xC0 and not packet.body:
            self._out.append(_PINGRESP)
            return True
        try:
            decoded = codec.decode(packet.first, packet.body, _VERSION)
        except PeerError as error:
            self._refuse(error.reason, f"{self._peer_text()} sent {self.identity} a bad packet: {error.text}")
            return False
        if isinstance(decoded, packets.Disconnect):
            self._disconnected(decoded)
        else:
            name = type(decoded).__name__.upper()
            self._refuse(Reason.PROTOCOL_ERROR, f"{self._peer_text()} sent {self.identity} {name}, which has no place on a link")
        return False

    def _keep_alive(self, now: float) -> None:
        interval = self._config.silence / _PINGS
        if now - min(self._tick, self._heard + self._config.silence) > interval:  # this process was held up: what has come is still unread
            self._heard = max(self._heard, now + 2 * interval - self._config.silence)
        if now >= self._heard + self._config.silence:
            text = f"{self.identity} heard nothing from {self._peer_text()} for {self._config.silence:g} s"
            self._refuse(Reason.KEEP_ALIVE_TIMEOUT, text)
        elif now >= self._tick:
            self._out.append(_PINGREQ)
            self._pings.append(now)
            self._tick = now + interval

    def _answered_ping(self) -> None:
        """A PINGRESP has come; one that nothing was asked for says nothing."""
        if self._pings:
            took = max(0.0, self._heard - self._pings.popleft())
            self.round_trip = took if self.round_trip is None else self.round_trip + (took - self.round_trip) / _SMOOTH

    # endings

    def _refuse(self, reason: Reason, text: str) -> None:
        """Tell the peer why the link ends, and end it."""
        properties: Properties = {Property.REASON_STRING: text[:LONGEST_TEXT]} if text else {}
        if self.state is State.PROOF:
            self._send(packets.Connack(session_present=False, reason=for_connack(reason), properties=properties))
        else:
            self._send(packets.Disconnect(reason=for_disconnect(reason, self.dialled), properties=properties))
        self._close(reason, text)

    def _close(self, reason: Reason, text: str) -> None:
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            self._buffer = b""
            self._events.append(LinkClosed(reason, text))

    def _authenticate(self, data: bytes) -> None:
        properties: Properties = {Property.AUTHENTICATION_METHOD: METHOD, Property.AUTHENTICATION_DATA: data}
        self._send(packets.Auth(reason=Reason.CONTINUE_AUTHENTICATION, properties=properties))

    def _send(self, packet: packets.Packet) -> None:
        self._out.append(codec.encode(packet, _VERSION))

    def _taken_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


# Who may come when; each handler leaves the link in its next state.
_TABLE: dict[tuple[State, type], Callable[[Link, Any], None]] = {
    (State.CHALLENGE, packets.Auth): Link._challenged,
    (State.CHALLENGE, packets.Connack): Link._verdict,
    (State.CHALLENGE, packets.Disconnect): Link._disconnected,
    (State.PROOF, packets.Auth): Link._answered,
    (State.PROOF, packets.Disconnect): Link._disconnected,
    (State.VERDICT, packets.Connack): Link._verdict,
    (State.VERDICT, packets.Disconnect): Link._disconnected,
}
