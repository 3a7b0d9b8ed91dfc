"""The link machine: handshake fed in any pieces, refusals with both names, tampering, keep-alive under virtual time."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.link import hello
from mqmesh.mesh.link.link import METHOD, Event, Link, LinkClosed, LinkConfig, LinkData, LinkUp, State
from mqmesh.mesh.wire.identity import LIFE, Identity
from mqmesh.mesh.wire.keys import Signer
from mqmesh.mqtt import codec, packets
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason

KEY = b"the key of this mesh"
PORTO = Identity("sites", "porto", 3, UUID(int=3), 1000)
LYON = Identity("sites", "lyon", 4, UUID(int=4), 2000)
CONFIG = LinkConfig(where="mqtt://127.0.0.1:1883")
NONCES = (b"d" * 32, b"a" * 32)
PUBLISH = codec.encode(packets.Publish("t", b"x" * 20), 5)


KEYED = {"lyon": Signer(b"l" * 32), "porto": Signer(b"p" * 32)}


def keyed(dialler: Signer | None, acceptor: Signer | None, why_not: str | None = None) -> list[LinkClosed]:
    """What becomes of a link whose ends name the keys of KEYED and sign with these; [] when it comes up."""
    ends = [one._replace(key=KEYED[one.name].public) if signer is not None else one for one, signer in ((LYON, dialler), (PORTO, acceptor))]
    up = Link.dial(ends[0], KEY, CONFIG, 0.0, nonce=NONCES[0], signer=dialler)
    first = up.take()
    (packet,) = Framer(100_000).feed(first)
    connect = codec.decode(packet[0], bytes(packet[1]), 5)
    assert isinstance(connect, packets.Connect)
    down = Link.accept(ends[1], KEY, CONFIG, connect, b"", 0.0, nonce=NONCES[1], signer=acceptor, why_not=lambda peer: why_not)
    events = up.receive(down.take(), 0.0)
    events += down.receive(up.take(), 0.0)
    events += up.receive(down.take(), 0.0)
    return [event for event in events if isinstance(event, LinkClosed)]


def test_both_ends_show_that_they_have_the_keys_that_they_name() -> None:
    lyon, porto = KEYED["lyon"], KEYED["porto"]
    assert keyed(lyon, porto) == []
    assert "lyon (number 4) does not show" in keyed(porto, porto)[0].text, "it names lyon's key and signs with another"
    assert "porto (number 3) does not show" in keyed(lyon, lyon)[0].text
    assert "does not show" in keyed(None, porto)[0].text
    assert keyed(lyon, porto, "that number is another's")[0].text == "that number is another's"


def test_a_copy_shows_the_same_key_as_its_original() -> None:
    """Whoever says a broker's number and UUID under another key is no other life of it."""
    known = frozenset({LIFE})
    own = PORTO._replace(key=KEYED["porto"].public, life=b"p" * 16, capabilities=known)
    for signer, up in ((KEYED["porto"], True), (KEYED["lyon"], False)):
        other = own._replace(key=signer.public, life=b"q" * 16)
        dialler = Link.dial(other, KEY, CONFIG, 0.0, signer=signer)
        (packet,) = Framer(100_000).feed(dialler.take())
        connect = codec.decode(packet[0], bytes(packet[1]), 5)
        assert isinstance(connect, packets.Connect)
        acceptor = Link.accept(own, KEY, CONFIG, connect, b"", 0.0, signer=KEYED["porto"])
        found = [*dialler.receive(acceptor.take(), 0.0), *acceptor.receive(dialler.take(), 0.0), *dialler.receive(acceptor.take(), 0.0)]
        ended = [event.text for event in found if isinstance(event, LinkClosed)]
        assert (dialler.state is acceptor.state is State.UP) == up
        assert bool(ended) != up
        assert all("has another key than this one" in text for text in ended)


