"""`[tls]`: each mistake in the table or in the files is one line that names file, key, value and what would be right."""

from __future__ import annotations

import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import load, parse
from mqmesh.broker.transport.tls.certificate import covers, for_servers
from mqmesh.broker.transport.tls.contexts import Contexts
from mqmesh.mesh.topology import topology
from mqmesh.mesh.topology.tls import TlsSettings
from support.certificates import Certificates

KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    certificates.broker("porto")
    certificates.broker("lyon")
    return certificates


def settings(made: Certificates, name: str = "porto", **changes: Any) -> TlsSettings:
    files = {"certificate": made.certificate(name), "key": made.key(name), "ca": made.ca, "client_certificates": "optional"}
    return TlsSettings(**{**files, **changes}, file="F")


# The table

MESH = {"name": "m", "auth": "certificate", "peer": [{"address": "mqtts://h:1"}]}
TLS = {"certificate": "c", "key": "k", "ca": "a"}
CERTIFIED = {"name": "a", "number": 1, "mesh": MESH}


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"tls": {"certificat": "x"}}, 'F: tls.certificat = "x": unknown key; did you mean "certificate"?'),
        ({"tls": {"certificate": "x"}}, "F: tls.key is missing: give the PEM file of the certificate's private key"),
        ({"tls": {"key": "x"}}, "F: tls.certificate is missing: give the PEM file of the certificate that key is for"),
        ({"tls": {"ca": 3}}, "F: tls.ca = 3: give the path of a PEM file"),
        (
            {"tls": {"client_certificates": "yes"}},
            'F: tls.client_certificates = "yes": give "none" or "optional" or "required"',
        ),
        (
            {"tls": {"client_certificates": "required"}},
            "F: tls.ca is missing: give the PEM file of the authorities that sign clients' certificates",
        ),
        ({"listen": ["mqtts://h:1"]}, 'F: listen = "mqtts://h:1": a TLS listener needs certificate and key in [tls]'),
        (
            {"name": "a", "number": 1, "mesh": {"name": "m", "key": KEY, "peer": [{"address": "mqtts://h:1"}]}},
            'F: mesh.peer[1].address = "mqtts://h:1": a TLS link needs ca in [tls]: the authority that signed the peer\'s certificate',
        ),
        (
            {**CERTIFIED, "mesh": {**MESH, "peer": []}},
            'F: mesh.auth = "certificate": give certificate in [tls]: links prove by certificates who they are',
        ),
        (
            {**CERTIFIED, "tls": TLS, "mesh": {**MESH, "peer": [{"address": "mqtt://h:1"}]}},
            'F: mesh.peer[1].address = "mqtt://h:1": auth = "certificate" needs TLS: write mqtts://HOST:PORT',
        ),
        (
            {**CERTIFIED, "tls": TLS, "listen": ["mqtts://h:1"]},
            'F: tls.client_certificates = "none": auth = "certificate" asks links for certificates: give "optional" or "required"',
        ),
        (
            {**CERTIFIED, "tls": TLS, "mesh": {**MESH, "key": KEY}},
            'F: mesh.key = (16 bytes): auth = "certificate" uses no key: leave it out, or give auth = "both"',
        ),
        (
            {**CERTIFIED, "tls": TLS, "mesh": {**MESH, "brokers": {"a": 1, "b": 1}}},
            "F: mesh.brokers.a = 1: another broker of the list has this number: give each its own",
        ),
        ({**CERTIFIED, "tls": TLS, "mesh": {**MESH, "brokers": ["a"]}}, "F: mesh.brokers = ['a']: make it a table: [mesh.brokers]"),
        ({**CERTIFIED, "mesh": {**MESH, "auth": "cert"}}, 'F: mesh.auth = "cert": give "key" or "certificate" or "both"'),
        (
            {**CERTIFIED, "tls": TLS, "mesh": {**MESH, "auth": "both"}},
            "F: mesh.key is missing: give the secret that all brokers of the mesh share, a string of at least 16 bytes",
        ),
    ],
)
def test_a_mistake_in_the_table(table: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(table, "F")
    assert str(raised.value) == line


def test_paths_are_relative_to_the_file_and_may_hold_the_name(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('name = "porto"\nlisten = ["mqtts://h:1"]\n[tls]\ncertificate = "tls/{name}.crt"\nkey = "/keys/{name}"\n')
    tls = load(file).tls
    assert tls is not None
    assert (tls.certificate, tls.key, tls.ca, tls.client_certificates) == (tmp_path / "tls/porto.crt", Path("/keys/porto"), None, "none")


TOPOLOGY = """
[mesh]
name = "m"
auth = "certificate"
[tls]
certificate = "{name}.crt"
key = "{name}.key"
ca = "ca.crt"
client_certificates = "optional"
[[broker]]
name = "porto"
number = 1
listen = ["mqtt://127.0.0.1:1", "mqtts://127.0.0.1:2"]
[[broker]]
name = "lyon"
number = 2
listen = "mqtt://127.0.0.1:3"
tls = { certificate = "other.crt" }
[[link]]
between = ["porto", "lyon"]
"""


def test_a_topology_shares_one_table_and_a_broker_goes_over_it(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(TOPOLOGY)
    loaded = topology.load(file)
    porto, lyon = (loaded.broker(name).tls for name in ("porto", "lyon"))
    assert porto is not None
    assert lyon is not None
    assert (porto.certificate, porto.key) == (tmp_path / "porto.crt", tmp_path / "porto.key")
    assert (lyon.certificate, lyon.key, lyon.ca) == (tmp_path / "other.crt", tmp_path / "lyon.key", tmp_path / "ca.crt")
    assert loaded.dial_address(loaded.links[0]) == "mqtts://127.0.0.1:2"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"mqtts://127.0.0.1:2"', "", 'link[1].between = "mqtt://127.0.0.1:1": auth = "certificate" needs TLS: write mqtts://HOST:PORT'),
        ('ca = "ca.crt"', "", "tls.ca is missing: give the PEM file of the authorities that sign clients' certificates"),
        ('{ certificate = "other.crt" }', "{ key = 1 }", "broker[2].tls.key = 1: give the path of a PEM file"),
    ],
)
def test_a_mistake_in_a_topology(tmp_path: Path, old: str, new: str, line: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(TOPOLOGY.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        topology.load(file)
    assert str(raised.value) == f"{file}: {line}"


# The files


def problem(given: TlsSettings) -> str:
    with pytest.raises(ConfigError) as raised:
        Contexts(given, listens=True)
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith("F: tls.")
    return text.removeprefix("F: tls.")


def test_right_files(made: Certificates) -> None:
    contexts = Contexts(settings(made), listens=True)
    assert contexts.server is not None
    assert contexts.client is not None
    own = contexts.own
    assert own is not None
    assert (own.server, own.client, contexts.warnings) == (True, True, [])
    assert own.names == {"porto", "localhost", "127.0.0.1", "::1"}


def test_a_file_that_is_not_there(made: Certificates, tmp_path: Path) -> None:
    nowhere = tmp_path / "a path so long that any other value would be cut before its end is to be seen" / "no"
    for key in ("certificate", "key", "ca"):
        assert problem(settings(made, **{key: nowhere})) == f'{key} = "{nowhere}": cannot be read: No such file or directory'


@pytest.mark.process
def test_a_file_that_is_not_pem(made: Certificates, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("nothing of the kind")
    assert problem(settings(made, certificate=words)).endswith(
        ': holds no certificate in PEM form: give a file with "-----BEGIN ..." lines'
    )
    der = tmp_path / "der"
    done = subprocess.run(["openssl", "x509", "-in", made.certificate("porto"), "-outform", "der", "-out", der], check=True)
    assert done.returncode == 0
    assert "holds no certificate in PEM form (DER: openssl x509 -inform der converts it)" in problem(settings(made, certificate=der))
    words.write_text("")
    assert problem(settings(made, key=words)).endswith(": holds no private key in PEM form: it is empty")
    words.write_text("-----BEGIN CERTIFICATE-----\nno base 64\n-----END CERTIFICATE-----\n")
    assert "cannot be used" in problem(settings(made, ca=words))
    assert "cannot be used" in problem(settings(made, certificate=words))


def test_files_that_were_mixed_up(made: Certificates) -> None:
    porto, lyon = made.certificate("porto"), made.key("lyon")
    assert problem(settings(made, key=lyon)) == f'key = "{lyon}": does not belong to {porto}: give the key that this was made with'
    assert problem(settings(made, key=porto)) == f'key = "{porto}": holds no private key in PEM form: it is a certificate'
    assert problem(settings(made, certificate=lyon)) == f'certificate = "{lyon}": holds no certificate in PEM form: it is a private key'


def test_a_certificate_out_of_its_time(made: Certificates) -> None:
    made.odd("old", (-9, -1))
    made.odd("young", (1, 9))
    made.odd("ending", (-9, 1))
    assert ": expired on " in problem(settings(made, "old"))
    assert ": is valid from " in problem(settings(made, "young"))
    assert [": renew it, then send SIGHUP" in one for one in Contexts(settings(made, "ending"), True).warnings] == [True]


@pytest.mark.parametrize("which", ["certificate", "key", "ca", "revoked"])
def test_a_file_that_is_cut_off(made: Certificates, tmp_path: Path, which: str) -> None:
    whole = {"revoked": made.revoked()}.get(which) or getattr(settings(made), which)
    cut = tmp_path / "cut.pem"
    cut.write_bytes(whole.read_bytes()[:-60])
    cut.chmod(0o600)
    assert "cut off or damaged" in problem(settings(made, **{which: cut}))


def test_a_revocation_list_out_of_its_time(made: Certificates) -> None:
    """It does not keep a broker from starting, and does not go unsaid: everybody whom its authority has certified is refused."""
    files = [
        made.revoked(days=-1).read_text(),
        made.revoked(days=200_000).read_text(),
        made.revoked().read_text(),
    ]  # some years have four digits
    assert [Contexts(settings(made, revoked=made.revoked(days=days)), True).warnings for days in (1, 200_000)] == [[], []]
    lists = made.revoked()
    lists.write_text(files[1] + files[2] + files[0])
    found = Contexts(settings(made, revoked=lists), True)
    assert ["has a revocation list that expired on " in one and "put its new list there" in one for one in found.warnings] == [True]
    assert found.lists_end is not None
    assert -1.1 < (found.lists_end - time.time()) / 86400 < -0.9


def test_an_authority_without_a_revocation_list(made: Certificates, tmp_path: Path) -> None:
    """Everybody whom it has certified is refused. One that certifies other authorities only, as far as the file shows, needs none."""
    (tmp_path / "other").mkdir()
    other = Certificates(tmp_path / "other", "other")
    both = tmp_path / "both.pem"
    both.write_text(made.ca.read_text() + other.ca.read_text())
    lists = made.revoked()
    found = Contexts(settings(made, ca=both, revoked=lists), True).warnings
    assert found == [
        f'{lists} has no revocation list of the authority "other authority": all certificates that it has signed are refused; '
        "put its list there, then send SIGHUP"
    ]
    lists.write_text(lists.read_text() + other.revoked().read_text())
    assert Contexts(settings(made, ca=both, revoked=lists), True).warnings == []
    other.odd("between", uses=(), authority=True)
    both.write_text(made.ca.read_text() + other.ca.read_text() + other.certificate("between").read_text())
    lists = made.revoked()
    found = Contexts(settings(made, ca=both, revoked=lists), True).warnings
    assert [one.split('"')[1] for one in found] == ["between"]


def test_a_certificate_for_another_use(made: Certificates) -> None:
    made.odd("only-client", (-1, 90), uses=("client",))
    assert "is not made for servers (extended key usage), and this broker has a TLS listener" in problem(settings(made, "only-client"))
    own = Contexts(settings(made, "only-client"), listens=False).own
    assert own is not None
    assert (own.server, own.client, own.names) == (False, True, {"only-client"})


def test_a_certificate_that_links_would_refuse(made: Certificates) -> None:
    Contexts(settings(made), True, broker="porto")
    with pytest.raises(ConfigError) as raised:
        Contexts(settings(made), True, broker="lyon")
    assert "names 127.0.0.1, ::1, localhost, porto: links need one that names this broker, lyon (DNS name)" in str(raised.value)
    made.odd("half", (-1, 90), uses=("server",))
    with pytest.raises(ConfigError) as raised:
        Contexts(settings(made, "half"), True, broker="half")
    assert "is not made for clients (extended key usage): links need one for servers and clients" in str(raised.value)


@pytest.mark.process
def test_a_key_with_a_password(made: Certificates, tmp_path: Path) -> None:
    locked, password = tmp_path / "locked.key", tmp_path / "password"
    password.write_text("open sesame\n")
    subprocess.run(["openssl", "pkey", "-in", made.key("porto"), "-aes256", "-passout", f"file:{password}", "-out", locked], check=True)
    locked.chmod(0o600)
    assert problem(settings(made, key=locked)).endswith("is encrypted: give key_password_file, a file with its password in the first line")
    assert Contexts(settings(made, key=locked, key_password_file=password), True).warnings == []
    password.write_text("open says me\n")
    text = problem(settings(made, key=locked, key_password_file=password))
    assert text == f'key_password_file = "{password}": does not open {locked}: give the file with its password'
    password.write_text("\n")
    assert problem(settings(made, key=locked, key_password_file=password)).endswith("has no password in its first line")


def test_a_key_that_others_can_read(made: Certificates, tmp_path: Path) -> None:
    key = tmp_path / "open.key"
    key.write_bytes(made.key("porto").read_bytes())
    key.chmod(0o640)
    assert Contexts(settings(made, key=key), True).warnings == [f"{key} has mode 0640: others can reach the private key; chmod 600 {key}"]


def test_which_uses_a_certificate_names(made: Certificates) -> None:
    made.client("desk")
    made.odd("any", uses=("any",))
    made.odd("nothing", uses=())
    found = {
        name: for_servers(ssl.PEM_cert_to_DER_cert(made.certificate(name).read_text())) for name in ("porto", "desk", "any", "nothing")
    }
    assert found == {"porto": True, "desk": False, "any": True, "nothing": False}
    assert not for_servers(b"")


def test_hosts_that_a_certificate_covers() -> None:
    given = frozenset(("porto", "*.example.com", "10.0.0.7"))
    for host in ("porto", "PORTO", "a.example.com", "10.0.0.7", "porto."):
        assert covers(given, host)
    for host in ("lyon", "example.com", "a.b.example.com", "10.0.0.8", "", "com"):
        assert not covers(given, host)
