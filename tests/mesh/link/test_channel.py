"""The link's handshake over TLS: proofs bound to the connection, and certificates that have to name the broker."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.link.channel import Channel
from mqmesh.mesh.link.link import Event, Link, LinkClosed, LinkConfig, LinkUp
from mqmesh.mesh.wire.identity import Identity
from mqmesh.mqtt import codec
from mqmesh.mqtt.framing import Framer

KEY = b"the key of this mesh"
PORTO = Identity("sites", "porto", 3, UUID(int=3), 1000)
LYON = Identity("sites", "lyon", 4, UUID(int=4), 2000)
ONE, OTHER = b"finished of one", b"finished of another"


def names(*given: str) -> frozenset[str]:
    return frozenset(given)


def met(dialler: LinkConfig, acceptor: LinkConfig, keys: tuple[bytes, bytes] = (KEY, KEY)) -> tuple[Event, Event]:
    """lyon dials porto; the last event of each."""
    down = Link.dial(LYON, keys[0], dialler, 0.0)
    ((first, body),) = Framer(100_000).feed(down.take())
    connect = codec.decode(first, bytes(body), 5)
    up = Link.accept(PORTO, keys[1], acceptor, connect, b"", 0.0)
    events: tuple[list[Event], list[Event]] = ([], up.receive(b"", 0.0))
    for _ in range(4):
        events[0].extend(down.receive(up.take(), 0.0))
        events[1].extend(up.receive(down.take(), 0.0))
    assert len(events[0]) == len(events[1]) == 1
    return events[0][0], events[1][0]


def refused(both: tuple[Event, Event]) -> str:
    """The reason, which both ends have."""
    for event in both:
        assert isinstance(event, LinkClosed)
    return both[0].text if "refused the link" not in both[0].text else both[1].text


def over(binding: bytes, certificate: frozenset[str] | None = None, name: str | None = None) -> LinkConfig:
    return LinkConfig(where="mqtts://h:1", name=name, channel=Channel(binding, certificate))


@pytest.mark.parametrize("keys", [(KEY, KEY), (b"", b"")])
@pytest.mark.parametrize("certificates", [True, False])
def test_both_ends_of_one_connection_come_up(keys: tuple[bytes, bytes], certificates: bool) -> None:
    dialled, accepted = (names("porto", "h"), names("lyon")) if certificates else (None, None)
    events = met(over(ONE, dialled), over(ONE, accepted), keys)
    assert [type(event) for event in events] == [LinkUp, LinkUp]


def test_without_tls_nothing_changes() -> None:
    assert [type(event) for event in met(LinkConfig(), LinkConfig())] == [LinkUp, LinkUp]


@pytest.mark.parametrize("key", [KEY, b""])
@pytest.mark.parametrize("bindings", [(ONE, OTHER), (ONE, b""), (b"", OTHER)])
def test_who_ends_tls_in_between_and_passes_the_handshake_on_is_found_out(bindings: tuple[bytes, bytes], key: bytes) -> None:
    """Both sides trust the one in the middle for the other (names are not even looked at): the proofs do not fit."""
    for event in met(over(bindings[0]), over(bindings[1]), (key, key)):
        assert isinstance(event, LinkClosed)


def test_the_end_that_sees_it_says_that_tls_ends_in_between() -> None:
    dialler, acceptor = met(over(ONE), over(b""))
    assert isinstance(dialler, LinkClosed)
    assert isinstance(acceptor, LinkClosed)
    assert "something between them ends TLS: let it pass TLS through" in dialler.text
    assert "are not the two ends of one TLS connection" in refused(met(over(b""), over(ONE)))


def test_no_key_is_worth_nothing_without_tls() -> None:
    text = refused(met(LinkConfig(), LinkConfig(), (b"", b"")))
    assert text == "porto (number 3) asks links for certificates (mesh.auth), and lyon (number 4) shows none: " + (
        "give it [tls] certificate, and mqtts:// to dial"
    )


@pytest.mark.parametrize("where", [0, 1])
def test_a_certificate_names_its_broker_and_no_other(where: int) -> None:
    """A member of the mesh with a right certificate takes the name of another one."""
    configs = [over(ONE, names("porto")), over(ONE, names("lyon"))]
    configs[where] = over(ONE, names("braga", "braga.example.com"))
    claimed = ("porto (number 3)", "lyon (number 4)")[where]
    text = refused(met(*configs))
    assert text == f"{claimed} shows a certificate for braga, braga.example.com: give it one that names {claimed.split()[0]}"


def test_a_dialler_without_a_certificate_is_refused_where_they_count() -> None:
    assert "lyon (number 4) shows none" in refused(met(over(ONE, names("porto")), over(ONE, names())))


def test_another_broker_at_the_address_is_refused_when_a_name_is_expected() -> None:
    text = refused(met(over(ONE, names("porto"), "braga"), over(ONE, names("lyon"))))
    assert text == "mqtts://h:1 is porto (number 3), where lyon (number 4) expects braga: correct the address or the name"


def test_a_certificate_that_is_no_brokers() -> None:
    flawed = LinkConfig(channel=Channel(ONE, names("lyon"), "is for clients only"))
    assert refused(met(over(ONE, names("porto")), flawed)) == "lyon (number 4) shows a certificate that is for clients only"


@pytest.mark.parametrize(
    ("brokers", "text"),
    [
        ({"porto": 3, "lyon": 4}, ""),
        (
            {"porto": 3},
            "lyon (number 4) is none of the brokers that porto (number 3) lets in (mesh.brokers): correct the list, or the broker",
        ),
        ({"lyon": 5}, "lyon (number 4) is not number 5, as porto (number 3) has it (mesh.brokers): correct the list, or the broker"),
        ({}, "lyon (number 4) is none of the brokers"),
    ],
)
def test_brokers_that_are_listed(brokers: dict[str, int], text: str) -> None:
    events = met(LinkConfig(), LinkConfig(brokers=brokers))
    if text:
        assert text in refused(events)
    else:
        assert [type(event) for event in events] == [LinkUp, LinkUp]
    events = met(LinkConfig(brokers=brokers), LinkConfig())
    assert isinstance(events[0], LinkUp if brokers.get("porto") == 3 else LinkClosed)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ((b"one", b"another"), "porto (number 3) and lyon (number 4) have different keys"),
        (
            (b"", KEY),
            "lyon (number 4) proves no key, and porto (number 3) asks for one: give both the same mesh.auth, and the key",
        ),
        (
            (KEY, b""),
            "porto (number 3) has no key, and lyon (number 4) seems to prove one, or something between them ends TLS: "
            "give both the same mesh.auth",
        ),
    ],
)
def test_keys_that_do_not_fit(keys: tuple[bytes, bytes], text: str) -> None:
    assert text in refused(met(over(ONE, names("porto")), over(ONE, names("lyon")), keys))


def test_tls_at_the_address_is_told_from_no_broker() -> None:
    link = Link.dial(LYON, KEY, LinkConfig(where="mqtt://h:1"), 0.0)
    (closed,) = link.receive(b"\x15\x03\x03\x00\x02\x02\x46", 0.0)
    assert isinstance(closed, LinkClosed)
    assert closed.text == "mqtt://h:1 speaks TLS, and lyon (number 4) does not: write mqtts:// and its port with TLS"


@given(key=st.binary(max_size=40), one=st.binary(min_size=1, max_size=48), other=st.binary(min_size=1, max_size=48))
def test_a_bound_key_is_another_for_each_connection(key: bytes, one: bytes, other: bytes) -> None:
    assert Channel().bind(key) == key
    bound = Channel(one).bind(key)
    assert bound != key
    assert (bound == Channel(other).bind(key)) is (one == other)