class Pair:
    """Both ends of one link; bytes travel only when `pump` is called. The acceptor is made as a broker would make it."""

    def __init__(
        self, dialler: Identity = LYON, acceptor: Identity = PORTO, keys: tuple[bytes, bytes] = (KEY, KEY), **holders: dict[int, Identity]
    ) -> None:
        self.holders = holders
        self.dialler = Link.dial(dialler, keys[0], CONFIG, 0.0, holders.get("dialler_holders"), NONCES[0])
        self.acceptor: Link | None = None
        self.identity, self.key, self.config = acceptor, keys[1], CONFIG
        self.events: tuple[list[Event], list[Event]] = ([], [])
        self.waiting = b""
        self.tamper = lambda data, up: data  # applied to all bytes of one take()

    def pump(self, size: int = 10**9) -> tuple[list[Event], list[Event]]:
        """Carry bytes both ways in pieces of `size` until both ends are quiet."""
        while True:
            up = self.tamper(self.dialler.take(), True)
            for piece in cut(up, size):
                self.to_acceptor(piece)
            down = self.tamper(self.acceptor.take(), False) if self.acceptor else b""
            for piece in cut(down, size):
                self.events[0].extend(self.dialler.receive(piece, 0.0))
            if not up and not down:
                return self.events

    def to_acceptor(self, data: bytes) -> None:
        if self.acceptor is not None:
            self.events[1].extend(self.acceptor.receive(data, 0.0))
            return
        self.waiting += data
        try:
            whole = Framer(100_000).feed(self.waiting)
            connect = codec.decode(whole[0][0], bytes(whole[0][1]), 5) if whole else None
        except PeerError:
            return  # the broker's connection would refuse this CONNECT before there is a machine
        if isinstance(connect, packets.Connect):
            size = len(codec.encode(connect, 5))
            holders = self.holders.get("acceptor_holders")
            self.acceptor = Link.accept(self.identity, self.key, self.config, connect, self.waiting[size:], 0.0, holders, NONCES[1])
            self.events[1].extend(self.acceptor.receive(b"", 0.0))


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def up_pair() -> tuple[Link, Link]:
    pair = Pair()
    pair.pump()
    assert pair.acceptor is not None
    assert pair.dialler.state is pair.acceptor.state is State.UP
    return pair.dialler, pair.acceptor


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10**6])
def test_the_handshake_brings_both_ends_up_in_pieces_of_any_size(size: int) -> None:
    pair = Pair()
    dialler, acceptor = pair.pump(size)
    assert len(dialler) == len(acceptor) == 1
    assert isinstance(dialler[0], LinkUp)
    assert isinstance(acceptor[0], LinkUp)
    assert (dialler[0].peer, acceptor[0].peer) == (PORTO, LYON)
    assert dialler[0].incarnation == acceptor[0].incarnation
    assert 0 < dialler[0].incarnation < 2**63


def test_each_connection_has_its_own_incarnation() -> None:
    seen = set()
    for _ in range(50):
        dialler = Link.dial(LYON, KEY, CONFIG, 0.0)
        connect = decoded(dialler.take())
        acceptor = Link.accept(PORTO, KEY, CONFIG, connect, b"", 0.0)
        dialler.receive(acceptor.take(), 0.0)
        acceptor.receive(dialler.take(), 0.0)
        seen.add(acceptor.incarnation)
    assert len(seen) == 50


def decoded(data: bytes) -> packets.Packet:
    ((first, body),) = Framer(100_000).feed(data)
    return codec.decode(first, bytes(body), 5)


def test_the_connect_is_an_ordinary_mqtt_5_connect() -> None:
    connect = decoded(Link.dial(LYON, KEY, CONFIG, 0.0).take())
    assert isinstance(connect, packets.Connect)
    assert (connect.client_id, connect.version, connect.clean_start) == ("mqmesh/lyon", 5, True)
    assert connect.properties[Property.AUTHENTICATION_METHOD] == METHOD


