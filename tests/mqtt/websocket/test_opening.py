"""The opening handshake: both ends against each other, against the package `websockets`, and against what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mqtt.websocket.opening import LONGEST_HEAD, Answer, ClientOpening, ServerOpening, accept_key, normal_origin, origin_allowed

KEY = b"0123456789abcdef"
LINES = (
    "GET /mqtt HTTP/1.1",
    "Host: 127.0.0.1:9001",
    "Upgrade: WebSocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Protocol: other, mqtt",
)


def request(*changes: tuple[str, str | None], more: tuple[str, ...] = ()) -> bytes:
    """A good request in which lines that begin so are replaced, or left out (None)."""
    lines = list(LINES)
    for begin, line in changes:
        (index,) = (i for i, one in enumerate(lines) if one.startswith(begin))
        lines[index : index + 1] = [] if line is None else [line]
    return "\r\n".join([*lines, *more, "", ""]).encode("latin-1")


def ask(data: bytes, origins: tuple[str, ...] = ()) -> Answer:
    answer = ServerOpening("/mqtt", origins).feed(data)
    assert answer is not None
    return answer


def test_the_example_of_the_rfc() -> None:
    assert accept_key(b"dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    answer = ask(request())
    assert (answer.status, answer.subprotocol) == (101, "mqtt")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer.reply
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in answer.reply


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.binary(max_size=40))
def test_any_chunks_do_and_what_comes_behind_is_kept(chunks: list[int], rest: bytes) -> None:
    server, wire = ServerOpening("/mqtt"), request() + rest
    position, answer = 0, None
    while answer is None:
        size = chunks[position % len(chunks)]
        answer = server.feed(wire[position : position + size])
        position += size
    assert answer.status == 101
    assert answer.rest + wire[position:] == rest


def test_who_is_given_no_path_asks_for_the_root() -> None:
    root = request(("GET", "GET / HTTP/1.1"))
    assert ask(root).status == 101
    elsewhere = ServerOpening("/broker").feed(root)
    assert elsewhere is not None
    assert elsewhere.status == 404


def test_mqtt_3_1_has_a_subprotocol_of_its_own() -> None:
    assert ask(request(("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: mqttv3.1"))).subprotocol == "mqttv3.1"
    assert ask(request(("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: mqttv3.1, mqtt"))).subprotocol == "mqtt"


REFUSED = {
    "post": (request(("GET", "POST /mqtt HTTP/1.1")), 405),
    "http 1.0": (request(("GET", "GET /mqtt HTTP/1.0")), 505),
    "http 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "another path": (request(("GET", "GET /other HTTP/1.1")), 404),
    "no host": (request(("Host", None)), 400),
    "two hosts": (request(more=("Host: b",)), 400),
    "a web page": (b"GET /mqtt HTTP/1.1\r\nHost: a\r\n\r\n", 426),
    "no upgrade": (request(("Connection", "Connection: keep-alive")), 426),
    "another version": (request(("Sec-WebSocket-Version", "Sec-WebSocket-Version: 8")), 426),
    "no key": (request(("Sec-WebSocket-Key", None)), 400),
    "short key": (request(("Sec-WebSocket-Key", "Sec-WebSocket-Key: dGhl")), 400),
    "key that is no base64": (request(("Sec-WebSocket-Key", "Sec-WebSocket-Key: ????")), 400),
    "a body": (request(more=("Content-Length: 5",)), 400),
    "chunks": (request(more=("Transfer-Encoding: chunked",)), 400),
    "no subprotocol": (request(("Sec-WebSocket-Protocol", None)), 400),
    "another subprotocol": (request(("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: stomp")), 400),
    "subprotocol in capitals": (request(("Sec-WebSocket-Protocol", "Sec-WebSocket-Protocol: MQTT")), 400),
    "a page from elsewhere": (request(more=("Origin: https://evil.example",)), 403),
    "a local file": (request(more=("Origin: null",)), 403),
    "two origins": (request(more=("Origin: http://127.0.0.1:9001", "Origin: https://evil.example")), 400),
    "folded header": (request(more=("X: a", " b")), 400),
    "space before the colon": (request(more=("X : a",)), 400),
    "line feeds alone": (request().replace(b"\r\n", b"\n") + b"\r\n\r\n", 400),
    "a line feed in a header": (request(more=("X: a\nOrigin: b",)), 400),
    "many headers": (request(more=tuple(f"X{i}: a" for i in range(70))), 431),
    "huge header": (request(more=("X: " + "a" * 9000,)), 431),
    "a line without an end": (b"GET /" + b"a" * LONGEST_HEAD, 431),
    "noise": (bytes(range(256)), 400),
    "mqtt": (b"\x10\x0c\0\4MQTT\5\2\0\0\0\0\0", 400),
    "tls": (b"\x16\3\1\2\0\1\0\1\xfc", 400),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_with_its_status(case: str) -> None:
    data, status = REFUSED[case]
    answer = ask(data)
    assert answer.status == status
    assert answer.reply.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.reply.endswith(f"\r\n\r\n{answer.text}\n".encode())
    server = ServerOpening("/mqtt")
    one_by_one = next(found for byte in data if (found := server.feed(bytes((byte,)))) is not None)
    assert one_by_one.status == status


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_waited_for(data: bytes) -> None:
    answer = ServerOpening("/mqtt").feed(data)
    assert answer is None or answer.status >= 400


@given(st.binary(max_size=300))
def test_a_client_takes_no_answer_but_the_right_one(data: bytes) -> None:
    answer = ClientOpening("h", "/mqtt", KEY).feed(b"HTTP/1.1 101 \r\n" + data + b"\r\n\r\n")
    assert answer is None or (answer.status != 101 and answer.text)


ORIGINS = (  # Origin, Host, whether it is let in without being listed
    ("http://127.0.0.1:9001", "127.0.0.1:9001", True),
    ("http://localhost:9001", "localhost:9001", True),
    ("http://[::1]:9001", "[::1]:9001", True),
    ("https://broker.example.com:9001", "broker.example.com:9001", True),
    ("https://broker.example.com", "broker.example.com", True),
    ("http://broker.example.com:9001", "broker.example.com:9001", False),  # a name that may have been rebound
    ("http://127.0.0.1:8000", "127.0.0.1:9001", False),
    ("https://evil.example", "127.0.0.1:9001", False),
    ("https://127.0.0.1.evil.example:9001", "127.0.0.1:9001", False),
    ("null", "null", False),
    ("file://", "127.0.0.1:9001", False),
    ("", "", False),
    ("chrome-extension://abc", "abc", False),
    ("https://user@broker.example.com", "broker.example.com", False),
    ("https://broker.example.com", "user@broker.example.com", False),
)


@pytest.mark.parametrize(("origin", "host", "right"), ORIGINS)
def test_origins_that_nobody_listed(origin: str, host: str, right: bool) -> None:
    assert origin_allowed(origin, host, ()) is right


def test_origins_that_somebody_listed() -> None:
    listed = tuple(map(normal_origin, ("https://app.example.com:443", "HTTP://Localhost:8080", "null")))
    assert listed == ("https://app.example.com", "http://localhost:8080", "null")
    for origin in ("https://app.example.com", "https://app.example.com:443", "http://localhost:8080", "null"):
        assert origin_allowed(origin, "127.0.0.1:9001", listed)
    for origin in ("http://app.example.com", "https://app.example.com:8443", "https://app.example.com.evil.example", "http://localhost"):
        assert not origin_allowed(origin, "127.0.0.1:9001", listed)
    assert origin_allowed("https://anybody.example", "x", ("*",))


@pytest.mark.parametrize("text", ["app.example.com", "https://", "https://a/b", "https://a?b", "https://a:x", "", "**"])
def test_what_is_no_origin(text: str) -> None:
    with pytest.raises(ValueError, match="write an origin"):
        normal_origin(text)


# The client's end


def test_both_ends_agree() -> None:
    client, server = ClientOpening("127.0.0.1:9001", "/mqtt", KEY), ServerOpening("/mqtt")
    answer = server.feed(client.request)
    assert answer is not None
    done = client.feed(answer.reply + b"\x20\2\0\0")
    assert done is not None
    assert (done.status, done.rest, done.subprotocol) == (101, b"\x20\2\0\0", "mqtt")


ANSWERS = {
    "another key": (lambda reply: reply.replace(b"Accept: ", b"Accept: x"), "another WebSocket handshake"),
    "no subprotocol": (lambda reply: reply.replace(b"Sec-WebSocket-Protocol: mqtt\r\n", b""), "MQTT-6.0.0-4"),
    "no upgrade": (lambda reply: reply.replace(b"Upgrade: websocket\r\n", b""), "no upgrade"),
    "an extension": (lambda reply: reply[:-2] + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n", "extension"),
    "a refusal": (lambda reply: b"HTTP/1.1 403 Forbidden\r\n\r\n", "refuses WebSocket: 403 Forbidden"),
    "mqtt": (lambda reply: b"\x20\2\0\0" + bytes(9000), "HTTP"),
    "no end": (lambda reply: reply[:-4] + b"\r\nX: " + b"a" * 9000, "8192"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_client_finds_what_is_wrong_with_an_answer(case: str) -> None:
    spoil, text = ANSWERS[case]
    client = ClientOpening("127.0.0.1:9001", "/mqtt", KEY)
    good = ServerOpening("/mqtt").feed(client.request)
    assert good is not None
    done = client.feed(spoil(good.reply))
    assert done is not None
    assert done.status != 101
    assert text in done.text


def test_our_ends_and_those_of_websockets() -> None:
    from websockets.client import ClientProtocol
    from websockets.server import ServerProtocol
    from websockets.uri import parse_uri

    theirs = ClientProtocol(parse_uri("ws://127.0.0.1:9001/mqtt"), subprotocols=["mqtt"])
    theirs.send_request(theirs.connect())
    answer = ServerOpening("/mqtt").feed(b"".join(theirs.data_to_send()))
    assert answer is not None
    theirs.receive_data(answer.reply)
    assert theirs.handshake_exc is None
    assert theirs.subprotocol == "mqtt"
    ours, server = ClientOpening("127.0.0.1:9001", "/mqtt", KEY), ServerProtocol(subprotocols=["mqtt"])
    server.receive_data(ours.request)
    (asked,) = server.events_received()
    server.send_response(server.accept(asked))
    done = ours.feed(b"".join(server.data_to_send()))
    assert done is not None
    assert done.status == 101
