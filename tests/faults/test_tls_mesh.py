"""A mesh of three whose brokers prove by certificates who they are: under load, with links that break and brokers that die.

And what must not come in: a member that takes another's name, a broker of another authority, one without a certificate,
a link without TLS. Each is told so in one line, and the mesh goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mqmesh.cli.demo.ring import free_ports
from mqmesh.cli.fleet.process import Fleet
from mqmesh.mesh.link.channel import Channel
from mqmesh.mesh.link.link import Link, LinkClosed, LinkConfig
from mqmesh.mesh.topology.settings import MeshSettings
from mqmesh.mesh.topology.tls import TlsSettings
from mqmesh.mesh.topology.topology import Topology
from mqmesh.mesh.wire.identity import Identity
from mqmesh.mesh.wire.keys import Signer
from support.certificates import Certificates
from support.command import start
from support.scenes import SIZES, TRIANGLE, Scene, assert_clean, both, mesh
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.slow


def encrypted(topology: Topology, certificates: Certificates, auth: str) -> Topology:
    """The same mesh with a TLS listener beside each plain one; links dial the former."""
    brokers = []
    for broker, port in zip(topology.brokers, free_ports(len(topology.brokers)), strict=True):
        name = certificates.broker(broker.name, "nowhere.example")  # no host that anybody dials
        tls = TlsSettings(certificates.certificate(name), certificates.key(name), None, certificates.ca, "required")
        brokers.append(replace(broker, listen=(*broker.listen, f"mqtts://127.0.0.1:{port}"), tls=tls))
    shared = topology.mesh
    settings = MeshSettings(shared.name, shared.key if auth == "both" else "", retry_last=1.0, auth=auth)
    return replace(topology, brokers=brokers, mesh=settings)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Scene]:
    topology = encrypted(mesh(TRIANGLE), certificates, "certificate")
    with Scene(topology, tmp_path_factory.mktemp("triangle")) as made:
        made.subscribe()
        made.publish(800)
        made.publish(200, sizes=SIZES)
        made.publish(100, qos=2)
        made.start()
        yield made


def links(scene: Scene, site: str) -> list[dict[str, object]]:
    status = scene.fleet.members[site].status
    assert status is not None
    return list(status["links"])


def test_links_run_over_tls_and_lose_nothing(scene: Scene) -> None:
    dialled = [link["address"] for site in scene.sites for link in links(scene, site) if str(link["address"]).startswith("mqtts://")]
    assert len(dialled) == 3
    assert {link["tls"] for site in scene.sites for link in links(scene, site)} == {"TLSv1.3"}
    assert "\nkey =" not in (scene.fleet.folder / "a.toml").read_text().partition("[tls]")[0]
    scene.load.wait(lambda: scene.load.sent >= 2000, 90)
    assert_clean(scene.check("stable"))


def test_a_link_is_cut(scene: Scene) -> None:
    assert_clean(scene.round(scene.cut(("a", "b")), 1.0))


def test_a_link_stalls(scene: Scene) -> None:
    assert_clean(scene.round(scene.silence(("b", "c")), 1.5))


def test_a_broker_is_killed(scene: Scene) -> None:
    assert_clean(scene.round(scene.kill("c"), 0.5))


def test_a_broker_is_killed_while_a_link_is_cut(scene: Scene) -> None:
    assert_clean(scene.round(both(scene.kill("b"), scene.cut(("a", "c"))), 0.5))


def closings(scene: Scene) -> list[str]:
    """The lines about links that ended, of all logs."""
    return [line for site in scene.sites for line in scene.fleet.log(site).read_text().splitlines() if "event=link-closed" in line]


def renew(scene: Scene, certificates: Certificates) -> list[str]:
    """Every broker gets a new certificate; the lines about links that ended meanwhile."""
    before = Counter(closings(scene))
    for site in scene.sites:
        certificates.broker(site, "nowhere.example", renew=True)
        log = scene.fleet.log(site)
        said = log.read_text().count("event=tls-reloaded")
        pid = scene.fleet.members[site].pid
        assert pid is not None
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda log=log, said=said: log.read_text().count("event=tls-reloaded") > said, PATIENCE, "reload")
    assert_clean(scene.check("renewed"))
    return list((Counter(closings(scene)) - before).elements())


def test_certificates_are_renewed_under_load(scene: Scene, certificates: Certificates) -> None:
    """No link breaks, and the next connections show the new ones. A link that a busy machine gives up says nothing: it is done again."""
    for _ in range(5):
        ended = renew(scene, certificates)
        if not any("heard nothing from" in line for line in ended):
            break
    assert ended == []
    assert_clean(scene.round(scene.cut(("a", "b")), 0.2))


# Who is not let in


class Stranger:
    """A broker that dials site a, and its log."""

    def __init__(self, scene: Scene, folder: Path, name: str, number: int, *options: str, scheme: str = "mqtts", mesh: str = "") -> None:
        self.log = folder / f"{name}.log"
        target = next(one for one in scene.fleet.topology.broker("a").listen if one.startswith(f"{scheme}://"))
        named = ("--name", name, "--number", number, "--mesh", mesh or scene.fleet.topology.mesh.name)
        command = ("broker", "--listen", "mqtt://127.0.0.1:0", *named, "--peer", target, *options)
        self.process = start(*command, stderr=self.log, env={key: value for key, value in os.environ.items() if key != "MQMESH_KEY"})

    def says(self, *words: str) -> None:
        def said() -> bool:
            return any(all(word in line for word in words) for line in self.log.read_text().splitlines())

        try:
            wait_until(said, PATIENCE, f"line with {words}")
        except AssertionError:
            raise AssertionError(self.log.read_text()) from None
        finally:
            self.process.terminate()
            assert self.process.wait(PATIENCE) == 0
            self.process.communicate()


def certified(folder: Path, certificates: Certificates, name: str, *more: str) -> list[str]:
    config = folder / "auth.toml"
    config.write_text('[mesh]\nauth = "certificate"\n' + "\n".join(more))
    return ["--config", str(config), *certificates.options(name, "optional")]


def said(scene: Scene, *words: str) -> bool:
    """Whether site a has logged a line with all of these words."""
    return any(all(word in line for word in words) for line in scene.fleet.log("a").read_text().splitlines())


def verdict(scene: Scene, context: ssl.SSLContext, name: str, number: int) -> str:
    """What site a says to a peer that shows any certificate and claims to be anybody; our own brokers would not even start."""
    target = next(one for one in scene.fleet.topology.broker("a").listen if one.startswith("mqtts://"))
    host, _, port = target.removeprefix("mqtts://").rpartition(":")
    with context.wrap_socket(socket.create_connection((host, int(port)), PATIENCE)) as sock:
        signer = Signer(bytes(32))
        claimed = Identity(scene.fleet.topology.mesh.name, name, number, uuid.uuid4(), 1, signer.public)
        channel = Channel(sock.get_channel_binding("tls-unique") or b"")
        link = Link.dial(claimed, b"", LinkConfig(channel=channel), 0.0, signer=signer)
        while True:
            sock.sendall(link.take())
            for event in link.receive(sock.recv(65536), 0.0):
                return event.text if isinstance(event, LinkClosed) else "up"


def test_a_member_cannot_take_another_name(scene: Scene, certificates: Certificates) -> None:
    """It is in the log, too: at once, or within a minute where something else of this host was refused for the same reason just before."""
    certificates.broker("mallory", "nowhere.example")
    text = "b (number 2) shows a certificate for mallory, nowhere.example: give it one that names b"

    def refused_and_logged() -> bool:
        assert text in verdict(scene, certificates.context("mallory", checks=False), "b", 2)
        return said(scene, "event=link-refused", text)

    wait_until(refused_and_logged, PATIENCE, f"line with {text!r} in a's log")
    assert_clean(scene.check("after"))


def test_a_member_cannot_take_another_number(scene: Scene, certificates: Certificates) -> None:
    text = "b (number 7) is not number 2, as a (number 1) has it (mesh.brokers)"
    assert text in verdict(scene, certificates.context("b", checks=False), "b", 7)
    assert_clean(scene.check("after"))


def test_a_client_cannot_be_a_broker(scene: Scene, certificates: Certificates) -> None:
    """A certificate that was given to a client, of the right authority: it may publish, and not link."""
    certificates.client("sensor")
    text = "sensor (number 9) shows a certificate that is for clients only"
    assert text in verdict(scene, certificates.context("sensor", checks=False), "sensor", 9)
    assert_clean(scene.check("after"))


def test_a_broker_whose_certificate_does_not_name_it_does_not_start(certificates: Certificates, tmp_path: Path) -> None:
    certificates.broker("mallory", "nowhere.example")
    options = certified(tmp_path, certificates, "mallory")
    process = start("broker", *options, "--name", "eve", "--number", 9, "--mesh", "m", stderr=tmp_path / "err")
    assert process.wait(PATIENCE) == 2
    process.communicate()
    text = (tmp_path / "err").read_text()
    assert "--tls-certificate" in text or "tls.certificate" in text
    assert "names mallory, nowhere.example: links need one that names this broker, eve (DNS name)" in text


def test_a_broker_that_the_topology_does_not_have(scene: Scene, certificates: Certificates, tmp_path: Path) -> None:
    certificates.broker("extra")
    words = "extra (number 9) is none of the brokers that a (number 1) lets in (mesh.brokers)"
    Stranger(scene, tmp_path, "extra", 9, *certified(tmp_path, certificates, "extra")).says(words)
    assert_clean(scene.check("after"))


def test_another_authority(scene: Scene, tmp_path: Path) -> None:
    others = Certificates(tmp_path / "others", "others")
    others.broker("eve")
    Stranger(scene, tmp_path, "eve", 9, *certified(tmp_path, others, "eve")).says("no TLS with mqtts://", "is not trusted here")
    assert_clean(scene.check("after"))


def test_a_certificate_of_another_authority_that_trusts_ours(scene: Scene, certificates: Certificates, tmp_path: Path) -> None:
    others = Certificates(tmp_path / "others", "others")
    others.broker("eve")
    options = certified(tmp_path, others, "eve")
    options[options.index("--tls-ca") + 1] = str(certificates.ca)
    Stranger(scene, tmp_path, "eve", 9, *options).says("it does not trust the authority of the certificate that was shown")
    wait_until(
        lambda: said(scene, "event=tls-refused", "its certificate is signed by an authority that is not trusted here"),
        PATIENCE,
        "line in a's log",
    )
    assert_clean(scene.check("after"))


def test_an_expired_certificate(scene: Scene, certificates: Certificates, tmp_path: Path) -> None:
    certificates.odd("late", (-9, -1), names=("late",))
    process = start(
        "broker", *certified(tmp_path, certificates, "late"), "--name", "late", "--number", 9, "--mesh", "m", stderr=tmp_path / "err"
    )
    assert process.wait(PATIENCE) == 2
    process.communicate()
    assert "late.crt" in (tmp_path / "err").read_text()
    assert "expired on" in (tmp_path / "err").read_text()


def test_a_link_without_tls(scene: Scene, tmp_path: Path) -> None:
    options = ["--mesh-key", "sixteen bytes or more"]
    Stranger(scene, tmp_path, "eve", 9, *options, scheme="mqtt").says("a (number 1) asks links for certificates (mesh.auth)", "shows none")
    assert_clean(scene.check("after"))


def test_a_link_with_tls_but_no_certificate(scene: Scene, certificates: Certificates, tmp_path: Path) -> None:
    options = ["--mesh-key", "sixteen bytes or more", "--tls-ca", str(certificates.ca)]
    Stranger(scene, tmp_path, "eve", 9, *options).says("it asks for a certificate, and none was shown: give one")
    wait_until(lambda: said(scene, "event=tls-refused", "it shows no certificate, and one is required here"), PATIENCE, "line in a's log")
    assert_clean(scene.check("after"))


def test_no_tls_at_the_tls_port(scene: Scene, tmp_path: Path) -> None:
    target = next(one for one in scene.fleet.topology.broker("a").listen if one.startswith("mqtts://"))
    command = ("broker", "--listen", "mqtt://127.0.0.1:0", "--name", "eve", "--number", 9, "--mesh-key", "sixteen bytes or more")
    log = tmp_path / "log"
    process = start(*command, "--peer", target.replace("mqtts", "mqtt"), stderr=log)
    wait_until(lambda: "speaks TLS, and eve (number 9) does not: write mqtts://" in log.read_text(), PATIENCE, "line")
    process.terminate()
    process.wait(PATIENCE)
    process.communicate()
    assert_clean(scene.check("after"))


def test_auth_both_needs_the_key_as_well(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    topology = encrypted(mesh([("a", "b")]), certificates, "both")
    with Scene(topology, tmp_path / "pair") as scene:
        scene.subscribe()
        scene.publish(200)
        scene.start()
        certificates.broker("eve")
        options = certified(tmp_path, certificates, "eve")
        Path(options[1]).write_text('[mesh]\nauth = "both"\nkey = "another key of sixteen"\n')
        Stranger(scene, tmp_path, "eve", 9, *options).says("a (number 1) and eve (number 9) have different keys for their mesh")
        Path(options[1]).write_text('[mesh]\nauth = "certificate"\n')
        Stranger(scene, tmp_path, "eve", 9, *options).says("eve (number 9) proves no key, and a (number 1) asks for one")
        assert_clean(scene.check("pair"))


def test_plain_asyncio_links_too(certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQMESH_LOOP", "asyncio")
    with Scene(encrypted(mesh([("a", "b")]), certificates, "certificate"), tmp_path) as scene:
        scene.subscribe()
        scene.publish(500)
        scene.publish(200, sizes=SIZES)
        scene.start()
        assert_clean(scene.round(scene.cut(("a", "b")), 0.3))


def test_what_travels_is_not_readable(certificates: Certificates, scene: Scene) -> None:
    """openssl sees TLS 1.3 at the listener, and no handshake without a certificate."""
    target = next(one for one in scene.fleet.topology.broker("a").listen if one.startswith("mqtts://"))
    command = ["openssl", "s_client", "-connect", target.removeprefix("mqtts://"), "-CAfile", certificates.ca, "-brief"]
    shown = subprocess.run(
        [*command, "-cert", certificates.certificate("b"), "-key", certificates.key("b")], input="", capture_output=True, text=True
    )
    assert "Protocol version: TLSv1.3" in shown.stderr
    assert "Verification: OK" in shown.stderr


class Between(threading.Thread):
    """Ends TLS between two brokers and passes on what they say: with certificates of their own authority, for both sides' names."""

    def __init__(self, certificates: Certificates, target: str) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtts://127.0.0.1:{self.listener.getsockname()[1]}"
        host, _, port = target.removeprefix("mqtts://").rpartition(":")
        self.target = host, int(port)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(certificates.certificate("a"), certificates.key("a"))
        self.server.load_verify_locations(certificates.ca)
        self.server.verify_mode = ssl.CERT_REQUIRED
        self.client = certificates.context("b", checks=False)
        self.carried: list[bytes] = []  # plain, of both directions

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self.listener.accept()
                with contextlib.suppress(OSError):
                    left = self.server.wrap_socket(plain, server_side=True)
                    right = self.client.wrap_socket(socket.create_connection(self.target))
                    for ends in ((left, right), (right, left)):
                        threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: ssl.SSLSocket, sink: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.carried.append(data)
                sink.sendall(data)
        for one in (source, sink):
            one.close()


@pytest.mark.parametrize("auth", ["certificate", "both", "key"])
def test_who_ends_tls_in_between_is_found_out(tmp_path: Path, auth: str) -> None:
    """One in the middle with certificates for both names, from the right authority: the link does not come up."""
    certificates = Certificates(tmp_path / "tls")
    topology = encrypted(mesh([("a", "b")]), certificates, "both")
    key = topology.mesh.key if auth != "certificate" else ""
    topology = replace(topology, mesh=replace(topology.mesh, auth=auth, key=key))
    target = next(one for one in topology.broker("a").listen if one.startswith("mqtts://"))
    middle = Between(certificates, target)
    middle.start()
    fleet = Fleet(replace(topology, links=[replace(topology.links[0], address=middle.url)]), tmp_path / "pair")
    with fleet:
        log = fleet.log("b")
        wait_until(lambda: "or something between them ends TLS" in log.read_text(), PATIENCE, "line")
        wait_until(lambda: any(b"mqmesh-1" in data for data in middle.carried), PATIENCE, "handshake in the middle")
        assert "event=link-up" not in log.read_text() + fleet.log("a").read_text()
    middle.listener.close()