def test_data_right_behind_connack_is_handed_on() -> None:
    pair = Pair()
    pair.to_acceptor(pair.dialler.take())
    assert pair.acceptor is not None
    pair.dialler.receive(pair.acceptor.take(), 0.0)
    pair.acceptor.receive(pair.dialler.take(), 0.0)
    pair.acceptor.send(PUBLISH * 3)
    events = pair.dialler.receive(pair.acceptor.take() + PUBLISH[:5], 0.0)
    assert [type(event) for event in events] == [LinkUp, LinkData]
    assert events[1] == LinkData(PUBLISH * 3)
    assert pair.dialler.receive(PUBLISH[5:], 0.0) == [LinkData(PUBLISH)]


def as_(identity: Identity, **changes: object) -> Identity:
    return identity._replace(**changes)


REFUSALS = {
    "mesh": (
        Pair(dialler=as_(LYON, mesh="other")),
        Reason.NOT_AUTHORIZED,
        'porto (number 3) belongs to mesh "sites" and lyon (number 4) to mesh "other": give both the same mesh name, or remove the link',
    ),
    "key": (
        Pair(keys=(b"one key", b"another key")),
        Reason.BAD_USER_NAME_OR_PASSWORD,
        "porto (number 3) and lyon (number 4) have different keys for their mesh: give both the same key",
    ),
    "number": (
        Pair(dialler=as_(LYON, number=3)),
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        "number 3 is lyon's here; give porto another",
    ),
    "number held elsewhere, seen by the acceptor": (
        Pair(acceptor_holders={4: as_(LYON, name="braga", uuid=UUID(int=9))}),
        Reason.CLIENT_IDENTIFIER_NOT_VALID,
        "number 4 is braga's in this mesh; give lyon another",
    ),
    "number held elsewhere, seen by the dialler": (
        Pair(dialler_holders={3: as_(LYON, name="braga", uuid=UUID(int=9))}),
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        "number 3 is braga's in this mesh; give porto another",
    ),
    "itself": (
        Pair(dialler=PORTO),
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        "mqtt://127.0.0.1:1883 leads porto (number 3) back to itself: remove the link",
    ),
    "copied data folder": (
        Pair(dialler=as_(LYON, uuid=PORTO.uuid)),
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        "porto (number 3) runs on a copy of the data folder of lyon (number 4): give it a data folder of its own",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_says_why_at_both_ends_and_names_both(case: str) -> None:
    pair, reason, text = REFUSALS[case]
    for events, end in zip(pair.pump(), (pair.dialler, pair.acceptor), strict=True):
        closed = events[-1]
        assert isinstance(closed, LinkClosed)
        assert text in closed.text
        assert end is not None
        assert end.next_deadline() is None
        assert end.take() == b""
    assert reason in {events[-1].reason for events in pair.events}


def test_the_same_broker_may_come_back_on_a_new_connection() -> None:
    events = Pair(acceptor_holders={4: LYON, 3: PORTO}, dialler_holders={4: LYON, 3: PORTO}).pump()
    assert [type(e) for e in events[0] + events[1]] == [LinkUp, LinkUp]


def test_another_broker_at_the_address_is_refused_when_a_number_is_expected() -> None:
    pair = Pair()
    pair.dialler._config = LinkConfig(number=9, where="mqtt://h:1")
    events = pair.pump()
    assert events[0][-1].text == "mqtt://h:1 is porto (number 3), where lyon (number 4) expects number 9: correct the address or the number"


def hello_in(connect: packets.Packet) -> list[Any]:
    """The values of a dialler's hello."""
    assert isinstance(connect, packets.Connect)
    body = msgpack.unpackb(connect.properties[Property.AUTHENTICATION_DATA])
    assert isinstance(body, list)
    return body


def answered(body: list[Any], config: LinkConfig = CONFIG) -> tuple[Link, packets.Packet]:
    """An acceptor that got this hello, and its first packet."""
    connect = decoded(Link.dial(LYON, KEY, CONFIG, 0.0, nonce=NONCES[0]).take())
    assert isinstance(connect, packets.Connect)
    connect.properties[Property.AUTHENTICATION_DATA] = msgpack.packb(body)
    acceptor = Link.accept(PORTO, KEY, config, connect, b"", 0.0, nonce=NONCES[1])
    return acceptor, decoded(acceptor.take())


def refusal_of(body: list[Any], config: LinkConfig = CONFIG) -> str:
    """Why an acceptor refuses this hello for its version."""
    acceptor, connack = answered(body, config)
    (closed,) = acceptor.receive(b"", 0.0)
    assert isinstance(closed, LinkClosed)
    assert isinstance(connack, packets.Connack)
    assert closed.reason == connack.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION
    assert connack.properties[Property.REASON_STRING] == closed.text
    return closed.text


def test_forms_of_the_hello_that_are_not_known() -> None:
    for version in (1, 4, 32767):
        text = f"the peer speaks version {version} of the mesh protocol and porto (number 3) versions 2 to 3: update the older one"
        assert text in refusal_of([version, "x"])


def test_a_link_runs_in_the_highest_version_that_both_ends_speak() -> None:
    body = hello_in(decoded(Link.dial(LYON, KEY, CONFIG, 0.0, nonce=NONCES[0]).take()))
    assert body[:3] == [3, 2, 3]
    later = [3, 3, 9, [*body[3], "telepathy"], *body[4:], "a field", {"of": "later"}]
    acceptor, answer = answered(later)
    assert isinstance(answer, packets.Auth)
    assert acceptor.version == 3
    assert acceptor.peer == LYON._replace(capabilities=frozenset({"telepathy"}))
    assert "the peer speaks versions 4 to 9 of the mesh protocol and porto (number 3) versions 2 to 3: " in refusal_of([3, 4, 9, *body[3:]])


def dial_as(form: int, acceptor: LinkConfig = CONFIG, mesh: str = "sites") -> tuple[Pair, tuple[list[Event], list[Event]]]:
    pair = Pair(dialler=LYON._replace(mesh=mesh))
    config = LinkConfig(where="mqtt://127.0.0.1:1883", form=form)
    pair.dialler = Link.dial(LYON._replace(mesh=mesh), KEY, config, 0.0, nonce=NONCES[0])
    pair.config = acceptor
    return pair, pair.pump()


def test_an_acceptor_answers_the_previous_release_in_its_form() -> None:
    pair, events = dial_as(2)
    assert [type(event) for side in events for event in side] == [LinkUp, LinkUp]
    assert pair.acceptor is not None
    assert pair.dialler.version == pair.acceptor.version == 2
    assert events[0][0].peer == PORTO
    assert events[1][0].peer == LYON


def test_a_refusal_of_the_previous_release_does_not_tell_the_name_of_the_mesh() -> None:
    _, (told, said) = dial_as(2, mesh="guess")
    for (closed,) in (told, said):
        assert 'lyon (number 4) belongs to mesh "guess" and porto (number 3) to another' in closed.text
        assert "sites" not in closed.text


def test_the_previous_release_may_be_kept_out() -> None:
    _, (told, said) = dial_as(2, LinkConfig(lowest=3))
    text = "the peer speaks version 2 of the mesh protocol and porto (number 3) version 3: "
    text += "update the peer, or set mesh.lowest_protocol = 2 at porto"
    assert text in told[-1].text
    assert text in said[-1].text


@pytest.mark.parametrize(("lowest", "outdated"), [(2, True), (3, False)])
def test_a_dialler_that_is_refused_for_its_version_says_so(lowest: int, outdated: bool) -> None:
    refusal = packets.Connack(reason=Reason.UNSUPPORTED_PROTOCOL_VERSION)
    dialler = Link.dial(LYON, KEY, LinkConfig(lowest=lowest), 0.0)
    (closed,) = dialler.receive(codec.encode(refusal, 5), 0.0)
    assert isinstance(closed, LinkClosed)
    assert dialler.outdated is outdated
    assert ("mesh.lowest_protocol = 2 at lyon" in closed.text) is not outdated
    again = Link.dial(LYON, KEY, LinkConfig(lowest=lowest, form=2), 0.0)
    again.receive(codec.encode(refusal, 5), 0.0)
    assert not again.outdated, "there is nothing earlier to try"


def test_an_acceptor_must_answer_in_the_form_in_which_it_was_asked() -> None:
    for form, other in ((2, 3), (3, 2)):
        dialler = Link.dial(LYON, KEY, LinkConfig(form=form), 0.0)
        body = hello.encode(PORTO, NONCES[1], KEY, other)
        data = len(body).to_bytes(2, "big") + body + bytes(32)
        auth = packets.Auth(Reason.CONTINUE_AUTHENTICATION, {Property.AUTHENTICATION_METHOD: METHOD, Property.AUTHENTICATION_DATA: data})
        (closed,) = dialler.receive(codec.encode(auth, 5), 0.0)
        assert isinstance(closed, LinkClosed)
        assert f"answers a hello of version {form} with one of version {other}" in closed.text


def test_the_life_and_the_capabilities_of_both_ends_are_told() -> None:
    one = LYON._replace(life=b"l" * 16, capabilities=frozenset({"life", "owner"}))
    other = PORTO._replace(life=b"p" * 16)
    dialler, acceptor = Pair(one, other).pump()
    assert (dialler[0].peer, acceptor[0].peer) == (other, one)
    assert Pair(one, other).pump()[0][0].peer.capabilities == frozenset()


def test_strangers_do_not_learn_the_name_of_the_mesh() -> None:
    secret = "the-name-of-the-mesh"
    porto, lyon = PORTO._replace(mesh=secret), LYON._replace(mesh=secret)
    heard = Link.dial(lyon, KEY, CONFIG, 0.0).take()
    assert secret.encode() not in heard, "what a dialler says to whoever listens there"
    for stranger, key in ((LYON, b"a guess"), (lyon, b"a guess"), (LYON, b"")):
        acceptor = Link.accept(porto, KEY, CONFIG, decoded(Link.dial(stranger, key, CONFIG, 0.0).take()), b"", 0.0)
        (closed,) = acceptor.receive(b"", 0.0)
        assert isinstance(closed, LinkClosed)
        assert secret not in closed.text
        told = acceptor.take()
        assert secret.encode() not in told
        assert isinstance(decoded(told), packets.Connack), "nothing is proved to a stranger"


@given(st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=("C", "Z")), min_size=1, max_size=256))
def test_a_veil_is_lifted_by_its_key_and_no_other(name: str) -> None:
    veiled = hello.veil(name, KEY, NONCES[0])
    assert hello.unveil(veiled, KEY, NONCES[0]) == name
    assert hello.unveil(veiled, KEY, NONCES[1]) is None
    assert hello.unveil(veiled, b"another", NONCES[0]) is None
    assert len(veiled) % 64 == 16


