"""Where a push may go, and how it is signed."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from pathlib import Path

import pytest
from mqmesh.interchange.gateway.webhook import PushError, Sender, is_in, is_public, signature
from support.certificates import Certificates

HERE = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1", True),
        *(
            (one, False)
            for one in ("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1")
        ),
        *((one, False) for one in ("224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1")),
        *(
            (one, False)
            for one in ("::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::127.0.0.1")
        ),
        *((one, False) for one in ("64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "::ffff:169.254.169.254")),
    ],
)
def test_only_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_networks_that_policy_names() -> None:
    assert is_in("10.1.2.3", HERE)
    assert is_in("::ffff:10.1.2.3", HERE)
    assert is_in("fd12::1", HERE)
    assert not is_in("10.2.0.1", HERE)
    assert not is_in("127.0.0.1", HERE)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of the specification's reference libraries."""
    body = b'{"test": 2432232314}'
    id, timestamp = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", id, timestamp, body) == expected


async def test_a_receiver_may_ask_who_pushes(tmp_path: Path) -> None:
    """l. 92: the receiver shows a certificate, and asks for one of the interchange."""
    made = Certificates(tmp_path)
    made.broker("receiver")
    made.client("interchange")
    shown: list[object] = []

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown.append(dict(one[0] for one in writer.get_extra_info("peercert")["subject"])["commonName"])
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    asks = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(made.ca))
    asks.load_cert_chain(made.certificate("receiver"), made.key("receiver"))
    asks.verify_mode = ssl.CERT_REQUIRED
    server = await asyncio.start_server(receive, "127.0.0.1", 0, ssl=asks)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
    nearby = [ipaddress.ip_network("127.0.0.0/8")]
    known = Sender(nearby, made.ca, made.certificate("interchange"), made.key("interchange"))
    nobody = Sender(nearby, made.ca)
    try:
        assert (await known.post(url, {}, b"?")).status == 204
        with pytest.raises(PushError):
            await nobody.post(url, {}, b"?")
        assert shown == ["interchange"]
    finally:
        known.close()
        nobody.close()
        server.close()