def test_a_foreign_broker_is_recognised() -> None:
    for answer, text in (
        (
            codec.encode(packets.Connack(reason=Reason.BAD_AUTHENTICATION_METHOD), 5),
            "bad authentication method (0x8c); is it an mqmesh broker with a mesh?",
        ),
        (codec.encode(packets.Connack(), 5), "without proving the mesh's key; is it an mqmesh broker with a mesh?"),
        (codec.encode(packets.Connack(reason=1), 4), "it seems to be no MQTT 5 broker"),
        (b"HTTP/1.1 400 Bad Request\r\n" + b"\r\n" * 40, "it seems to be no MQTT 5 broker"),
        (b"\x30\xff\xff\x7f", "does not speak the mesh's handshake"),
        (b"\x20\xff\xff\xff\xff", "does not speak the mesh's handshake"),
    ):
        dialler = Link.dial(LYON, KEY, CONFIG, 0.0)
        (closed,) = dialler.receive(answer, 0.0)
        assert isinstance(closed, LinkClosed)
        assert text in closed.text
        assert "mqtt://127.0.0.1:1883" in closed.text
    dialler = Link.dial(LYON, KEY, CONFIG, 0.0)
    (closed,) = dialler.connection_lost()
    assert closed.text.endswith("closed the connection in the handshake with lyon (number 4); is it an mqmesh broker with a mesh?")


def test_packets_out_of_turn() -> None:
    _, acceptor = up_pair()
    (closed,) = acceptor.receive(codec.encode(packets.Subscribe(1, [packets.Subscription("a")]), 5), 0.0)
    assert closed == LinkClosed(Reason.PROTOCOL_ERROR, "lyon (number 4) sent porto (number 3) SUBSCRIBE, which has no place on a link")
    pair = Pair()
    pair.to_acceptor(pair.dialler.take() + PUBLISH)
    (closed,) = pair.events[1]
    assert closed == LinkClosed(Reason.PROTOCOL_ERROR, "lyon (number 4) sent PUBLISH where porto (number 3) waits for the dialler's AUTH")


# tampering


def flip(data: bytes, at: int, byte: int) -> bytes:
    return data[:at] + bytes([data[at] ^ byte]) + data[at + 1 :]


def changed(upward: bool, message: int, at: int, byte: int, right_key: bool) -> tuple[Pair, int]:
    """A handshake in which one byte of one message is changed; also the size of that message."""
    pair = Pair(keys=(KEY, KEY if right_key else b"another"))
    sizes: list[int] = []

    def tamper(data: bytes, up: bool) -> bytes:
        if up is not upward or not data:
            return data
        sizes.append(len(data))
        return flip(data, at % len(data), byte) if len(sizes) == message + 1 else data

    pair.tamper = tamper
    pair.pump()
    for events, peer in zip(pair.events, (PORTO, LYON), strict=True):
        ups = [event for event in events if isinstance(event, LinkUp)]
        assert len(ups) <= 1
        assert all(right_key and up.peer == peer for up in ups)
    if all(events and isinstance(events[0], LinkUp) for events in pair.events):
        assert pair.dialler.incarnation == pair.acceptor.incarnation  # type: ignore[union-attr]
    return pair, sizes[message] if len(sizes) > message else 0


@given(st.booleans(), st.integers(0, 1), st.integers(0, 10_000), st.integers(1, 255), st.booleans())
def test_no_changed_byte_brings_up_a_link_with_a_wrong_key_or_peer(upward: bool, message: int, at: int, byte: int, right_key: bool) -> None:
    changed(upward, message, at, byte, right_key)


@pytest.mark.parametrize("right_key", [True, False])
@pytest.mark.parametrize("byte", [0x01, 0x80, 0xFF])
def test_each_byte_of_the_handshake_changed_in_turn(byte: int, right_key: bool) -> None:
    for upward, message in ((True, 0), (False, 0), (True, 1), (False, 1)):
        _, size = changed(upward, message, 0, byte, right_key)
        assert size > 0 or message or not right_key
        for at in range(1, size):
            changed(upward, message, at, byte, right_key)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_in_the_handshake_end_in_silence_or_a_refusal(data: bytes, accept: bool) -> None:
    dialler = Link.dial(LYON, KEY, CONFIG, 0.0)
    link = Link.accept(PORTO, KEY, CONFIG, decoded(dialler.take()), b"", 0.0) if accept else dialler
    for piece in cut(data, 17):
        for event in link.receive(piece, 0.0):
            assert isinstance(event, LinkClosed)


@given(
    st.binary(max_size=100)
    | st.lists(st.one_of(st.integers(-5, 2**63), st.text(max_size=3), st.binary(max_size=33)), max_size=13).map(msgpack.packb)
)
def test_any_hello_is_an_identity_or_refused(data: bytes) -> None:
    connect = decoded(Link.dial(LYON, KEY, CONFIG, 0.0).take())
    assert isinstance(connect, packets.Connect)
    connect.properties[Property.AUTHENTICATION_DATA] = data
    acceptor = Link.accept(PORTO, KEY, CONFIG, connect, b"", 0.0)
    assert acceptor.state in (State.CLOSED, State.PROOF)
    assert acceptor.next_deadline() is not None


def test_a_recorded_handshake_cannot_be_played_again() -> None:
    dialler = Link.dial(LYON, KEY, CONFIG, 0.0)
    first = dialler.take()
    acceptor = Link.accept(PORTO, KEY, CONFIG, decoded(first), b"", 0.0)
    dialler.receive(acceptor.take(), 0.0)
    proof = dialler.take()
    again = Link.accept(PORTO, KEY, CONFIG, decoded(first), b"", 0.0)
    (closed,) = again.receive(proof, 0.0)
    assert isinstance(closed, LinkClosed)


def test_an_acceptors_proof_cannot_be_mirrored() -> None:
    dialler = Link.dial(LYON, KEY, CONFIG, 0.0)
    own = decoded(dialler.take()).properties[Property.AUTHENTICATION_DATA]
    proof = hello.prove(KEY, hello.DIALLER, own, own)
    data = len(own).to_bytes(2, "big") + own + proof
    auth = packets.Auth(Reason.CONTINUE_AUTHENTICATION, {Property.AUTHENTICATION_METHOD: METHOD, Property.AUTHENTICATION_DATA: data})
    (closed,) = dialler.receive(codec.encode(auth, 5), 0.0)
    assert isinstance(closed, LinkClosed)


# endings


def test_goodbye_is_told_to_the_peer() -> None:
    dialler, acceptor = up_pair()
    acceptor.goodbye(Reason.SERVER_SHUTTING_DOWN, "porto stops")
    assert acceptor.next_deadline() is None
    events = dialler.receive(PUBLISH + acceptor.take() + PUBLISH, 0.0)
    assert events == [
        LinkData(PUBLISH),
        LinkClosed(Reason.SERVER_SHUTTING_DOWN, "porto (number 3) ended the link with lyon (number 4): porto stops"),
    ]
    assert dialler.receive(PUBLISH, 0.0) == []


def test_goodbye_in_the_handshake_never_reads_as_a_welcome() -> None:
    for reason in Reason:
        pair = Pair()
        pair.to_acceptor(pair.dialler.take())
        assert pair.acceptor is not None
        pair.dialler.receive(pair.acceptor.take(), 0.0)
        pair.acceptor.goodbye(reason, "no")
        pair.acceptor.receive(pair.dialler.take(), 0.0)
        (closed,) = pair.dialler.receive(pair.acceptor.take(), 0.0)
        assert isinstance(closed, LinkClosed)
        assert closed.text == "porto (number 3) refused the link from lyon (number 4): no"


def test_a_lost_connection() -> None:
    dialler, _ = up_pair()
    (closed,) = dialler.connection_lost("reset by peer")
    assert closed.text == "the link between lyon (number 4) and porto (number 3) broke: reset by peer"
    assert dialler.connection_lost() == []
    assert dialler.handle_timer(99.0) == []


# keep-alive


def run(ends: list[Link], now: float, until: float, delay: float, deaf: bool = False) -> list[tuple[float, int, object]]:
    """Virtual time: timers at their deadlines, bytes arrive `delay` later (never, when deaf)."""
    flying: list[tuple[float, int, bytes]] = []
    events: list[tuple[float, int, object]] = []
    while True:
        due = [(deadline, i) for i, end in enumerate(ends) if (deadline := end.next_deadline()) is not None]
        due += [(at, i) for at, i, _ in flying[:1]]
        if not due or min(due)[0] > until:
            return events
        now = max(now, min(due)[0])
        while flying and flying[0][0] <= now:
            _, i, data = flying.pop(0)
            events += [(now, i, event) for event in ends[i].receive(data, now)]
        for i, end in enumerate(ends):
            if (deadline := end.next_deadline()) is not None and deadline <= now:
                events += [(now, i, event) for event in end.handle_timer(now)]
            data = end.take()
            if data and not deaf:
                flying.append((now + delay, 1 - i, data))


def test_an_idle_link_lives_on_pings() -> None:
    ends = list(up_pair())
    assert run(ends, 0.0, 3600.0, 0.25) == []
    assert all(end.state is State.UP for end in ends)


def test_a_peer_with_nothing_to_send_may_stand_still_for_four_fifths_of_the_silence() -> None:
    for stop in range(100):
        ends = list(up_pair())
        begin = 5.0 + stop / 100
        run(ends, 0.0, begin, 0.001)
        while (deadline := ends[0].next_deadline()) is not None and deadline < begin + 0.63:  # nothing comes from the other end
            assert ends[0].handle_timer(deadline) == []
        ends[0].receive(b"\xd0\0", begin + 0.63)
        assert ends[0].state is State.UP, stop


@pytest.mark.parametrize("delay", [0.05, 0.2])  # 0.4 s there and back are longer than from one ping to the next
def test_the_round_trip_is_measured_by_pings(delay: float) -> None:
    ends = list(up_pair())
    assert [end.round_trip for end in ends] == [None, None]
    run(ends, 0.0, 60.0, delay)
    assert [end.round_trip for end in ends] == [pytest.approx(2 * delay)] * 2


def test_an_answer_to_no_ping_measures_nothing() -> None:
    _, end = up_pair()
    assert end.receive(b"\xd0\0", 5.0) == []
    assert end.round_trip is None


def test_silence_ends_a_link_in_time() -> None:
    ends = list(up_pair())
    events = run(ends, 0.0, 10.0, 0.0, deaf=True)
    assert [(i, event.reason) for _, i, event in events] == [(0, Reason.KEEP_ALIVE_TIMEOUT), (1, Reason.KEEP_ALIVE_TIMEOUT)]
    assert all(at == pytest.approx(0.8) for at, _, _ in events)
    assert events[0][2].text == "lyon (number 4) heard nothing from porto (number 3) for 0.8 s"


@given(st.lists(st.floats(0.01, 0.75), min_size=1, max_size=30))
def test_any_byte_counts_as_life(gaps: list[float]) -> None:
    _, end = up_pair()
    now = 0.0
    for i, gap in enumerate(gaps):
        target = now + gap
        while (deadline := end.next_deadline()) is not None and deadline <= target:
            assert end.handle_timer(deadline) == []
        now = target
        assert end.receive(PUBLISH[1:] if i % 2 else PUBLISH[:1], now) in ([], [LinkData(PUBLISH)])
    assert end.state is State.UP
    while (deadline := end.next_deadline()) is not None:
        closed = end.handle_timer(deadline)
        last = deadline
    assert isinstance(closed[0], LinkClosed)
    assert last == pytest.approx(now + 0.8)


def test_a_process_that_was_held_up_hears_its_peer_out_before_it_judges() -> None:
    _, end = up_pair()
    assert end.handle_timer(60.0) == []
    assert end.take() == b"\xc0\x00"
    assert end.receive(PUBLISH, 60.001) == [LinkData(PUBLISH)]
    _, end = up_pair()
    end.handle_timer(60.0)
    times = []
    while (deadline := end.next_deadline()) is not None:
        times.append(deadline)
        events = end.handle_timer(deadline)
    assert isinstance(events[0], LinkClosed)
    assert times[-1] == pytest.approx(60.32)


def test_a_handshake_that_stalls_ends() -> None:
    pair = Pair()
    pair.to_acceptor(pair.dialler.take())
    assert pair.acceptor is not None
    for link in (pair.dialler, pair.acceptor):
        assert link.next_deadline() == CONFIG.handshake
        assert link.handle_timer(CONFIG.handshake - 0.1) == []
        (closed,) = link.handle_timer(CONFIG.handshake)
        assert "did not finish the handshake" in closed.text


def test_pings_are_answered_and_not_handed_on() -> None:
    dialler, acceptor = up_pair()
    assert acceptor.receive(b"\xc0\0" + PUBLISH + b"\xd0\0", 0.0) == [LinkData(PUBLISH)]
    assert acceptor.take() == b"\xd0\0"
    assert dialler.receive(b"\xd0\0\xc0\0", 0.0) == []
